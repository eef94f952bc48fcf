"""Head-room as the settings ask for it, made into the curves that travel in the core's policy."""

import logging
from collections.abc import Mapping

from schemas.catalog import Phase, ServiceLevel
from schemas.policy import CorePolicy, HeadroomCurve, ServedClass
from schemas.settings import HeadroomChoice, Settings
from solver.headroom import RATES, Assumptions, curve, headroom
from streams.served import Kind

logger = logging.getLogger(__name__)


def allow(policy: CorePolicy, levels: Mapping[Kind, ServiceLevel], settings: Settings) -> CorePolicy:
    """The policy with the head-room of each class it serves.

    Raises:
        ValueError: `control.headroom_of` names a (model, class) that is not served.
    """
    control = settings.control
    known = {f"{served.model}/{served.slo_class}" for served in policy.served}
    if unknown := sorted(control.headroom_of.keys() - known):
        raise ValueError(f"control.headroom_of: {unknown} not served, expected some of {sorted(known)}")
    allowed = []
    for served in policy.served:
        choice = control.headroom_of.get(f"{served.model}/{served.slo_class}", control.headroom)
        level = levels[served.model, served.slo_class]
        curves = _curves(choice, served, level, assumptions(settings, policy, served))
        allowed.append(served.model_copy(update={"headroom": curves}))
    return policy.model_copy(update={"served": tuple(allowed)})


def assumptions(settings: Settings, policy: CorePolicy, served: ServedClass) -> Assumptions:
    """What head-room goes by here: how soon more capacity is there, and how much may be asked for."""
    windows_s = policy.rate_windows * settings.fold.window_ms / 1000
    return Assumptions(
        horizon_s=windows_s + settings.control.solve_fuse_s + served.startup_s,
        at_most=settings.control.headroom_at_most,
    )


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
