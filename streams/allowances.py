"""Head-room as the settings ask for it, made into the curves that travel in the core's policy."""

import logging
from collections.abc import Iterable, Mapping

import numpy as np

from schemas.base import Frozen
from schemas.catalog import Phase, ServiceLevel
from schemas.policy import CorePolicy, HeadroomCurve, ServedClass
from schemas.settings import HeadroomChoice, Settings
from solver.arrivals import rate_cv2
from solver.headroom import RATES, Assumptions, curve, factor, headroom, promises
from streams.served import Kind

logger = logging.getLogger(__name__)

SHOWN_RATES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


def allow(policy: CorePolicy, levels: Mapping[Kind, ServiceLevel], settings: Settings) -> CorePolicy:
    """The policy with the head-room of each class it serves.

    Raises:
        ValueError: `control.headroom_of` names a (model, class) that is not served.
    """
    check_services(settings, [(served.model, served.slo_class) for served in policy.served])
    allowed = []
    for served in policy.served:
        kind = (served.model, served.slo_class)
        assume = assumptions(settings, policy, served.startup_s)
        curves = _curves(_choice(settings, kind), served, levels[kind], assume)
        allowed.append(served.model_copy(update={"headroom": curves}))
    return policy.model_copy(update={"served": tuple(allowed)})


def check_services(settings: Settings, known: Iterable[Kind]) -> None:
    """Refuse settings for services that are none.

    Raises:
        ValueError: `control.headroom_of` names a (model, class) that is not among those known.
    """
    names = {"/".join(kind) for kind in known}
    if unknown := sorted(settings.control.headroom_of.keys() - names):
        raise ValueError(f"control.headroom_of: {unknown} not served, expected some of {sorted(names)}")


def assumptions(settings: Settings, policy: CorePolicy, startup_s: float) -> Assumptions:
    """What head-room goes by here: how soon more capacity is there, and how much may be asked for."""
    windows_s = policy.rate_windows * settings.fold.window_ms / 1000
    return Assumptions(
        horizon_s=windows_s + settings.control.solve_fuse_s + startup_s,
        at_most=settings.control.headroom_at_most,
    )


def _choice(settings: Settings, kind: Kind) -> HeadroomChoice:
    return settings.control.headroom_of.get("/".join(kind), settings.control.headroom)


def _curves(
    choice: HeadroomChoice, served: ServedClass, level: ServiceLevel, assume: Assumptions
) -> tuple[HeadroomCurve, ...]:
    if choice == "off":
        return ()
    if choice == "auto":
        return tuple(_reckoned(served, level, phase, assume) for phase in served.phases)
    return tuple(
        HeadroomCurve(phase=phase, requests_per_s=(1.0,), factor=(choice,)) for phase in served.phases
    )


def _reckoned(served: ServedClass, level: ServiceLevel, phase: Phase, assume: Assumptions) -> HeadroomCurve:
    most = headroom(level, phase, RATES[-1], assume)
    if most.capped:
        logger.warning(
            "head-room of %s/%s/%s ends at %g: its bursts ask for %.1f or more for the %s promise",
            served.model,
            served.slo_class,
            phase,
            assume.at_most,
            most.needed,
            most.binding.of.upper(),
        )
    return HeadroomCurve(phase=phase, requests_per_s=RATES, factor=tuple(curve(level, phase, assume)))


# ------------------------------------------------------------------------------------------- explained


class Kept(Frozen):
    """One promise, and the factor that it alone asks for."""

    percentile: float
    busy_s: float
    wait_s: float
    length_cv2: float
    factor: float
    without_bursts: float


class Explained(Frozen):
    """A service's head-room at one rate."""

    service: str
    requests_per_s: float
    setting: HeadroomChoice
    factor: float
    capped: bool
    at_most: float
    binding: str
    slots: float
    promises: dict[str, Kept]
    rate_cv2: dict[str, float]
    """Interval in seconds -> squared coefficient of variation of the rate averaged over it."""
    horizon_s: float
    by_rate: dict[str, float]
    """Requests/s -> factor."""


def explain(settings: Settings, kind: Kind, level: ServiceLevel, phase: Phase, rate: float) -> Explained:
    """The head-room that the settings give a service, and what it is made of.

    Args:
        rate: requests/s, above 0.

    Raises:
        ValueError: the settings name a policy field that does not exist, or an impossible value.
    """
    policy = CorePolicy.model_validate({"served": (), **settings.control.policy})
    served = ServedClass(
        model=kind[0],
        slo_class=kind[1],
        phases=(phase,),
        mean_input_tokens=level.workload.mean_input_tokens,
        mean_output_tokens=level.workload.mean_output_tokens,
    )
    assume, choice = assumptions(settings, policy, served.startup_s), _choice(settings, kind)
    exact, bursts = headroom(level, phase, rate, assume), level.workload.burstiness
    given = served.model_copy(update={"headroom": _curves(choice, served, level, assume)})
    return Explained(
        service=f"{'/'.join(kind)}/{phase}",
        requests_per_s=rate,
        setting=choice,
        factor=given.headroom_at(phase, rate),
        capped=choice == "auto" and exact.capped,
        at_most=assume.at_most,
        binding=exact.binding.of,
        slots=given.headroom_at(phase, rate) * rate * exact.binding.busy_s,
        promises={
            promise.of: Kept(
                percentile=promise.percentile,
                busy_s=promise.busy_s,
                wait_s=promise.wait_s,
                length_cv2=promise.length_cv2,
                factor=factor(promise, rate, bursts, assume.horizon_s),
                without_bursts=factor(promise, rate, (), assume.horizon_s),
            )
            for promise in promises(level, phase, assume)
        },
        rate_cv2={f"{b.interval_s:g}": float(rate_cv2([b], np.array([b.interval_s]))[0]) for b in bursts},
        horizon_s=assume.horizon_s,
        by_rate={f"{r:g}": given.headroom_at(phase, r) for r in SHOWN_RATES},
    )
