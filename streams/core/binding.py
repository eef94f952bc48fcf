"""From an allocation to instances on named claims.

Instances that the new target still has stay where they are; the rest become victims, the least
advanced first (a starting one is cancelled before a ready one is drained). New instances take free
held nodes first, then nodes that can still be had, and the nodes of victims only when nothing else is
left, since those must be drained before anything starts on them.

An instance never mixes engine versions. Nodes that are registered are combined with their like only; what a
node that is asked for will have shows when it registers, and `rebind` puts it right.
"""

from dataclasses import dataclass
from itertools import count

from schemas.plans import Claim, Rank, Stage
from schemas.problems import Pool, Template
from streams.core import offers
from streams.core.fleet import is_going, is_healthy
from streams.core.state import ClaimState, InstanceState, State, Wish, stock_key


def bind(state: State) -> int:
    """Make instances and claims match `state.wishes`; returns how many instances could not be bound."""
    for instance in state.instances.values():
        instance.wanted = False
    missing = [wish for wish in state.wishes for _ in range(_keep(state, wish))]
    for victim in [i.id for i in state.instances.values() if not i.wanted and i.role is None]:
        del state.instances[victim]  # It never was in a plan, so there is nothing to end.
    places = _Places(state)
    serial = (f"{state.lineage}-{state.offset + 1}-{n}" for n in count(1))
    return sum(not _create(state, places, wish, next(serial)) for wish in missing)


def needs_serving_nodes(state: State) -> bool:
    """Whether some new instance waits for a node on which a victim serves: it cannot come without a gap."""
    waiting = {claim for i in state.instances.values() if i.wanted and i.role is None for claim in i.claims}
    return any(not i.wanted and i.role == "serving" and waiting & i.claims for i in state.instances.values())


def is_whole(state: State, instance: InstanceState) -> bool:
    """Whether every claim of an instance still stands."""
    return all(claim in state.claims for claim in instance.claims)


def stands(state: State, instance: InstanceState) -> bool:
    """Whether an instance may stay: whole, not on its way out, on no node that will leave.

    A suspect node may be back in a moment: what runs there stays until the node is lost.
    """
    if not is_whole(state, instance) or (instance.role == "draining" and instance.failed is None):
        return False
    nodes = (state.nodes.get(state.claims[claim].claim.node or "") for claim in instance.claims)
    return not any(node is not None and is_going(node) for node in nodes)


def users(state: State, claim: str) -> list[InstanceState]:
    return [instance for instance in state.instances.values() if claim in instance.claims]


def _keep(state: State, wish: Wish) -> int:
    """Mark which instances of a wish stay, and return how many are missing."""
    alike = sorted(
        (i for i in state.instances.values() if _matches(i, wish) and stands(state, i)),
        key=lambda i: (-_progress(i), i.id),
    )
    for place, instance in enumerate(alike):
        instance.wanted = place < wish.count
    return max(0, wish.count - len(alike))


def _matches(instance: InstanceState, wish: Wish) -> bool:
    return (instance.template_id, instance.pool, instance.service) == (
        wish.template_id,
        wish.pool,
        wish.service,
    )


def _progress(instance: InstanceState) -> int:
    if instance.ready:
        return 3
    return {"serving": 2, "starting": 1}.get(instance.role or "", 0)


def version(state: State, claim: str) -> str | None:
    """Engine version of a claim's node, empty where it says none; None while no node is registered for it."""
    held = state.claims.get(claim)
    node = state.nodes.get(held.claim.node or "") if held is not None else None
    return None if node is None else node.report.engine or ""


class _Places:
    """Where new instances may go, while they are bound: claims by stock, granted ones first.

    Args:
        without: an instance that is bound anew, whose claims are free for it.
    """

    def __init__(self, state: State, without: str | None = None) -> None:
        others = [i for i in state.instances.values() if i.id != without]
        self.used = {claim for i in others for claim in i.claims}
        self.wanted = {claim for i in others if i.wanted for claim in i.claims}
        self._held: dict[str, list[tuple[str, str | None]]] = {}
        for key, held in sorted(state.claims.items(), key=lambda item: (item[1].claim.node is None, item[0])):
            node = held.claim.node
            if node is None or node not in state.nodes or is_healthy(state, node):
                place = stock_key(held.claim.pool, held.claim.configuration)
                self._held.setdefault(place, []).append((key, version(state, key)))

    def versions(self, pool: Pool, template: Template) -> list[str]:
        """Engine versions of the nodes a template could go on, newest name first; an empty one if none."""
        keys = {stock_key(pool, configuration) for configuration in template.nodes}
        found = {v for key in keys for _, v in self._held.get(key, []) if v is not None}
        return sorted(found, reverse=True) or [""]

    def free(self, pool: Pool, configuration: str, taken: list[str], version: str) -> str | None:
        """A held claim that nobody uses, on a node that has this version or is still to come."""
        held = self._held.get(stock_key(pool, configuration), [])
        fitting = (c for c, v in held if v in (None, version) and c not in taken)
        return next((c for c in fitting if c not in self.used), None)

    def victims(self, pool: Pool, configuration: str, taken: list[str], version: str) -> str | None:
        """A claim that only victims use, likewise."""
        held = self._held.get(stock_key(pool, configuration), [])
        fitting = (c for c, v in held if v in (None, version) and c not in taken)
        return next((c for c in fitting if c not in self.wanted), None)

    def take(self, claims: list[str]) -> None:
        self.used.update(claims)
        self.wanted.update(claims)


@dataclass
class _Choice:
    """A claim for each node of a template, some of them new ones, some still used by victims."""

    claims: list[str]
    asked: list[ClaimState]
    victims: int = 0


def _choose(state: State, places: _Places, pool: Pool, template: Template, serial: str) -> _Choice | None:
    """Claims for all nodes of a template or None; of the versions, the one that takes least from others."""
    found = [
        _choose_of(state, places, pool, template, serial, version)
        for version in places.versions(pool, template)
    ]
    return min((c for c in found if c is not None), key=lambda c: (c.victims, len(c.asked)), default=None)


def _choose_of(
    state: State, places: _Places, pool: Pool, template: Template, serial: str, version: str
) -> _Choice | None:
    choice = _Choice([], [])
    for place, configuration in enumerate(template.nodes):
        claim = places.free(pool, configuration, choice.claims, version)
        if claim is None and _can_ask(state, pool, configuration, choice.asked):
            new = _new_claim(state, pool, configuration, f"c{serial}-{place}")
            choice.asked.append(new)
            claim = new.claim.id
        if claim is None:
            claim = places.victims(pool, configuration, choice.claims, version)
            choice.victims += 1
        if claim is None:
            return None
        choice.claims.append(claim)
    return choice


def _create(state: State, places: _Places, wish: Wish, serial: str) -> bool:
    """Bind one new instance, all of its nodes or none."""
    template = state.templates[wish.template_id]
    choice = _choose(state, places, wish.pool, template, serial)
    if choice is None:
        return False
    places.take(choice.claims)
    state.claims |= {claim.claim.id: claim for claim in choice.asked}
    instance = InstanceState(
        id=f"i{serial}",
        template_id=template.id,
        rating=wish.rating,
        service=wish.service,
        pool=wish.pool,
        stages=_stages(template, choice.claims),
    )
    state.instances[instance.id] = instance
    return True


def rebind(state: State, instance: InstanceState) -> bool:
    """Give an instance that is not in the plan yet nodes of one engine version, since those it has differ.

    Claims that do not fit stay with it until it enters: so nobody is given the same nodes again, and after a
    few rounds it holds enough of one version, or there are no more nodes to ask for.

    Returns:
        Whether it could be done; if not, the instance is as it was.
    """
    template = state.templates[instance.template_id]
    serial = f"{state.lineage}-{state.offset + 1}-{instance.id}"
    choice = _choose(state, _Places(state, without=instance.id), instance.pool, template, serial)
    if choice is None:
        return False
    state.claims |= {claim.claim.id: claim for claim in choice.asked}
    left = {*instance.claims, *instance.spare} - set(choice.claims)
    state.instances[instance.id] = InstanceState(
        id=instance.id,
        template_id=instance.template_id,
        rating=instance.rating,
        service=instance.service,
        pool=instance.pool,
        stages=_stages(template, choice.claims),
        wanted=instance.wanted,
        attempt=instance.attempt,
        role_since_ms=instance.role_since_ms,
        spare=tuple(sorted(left & state.claims.keys())),
    )
    return True


def _can_ask(state: State, pool: Pool, configuration: str, asked: list[ClaimState]) -> bool:
    if offers.price(state, pool, configuration) is None:
        return False  # an answer that names what nobody offers
    more = offers.obtainable(state, pool, configuration) or 0
    waiting = [c.claim for c in (*state.claims.values(), *asked) if c.claim.node is None]
    return more > sum(c.pool == pool and c.configuration == configuration for c in waiting)


def _new_claim(state: State, pool: Pool, configuration: str, claim_id: str) -> ClaimState:
    # The price of this moment stays with the claim: history is not priced again.
    usd = offers.price(state, pool, configuration)
    if usd is None:
        raise LookupError(f"{pool.key}|{configuration}: bound without a price")
    claim = Claim(id=claim_id, configuration=configuration, pool=pool, usd_per_hour=usd)
    return ClaimState(claim=claim, asked_ms=state.now_ms)


def _stages(template: Template, claims: list[str]) -> tuple[Stage, ...]:
    first = 0
    stages = []
    for index, stage in enumerate(template.stages):
        ranks = tuple(
            Rank(claim=claims[r.node], device_ids=r.device_ids, tp=r.tp, memory_gb=r.memory_gb)
            for r in stage.ranks
        )
        stages.append(Stage(index=index, first_layer=first, layers=stage.layers, ranks=ranks))
        first += stage.layers
    return tuple(stages)
