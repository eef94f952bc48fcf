"""Demand that prefill and decode instances may share, where a set-up has them beside `both`."""

from collections.abc import Iterator, Sequence

from schemas.allocation import Disaggregation
from solver.setups import Setup
from solver.shapes import Shape
from solver.snapshots import level_of
from streams.plan_files import DemandLine, Entries, refuse, workload_of

APART = frozenset({"both", "prefill", "decode"})
"""Phases with all of which the solver may choose."""


def disaggregation_of(setup: Setup, lines: Sequence[DemandLine]) -> Iterator[Disaggregation]:
    """What the solver has to know to serve part of a demand by pairs: rates and what caches cost to send."""
    if not set(setup.scope.phases) >= APART:
        return
    for line in lines:
        slo_class = str(line.slo_class)
        workload = workload_of(line, level_of(setup.catalog, line.model, slo_class).workload)
        requests = line.rates.get("both", 0.0) if line.requests_per_s is None else line.requests_per_s
        if requests > 0:
            yield Disaggregation(
                model=line.model,
                slo_class=slo_class,
                prefill_tokens_per_s=requests * workload.mean_input_tokens,
                decode_tokens_per_s=requests * workload.mean_output_tokens,
                transfer_usd_per_hour=requests
                * 3600
                * _sent_usd(setup, line.model, workload.mean_input_tokens),
                configurations=_cuda(setup),
            )


def refuse_given_twice(asked: Entries[DemandLine], pairs: Sequence[Disaggregation]) -> None:
    """A demand of `both` that may be served by pairs has no others beside it: they would count twice.

    Raises:
        FileError: lines that give both.
    """
    levels = {(pair.model, pair.slo_class) for pair in pairs}
    faults = []
    for i, line in enumerate(asked.lines):
        halves = [phase for phase in ("prefill", "decode") if phase in line.rates]
        if "both" in line.rates and halves and (line.model, line.slo_class) in levels:
            text = "expected both alone, of which pairs may serve a part, or the others without it"
            faults.append(asked.fault(i, "rates", f"{', '.join(halves)} beside both, {text}"))
    refuse(faults)


def _cuda(setup: Setup) -> tuple[str, ...]:
    """NVIDIA's nodes, where there are others too: vLLM hands no cache from one maker's GPUs to another's."""
    makers = {c.name: setup.catalog.gpu(c.gpu).compute_capability or "" for c in setup.scope.configurations}
    cuda = tuple(name for name, capability in makers.items() if not capability.startswith("gfx"))
    return cuda if len(cuda) < len(makers) else ()


def _sent_usd(setup: Setup, model: str, tokens: float) -> float:
    """Of one prompt's KV cache: the largest of the variants, in the region where sending is dearest."""
    found = setup.catalog.model(model)
    layers = found.architecture.layers
    size = max(layers * Shape(found.architecture, v).cache_bytes(tokens) for v in found.variants)
    wires = [
        region.within_zone.usd_per_gb
        for region in setup.catalog.regions
        if not setup.regions or f"{region.cloud}/{region.name}" in setup.regions
    ]
    return size / 1e9 * max(wires, default=0.0)
