"""What a fleet is doing right now: the newest plan, what its nodes say, what is unmet, what is wrong.

Read from the control log alone, by the leader's own fold, so that it is one moment's answer and shows what
the leader goes by. How old that moment is, is part of the answer: a log that stands still is news itself.
"""

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Frozen, Rate
from schemas.events import StageReport
from schemas.plans import Instance, Plan, Role
from schemas.policy import CorePolicy
from schemas.problems import Pool
from streams.core import fleet
from streams.core.demand import arrival_rate, headroom_of
from streams.core.state import NodeState, State

Condition = Literal["ok", "silent", "suspect", "drained", "noticed", "leaving"]
"""silent: for some seconds. suspect: so long that nothing new goes there. drained: an operator asked.
noticed: its cloud will take it away. leaving: its agent was told to end."""


class NodeStatus(Frozen):
    """A node that registered: what it is, and what it said last."""

    node: str
    pool: Pool
    configuration: str
    claims: tuple[str, ...]
    """What the fleet holds it for; none where it is spare."""
    condition: Condition
    silent_s: Rate = 0.0
    drained_by: str | None = None
    notice_deadline_ms: int | None = None
    engine: str | None = None
    gpu: str | None = None
    driver: str | None = None
    stages: tuple[StageReport, ...] = ()


class InstanceStatus(Frozen):
    """An instance of the plan, with what its nodes say of it."""

    instance: str
    attempt: int
    service: str
    role: Role
    nodes: tuple[str, ...]
    """One a stage and rank, in order; `?` where a claim has no node yet."""
    engine: str | None
    endpoint: str | None
    verified: bool | None
    ready: int
    ranks: int
    saying: str | None
    """Why it is not ready or why it failed, in the words of the first rank that says so."""


class ServiceStatus(Frozen):
    """Demand in requests/s (phase `both`) or tokens/s."""

    service: str
    requests_per_s: Rate
    """Offered, over the last windows."""
    headroom: Annotated[float, Field(ge=1)] = 1.0
    """What that is multiplied by so that bursts keep the promises."""
    planned_for: Rate
    unmet: Rate
    """Share of what was planned for."""
    binding: str | None = None


class Status(Frozen):
    """One moment of a fleet."""

    fleet: str
    at_ms: int
    """Log time of the newest record."""
    age_s: Rate
    """How long ago that was. Fold alone writes every 2 s, so more than some seconds means that it is down."""
    plan: str | None = None
    plan_age_s: Rate = 0.0
    """Since it was last sent; the leader sends it again every minute."""
    confirmed: bool = False
    """Whether the newest plan is known to be on its topic."""
    reason: str | None = None
    usd_per_hour: Rate = 0.0
    target_usd_per_hour: Rate = 0.0
    waiting_claims: tuple[str, ...] = ()
    """Claims that no node was granted for yet."""
    services: tuple[ServiceStatus, ...] = ()
    instances: tuple[InstanceStatus, ...] = ()
    nodes: tuple[NodeStatus, ...] = ()
    alerts: dict[str, str] = {}


def status_of(state: State, now_ms: int) -> Status:
    """The status of the fleet whose log folds to `state`, seen at `now_ms` (ms since the epoch)."""
    plan = state.plan
    said = {} if plan is None else {"plan": plan.id, "reason": plan.target.reason}
    return Status(
        fleet=state.fleet or "(no leader yet)",
        at_ms=state.now_ms,
        age_s=_since_s(state.now_ms, now_ms),
        **said,
        plan_age_s=0.0 if plan is None else _since_s(state.published_ms, now_ms),
        confirmed=plan is not None and state.pending_publish is None,
        usd_per_hour=0.0 if plan is None else plan.usd_per_hour,
        target_usd_per_hour=0.0 if plan is None else plan.target.usd_per_hour,
        waiting_claims=() if plan is None else tuple(c.id for c in plan.claims if c.node is None),
        services=tuple(_services(state)),
        instances=() if plan is None else tuple(_instance(state, plan, i) for i in plan.instances),
        nodes=tuple(_node(state, name) for name in sorted(state.nodes)),
        alerts=dict(sorted(state.alerts.items())),
    )


def _since_s(then_ms: int, now_ms: int) -> float:
    return max(0, now_ms - then_ms) / 1000


def _services(state: State) -> list[ServiceStatus]:
    unmet = {u.service.key: u for u in state.target.unmet} if state.target is not None else {}
    last = state.policy.rate_windows if state.policy is not None else 1
    arrivals = {key: arrival_rate(windows, last) for key, windows in state.demand.items()}
    offered = {key: arrivals.get(key.rpartition("/")[0], 0.0) for key in state.planned_for}
    return [
        ServiceStatus(
            service=key,
            requests_per_s=offered[key],
            headroom=1.0 if state.policy is None else headroom_of(state.policy, key, offered[key]),
            planned_for=rate,
            unmet=unmet[key].share if key in unmet else 0.0,
            binding=unmet[key].binding if key in unmet else None,
        )
        for key, rate in sorted(state.planned_for.items())
    ]


def _node(state: State, name: str) -> NodeStatus:
    node = state.nodes[name]
    report = node.report
    return NodeStatus(
        node=name,
        pool=report.pool,
        configuration=report.configuration,
        claims=tuple(key for key, held in sorted(state.claims.items()) if held.claim.node == name),
        condition=_condition(state, state.policy, node),
        silent_s=fleet.silence_ms(state, node) / 1000,
        drained_by=node.drained_by,
        notice_deadline_ms=report.notice_deadline_ms,
        engine=report.engine,
        gpu=report.gpu,
        driver=report.driver,
        stages=report.stages,
    )


def _condition(state: State, policy: CorePolicy | None, node: NodeState) -> Condition:
    """The gravest thing to be said of a node."""
    if node.report.leaving:
        return "leaving"
    if policy is not None and fleet.is_suspect(state, node, policy):
        return "suspect"
    if node.report.notice_deadline_ms is not None:
        return "noticed"
    if node.silent_since_ms is not None:
        return "silent"
    return "ok" if node.drained_by is None else "drained"


def _instance(state: State, plan: Plan, instance: Instance) -> InstanceStatus:
    ranks = [
        (stage.index, number, rank) for stage in instance.stages for number, rank in enumerate(stage.ranks)
    ]
    nodes = [plan.claim(rank.claim).node for _, _, rank in ranks]
    said = [
        _said(state, node, instance, stage, number)
        for node, (stage, number, _) in zip(nodes, ranks, strict=True)
    ]
    return InstanceStatus(
        instance=instance.id,
        attempt=instance.attempt,
        service=instance.service.key,
        role=instance.role,
        nodes=tuple(node or "?" for node in nodes),
        engine=instance.engine,
        endpoint=instance.endpoint,
        verified=instance.verified,
        ready=sum(report is not None and report.state == "ready" for report in said),
        ranks=len(said),
        saying=next(
            (_words(report) for report in said if report is not None and report.state != "ready"), None
        ),
    )


def _said(state: State, node: str | None, instance: Instance, stage: int, rank: int) -> StageReport | None:
    """What a node says of one rank of this attempt; None when it says nothing."""
    heard = state.nodes.get(node or "")
    wanted = (instance.id, instance.attempt, stage, rank)
    reports = () if heard is None else heard.report.stages
    return next((r for r in reports if (r.instance, r.attempt, r.stage, r.rank) == wanted), None)


def _words(report: StageReport) -> str:
    said = [report.state, report.refusal or report.phase, report.reason]
    return ": ".join(text for text in said if text)
