"""The plan of right now, and whether it says more than the last one."""

from schemas.plans import Claim, Contact, Instance, Plan, Role, Target
from schemas.policy import CorePolicy
from streams.core import fleet, pulls
from streams.core.binding import is_whole
from streams.core.state import ClaimState, InstanceState, State

Outline = tuple[
    str,
    bool,
    tuple[str, ...],
    list[tuple[str, int, Role | None, str | None, str | None, bool | None]],
    list[tuple[str, str | None, Contact | None]],
]
"""Target, blindness, pulls; (instance, attempt, role, engine, endpoint, verified); (claim, node, its contact
where it is used). Two plans with the same outline say the same."""


def says_more(state: State, policy: CorePolicy) -> bool:
    """Whether the plan of right now differs from the last one in more than its number and its time."""
    last = state.plan
    if last is None or state.target is None:
        return True
    instances = _in_plan(state)
    used = {claim for i in instances for claim in i.claims}
    told: Outline = (
        last.target.id,
        last.blind,
        last.pulls,
        [(i.id, i.attempt, i.role, i.engine, i.endpoint, i.verified) for i in last.instances],
        [(c.id, c.node, c.contact if c.id in used else None) for c in last.claims],
    )
    now: Outline = (
        state.target.id,
        fleet.is_blind(state, policy),
        pulls.granted(state),
        [(i.id, i.attempt, i.role, i.engine, i.endpoint, i.verified) for i in instances],
        [
            (key, held.claim.node, _contact(state, held) if key in used else None)
            for key, held in sorted(state.claims.items())
        ],
    )
    return now != told


def _in_plan(state: State) -> list[InstanceState]:
    return [i for _, i in sorted(state.instances.items()) if i.role is not None and is_whole(state, i)]


def _contact(state: State, held: ClaimState) -> Contact | None:
    node = state.nodes.get(held.claim.node or "")
    return node.report.contact if node is not None else None


def current_plan(state: State, policy: CorePolicy, target: Target) -> Plan:
    """The plan of right now, with the next sequence number."""
    instances = _in_plan(state)
    return Plan(
        fleet=state.fleet,
        lineage=state.lineage,
        epoch=state.epoch,
        sequence=state.sequence + 1,
        at_ms=state.now_ms,
        target=target,
        templates=tuple(state.templates[t] for t in sorted({i.template_id for i in instances})),
        claims=tuple(_claimed(state, held) for _, held in sorted(state.claims.items())),
        instances=tuple(_planned(i) for i in instances),
        pulls=pulls.granted(state),
        blind=fleet.is_blind(state, policy),
    )


def _claimed(state: State, held: ClaimState) -> Claim:
    return held.claim.model_copy(update={"contact": _contact(state, held)})


def _planned(instance: InstanceState) -> Instance:
    if instance.role is None:
        raise ValueError(f"{instance.id}: not in the plan")
    return Instance(
        id=instance.id,
        attempt=instance.attempt,
        role=instance.role,
        template_id=instance.template_id,
        rating=instance.rating,
        service=instance.service,
        pool=instance.pool,
        stages=instance.stages,
        engine=instance.engine,
        endpoint=instance.endpoint,
        verified=instance.verified,
        drain_deadline_ms=instance.drain_deadline_ms,
    )
