"""A template library for people, and the same as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from schemas.problems import Template
from solver import worth
from solver.kept import Key
from solver.library import Library, Shelf
from solver.worth import Prices, Worth
from streams.catalog_view import View, plain_table


class Spent(NamedTuple):
    """What a build took."""

    seconds: float
    peak_memory_gb: float
    """Of the whole process, whose cores are threads."""
    cores: int


def shown(library: Library, prices: Prices, service: str | None = None) -> View:
    """What there is for each service, or for one.

    Raises:
        ValueError: the library was not built for it.
    """
    shelves = shelves_of(library, service)
    totals = {name: sum(getattr(s.part, name) for s in shelves) for name in ("considered", "valid", "kept")}
    data = {
        "digest": library.digest,
        "inputs": library.inputs.model_dump(mode="json", exclude={"configurations"}, exclude_none=True),
        "configurations": [c.name for c in library.inputs.configurations],
        "combinations": totals["considered"],
        "valid": totals["valid"],
        "kept": totals["kept"],
        "services": [_service_data(shelf, prices) for shelf in shelves],
        "empty": {key: why for key, why in library.empty.items() if service in {None, key}},
    }
    limits = library.inputs
    title = (
        f"Library {library.digest}: runtime {limits.runtime}, {len(limits.configurations)} configurations, "
        f"N_max {limits.n_max}, rho {limits.rho:g}"
    )
    columns = ("service", "variant", "combinations", "valid", "kept", "refused", "best per USD/h", "on", "in")
    table = plain_table(title, *columns)
    for row in data["services"]:
        refused = ", ".join(f"{count} {reason}" for reason, count in row["refused"].items()) or "-"
        found = row["best"] or {}
        figure = f"{found['per_usd']:.1f} {row['unit']}" if found else "-"
        where = (found.get("nodes", "-"), found.get("region", "-"))
        counts = (str(row["considered"]), str(row["valid"]), str(row["kept"]))
        table.add_row(row["service"], row["variant"], *counts, refused, figure, *where)
    return View(data, [table])


def built(library: Library, prices: Prices, spent: Spent, taken_over: Sequence[Key]) -> View:
    """The same of a library that was just built, with what it took."""
    view = shown(library, prices)
    per_usd = {
        row["service"]: row["best"]["per_usd"]
        for row in sorted(view.data["services"], key=lambda row: (row["best"] or {}).get("per_usd", 0.0))
        if row["best"]
    }
    data = {
        **view.data,
        **spent._asdict(),
        "taken_over": ["/".join(key) for key in taken_over],
        "best_per_usd": dict(sorted(per_usd.items())),
    }
    return View(data, view.tables)


def best(library: Library, prices: Prices, count: int, service: str | None = None) -> View:
    """The templates that give most per USD, with their ids.

    Raises:
        ValueError: the library was not built for the service.
    """
    tables, data = [], {}
    for key, shelves in _by_service(shelves_of(library, service)).items():
        found = sorted(
            ((w, shelf) for shelf in shelves for w in worth.best(shelf, prices, count)),
            key=lambda pair: -pair[0].per_usd,
        )[:count]
        unit = unit_of(shelves[0])
        table = plain_table(key, "template", "variant", "stages", unit, "USD/h", "in", f"{unit} per USD/h")
        rows = []
        for here, shelf in found:
            template = shelf[here.row].rated.template
            rows.append(_best_data(template, here, shelf))
            figures = (f"{shelf.kept.throughput[here.row]:.1f}", f"{here.usd_per_hour:.2f}", here.region)
            table.add_row(
                template.id, template.variant, stages_text(template), *figures, f"{here.per_usd:.1f}"
            )
        tables.append(table)
        data[key] = rows
    return View({"digest": library.digest, "best": data}, tables)


def difference(old: Library, new: Library, prices: Prices) -> View:
    """What one library has that another has not: inputs by name, templates by combination."""
    changed = list(old.inputs.differences(new.inputs))
    columns = ("service", "variant", "kept", "only in the first", "only in the second", "other throughput")
    table = plain_table(f"{old.digest} -> {new.digest}", *columns, "best per USD/h")
    services = []
    for key in sorted({_service_key(k) for k in (*old.parts, *new.parts)}):
        rows = [_difference(a, b, prices) for a, b in _pairs(old, new, key)]
        services += rows
        for row in rows:
            one, two = row["best_per_usd"]
            table.add_row(
                row["service"],
                row["variant"],
                f"{row['kept'][0]} -> {row['kept'][1]}",
                *(str(row[name]) for name in ("only_first", "only_second", "other_throughput")),
                f"{one:.1f} -> {two:.1f}",
            )
    inputs = plain_table("Inputs", "of the second, where it differs from the first")
    for line in changed:
        inputs.add_row(line)
    data = {"digests": [old.digest, new.digest], "inputs": changed, "services": services}
    return View(data, [inputs, table])


# ------------------------------------------------------------------------------------------------ helpers


def shelves_of(library: Library, service: str | None) -> list[Shelf]:
    """Those of one service, or all.

    Raises:
        ValueError: the library was not built for it.
    """
    if service is not None and service not in library.services:
        raise ValueError(f"--service: {service!r}, expected one of {', '.join(library.services)}")
    return [shelf for shelf in library.parts.values() if service in {None, shelf.part.service.key}]


def stages_text(template: Template) -> str:
    """Such as `24 layers on 1xL4 | 12 on 1xL40S tp1`: each stage with its nodes and their degree."""
    parts = []
    for stage in template.stages:
        nodes = " + ".join(f"{template.nodes[rank.node]} tp{rank.tp}" for rank in stage.ranks)
        parts.append(f"{stage.layers} on {nodes}")
    return " | ".join(parts)


def unit_of(shelf: Shelf) -> str:
    return "requests/s" if shelf.part.key.phase == "both" else "tokens/s"


def combination_text(nodes: Sequence[str]) -> str:
    """Such as `2 x 1xL4 + 1xL40S`."""
    counts = {name: nodes.count(name) for name in dict.fromkeys(nodes)}
    return " + ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())


def _service_data(shelf: Shelf, prices: Prices) -> dict[str, Any]:
    part = shelf.part
    found = worth.best(shelf, prices)
    return {
        "service": part.service.key,
        "variant": part.key.variant,
        "considered": part.considered,
        "valid": part.valid,
        "kept": part.kept,
        "refused": dict(part.refused),
        "unit": unit_of(shelf),
        "best": _worth_data(found[0], shelf) if found else None,
    }


def _worth_data(here: Worth, shelf: Shelf) -> dict[str, Any]:
    return {
        "nodes": combination_text(shelf.nodes(here.row)),
        "region": here.region,
        "usd_per_hour": here.usd_per_hour,
        "throughput": float(shelf.kept.throughput[here.row]),
        "per_usd": here.per_usd,
    }


def _best_data(template: Template, here: Worth, shelf: Shelf) -> dict[str, Any]:
    stages = [
        {"layers": stage.layers, "ranks": [{"node": r.node, "tp": r.tp} for r in stage.ranks]}
        for stage in template.stages
    ]
    named = {"id": template.id, "variant": template.variant, "order": list(template.nodes), "stages": stages}
    return {**named, **_worth_data(here, shelf)}


def _by_service(shelves: Sequence[Shelf]) -> dict[str, list[Shelf]]:
    found: dict[str, list[Shelf]] = {}
    for shelf in shelves:
        found.setdefault(shelf.part.service.key, []).append(shelf)
    return found


def _service_key(key: Key) -> tuple[str, str, str, str]:
    """Without the runtime: the two that are compared may differ in it."""
    return key.model, key.slo_class, key.phase, key.variant


def _pairs(
    old: Library, new: Library, key: tuple[str, str, str, str]
) -> Iterator[tuple[Shelf | None, Shelf | None]]:
    def of(library: Library) -> Shelf | None:
        return next((shelf for k, shelf in library.parts.items() if _service_key(k) == key), None)

    yield of(old), of(new)


def _rows(shelf: Shelf | None) -> Mapping[tuple[str, ...], float]:
    if shelf is None:
        return {}
    throughput = shelf.kept.throughput.tolist()
    return {tuple(sorted(shelf.nodes(row))): throughput[row] for row in range(len(shelf))}


def _difference(old: Shelf | None, new: Shelf | None, prices: Prices) -> dict[str, Any]:
    one, two = _rows(old), _rows(new)
    shelf = new if old is None else old
    if shelf is None:
        raise ValueError("neither library has this service")
    common = one.keys() & two.keys()
    tops = [worth.best(s, prices) if s is not None else [] for s in (old, new)]
    return {
        "service": shelf.part.service.key,
        "variant": shelf.part.key.variant,
        "kept": [len(one), len(two)],
        "only_first": len(one.keys() - two.keys()),
        "only_second": len(two.keys() - one.keys()),
        "other_throughput": sum(one[nodes] != two[nodes] for nodes in common),
        "best_per_usd": [top[0].per_usd if top else 0.0 for top in tops],
    }
