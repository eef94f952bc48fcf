"""The tables of docs/headroom.md, reckoned anew: factors, and how near they come to simulated queues.

PYTHONPATH=. python scripts/headroom_report.py
"""

from collections.abc import Iterator
from statistics import median

import numpy as np

from agents.traces import SHIPPED_TRACES, read_requests
from schemas.catalog import Burstiness, load_catalog
from schemas.settings import load_settings
from solver.arrivals import dispersion
from solver.headroom import Assumptions, Promise, factor, headroom, promises
from solver.shapes import Floats
from streams.control import policy_of
from tests.solver.queues import Needed, for_tpot, for_ttft, modulated, poisson
from tests.streams.planner_loop import capacity, share_kept

NEVER = 1e9
SCALES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
RATES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
REQUESTS = 40_000


def trace(name: str, share: float = 1.0) -> Floats:
    """Rows of (arrival, input tokens, output tokens)."""
    requests = read_requests(SHIPPED_TRACES / f"azure_2023_{name}.csv.gz").requests
    rows = np.array([(r.arrival_s, r.input_tokens, r.output_tokens) for r in requests], dtype=np.float64)
    kept: Floats = rows[np.random.default_rng(7).random(len(rows)) < share]
    return kept


def factors() -> Iterator[str]:
    """Of each model in phase both, its own workload against Poisson arrivals, without an upper limit."""
    yield f"| service | arrivals | {' | '.join(f'{r:g}/s' for r in RATES)} | binds at 10/s |"
    yield f"| --- | --- |{' --- |' * len(RATES)} --- |"
    endless = Assumptions(at_most=1e9)
    for model in load_catalog().models:
        for level in model.levels:
            calm = level.workload.model_copy(update={"burstiness": ()})
            for name, work in (("Poisson", calm), (level.workload.name, level.workload)):
                here = level.model_copy(update={"workload": work})
                cells = [f"{headroom(here, 'both', rate, endless).factor:.2f}" for rate in RATES]
                binds = headroom(here, "both", 10.0, endless).binding.of.upper()
                yield f"| {model.name} | {name} | {' | '.join(cells)} | {binds} |"


def against_queues() -> Iterator[str]:
    """Capacity fixed for the whole trace, so no horizon; 95th percentile."""
    yield "| arrivals | requests/s | promise | needed | formula | beyond |"
    yield "| --- | --- | --- | --- | --- | --- |"
    off: dict[str, list[float]] = {"ttft": [], "tpot": []}
    rng = np.random.default_rng(11)
    streams: list[tuple[str, Floats, list[Burstiness]]] = [
        ("Poisson", poisson(rng, per_s, REQUESTS), []) for per_s in (2.0, 10.0, 50.0)
    ]
    for cv2 in (0.1, 0.5):
        for per_s in (5.0, 40.0):
            times = modulated(rng, per_s, REQUESTS, cv2, holds_s=20.0)
            measured = [dispersion(times, s) for s in SCALES]
            streams.append((f"rate's cv^2 {cv2} over 20 s", times, measured))
    rows = [(name, t, rng.exponential(1, len(t)), rng.exponential(1, len(t)), b) for name, t, b in streams]
    for name in ("conv", "code"):
        whole = [dispersion(trace(name)[:, 0], s) for s in SCALES]
        for share in (1.0, 0.2):
            times, tokens_in, tokens_out = trace(name, share).T
            rows.append((f"Azure 2023 {name}", times - times[0], tokens_in, tokens_out, whole))
    for name, times, tokens_in, tokens_out, measured in rows:
        per_s = len(times) / times[-1]
        for promise, simulated in _simulated(times, tokens_in, tokens_out):
            found = factor(promise, per_s, measured, NEVER)
            beyond = _beyond(found, simulated)
            off[promise.of].append(beyond)
            needed = f"{simulated.too_little:.2f} to {simulated.enough:.2f}"
            yield f"| {name} | {per_s:.2f} | {promise.of.upper()} | {needed} | {found:.2f} | {beyond:+.0%} |"
    for of, errors in off.items():
        yield (
            f"\n{of.upper()}: median {median(map(abs, errors)):.0%} beyond what a whole number of slots"
            f" resolves, from {min(errors):+.0%} to {max(errors):+.0%}."
        )


def _simulated(times: Floats, tokens_in: Floats, tokens_out: Floats) -> Iterator[tuple[Promise, Needed]]:
    """TTFT: 0.6 s busy, 0.6 s to wait. TPOT: 12 s in flight."""
    work = 0.6 * tokens_in / tokens_in.mean()
    yield Promise("ttft", 95, 0.6, 0.6, _cv2(tokens_in)), for_ttft(times, work, 0.6, 95)
    stay = 12.0 * tokens_out / tokens_out.mean()
    yield Promise("tpot", 95, 12.0, 0.0, _cv2(tokens_out)), for_tpot(times, stay, 95)


def _cv2(tokens: Floats) -> float:
    return float(tokens.var() / tokens.mean() ** 2)


def _beyond(found: float, simulated: Needed) -> float:
    """By how much the factor lies outside what the simulation leaves open."""
    return found / min(max(found, simulated.too_little), simulated.enough) - 1


def in_the_loop() -> Iterator[str]:
    """The core's own rule plans the trace: share of requests that get each promise, and what it costs."""
    yield "| trace | requests/s | service | head-room | TTFT kept | TPOT kept | capacity / demand |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    catalog = load_catalog()
    for name, model in (("conv", "phi-4-14b"), ("code", "gpt-oss-20b")):
        for share in (1.0, 0.2):
            rows = trace(name, share)
            for choice in ("off", "auto"):
                given = {"serve": {model: ["interactive"]}, "headroom": choice}
                policy = policy_of(load_settings(control=given), catalog)
                changes = capacity(rows[:, 0], policy)
                kept = [
                    share_kept(rows[:, 0], p.busy_s * tokens / tokens.mean(), p, changes)
                    for p, tokens in zip(
                        promises(catalog.model(model).levels[0], "both"),
                        (rows[:, 1], rows[:, 2]),
                        strict=True,
                    )
                ]
                per_s = len(rows) / rows[-1, 0]
                ends = [at for at, _ in changes[1:]] + [rows[-1, 0]]
                served = sum(r * (end - at) for (at, r), end in zip(changes, ends, strict=True))
                cost = served / (rows[-1, 0] - changes[0][0]) / per_s
                yield (
                    f"| Azure 2023 {name} | {per_s:.2f} | {model} | {choice} | {kept[0]:.1%} | {kept[1]:.1%}"
                    f" | {cost:.2f} |"
                )


if __name__ == "__main__":
    for table in (factors, against_queues, in_the_loop):
        print("\n".join(table()), end="\n\n", flush=True)  # noqa: T201  what it is for
