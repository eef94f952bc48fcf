"""Is a catalog plausible? What no type says: units mixed up, checkpoints on GPUs that cannot run them.

Everything here has the form of `schemas.catalog.broken_references`: ways to what is wrong, and what was found
and expected. Each bound is far outside of what exists, so that it catches wrong units and not new hardware.
"""

from schemas.catalog import BF16_FROM, Broken, Catalog, Gpu, Model, Variant, Wire
from schemas.faults import Steps
from solver.level_check import Range, of_level, of_workload
from solver.shapes import Shape

DEGREES = (1, 2, 4, 8)
"""Tensor-parallel degrees that nodes have GPUs for."""
MEMORY_SHARE = 0.9
"""vLLM's gpu-memory-utilization where a variant does not set it."""
NARROW_FROM = 8.0
"""Least compute capability at which vLLM's kernels take fp8 and mxfp4 weights, if only to widen them."""


GPU_RANGES = {
    "memory_gb": (Range(1, 2_000, "in 10^9 bytes"), "GB"),
    "bandwidth_gb_s": (Range(10, 100_000, "in 10^9 bytes/s; given in TB/s?"), "GB/s"),
    "bf16_tflops": (Range(0.1, 100_000, "in 10^12 operations/s"), "TFLOPS"),
    "fp8_tflops": (Range(0.1, 200_000, "in 10^12 operations/s"), "TFLOPS"),
    "fp4_tflops": (Range(0.1, 400_000, "in 10^12 operations/s"), "TFLOPS"),
    "link_gb_s": (Range(1, 10_000, "in 10^9 bytes/s, one direction"), "GB/s"),
}
GPUS = Range(1, 1_024, "of one node")
BITS = Range(1, 64, "of one weight; given in bytes, or for all of them?")
ARCHITECTURE_AT_MOST = {
    "layers": 2_000,
    "hidden": 1_000_000,
    "heads": 10_000,
    "head_dim": 100_000,
    "ffn_dim": 10_000_000,
    "experts": 100_000,
    "expert_ffn_dim": 10_000_000,
    "vocab": 100_000_000,
}
NETWORK_GBPS = Range(0.1, 100_000, "in 10^9 bits/s")
RTT_MS = Range(0.001, 2_000, "in ms, there and back; given in us?")
USD_PER_GB = Range(0, 10, "of 10^9 bytes; given per TB?")
USD_PER_GPU_HOUR = Range(0.01, 200, "per hour of a GPU")


def implausible(catalog: Catalog) -> Broken:
    """All that a catalog says and cannot be."""
    for i, gpu in enumerate(catalog.gpus):
        yield from _of_gpu(("gpus", i), gpu)
    for i, configuration in enumerate(catalog.configurations):
        if text := NETWORK_GBPS.fault(configuration.network_gbps, "Gbit/s"):
            yield ("configurations", i, "network_gbps"), text
        if text := GPUS.fault(configuration.gpus, "GPUs"):
            yield ("configurations", i, "gpus"), text
    for i, model in enumerate(catalog.models):
        yield from _of_model(("models", i), model, catalog)
    yield from _of_regions(catalog)
    for i, workload in enumerate(catalog.workloads):
        yield from of_workload(("workloads", i), workload)
    yield from _of_prices(catalog)
    yield from _unsourced(catalog)


def _of_regions(catalog: Catalog) -> Broken:
    for i, region in enumerate(catalog.regions):
        for field in ("within_zone", "between_zones"):
            wire: Wire = getattr(region, field)
            if text := RTT_MS.fault(wire.rtt_ms, "ms"):
                yield ("regions", i, field, "rtt_ms"), text
            if text := USD_PER_GB.fault(wire.usd_per_gb, "USD"):
                yield ("regions", i, field, "usd_per_gb"), text


def _unsourced(catalog: Catalog) -> Broken:
    """Every number comes from somewhere."""
    for section in ("gpus", "configurations", "models", "workloads", "regions", "prices", "setups"):
        for i, entry in enumerate(getattr(catalog, section)):
            if not entry.source.strip():
                yield (section, i, "source"), "empty, expected where its figures come from"


def _of_gpu(way: Steps, gpu: Gpu) -> Broken:
    for field, (bounds, unit) in GPU_RANGES.items():
        value = getattr(gpu, field)
        if value is not None and (text := bounds.fault(value, unit)):
            yield (*way, field), text


def _of_prices(catalog: Catalog) -> Broken:
    gpus = {configuration.name: configuration.gpus for configuration in catalog.configurations}
    on_demand = {
        (p.cloud, p.region, p.configuration): p.usd_per_hour
        for p in catalog.prices
        if p.market == "on-demand"
    }
    for i, price in enumerate(catalog.prices):
        way = ("prices", i, "usd_per_hour")
        per_gpu = price.usd_per_hour / gpus.get(price.configuration, 1)
        if text := USD_PER_GPU_HOUR.fault(per_gpu, "USD"):
            yield way, f"{price.configuration} at {price.usd_per_hour:g}: {text}"
        list_price = on_demand.get((price.cloud, price.region, price.configuration))
        if price.market == "spot" and list_price is not None and price.usd_per_hour > list_price:
            yield way, f"{price.usd_per_hour:g}, expected at most the price on demand, {list_price:g}"


# --------------------------------------------------------------------------------------------- models


def _of_model(way: Steps, model: Model, catalog: Catalog) -> Broken:
    for j, level in enumerate(model.levels):
        yield from of_level((*way, "levels", j), level)
    arch = model.architecture
    for field, most in ARCHITECTURE_AT_MOST.items():
        value = getattr(arch, field)
        if value is not None and (text := Range(1, most, "as config.json has it").fault(value, field)):
            yield (*way, "architecture", field), text
    shapes = [Shape(arch, variant) for variant in model.variants]
    if arch.heads > 1 and not any(map(shapes[0].splits_into, DEGREES[1:])):
        yield (
            (*way, "architecture", "heads"),
            f"{arch.heads} heads, expected a number that a tensor-parallel degree of 2, 4 or 8 divides",
        )
    for j, shape in enumerate(shapes):
        yield from _of_variant((*way, "variants", j), shape.variant)
        for gpu in catalog.gpus:
            if gpu.name in shape.variant.gpus:
                texts = (_unsupported(shape.variant, gpu), _no_room(shape, gpu, _most_gpus(catalog, gpu)))
                yield from (((*way, "variants", j, "gpus"), text) for text in texts if text)


def _of_variant(way: Steps, variant: Variant) -> Broken:
    for field in ("weight_bits", "expert_bits", "kv_bits"):
        value = getattr(variant, field)
        if value is not None and (text := BITS.fault(value, "bits")):
            yield (*way, field), text
    if not variant.gpus or len(set(variant.gpus)) < len(variant.gpus):
        yield (*way, "gpus"), f"{list(variant.gpus)}, expected at least one, and each once"
    if not variant.checkpoint.strip():
        yield (*way, "checkpoint"), "empty, expected a repository or a folder"


def _most_gpus(catalog: Catalog, gpu: Gpu) -> int:
    """GPUs of its largest node; of a kind without a configuration, as many as any node has."""
    return max((c.gpus for c in catalog.configurations if c.gpu == gpu.name), default=DEGREES[-1])


def _unsupported(variant: Variant, gpu: Gpu) -> str | None:
    """The precision that the GPU is too old for."""
    bits = min(variant.weight_bits, variant.expert_bits or variant.weight_bits)
    if variant.vllm_args.get("dtype") == "bfloat16" and not gpu.has_bf16:
        what, least = "bfloat16", BF16_FROM
    elif bits < 16 and not gpu.at_least(NARROW_FROM):
        what, least = f"weights of {bits:g} bits", NARROW_FROM
    else:
        return None
    return f"{gpu.name} has compute capability {gpu.compute_capability}, expected {least} for {what}"


def _no_room(shape: Shape, gpu: Gpu, most: int) -> str | None:
    """Memory below one layer, at the largest tensor-parallel degree that nodes and heads allow."""
    degree = max(tp for tp in DEGREES if tp <= most and shape.splits_into(tp))
    share = float(shape.variant.vllm_args.get("gpu-memory-utilization", MEMORY_SHARE))
    have, need = degree * gpu.memory_gb * share, shape.layer_bytes / 1e9
    if have >= need:
        return None
    return f"{degree} x {gpu.name} hold {have:.2f} GB, expected at least one layer, {need:.2f} GB"
