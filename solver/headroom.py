"""Head-room: usable throughput is not the saturated one.

A template is rated at saturation, where every promise is only just kept and a queue would grow without end.
How far below it a service must run depends on its arrivals and on its size, so head-room is one factor per
service on its *demand*: capacity = factor x demand. (A factor per template would break the pruning of the
library: by statistics alone a whole combination would beat its parts.)

Each promise has a resource that a request keeps busy for some seconds s, and may wait for during t:

- **TTFT**: prefill. s is a share of the promise (`busy_share`), t the rest; work is as uneven as prompts are.
- **TPOT**: a place in the running batch. s = output tokens x the promised TPOT, t = 0: a batch above the one
  that keeps the promise makes steps longer for all. Uneven lengths even bursts out here.

By Little's law a capacity of h x rate has m = h x rate x s places ("slots"). A request waits longer than t
if, over some past w >= s - t (no less: the slots fill first), more work came than m slots do in w + t. With
that work a gamma variable, as an *arriving request* sees it, the factor is

    h = max over w of  Q(V(w), n(w)) x w / (w + t),       n(w) = (1 + c^2) / (rate x w).

- V(w): squared coefficient of variation of the rate over w (`solver.arrivals`), within the planner's horizon:
  what moves slower is followed by planning anew.
- n(w): that of Poisson arrivals, whose work has the squared coefficient of variation c^2.
- Q: quantile of a gamma of scale V + n and shape (1 + V) / (V + n): its mean is 1 + V, for most requests come
  in bursts. For TTFT its level is that of a diffusion's greatest value over all w, exp(-x^2 / 2) for the
  normal tail, given that all slots are taken: Sakasegawa's load^(sqrt(2 (m + 1)) - 1), load = 1 / h. So h
  stands on both sides and is found by bisection.

Without bursts this is the Allen-Cunneen quantile of G/G/m; with them it is robust queueing by the index of
dispersion (Whitt and You, Operations Research 66, 2018), at a percentile. docs/headroom.md has it next to
simulations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import gammainccinv, ndtr

from schemas.catalog import Burstiness, Objective, Phase, ServiceLevel
from solver.arrivals import length_cv2, rate_cv2_within
from solver.shapes import Floats

RATES: tuple[float, ...] = tuple(10.0 ** (k / 4) for k in range(-8, 13))
"""Requests/s at which a curve is reckoned, 0.01 to 1000."""
LOOK_BACKS_S: Floats = np.geomspace(1e-3, 1e5, 97)
HALVINGS = 24
LARGEST = 1e6


@dataclass(frozen=True)
class Assumptions:
    """What no catalog says. Each is a setting or is shown in docs/headroom.md with what it does."""

    busy_share: float = 0.5
    """Share of the promised TTFT that a mean prompt's prefill takes where capacity is at its rating."""
    horizon_s: float = 350.0
    """From a change of the rate to capacity for it: windows, solve, start-up."""
    at_most: float = 4.0
    """Above this a promise is given up rather than paid for; `Headroom.capped` tells."""


DEFAULT = Assumptions()


class Promise(NamedTuple):
    """What one objective asks of the resource that it depends on."""

    of: Literal["ttft", "tpot"]
    percentile: float
    busy_s: float
    wait_s: float
    length_cv2: float
    """Of the tokens that make a request busy."""


class Headroom(NamedTuple):
    """The factor for a service at one rate, and what decides it."""

    factor: float
    needed: float
    """The factor before `at_most`."""
    binding: Promise
    slots: float
    """Requests that `factor` x the rate holds of the binding promise's resource at once."""

    @property
    def capped(self) -> bool:
        return self.factor < self.needed


def promises(level: ServiceLevel, phase: Phase, assume: Assumptions = DEFAULT) -> tuple[Promise, ...]:
    """What a phase is held to: `prefill` to TTFT, `decode` to TPOT, `both` to both."""
    work = level.workload
    first = _objective(level.ttft, work.mean_input_tokens)
    each = _objective(level.tpot, work.mean_input_tokens)
    ttft_s = first.ms / 1000
    prefill = Promise(
        of="ttft",
        percentile=first.percentile,
        busy_s=assume.busy_share * ttft_s,
        wait_s=(1 - assume.busy_share) * ttft_s,
        length_cv2=length_cv2(work.input_tokens),
    )
    decode = Promise(
        of="tpot",
        percentile=each.percentile,
        busy_s=work.mean_output_tokens * each.ms / 1000,
        wait_s=0.0,
        length_cv2=length_cv2(work.output_tokens),
    )
    held: dict[Phase, tuple[Promise, ...]] = {
        "prefill": (prefill,),
        "decode": (decode,),
        "both": (prefill, decode),
    }
    return held[phase]


def _objective(objectives: tuple[Objective, ...], prompt_tokens: float) -> Objective:
    """The one that holds for the mean prompt, as in `solver.roofline.objective_s`."""
    endless = float("inf")
    buckets = sorted(objectives, key=lambda o: (o.max_prompt_tokens or endless, o.ms))
    return next((o for o in buckets if (o.max_prompt_tokens or endless) >= prompt_tokens), buckets[-1])


def headroom(
    level: ServiceLevel, phase: Phase, requests_per_s: float, assume: Assumptions = DEFAULT
) -> Headroom:
    """The factor for a service that so many requests/s come to, at least 1: by the formula, rate by rate.

    It falls with the rate, but for a stretch of low rates where a catalog's intervals were recorded at rates
    far apart; `curve` does not rise there.

    Raises:
        ValueError: the rate is not above 0.
    """
    if not requests_per_s > 0:
        raise ValueError(f"requests_per_s: {requests_per_s}, expected more than 0")
    found = [
        (factor(promise, requests_per_s, level.workload.burstiness, assume.horizon_s), promise)
        for promise in promises(level, phase, assume)
    ]
    needed, binding = max(found, key=lambda pair: pair[0])
    given = min(needed, assume.at_most)
    return Headroom(given, needed, binding, slots=given * requests_per_s * binding.busy_s)


def curve(
    level: ServiceLevel, phase: Phase, assume: Assumptions = DEFAULT, rates: Sequence[float] = RATES
) -> list[float]:
    """Factors at rising rates, rounded up to 0.001 so that every machine has the same. Never rising."""
    exact = np.array([headroom(level, phase, rate, assume).factor for rate in rates])
    falling = np.maximum.accumulate(exact[::-1])[::-1]
    return [float(f) for f in np.ceil(falling * 1000 - 1e-6) / 1000]


def factor(
    promise: Promise, requests_per_s: float, burstiness: Sequence[Burstiness], horizon_s: float
) -> float:
    """The least h >= 1 at which the promise's percentile of requests keeps it (formula: top of this file)."""
    late = 1 - promise.percentile / 100
    if promise.of == "tpot":
        return _in_flight(promise, requests_per_s, burstiness, horizon_s, late)
    start = max(promise.busy_s - promise.wait_s, LOOK_BACKS_S[0])
    back = np.append(LOOK_BACKS_S[start < LOOK_BACKS_S], start)
    varies = rate_cv2_within(burstiness, back, horizon_s)
    noise = (1 + promise.length_cv2) / (requests_per_s * back)

    def asked(h: float) -> float:
        level = _level(late, h, h * requests_per_s * promise.busy_s)
        work = _quantile(level, (1 + varies) / (varies + noise), varies + noise)
        return max(1.0, float(np.max(work * back / (back + promise.wait_s))))

    # `asked` falls with h, for the more slots there are, the rarer all are taken.
    low, high = 1.0, min(asked(1.0), LARGEST)
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if asked(middle) > middle else (low, middle)
    return high


def _in_flight(
    promise: Promise,
    requests_per_s: float,
    burstiness: Sequence[Burstiness],
    horizon_s: float,
    late: float,
) -> float:
    """As many places as a request finds taken, its own among them, over the mean."""
    varies = rate_cv2_within(burstiness, np.array([_memory_s(promise)]), horizon_s)
    # Of Poisson arrivals the number in flight is Poisson, whatever their lengths: no c^2 here.
    noise = 1 / (requests_per_s * promise.busy_s)
    places = _quantile(late, (1 + varies) / (varies + noise), varies + noise) + noise
    return max(1.0, float(places[0]))


def _memory_s(promise: Promise) -> float:
    """The stretch of arrivals that requests in flight average over: s^2 / (integral of P(S > t)^2).

    That is s over 1 - Gini coefficient of lengths: s for equal ones, 2 s for exponential; lognormal here.
    """
    sigma = np.log1p(promise.length_cv2) ** 0.5
    return float(promise.busy_s / (2 * ndtr(-sigma / 2**0.5)))


def _level(late: float, h: float, slots: float) -> float:
    """Upper tail of the gamma to go to, where `late` is the share of requests that may wait too long."""
    log_all_taken = (1 - (2 * (slots + 1)) ** 0.5) * np.log(h)  # with many slots too small for a number
    x = (2 * max(0.0, log_all_taken - np.log(late))) ** 0.5
    return min(late, float(ndtr(-x)))


def _quantile(tail: float, shape: Floats, scale: Floats) -> Floats:
    quantile: Floats = scale * gammainccinv(shape, tail)
    return quantile
