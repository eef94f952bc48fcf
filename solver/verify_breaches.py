"""Floors, and what an answer says to be short of.

Every breach names a policy that was asked for, with what the answer has of it; pinned instances are missing
only where their place cannot hold them.
"""

from collections import Counter
from collections.abc import Iterator

from schemas.problems import Answer, Breach, Chosen, Problem, Service
from solver.verify_parts import Key, Violation, holds, kept_pins, key_of, key_of_run, pinned_of


def breaches(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """All violations, in a fixed order."""
    told = {(breach.policy, breach.subject): breach for breach in answer.breaches}
    for floor in _floors(problem, answer):
        breach = told.pop((floor.policy, floor.subject), None)
        what = f"{floor.got} of {floor.asked}"
        if breach is None and floor.got < floor.asked:
            yield Violation(floor.policy, f"{floor.subject}: {what}, and no word of it")
        elif breach is not None and (floor.got >= floor.asked or breach != floor):
            yield Violation("breach", f"{floor.policy} of {floor.subject}: {breach.got}, it has {what}")
    for policy, subject in told:
        yield Violation("breach", f"{policy} of {subject}: nobody asked for it")
    lost = {breach.subject for breach in answer.breaches if breach.policy == "pinned"}
    for key in pinned_of(problem):
        if subject_of(key) in lost and _could_stay(problem, answer, key):
            yield Violation("breach", f"{subject_of(key)}: there is room for one more that is pinned")


def replicas_of(problem: Problem, answer: Answer, service: Service) -> list[Chosen]:
    """Instances that count as replicas of a service: decode too, where it may be served apart."""
    pairs = {f"{p.model}/{p.slo_class}/both" for p in problem.policy.disaggregation}
    decode = service.model_copy(update={"phase": "decode"}).key
    counted = {service.key, decode} if service.key in pairs else {service.key}
    return [chosen for chosen in answer.chosen if chosen.service.key in counted]


def subject_of(pinned: Key) -> str:
    return f"{pinned[1]} in {pinned[2]}"


def services_of(problem: Problem, model: str) -> list[Service]:
    """The demanded ones."""
    return [d.service for d in problem.demands if d.service.model == model]


def region_of(chosen: Chosen) -> str:
    return f"{chosen.pool.cloud}/{chosen.pool.region}"


def _floors(problem: Problem, answer: Answer) -> Iterator[Breach]:
    """All that should be there, with what is."""
    policy = problem.policy
    for replicas in policy.replicas:
        for service in services_of(problem, replicas.model):
            got = sum(max(0, c.count) for c in replicas_of(problem, answer, service))
            yield Breach(policy="replicas", subject=service.key, asked=replicas.at_least, got=got)
    for model, regions in policy.regions_at_least.items():
        for service in services_of(problem, model):
            got = len({region_of(c) for c in replicas_of(problem, answer, service)})
            yield Breach(policy="regions_at_least", subject=service.key, asked=regions, got=got)
    has = Counter({key_of(c): max(0, c.count) for c in answer.chosen})
    for key, asked in pinned_of(problem).items():
        yield Breach(policy="pinned", subject=subject_of(key), asked=asked, got=has[key])


def _could_stay(problem: Problem, answer: Answer, key: Key) -> bool:
    """Whether, of all that is pinned, one more instance would go where it runs."""
    run = next(run for run in problem.running if run.pinned and key_of_run(run) == key)
    template = run.template
    if template.variant not in problem.policy.variants.get(template.model, (template.variant,)):
        return False
    if set(template.nodes) & set(problem.excluded_configurations):
        return False
    for pair in problem.policy.disaggregation:
        half = (template.model, run.rating.slo_class) == (pair.model, pair.slo_class)
        half = half and template.phase != "both"
        if half and pair.configurations and not set(template.nodes) <= set(pair.configurations):
            return False
    nodes = Counter(template.nodes)
    for chosen in kept_pins(problem, answer):
        if chosen.pool == run.pool:
            for name, count in chosen.template.uses().items():
                nodes[name] += count * chosen.count
    return holds(problem, run.pool, nodes)
