"""Fit every GPU's efficiencies to measurements.

Two thirds of the points are fitted on (`solver.samples` says which), and the error in a constant's `Evidence`
is of the rest. A GPU known by whole layers only gets what those can tell apart, and the rest scaled from a
related one; a GPU that nobody measured borrows all (`solver.borrowing`).
"""

from collections.abc import Mapping, Sequence

from schemas.catalog import Gpu
from schemas.performance import Collective, Efficiencies, Efficiency, Evidence, Roof
from solver.borrowing import LOANS, PCIE, ROOT, depth, first_guess, lent
from solver.fitting_engine import fit_engine
from solver.kernels import Kernels
from solver.layer_samples import helix
from solver.least_squares import evidence_of, round_to, solve_samples
from solver.measurements import Measured
from solver.samples import Sample, collectives, kernel_samples
from solver.serving_points import points

BOUNDS = {
    "compute": (0.01, 1.2),
    "bandwidth": (0.05, 1.2),
    "launch_s": (1e-7, 2e-4),
    "overlap": (1.0, 20.0),
    "quantising": (0.01, 1.2),
    "share": (0.01, 1.2),
    "latency_s": (1e-7, 1e-3),
    "ramp_bytes": (1.0, 1e8),
}


def fit(measured: Measured, gpus: Sequence[Gpu]) -> Efficiencies:
    """Efficiencies of all these GPUs, in their order.

    Raises:
        ValueError: a GPU is neither measured nor said which other one it is like.
    """
    by_name = {gpu.name: gpu for gpu in gpus}
    found: dict[str, Efficiency] = {}
    pcie = _fit_all_reduces(measured, by_name[PCIE]) if PCIE in by_name else ()
    for name in sorted(by_name, key=lambda name: (depth(name), name)):
        found[name] = fit_gpu(measured, by_name[name], found, pcie)
    kernels = {name: Kernels(by_name[name], efficiency) for name, efficiency in found.items()}
    engine = fit_engine(list(points(measured, by_name)), kernels, found[ROOT])
    return Efficiencies(gpus=tuple(engine.with_it(found[gpu.name]) for gpu in gpus))


def fit_gpu(
    measured: Measured, gpu: Gpu, found: Mapping[str, Efficiency], pcie: tuple[Collective, ...]
) -> Efficiency:
    """One GPU, but for what is the engine's; `found` holds the one it borrows from."""
    if gpu.name == ROOT:
        efficiency = first_guess(gpu.name)
    else:
        efficiency = lent(gpu, found[_lender(gpu.name, found)], pcie)
    efficiency = _fit_layers(measured, gpu, efficiency)
    kernels: dict[str, list[Sample]] = {}
    for sample in kernel_samples(measured, gpu.name):
        kernels.setdefault(sample.what, []).append(sample)
    for what, samples in kernels.items():
        efficiency = efficiency.model_copy(update={what: _fit_roof(gpu, efficiency, what, samples)})
    if "matmul_fp8" in kernels:
        efficiency = _fused(efficiency)
    if reduced := _fit_all_reduces(measured, gpu):
        efficiency = efficiency.model_copy(update={"all_reduce": reduced})
    return efficiency


def _lender(gpu: str, found: Mapping[str, Efficiency]) -> str:
    lender = LOANS[gpu].of
    if lender not in found:
        raise ValueError(f"{gpu}: borrows from {lender}, which the catalog has not")
    return lender


# ---------------------------------------------------------------------------------------------- one kernel


def _fit_roof(gpu: Gpu, efficiency: Efficiency, what: str, samples: list[Sample]) -> Roof:
    names = (
        ["bandwidth", "launch_s"]
        if what == "elementwise"
        else ["compute", "bandwidth", "launch_s", "overlap"]
    )
    start: Roof = getattr(efficiency, what) or getattr(efficiency, what.removesuffix("_fp8"))
    if what.endswith("_fp8"):
        names.append("quantising")
        start = start.model_copy(update={"quantising": 0.2})

    def kernels(values: Sequence[float]) -> Kernels:
        roof = start.model_copy(update=dict(zip(names, values, strict=True)))
        return Kernels(gpu, efficiency.model_copy(update={what: roof}))

    first = [float(getattr(start, name)) for name in names]
    values = solve_samples(kernels, samples, first, [BOUNDS[name] for name in names])
    evidence = evidence_of(samples, kernels(values))
    return start.model_copy(update=dict(zip(names, values, strict=True)) | {"evidence": evidence})


def _fused(efficiency: Efficiency) -> Efficiency:
    """fp8 products as an engine runs them: activations are narrowed by the kernel before, in its own pass.

    The benchmark narrows them in a pass of its own, at a tenth of the bandwidth, and counts its launch.
    """
    roof = efficiency.matmul_fp8
    if roof is None:
        return efficiency
    said = f"{roof.evidence.fitted_on}; then with the launch of 16 bits and narrowing at the speed of norms"
    fused = {
        "launch_s": min(roof.launch_s, efficiency.matmul.launch_s),
        "quantising": efficiency.elementwise.bandwidth,
        "evidence": roof.evidence.model_copy(update={"fitted_on": said}),
    }
    return efficiency.model_copy(update={"matmul_fp8": roof.model_copy(update=fused)})


def _fit_all_reduces(measured: Measured, gpu: Gpu) -> tuple[Collective, ...]:
    return tuple(_fit_all_reduce(gpu, *pair) for pair in collectives(measured, gpu.name))


def _fit_all_reduce(gpu: Gpu, count: int, sample: Sample) -> Collective:
    names = ["share", "latency_s", "ramp_bytes"]
    start = Collective(gpus=count, share=0.5, latency_s=1e-5, evidence=Evidence(assumed="to be fitted"))

    def kernels(values: Sequence[float]) -> Kernels:
        link = start.model_copy(update=dict(zip(names, values, strict=True)))
        return Kernels(gpu, first_guess(gpu.name).model_copy(update={"all_reduce": (link,)}))

    values = solve_samples(kernels, [sample], [0.7, 1e-5, 1e6], [BOUNDS[name] for name in names])
    evidence = evidence_of([sample], kernels(values))
    return start.model_copy(update=dict(zip(names, values, strict=True)) | {"evidence": evidence})


# -------------------------------------------------------------------------------------------- whole layers

DECODE_ATTENTION_AT_MOST = 0.9
"""Share of the bandwidth. No measured kernel is above: beyond it, contexts were shorter than labelled."""


def _fit_layers(measured: Measured, gpu: Gpu, start: Efficiency) -> Efficiency:
    """What layer times tell apart: matrix products, reading the cache, collectives by number of GPUs."""
    samples = list(helix(measured, gpu.name))
    if not samples:
        return start
    counts = sorted({int(n) for n in measured["layers"].of(gpu=gpu.name)["tp"] if n > 1})

    def kernels(values: Sequence[float]) -> Kernels:
        return Kernels(gpu, _by_layers(start, values, counts, start.matmul.evidence))

    first = [start.matmul.compute, start.matmul.bandwidth, 1e-5, 0.8, *(0.2 for _ in counts)]
    bounds = [
        *(BOUNDS[name] for name in ("compute", "bandwidth", "launch_s")),
        (0.05, DECODE_ATTENTION_AT_MOST),
        *(BOUNDS["share"] for _ in counts),
    ]
    values = solve_samples(kernels, samples, first, bounds)
    return _by_layers(start, values, counts, evidence_of(samples, kernels(values)))


def _by_layers(start: Efficiency, values: Sequence[float], counts: list[int], said: Evidence) -> Efficiency:
    """`values`: compute, bandwidth and launch of matrix products, bandwidth of the cache, shares of links."""
    compute, bandwidth, launch, cache, *shares = values
    slower = compute / start.matmul.compute
    changes: dict[str, object] = {}
    for name in ("matmul_fp8", "experts", "experts_fp8", "experts_4bit", "prefill_attention"):
        roof: Roof | None = getattr(start, name)
        if roof is not None:
            changes[name] = roof.model_copy(update={"compute": min(1.2, round_to(roof.compute * slower))})
    changes["matmul"] = start.matmul.model_copy(
        update={"compute": compute, "bandwidth": bandwidth, "launch_s": launch, "evidence": said}
    )
    changes["decode_attention"] = start.decode_attention.model_copy(
        update={"bandwidth": cache, "evidence": said}
    )
    measured = tuple(
        start.all_reduce_over(n).model_copy(update={"gpus": n, "share": share, "evidence": said})
        for n, share in zip(counts, shares, strict=True)
    )
    worst = min((c.share for c in measured), default=1.2)
    more = tuple(
        c.model_copy(update={"share": min(c.share, worst)}) for c in start.all_reduce if c.gpus not in counts
    )
    changes["all_reduce"] = measured + more
    return start.model_copy(update=changes)
