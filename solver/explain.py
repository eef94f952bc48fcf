"""Why a node gives what it gives: which limit binds, with the numbers.

Of the batches that the roofline tries, the best one is taken. If the next larger one is forbidden and would
give noticeably more, what forbids it binds: memory for the KV cache, a latency budget, or a limit of the
engine. Else more at once would not help, and what the step spends most time on binds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from schemas.base import canonical
from schemas.catalog import Configuration, Objective
from schemas.performance import Efficiencies
from solver.explanation import Bound, Explanation, Limit, Memory, NextBatch, Place, StepTime
from solver.kernels import Cost, Values
from solver.roofline import BATCHES, Roofline, Slot
from solver.shapes import Floats
from solver.steps import Step
from solver.tables import degrees, node_slot

WORTH = 0.25
"""A larger batch gives noticeably more if throughput grows by at least this share of the batch's growth."""
MORE = 1.1
"""How much more of each resource the what-ifs give."""
FINE: Floats = np.geomspace(1, 256, 1153)
"""Batches of the what-ifs, 0.5% apart: on the roofline's own grid small gains would vanish."""


def explain(
    roofline: Roofline,
    node: Configuration,
    layers: int,
    *,
    stages: int | None = None,
    place: Place | None = None,
    tp: int | None = None,
) -> Explanation:
    """Explain a node that holds `layers` as one of `stages`.

    Args:
        stages: None takes as many as nodes of this kind would need.
        place: None takes a middle one, or the lone one.
        tp: None takes the degree that gives most, as `solver.tables` does.

    Raises:
        ValueError: a figure that cannot be, with what was expected.
    """
    stages = _stages(roofline, layers, stages)
    place = _place(stages, place)
    allowed = _degrees(roofline, node, tp)
    first, last = place in {"alone", "first"}, place in {"alone", "last"}
    held = [Held(roofline, node_slot(node, t, first=first, last=last), layers, stages) for t in allowed]
    best = max(held, key=lambda h: node.gpus // h.slot.tp * h.best_rate(BATCHES))
    return _explained(best, node, place)


# ----------------------------------------------------------------------------------------- what was asked


def _stages(roofline: Roofline, layers: int, stages: int | None) -> int:
    total = roofline.model.architecture.layers
    if not 1 <= layers <= total:
        raise ValueError(f"layers: {layers}, expected 1 to {total}, those of {roofline.model.name}")
    if stages is None:
        return -(-total // layers)
    most = total - layers + 1
    least = 1 if layers == total else 2
    if not least <= stages <= most:
        raise ValueError(
            f"stages: {stages}, expected {least} to {most} where one holds {layers} of {total} layers"
        )
    return stages


def _place(stages: int, place: Place | None) -> Place:
    if (stages == 1) != (place == "alone") and place is not None:
        expected = "alone" if stages == 1 else "first, middle or last"
        raise ValueError(f"place: {place}, expected {expected} at {stages} stages")
    if place == "middle" and stages < 3:
        raise ValueError(f"place: middle, expected first or last at {stages} stages")
    if place is not None:
        return place
    return "alone" if stages == 1 else "last" if stages == 2 else "middle"


def _degrees(roofline: Roofline, node: Configuration, tp: int | None) -> list[int]:
    variant, allowed = roofline.variant, degrees(roofline, node)
    if node.gpu not in variant.gpus:
        raise ValueError(
            f"gpu: {node.gpu}, expected one of {', '.join(variant.gpus)}, on which {variant.name} runs"
        )
    if tp is not None and tp not in allowed:
        known = ", ".join(map(str, sorted(allowed)))
        raise ValueError(f"tp: {tp}, expected one of {known}, which divide {node.name} and the model")
    return allowed if tp is None else [tp]


# ------------------------------------------------------------------------------------------ what there is


@dataclass(frozen=True)
class Held:
    """Layers held by one replica, and all that is compared about them."""

    roofline: Roofline
    slot: Slot
    layers: int
    stages: int

    def rates(self, batches: Floats) -> tuple[Floats, Floats]:
        """Throughput at each batch, whatever forbids it; and where nothing does, 0 elsewhere."""
        r, layers = self.roofline, np.array([float(self.layers)])
        work = r.round(self.slot.gpu, self.slot.tp, batches[:, None])
        rate, patience = r.pace(self.slot, layers, work)
        depth = np.minimum(patience, r.room(self.slot, layers, batches[:, None], work))
        return rate[:, 0], np.where(depth >= self.stages, rate, 0.0)[:, 0]

    def best_rate(self, batches: Floats) -> float:
        return float(self.rates(batches)[1].max())

    def bounds(self, batch: float) -> tuple[Bound, ...]:
        """All limits, each with its figure at a batch."""
        r, s = self.roofline, self.stages
        work = r.round(self.slot.gpu, self.slot.tp, np.array([[batch]]))
        over = "" if s == 1 else f" over {s} stages"
        waits = [
            (
                f"{wait.promise}{over}",
                _ms(r.waited_s(self.slot, float(self.layers), s, wait)),
                1000 * wait.budget_s,
            )
            for wait in work.waits
        ]
        memory = self.memory(batch)
        held = memory.weights_gb + memory.kv_gb
        tokens = float(np.ravel(work.tokens)[0])
        most = max(r.most_sequences, float(s))
        return (
            *(_bound("latency-budget", what, needs, allowed, "ms") for what, needs, allowed in waits),
            _bound("kv-space", "weights and KV cache of a GPU", held, held + memory.free_gb, "GB"),
            _bound("max-num-seqs", "in flight", s * batch, most, "sequences"),
            _bound("max-num-batched-tokens", "in one step", tokens, work.most_tokens, "tokens"),
        )

    def memory(self, batch: float) -> Memory:
        r, slot = self.roofline, self.slot
        gb = 1e9 * slot.tp
        weights = float(r.weight_bytes(slot, float(self.layers))) / gb
        cache = float(r.cache_bytes(slot, float(self.layers), self.stages * batch)) / gb
        total, usable = r.gpus[slot.gpu].memory_gb, r.memory_bytes(slot) / gb
        return Memory(
            weights_gb=weights,
            kv_gb=cache,
            reserved_gb=total - usable,
            free_gb=usable - weights - cache,
            total_gb=total,
        )

    def step_time(self, batch: float) -> StepTime:
        r, slot = self.roofline, self.slot
        step = r.round(slot.gpu, slot.tp, np.array([[batch]])).step
        nothing = Cost()
        layers = step.layer * self.layers
        embedding = step.embedding if slot.first else nothing
        head = step.head if slot.last else nothing
        send = nothing if slot.last else r.send(slot, step)
        here = layers + embedding + head + step.overhead
        alone: dict[Limit, Values] = {
            "compute": here.compute_s,
            "memory-bandwidth": here.memory_s,
            "link": here.link_s,
            "network": send.total_s,
            "fixed-overhead": here.fixed_s,
        }
        return StepTime(
            layers_ms=_ms(layers.total_s),
            embedding_ms=_ms(embedding.total_s),
            head_ms=_ms(head.total_s),
            send_ms=_ms(send.total_s),
            overhead_ms=_ms(step.overhead.total_s),
            total_ms=1000 * self.seconds(step),
            alone_ms={limit: _ms(seconds) for limit, seconds in alone.items()},
        )

    def seconds(self, step: Step) -> float:
        return float(np.ravel(self.roofline.seconds(self.slot, float(self.layers), step))[0])


def _bound(limit: Limit, what: str, needs: float, allowed: float, unit: str) -> Bound:
    return Bound(limit=limit, what=what, needs=needs, allowed=allowed, unit=unit)


def _ms(seconds: Values) -> float:
    return 1000 * float(np.ravel(seconds)[0])


# ----------------------------------------------------------------------------------------------- verdict


def _explained(held: Held, node: Configuration, place: Place) -> Explanation:
    r, replicas = held.roofline, node.gpus // held.slot.tp
    free, allowed = held.rates(BATCHES)
    best = int(np.argmax(allowed))  # the smallest batch if none is allowed
    batch = float(BATCHES[best])
    bounds, step = held.bounds(batch), held.step_time(batch)
    following = None
    if best + 1 < len(BATCHES):
        larger = float(BATCHES[best + 1])
        violates = tuple(bound for bound in held.bounds(larger) if bound.broken)
        following = NextBatch(batch=larger, throughput=replicas * float(free[best + 1]), violates=violates)
    busiest = max(step.alone_ms, key=lambda limit: step.alone_ms[limit])
    broken = [bound for bound in bounds if bound.broken]
    if not broken and following and following.violates:
        growth = following.throughput / (replicas * allowed[best]) - 1
        broken = list(following.violates) if growth >= WORTH * (following.batch / batch - 1) else []
    return Explanation(
        model=r.model.name,
        variant=r.variant.name,
        slo_class=r.level.slo_class,
        phase=r.phase,
        configuration=node.name,
        layers=held.layers,
        stages=held.stages,
        place=place,
        tp=held.slot.tp,
        replicas=replicas,
        binds=_tightest(broken) if broken else busiest,
        busiest=busiest,
        throughput=replicas * float(allowed[best]),
        unit="requests/s" if r.phase == "both" else "tokens/s",
        batch=batch,
        step=step,
        memory=held.memory(batch),
        bounds=bounds,
        next_batch=following,
        gains=_gains(held),
    )


def _tightest(bounds: Sequence[Bound]) -> Limit:
    """The one that is furthest beyond what is allowed."""
    return max(bounds, key=lambda bound: bound.needs / max(bound.allowed, 1e-9)).limit


def _gains(held: Held) -> dict[Limit, float]:
    base = held.best_rate(FINE)
    if not base:
        return {}
    return {limit: more.best_rate(FINE) / base - 1 for limit, more in _with_more(held).items()}


def _with_more(held: Held) -> dict[Limit, Held]:
    """The same stage with a tenth more of each resource, one at a time."""
    r, slot = held.roofline, held.slot

    def gpu(*fields: str) -> Held:
        had = r.gpus[slot.gpu]
        given = {f: value * MORE for f in fields if (value := getattr(had, f)) is not None}
        return replace(held, roofline=replace(r, gpus={**r.gpus, slot.gpu: had.model_copy(update=given)}))

    def later(objectives: tuple[Objective, ...]) -> tuple[Objective, ...]:
        return tuple(o.model_copy(update={"ms": o.ms * MORE}) for o in objectives)

    slower = r.level.model_copy(update={"ttft": later(r.level.ttft), "tpot": later(r.level.tpot)})
    plain = _with_less_overhead(r.efficiencies.model_dump(mode="json"))
    lighter = Efficiencies.model_validate_json(canonical(plain))
    return {
        "compute": gpu("bf16_tflops", "fp8_tflops", "fp4_tflops"),
        "memory-bandwidth": gpu("bandwidth_gb_s"),
        "kv-space": gpu("memory_gb"),
        "link": gpu("link_gb_s"),
        "network": replace(held, slot=slot._replace(send_gb_s=slot.send_gb_s * MORE)),
        "latency-budget": replace(held, roofline=replace(r, level=slower)),
        "fixed-overhead": replace(held, roofline=replace(r, efficiencies=lighter)),
    }


def _with_less_overhead(plain: Any) -> Any:
    """Efficiencies as plain data, with every fixed time a tenth faster."""
    if isinstance(plain, list):
        return [_with_less_overhead(item) for item in plain]
    if not isinstance(plain, dict):
        return plain
    return {
        name: value / MORE if name.endswith("_s") else _with_less_overhead(value)
        for name, value in plain.items()
    }
