"""A catalog for people, and the same as JSON."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from schemas.catalog import Catalog, Gpu, ListPrice, Model
from solver.shapes import Shape

WIDE = 160
"""Columns where the output is no terminal: a pipe has no width, and tables are not to be cut for it."""


class View(NamedTuple):
    """What is shown: plain data, and tables of it."""

    data: dict[str, Any]
    tables: Sequence[Table]

    def as_json(self) -> str:
        return json.dumps(self.data, ensure_ascii=False)


def view_of(
    catalog: Catalog, *, model: str | None = None, gpu: str | None = None, prices: bool = False
) -> View:
    """One model, one GPU or the prices; all in short if none is asked for.

    Raises:
        ValueError: the catalog does not have it.
    """
    if model is not None:
        return _model(_found("--model", model, catalog.models))
    if gpu is not None:
        return _gpu(catalog, _found("--gpu", gpu, catalog.gpus))
    if prices:
        data = [price.model_dump(mode="json", exclude_none=True) for price in catalog.prices]
        return View({"prices": data}, [_price_table(catalog.prices)])
    everything = catalog.model_dump(mode="json", exclude_none=True)
    tables = (_models(catalog), _gpus(catalog), _regions(catalog), _workloads(catalog), _setups(catalog))
    return View({"digest": catalog.digest, **everything}, tables)


def show(view: View) -> None:
    console = Console(markup=False, emoji=False)
    if not console.is_terminal:
        console = Console(width=WIDE, markup=False, emoji=False)
    for table in view.tables:
        if table.row_count:
            console.print(table)


def _found(option: str, name: str, entries: Sequence[Any]) -> Any:
    for entry in entries:
        if entry.name == name:
            return entry
    known = ", ".join(entry.name for entry in entries)
    raise ValueError(f"{option}: {name!r} is not in the catalog, expected one of {known}")


def plain_table(title: str, *columns: str) -> Table:
    """A table whose first column, which names the row, is never cut short."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, no_wrap=not number, overflow="fold")
    return table


# ---------------------------------------------------------------------------------------------- in short


def _models(catalog: Catalog) -> Table:
    table = plain_table("Models", "model", "layers", "params, 10^9", "checkpoints", "served as")
    for model in catalog.models:
        size = Shape(model.architecture, model.variants[0]).total_weights / 1e9
        names = ", ".join(variant.name for variant in model.variants)
        levels = ", ".join(level.slo_class for level in model.levels) or "-"
        table.add_row(model.name, str(model.architecture.layers), f"{size:.2f}", names, levels)
    return table


def _gpus(catalog: Catalog) -> Table:
    table = plain_table("GPUs", "GPU", "GB", "GB/s", "16-bit TFLOPS", "fp8", "link, GB/s", "nodes of")
    for gpu in catalog.gpus:
        nodes = ", ".join(str(c.gpus) for c in catalog.configurations if c.gpu == gpu.name) or "-"
        fp8 = "-" if gpu.fp8_tflops is None else f"{gpu.fp8_tflops:g}"
        figures = [f"{gpu.memory_gb:g}", f"{gpu.bandwidth_gb_s:g}", f"{gpu.bf16_tflops:g}", fp8]
        table.add_row(gpu.name, *figures, f"{gpu.link} {gpu.link_gb_s:g}", nodes)
    return table


def _regions(catalog: Catalog) -> Table:
    table = plain_table("Regions", "region", "market", "prices", "zone to zone", "USD/GB")
    markets = sorted({(p.cloud, p.region, p.market) for p in catalog.prices})
    wires = {(r.cloud, r.name): r.between_zones for r in catalog.regions}
    for cloud, region, market in markets:
        count = sum((p.cloud, p.region, p.market) == (cloud, region, market) for p in catalog.prices)
        wire = wires.get((cloud, region))
        far = ("-", "-") if wire is None else (f"{wire.rtt_ms:g} ms", f"{wire.usd_per_gb:g}")
        table.add_row(f"{cloud}/{region}", market, str(count), *far)
    return table


def _workloads(catalog: Catalog) -> Table:
    columns = ("input, mean", "p50", "p99", "output, mean", "p50", "p99", "dispersion", "assumed")
    table = plain_table("Workloads", "workload", *columns)
    for w in catalog.workloads:
        lengths: list[str] = []
        for mean, quantiles in (
            (w.mean_input_tokens, w.input_tokens),
            (w.mean_output_tokens, w.output_tokens),
        ):
            known = quantiles.known if quantiles else {}
            lengths += [f"{mean:g}", *(f"{known[p]:g}" if p in known else "-" for p in (0.5, 0.99))]
        bursts = ", ".join(f"{b.dispersion:g} in {b.interval_s:g} s" for b in w.burstiness) or "-"
        table.add_row(w.name or "-", *lengths, bursts, w.assumed or "")
    return table


def _setups(catalog: Catalog) -> Table:
    table = plain_table("Set-ups", "set-up", "models", "configurations", "regions", "requests/s a model")
    for s in catalog.setups:
        places = ", ".join(s.regions)
        table.add_row(
            s.name, ", ".join(s.models), str(len(s.configurations)), places, f"{s.requests_per_s:g}"
        )
    return table


# --------------------------------------------------------------------------------------------- one of them


def _model(model: Model) -> View:
    checkpoints = plain_table(
        model.name, "checkpoint", "weights, GB", "a layer, MB", "KV a token, bytes", "TP", "runs on"
    )
    sizes = []
    for variant in model.variants:
        shape = Shape(model.architecture, variant)
        cache = model.architecture.layers * shape.cached_values * variant.kv_bits / 8
        degrees = [tp for tp in (1, 2, 4, 8) if shape.splits_into(tp)]
        sizes.append(
            {
                "variant": variant.name,
                "parameters": round(shape.total_weights),
                "weight_gb": shape.total_bytes / 1e9,
                "layer_mb": shape.layer_bytes / 1e6,
                "kv_bytes_per_token": cache,
                "tensor_parallel": degrees,
            }
        )
        figures = (f"{shape.total_bytes / 1e9:.2f}", f"{shape.layer_bytes / 1e6:.1f}", f"{cache:g}")
        table_gpus = ", ".join(variant.gpus)
        checkpoints.add_row(f"{variant.name}: {variant.checkpoint}", *figures, _commas(degrees), table_gpus)
    promises = plain_table("Promises", "SLO class", "TTFT", "TPOT", "workload", "tokens in", "out")
    for level in model.levels:
        w = level.workload
        times = (_commas(f"p{o.percentile:g} {o.ms:g} ms" for o in kind) for kind in (level.ttft, level.tpot))
        lengths = (f"{w.mean_input_tokens:g}", f"{w.mean_output_tokens:g}")
        promises.add_row(level.slo_class, *times, w.name or w.source, *lengths)
    return View({**model.model_dump(mode="json", exclude_none=True), "sizes": sizes}, [checkpoints, promises])


def _gpu(catalog: Catalog, gpu: Gpu) -> View:
    configurations = [c for c in catalog.configurations if c.gpu == gpu.name]
    names = {c.name for c in configurations}
    prices = [p for p in catalog.prices if p.configuration in names]
    figures = plain_table(gpu.name, "figure", "value")
    for name, value in gpu.model_dump(mode="json", exclude_none=True).items():
        figures.add_row(name, f"{value:g}" if isinstance(value, float) else str(value))
    nodes = plain_table("Nodes", "configuration", "network, Gbit/s", "by cloud", "source")
    for c in configurations:
        clouds = _commas(f"{cloud} {gbps:g}" for cloud, gbps in c.network_gbps_by_cloud.items())
        nodes.add_row(c.name, f"{c.network_gbps:g}", clouds, c.source)
    data = {
        **gpu.model_dump(mode="json", exclude_none=True),
        "configurations": [c.model_dump(mode="json") for c in configurations],
        "prices": [p.model_dump(mode="json", exclude_none=True) for p in prices],
    }
    return View(data, [figures, nodes, _price_table(prices)])


def _price_table(prices: Sequence[ListPrice]) -> Table:
    table = plain_table("Prices", "region", "market", "configuration", "sold as", "USD/h", "basis", "source")
    for p in prices:
        basis = p.basis if p.note is None else f"{p.basis}: {p.note}"
        where = f"{p.cloud}/{p.region}" if p.zone == "*" else f"{p.cloud}/{p.region}/{p.zone}"
        table.add_row(
            where, p.market, p.configuration, p.instance_type, f"{p.usd_per_hour:.4f}", basis, p.source
        )
    return table


def _commas(values: Any) -> str:
    return ", ".join(map(str, values))
