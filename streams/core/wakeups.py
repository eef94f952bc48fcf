"""When silence itself is news: the earliest log time at which the core must look again."""

from schemas.policy import CorePolicy
from streams.core import plan, refusals, rollout, triggers
from streams.core.state import State


def earliest(state: State, policy: CorePolicy) -> int | None:
    """The next deadline of anything that waits, in log time; never in the past."""
    due = [
        *state.refused_until_ms.values(),
        *refusals.deadlines(state),
        *_silence(state, policy),
        *_instances(state, policy),
        *_solves(state, policy),
    ]
    if state.plan is not None:
        due += [state.published_ms + policy.republish_ms]
        at_ms = next_plan_ms(state, policy)
        due += [at_ms] if at_ms > state.now_ms and plan.says_more(state, policy) else []
    later = [at for at in due if at > state.now_ms]
    return min(later) if later else None


def next_plan_ms(state: State, policy: CorePolicy) -> int:
    """From when on a plan that says more may go out."""
    return state.published_ms + policy.coalesce_ms if state.plan is not None else 0


def _silence(state: State, policy: CorePolicy) -> list[int]:
    silent = [n.silent_since_ms for n in state.nodes.values() if n.silent_since_ms is not None]
    stale = [w[-1].end_ms + policy.demand_stale_after_ms + 1 for w in state.demand.values() if w]
    return [
        *(since + wait for since in silent for wait in (policy.suspect_after_ms, policy.lost_after_ms)),
        *stale,
    ]


def _instances(state: State, policy: CorePolicy) -> list[int]:
    draining = [i for i in state.instances.values() if i.role == "draining"]
    waiting = (c for c in state.claims.values() if c.claim.node is None or c.claim.node not in state.nodes)
    return [
        *(i.retry_at_ms for i in state.instances.values() if i.failed is not None),
        *(
            i.starts_since_ms + policy.start_deadline_ms
            for i in state.instances.values()
            if i.role == "starting"
        ),
        *(i.role_since_ms + i.drain_deadline_ms + extra for i in draining for extra in (0, rollout.STUCK_MS)),
        *(c.asked_ms + policy.grant_timeout_ms for c in waiting),
    ]


def _solves(state: State, policy: CorePolicy) -> list[int]:
    if state.last_solve_ms is None:
        return []
    return [triggers.earliest_ms(state, policy), state.last_solve_ms + policy.adjust_interval_ms]
