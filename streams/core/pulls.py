"""Who may pull weights from the store: so many nodes of a region at once, the longest waiting first.

A node asks by a rank in phase `queued`; its claim in `Plan.pulls` is the answer. It keeps its slot while a
rank of it is queued or downloading, and a node that is downloading has one, whoever gave it.
"""

from collections import Counter

from schemas.policy import CorePolicy
from streams.core.state import Pull, State

PULLING = frozenset({"queued", "downloading"})


def advance(state: State, policy: CorePolicy) -> None:
    """Note who asks and who is done, and give out what is free."""
    wishes = _wishes(state)
    state.pulls = {claim: pull for claim, pull in state.pulls.items() if claim in wishes}
    for claim, phases in wishes.items():
        pull = state.pulls.setdefault(claim, Pull(since=state.offset + 1))
        pull.granted = pull.granted or "downloading" in phases
    taken = Counter(_region(state, claim) for claim, pull in state.pulls.items() if pull.granted)
    for claim, pull in sorted(state.pulls.items(), key=lambda item: (item[1].since, item[0])):
        region = _region(state, claim)
        if not pull.granted and taken[region] < policy.pull_slots:
            pull.granted = True
            taken[region] += 1


def granted(state: State) -> tuple[str, ...]:
    """The claims that have a slot."""
    return tuple(sorted(claim for claim, pull in state.pulls.items() if pull.granted))


def _wishes(state: State) -> dict[str, set[str]]:
    """Claim -> phases of its ranks that have to do with pulling, of attempts that the plan starts."""
    starting = {(i.id, i.attempt) for i in state.instances.values() if i.role == "starting"}
    wishes: dict[str, set[str]] = {}
    for key, held in state.claims.items():
        node = state.nodes.get(held.claim.node or "")
        for said in node.report.stages if node is not None and starting else ():
            if said.phase in PULLING and (said.instance, said.attempt) in starting:
                wishes.setdefault(key, set()).add(said.phase)
    return wishes


def _region(state: State, claim: str) -> str:
    pool = state.claims[claim].claim.pool
    return f"{pool.cloud}/{pool.region}"
