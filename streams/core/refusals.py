"""What was refused, and how long it is not asked again.

A node refuses a stage for itself (`NODE_REFUSALS`): then nothing new goes on it. Or for the model: then the
model is unfit for all nodes of that configuration in that pool, and the solver looks elsewhere. A node that
was made for its claim is given back, and the next would be made alike, so what it refuses for itself counts
as a refusal of the model, too. A static node on which an instance used up its attempts counts as one that
refuses.

A refusal stands for `policy.unfit_ms`, doubled each time, up to a day, unless what refused changes. Then one
new instance may try. What runs stays where it is, whatever was refused beside it.
"""

from schemas.events import NODE_REFUSALS, Heartbeat, StageReport
from schemas.plans import Claim
from schemas.policy import CorePolicy
from schemas.problems import Pool, Template, Unfit
from streams.core.state import InstanceState, ModelRefused, NodeRefused, Refused, State, stock_key

DAY_MS = 86_400_000
"""The longest back-off, and how long after its end a refusal still counts for the next one."""
UNNAMED = "unnamed"
"""The refusal of an agent that gives a reason only."""
FAILED = "failed"
"""The refusal of a node that says nothing against a start, and fails at it again and again."""


# --- what is heard ---------------------------------------------------------------------------------
def note(state: State, policy: CorePolicy, instance: InstanceState, claim: Claim, said: StageReport) -> None:
    """A rank of an instance was refused on a claim's node."""
    node = state.nodes.get(claim.node or "")
    if node is None or (said.refusal == "engine_version" and node.report.engine != instance.engine):
        return  # The next attempt takes the version that its nodes have by then.
    refusal = said.refusal or UNNAMED
    # A node that refuses the version it says it has will not know better at the next attempt.
    is_of_node = refusal in NODE_REFUSALS or refusal == "engine_version"
    if is_of_node:
        _note_node(state, policy, node.report, refusal, said.reason or "no reason given")
    if not is_of_node or node.report.claim is not None:
        note_unfit(state, policy, state.templates[instance.template_id], claim, refusal)


def note_failures(state: State, policy: CorePolicy, by: Heartbeat, reason: str) -> None:
    """The attempts of an instance are used up, and a node was where the last one failed."""
    _note_node(state, policy, by, FAILED, reason)


def _note_node(state: State, policy: CorePolicy, by: Heartbeat, refusal: str, reason: str) -> None:
    until_ms, times = _back_off(state, policy, state.refused_nodes.get(by.node))
    state.refused_nodes[by.node] = NodeRefused(
        by=_bare(by), until_ms=until_ms, times=times, refusal=refusal, reason=reason
    )


def note_unfit(state: State, policy: CorePolicy, template: Template, claim: Claim, refusal: str) -> None:
    """Nodes like a claim's cannot run a model."""
    node = state.nodes.get(claim.node or "")
    if node is None:
        return
    key = _key(template.model, claim.pool, claim.configuration)
    unfit = Unfit(model=template.model, pool=claim.pool, configuration=claim.configuration, reason=refusal)
    until_ms, times = _back_off(state, policy, state.refused_models.get(key))
    state.refused_models[key] = ModelRefused(
        by=_bare(node.report), until_ms=until_ms, times=times, unfit=unfit, revision=template.revision
    )


def _back_off(state: State, policy: CorePolicy, before: Refused | None) -> tuple[int, int]:
    """Until when it stands, and how often it came; those that come while it stands are one."""
    if before is not None and state.now_ms < before.until_ms:
        return before.until_ms, before.times
    times = before.times + 1 if before is not None else 1
    wait_ms = min(policy.unfit_ms << min(times - 1, 32), DAY_MS)
    return state.now_ms + wait_ms, times


def _bare(report: Heartbeat) -> Heartbeat:
    return report.model_copy(update={"stages": ()})


def _key(model: str, pool: Pool, configuration: str) -> str:
    return f"{model}|{stock_key(pool, configuration)}"


def hear(state: State, before: Heartbeat | None, report: Heartbeat) -> None:
    """A node registers, or says something new: what was refused because of how it was may be asked again.

    Args:
        before: its last report; None if it was not registered.
    """
    node = state.refused_nodes.get(report.node)
    if node is not None and _fittings(node.by) != _fittings(report):
        del state.refused_nodes[report.node]
    place = (report.pool, report.configuration)
    for key, model in list(state.refused_models.items()):
        if place == (model.by.pool, model.by.configuration) and _is_news(model, before, report):
            del state.refused_models[key]


def _fittings(report: Heartbeat) -> tuple[object, ...]:
    return (report.boot, report.engine, report.devices, report.gpu, report.driver)


def _is_news(refused: ModelRefused, before: Heartbeat | None, report: Heartbeat) -> bool:
    """Whether a node of the place that refused a model has changed, or is unlike the one that refused."""
    if before is None and report.node == refused.by.node:
        before = refused.by
    if before is not None and before.boot != report.boot:
        return True
    before = before or refused.by
    gained = set(report.models) - set(before.models)
    wanted = gained if refused.revision is None else gained & {refused.revision}
    return report.engine != before.engine or bool(wanted)


def clear(state: State, template: Template, claims: list[Claim]) -> None:
    """An instance became ready: its nodes, and such nodes, can run it after all."""
    for claim in claims:
        state.refused_nodes.pop(claim.node or "", None)
        state.refused_models.pop(_key(template.model, claim.pool, claim.configuration), None)


def forget(state: State) -> None:
    """Drop what is long over, and nodes that are given back."""
    state.refused_nodes = {
        name: refused
        for name, refused in state.refused_nodes.items()
        if _is_remembered(state, refused) and (refused.by.claim is None or name in state.nodes)
    }
    state.refused_models = {k: r for k, r in state.refused_models.items() if _is_remembered(state, r)}


def _is_remembered(state: State, refused: Refused) -> bool:
    return state.now_ms < refused.until_ms + DAY_MS


# --- what follows ----------------------------------------------------------------------------------
def _stands(state: State, refused: Refused | None) -> bool:
    return refused is not None and state.now_ms < refused.until_ms


def refuses(state: State, node: str) -> bool:
    """Whether nothing new may go on a node."""
    return _stands(state, state.refused_nodes.get(node))


def is_unfit(state: State, template: Template, pool: Pool, configuration: str) -> bool:
    """Whether nothing new of a model may go on such nodes."""
    return _stands(state, state.refused_models.get(_key(template.model, pool, configuration)))


def unfit(state: State) -> dict[str, Unfit]:
    """What the solver is told, by key: what stands, and what may be tried once."""
    return {
        key: refused.unfit.model_copy(update={"tries": 0 if _stands(state, refused) else 1})
        for key, refused in sorted(state.refused_models.items())
    }


def of_nodes(state: State) -> dict[str, tuple[str, ...]]:
    """`pool|configuration` -> what its nodes refuse for themselves."""
    said: dict[str, set[str]] = {}
    for refused in state.refused_nodes.values():
        if _stands(state, refused):
            said.setdefault(stock_key(refused.by.pool, refused.by.configuration), set()).add(refused.refusal)
    return {key: tuple(sorted(refusals)) for key, refusals in said.items()}


def deadlines(state: State) -> list[int]:
    """When back-offs end, in log time."""
    return [r.until_ms for r in (*state.refused_nodes.values(), *state.refused_models.values())]


def standing_alerts(state: State, _policy: CorePolicy) -> dict[str, str]:
    """Refusals that stand, by alert name."""
    nodes = {
        f"NodeUnfit:{name}": f"nothing new goes on {name}: {refused.refusal}: {refused.reason}"
        for name, refused in sorted(state.refused_nodes.items())
        if _stands(state, refused)
    }
    models = {
        f"ModelUnfit:{key}": f"{r.unfit.configuration} in {r.unfit.pool.key} refuses {r.unfit.model}: "
        f"{r.unfit.reason} on {r.by.node}"
        for key, r in sorted(state.refused_models.items())
        if _stands(state, r)
    }
    return nodes | models
