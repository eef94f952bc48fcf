"""Write the tables and plots of docs/performance-model.md from the measurements that ship.

    python scripts/performance_report.py [--check]

Tables go between the marks `<!-- NAME -->` and `<!-- end -->`, plots to docs/performance. With --check
nothing is written; exit code 1 if a table is not what the model gives.
"""

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from schemas.catalog import load_catalog
from schemas.performance import Collective, Efficiencies, load_efficiencies
from scripts.performance_plots import plot
from scripts.performance_reasons import POOLED, REASONS, UNSEEN, UNSEEN_SERVING
from solver import holding_out, validation
from solver.fitting_engine import Engine
from solver.holding_out import OWN_TTFT, Unseen
from solver.kernels import Kernels
from solver.measurements import Measured, load
from solver.roofline import DEFAULT
from solver.serving_points import CHUNK_TOKENS, Point, points
from solver.shapes import Floats
from solver.validation import AGED, FEW, RAW, Comparison, Errors, exceeds

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "performance-model.md"
PLOTS = DOCS / "performance"

Lines = list[str]


class Report:
    """All that is shown, recomputed."""

    def __init__(self) -> None:
        self.measured: Measured = load()
        self.gpus = load_catalog().gpus
        self.efficiencies: Efficiencies = load_efficiencies()
        self.kernels = {g.name: Kernels(g, self.efficiencies.of(g.name)) for g in self.gpus}
        self.comparisons = validation.compare(self.measured, self.gpus, self.efficiencies)
        self.points: list[Point] = list(points(self.measured, {g.name: g for g in self.gpus}))

    @cached_property
    def thirds(self) -> dict[str, Errors]:
        return holding_out.by(holding_out.each_third(self.points, self.kernels), by_gpu)

    @cached_property
    def unseen(self) -> list[Unseen]:
        """Serving points of models that the constants have not seen."""
        return holding_out.each_serving_model(self.points, self.kernels)

    @cached_property
    def by_model(self) -> dict[str, Errors]:
        return holding_out.by(self.unseen, by_gpu)

    @cached_property
    def each_serving_model(self) -> dict[tuple[str, str], Errors]:
        """The same, model by model."""
        return holding_out.by(self.unseen, lambda u: (by_gpu(u), u.point.model))

    @cached_property
    def models(self) -> dict[tuple[str, str, str], Errors]:
        """Layers of models that the constants have not seen, by GPU, source and model."""
        return {
            (gpu.name, *key): errors
            for gpu in self.gpus
            for key, errors in holding_out.each_layer_model(self.measured, gpu, self.efficiencies).items()
        }

    @cached_property
    def engines(self) -> dict[str, Engine]:
        """What the fit gives without a model."""
        return holding_out.engines(self.points, self.kernels)

    def of(self, level: str) -> list[Comparison]:
        return [c for c in self.comparisons if c.level == level]


# ------------------------------------------------------------------------------------------------- tables


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Lines:
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    return lines + [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]


def shown(errors: Errors) -> tuple[str, ...]:
    if not errors.points:
        return "0", "", "", ""
    return str(errors.points), f"{errors.median:.1%}", f"{errors.p90:.1%}", f"{errors.bias:+.1%}"


def by_gpu(one: Unseen) -> str:
    return f"{one.phase} on {one.point.gpu}"


HEADLINES = (
    ("layer", "layer", RAW, ""),
    ("layer", "layer, Splitwise raw", AGED, RAW),
    ("serving", "serving", "", ""),
    ("planner", OWN_TTFT, "vLLM", FEW),
    ("planner", "TTFT as planned, all loads", FEW, "vLLM"),
)
"""Level, what it is called, the source left out, and the one without which there is nothing to show."""


def gpus(report: Report) -> Lines:
    rows = []
    for level, called, but, needed in HEADLINES:
        for name in (g.name for g in report.gpus):
            errors = validation.together(report.comparisons, level, name, but)  # type: ignore[arg-type]
            sources = {c.source for c in report.of(level) if c.gpu == name}
            if errors.points and needed in sources | {""}:
                rows.append((name, called, *shown(errors), "no" if exceeds(level, errors) else "yes"))
    return table(("GPU", "level", "points held out", "median", "p90", "bias", "within bounds"), rows)


def phases(report: Report) -> Lines:
    rows = [
        (c.gpu, c.phase, c.source, int(np.sum(~c.held_out)), *shown(c.errors()))
        for c in (*report.of("layer"), *report.of("serving"))
        if c.source != RAW
    ]
    return table(("GPU", "phase", "source", "fitted on", "held out", "median", "p90", "bias"), rows)


def above(report: Report) -> Lines:
    rows = [
        (c.gpu, c.phase, c.source, *shown(c.errors()), REASONS[c.gpu, c.phase, c.source])
        for c in (*report.of("layer"), *report.of("serving"), *report.of("planner"))
        if exceeds(c.level, c.errors())
    ]
    rows += [
        (gpu, "both", f"{source}, {model} held out", *shown(errors), UNSEEN[model])
        for (gpu, source, model), errors in report.models.items()
        if exceeds("layer", errors)
    ]
    rows += [
        (name.split(" on ")[1], name.split(" on ")[0], f"vLLM, {how}", *shown(errors), POOLED)
        for how, held_out in (("each third in turn", report.thirds), ("each model in turn", report.by_model))
        for name, errors in held_out.items()
        if exceeds("serving", errors)
    ]
    rows += [
        (
            of.split(" on ")[1],
            of.split(" on ")[0],
            f"vLLM, {model} held out",
            *shown(errors),
            UNSEEN_SERVING[model, of.split(" ")[0]],
        )
        for (of, model), errors in report.each_serving_model.items()
        if exceeds("serving", errors)
    ]
    return table(("GPU", "phase", "source", "held out", "median", "p90", "bias", "reason"), rows)


def thirds(report: Report) -> Lines:
    rows = [(name, *shown(errors)) for name, errors in report.thirds.items()]
    return table(("", "points", "median", "p90", "bias"), rows)


def models(report: Report) -> Lines:
    rows = [(*key, *shown(errors)) for key, errors in report.models.items()]
    return table(("GPU", "source", "model held out", "points", "median", "p90", "bias"), rows)


def serving_models(report: Report) -> Lines:
    """By GPU over all models, each judged by constants that have not seen it, and model by model."""
    rows = []
    for name, errors in report.by_model.items():
        rows.append((name, "each in turn", *shown(errors)))
        rows += [
            (name, model, *shown(e)) for (of, model), e in report.each_serving_model.items() if of == name
        ]
    return table(("", "model held out", "points", "median", "p90", "bias"), rows)


def without(report: Report) -> Lines:
    """What the fit says of the engine with all models, on two thirds of the set-ups, and without each."""
    shipped = report.efficiencies.gpus[0]
    found = {"none": Engine(shipped.overhead, shipped.first_token), **report.engines}
    rows = [
        (
            model,
            f"{e.overhead.step_s * 1e3:.2f} ms",
            f"{e.overhead.sequence_s * 1e6:.0f} us",
            f"{e.first_token.server_s * 1e3:.0f} ms",
            f"{e.first_token.own:.2f}",
        )
        for model, e in found.items()
    ]
    return table(("model left out", "a step", "a sequence", "`server`", "`own`"), rows)


def chunks(report: Report) -> Lines:
    """Held-out points at the tokens a step of the servers that were measured, and at the planner's own."""
    rows = []
    for gpu in sorted({p.gpu for p in report.points}):
        held = [p for p in report.points if p.gpu == gpu and p.held_out and p.used.any()]
        found = {
            tokens: [(p, p.waits(report.kernels[gpu], tokens)) for p in held]
            for tokens in (CHUNK_TOKENS, DEFAULT.batched_tokens)
        }
        for tokens, waits in found.items():
            off = np.concatenate([(w.ttft_s / p.ttft - 1)[p.few] for p, w in waits])
            rows.append((gpu, OWN_TTFT, f"{tokens:,}", *shown(validation.summary(off))))
        for tokens, waits in found.items():
            off = np.concatenate([(w.tpot_s / p.tpot - 1)[p.used] for p, w in waits])
            rows.append((gpu, "TPOT", f"{tokens:,}", *shown(validation.summary(off))))
    return table(("GPU", "", "tokens a step", "points", "median", "p90", "bias"), rows)


def planner(report: Report) -> Lines:
    """The planner's own time to first token by the clients that share a server: held out, and all points."""
    off: dict[tuple[str, int, str], list[Floats]] = {}
    for point in report.points:
        away = point.waits(report.kernels[point.gpu]).ttft_s / point.ttft - 1
        for clients in np.unique(point.loads.clients[point.used]):
            now = away[point.used & (point.loads.clients == clients)]
            for called in ("held out", "all points")[not point.held_out :]:
                off.setdefault((point.gpu, int(clients), called), []).append(now)
    rows = [(*key, *shown(validation.summary(np.concatenate(off[key])))) for key in sorted(off)]
    return table(("GPU", "clients", "", "points", "median", "p90", "bias"), rows)


def setups(report: Report) -> Lines:
    client = validation.client(report.measured, report.kernels)
    rows = []
    for p in report.points:
        if not p.used.any():
            continue
        waits = p.waits(report.kernels[p.gpu])
        tpot = validation.summary((waits.tpot_s / p.tpot)[p.used] - 1)
        ttft = validation.summary((p.ttft_s(waits, client) / p.ttft)[p.used] - 1)
        used = f"{int(p.used.sum())} of {len(p.tpot)}"
        figures = [f"{e.median:.0%} ({e.bias:+.0%})" for e in (tpot, ttft)]
        rows.append((p.name, used, "held out" if p.held_out else "fitted on", *figures))
    return table(("set-up", "points used", "", "TPOT", "TTFT"), rows)


def left_out(report: Report) -> Lines:
    serving = report.measured["serving"]
    apart = (serving["attention_dp"] > 1) | (serving["expert_parallel"] > 1)
    impossible = sorted({p.model for p in report.points if p.impossible})
    rules: tuple[tuple[str, int], ...] = (
        ("expert or data parallelism, which the model has not", int(apart.sum())),
        (
            "the clients' KV cache does not fit, or they are over 256: a queue is measured",
            sum(int(p.queued.sum()) for p in report.points),
        ),
        (
            "a load of twice the clients is over 10% faster per token: one of the two is wrong",
            sum(int((p.contradicted & ~p.queued).sum()) for p in report.points),
        ),
        (
            (
                "a series with a load that implies over half of the GPUs' peak arithmetic: prompts came from "
                f"a prefix cache, or clients did not ask again: all of {', '.join(impossible)}"
            ),
            sum(int((~p.queued & ~p.contradicted).sum()) for p in report.points if p.impossible),
        ),
    )
    total = (f"of {len(serving)} points, used", sum(int(p.used.sum()) for p in report.points))
    return table(("rule", "points"), (*rules, total))


def memory(report: Report) -> Lines:
    """What vLLM's KV blocks and the layers beside them come to, of one GPU."""
    rows = []
    for (gpu, tp), blocks in report.measured["kv_blocks"].each("gpu", "tp"):
        held = []
        for (model,), of in blocks.each("model"):
            shape, layers = report.measured.shape(str(model)), of["layers"]
            cache = of["blocks_of_16"] * 16 * layers * shape.cache_bytes(1.0)
            held.append(float(np.median(cache + layers * shape.layer_bytes)) / float(tp) / 1e9)
        total = report.kernels[str(gpu)].gpu.memory_gb
        modelled = total * DEFAULT.memory_share - DEFAULT.reserved_gb
        rows.append((gpu, f"{tp:g}", f"{min(held):.1f} to {max(held):.1f}", f"{modelled:.1f}", f"{total:g}"))
    return table(("GPU", "GPUs", "measured, GB a GPU", "modelled", "of"), rows)


def constants(report: Report) -> Lines:
    rows = []
    for e in report.efficiencies.gpus:
        parts = [
            (n, part)
            for n, part in e
            if n not in ("gpu", "overhead", "first_token", "network") and part is not None
        ]
        flat = [(n, p) for n, part in parts for p in (part if isinstance(part, tuple) else (part,))]
        fitted = [named(n, p) for n, p in flat if p.evidence.fitted_on]
        assumed: dict[str, list[str]] = {}
        for n, p in flat:
            if p.evidence.assumed:
                assumed.setdefault(p.evidence.assumed, []).append(n.replace("_", " "))
        said = [f"{', '.join(dict.fromkeys(names))} {why}" for why, names in assumed.items()]
        if not fitted and len(said) == 1:
            said = [f"everything {why}" for why in assumed]
        elif not fitted:
            said[0] = f"everything else {next(iter(assumed))}"
        rows.append((e.gpu, ", ".join(fitted) or "nothing", "; ".join(said) or "nothing"))
    return table(("GPU", "fitted", "assumed"), rows)


def named(part: str, content: object) -> str:
    plain = part.replace("_", " ")
    return f"{plain} ({content.gpus} GPUs)" if isinstance(content, Collective) else plain


def kernel_errors(report: Report) -> Lines:
    whats = list(dict.fromkeys(c.phase for c in report.of("kernel")))
    names = list(dict.fromkeys(c.gpu for c in report.of("kernel")))
    rows = []
    for what in whats:
        cells = []
        for gpu in names:
            off = [c.off() for c in report.of("kernel") if c.gpu == gpu and c.phase == what]
            found = validation.summary(np.concatenate(off)) if off else None
            cells.append(f"{found.median:.0%} / {found.p90:.0%}" if found else "")
        rows.append((what.replace("_", " "), *cells))
    return table(("kernel", *names), rows)


TABLES: dict[str, Callable[[Report], Lines]] = {
    "gpus": gpus,
    "phases": phases,
    "above": above,
    "thirds": thirds,
    "models": models,
    "serving-models": serving_models,
    "without": without,
    "planner": planner,
    "chunks": chunks,
    "setups": setups,
    "left-out": left_out,
    "constants": constants,
    "memory": memory,
    "kernels": kernel_errors,
}


def page(report: Report, text: str) -> str:
    """The page with all its tables anew."""
    for mark, make in TABLES.items():
        block = "\n".join((f"<!-- {mark} -->", *make(report), "<!-- end -->"))
        pattern = rf"<!-- {mark} -->.*?<!-- end -->"
        if not re.search(pattern, text, re.DOTALL):
            raise ValueError(f"{PAGE}: no mark <!-- {mark} -->")
        head, _, tail = re.split(rf"({pattern})", text, maxsplit=1, flags=re.DOTALL)
        text = head + block + tail
    return text


def main() -> int:
    report = Report()
    before = PAGE.read_text(encoding="utf-8")
    after = page(report, before)
    if "--check" in sys.argv[1:]:
        return int(before != after)
    PAGE.write_text(after, encoding="utf-8")
    PLOTS.mkdir(exist_ok=True)
    plot([c for c in report.of("layer") if c.source != RAW], "layer", PLOTS / "layers.svg")
    plot(report.of("serving"), "serving", PLOTS / "serving.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
