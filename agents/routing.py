"""Plan and own observations -> where a request goes. Pure.

A plan says which instances serve which service, (public model, SLO class, phase). Here each service has a
`Group`, which outlives plans; `agents.balance` has the laws of the choice within one, `agents.affinity` says
which prompts begin alike.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from agents.affinity import Memory
from agents.balance import Group, Peer
from schemas.plans import Plan

Kind = tuple[str, str]
"""(public model, SLO class): what clients ask for and telemetry is told by."""


@dataclass(frozen=True)
class Way:
    """How requests of one kind are answered: by whole instances, or by prefill and then decode."""

    groups: tuple[Group, ...]
    plan: str
    """Id of the plan in force."""

    @property
    def disaggregated(self) -> bool:
        return len(self.groups) == 2


class Routes:
    """The newest plan, as a router sees it.

    Args:
        served: kinds that the fleet may be asked for whether a plan speaks of them or not. Before the first
            plan nobody else can tell the controller that there is demand.
    """

    def __init__(self, prefer_region: str | None = None, served: Iterable[Kind] = ()) -> None:
        self.plan: Plan | None = None
        self._served = tuple(served)
        self.classes = _classes(None, self._served)
        """Public model -> its SLO classes, those of the plan first; the first is the default."""
        self._prefer = prefer_region
        self._memory = Memory()
        self._groups: dict[str, Group] = {}

    def follow(self, plan: Plan) -> bool:
        """Take over a plan; False if there is a newer one already."""
        if self.plan is not None and plan.order <= self.plan.order:
            return False
        peers = _peers(plan)
        for service in {*self._groups, *peers}:
            group = self._groups.setdefault(service, Group(self._memory, self._prefer))
            group.set(peers.get(service, ()))
            if not group.peers:
                del self._groups[service]
        self.plan = plan
        self.classes = _classes(plan, self._served)
        return True

    @property
    def kinds(self) -> Iterator[Kind]:
        return ((model, name) for model, classes in self.classes.items() for name in classes)

    def way(self, model: str, slo_class: str) -> Way | None:
        """None if nothing serves it now. Whole instances come first where a plan has both."""
        for phases in (("both",), ("prefill", "decode")):
            groups = [self._groups.get(f"{model}/{slo_class}/{phase}") for phase in phases]
            serving = tuple(group for group in groups if group is not None and group.serves)
            if self.plan is not None and len(serving) == len(phases):
                return Way(serving, self.plan.id)
        return None

    def groups(self) -> Iterator[tuple[str, Group]]:
        """Every service's key with its instances, those that only finish requests included."""
        yield from self._groups.items()


def _peers(plan: Plan) -> dict[str, list[Peer]]:
    batches = {template.id: template.latency.batch[-1] for template in plan.templates}
    peers: dict[str, list[Peer]] = {}
    for instance in plan.instances:
        if instance.role == "serving" and instance.endpoint is not None:
            peer = Peer(
                key=f"{instance.id}/{instance.attempt}",
                endpoint=instance.endpoint,
                weight=instance.rating.throughput,
                batch=batches[instance.template_id],
                region=instance.pool.region,
            )
            peers.setdefault(instance.service.key, []).append(peer)
    return peers


def _classes(plan: Plan | None, served: Iterable[Kind]) -> dict[str, tuple[str, ...]]:
    """Every kind to be asked for: what the plan was made for, what is there, what may be asked for."""
    found: dict[str, dict[str, None]] = {}
    instances = () if plan is None else plan.instances
    demand = () if plan is None else plan.target.demand
    for key in (*demand, *(instance.service.key for instance in instances)):
        model, slo_class, _ = key.split("/")
        found.setdefault(model, {})[slo_class] = None
    for model, slo_class in served:
        found.setdefault(model, {})[slo_class] = None
    return {model: tuple(classes) for model, classes in found.items()}
