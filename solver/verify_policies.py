"""Whether an answer keeps what its problem asks for beyond demand and stock (`schemas.allocation`)."""

from collections.abc import Iterator

from schemas.allocation import Disaggregation
from schemas.problems import Answer, Chosen, Problem, Service
from solver.verify_parts import (
    MONEY,
    SHARE,
    Violation,
    close,
    covered,
    key_of,
    pinned_of,
    slice_of,
)


def policies(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """All violations, in a fixed order."""
    for check in (_pinned, _variants, _replicas, _regions, _spot, _budget, _apart, _added):
        yield from check(problem, answer)


def _pinned(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """Pinned instances stay, but for those that the answer says there is no stock for."""
    counts = {key_of(c): c.count for c in answer.chosen}
    for key, pinned in pinned_of(problem).items():
        told = _told(answer, "pinned", f"{key[1]} in {key[2]}")
        if counts.get(key, 0) < pinned - told:
            yield Violation("pinned", f"{key[1]} in {key[2]}: {counts.get(key, 0)}, {pinned} pinned")


def _variants(problem: Problem, answer: Answer) -> Iterator[Violation]:
    for chosen in answer.chosen:
        model, variant = chosen.template.model, chosen.template.variant
        if variant not in problem.policy.variants.get(model, (variant,)):
            yield Violation("variants", f"{chosen.template.id}: {model} as {variant} is not good enough")


def _replicas(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """Floors are kept but for what is told; ceilings but for what is pinned."""
    for replicas in problem.policy.replicas:
        for service in _services(problem, replicas.model):
            counted = [c for c in answer.chosen if c.service.key in _counted(problem, service)]
            got = sum(c.count for c in counted)
            floor = replicas.at_least - _told(answer, "replicas", service.key)
            if got < floor:
                yield Violation("replicas", f"{service.key}: {got}, at least {floor} asked for")
            pinned = sum(n for k, n in pinned_of(problem).items() if k[0] in _counted(problem, service))
            if replicas.at_most is not None and got > max(replicas.at_most, pinned):
                yield Violation("replicas", f"{service.key}: {got}, at most {replicas.at_most} allowed")


def _regions(problem: Problem, answer: Answer) -> Iterator[Violation]:
    for model, regions in problem.policy.regions_at_least.items():
        for service in _services(problem, model):
            counted = [c for c in answer.chosen if c.service.key in _counted(problem, service)]
            got = len({_region(c) for c in counted})
            if got < regions - _told(answer, "regions_at_least", service.key):
                yield Violation("regions_at_least", f"{service.key}: in {got}, {regions} asked for")


def _spot(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """Spot pools cover no more than their share, unless pinned instances do."""
    for service, rate in _rates(problem).items():
        limit = problem.policy.spot_limit(service.model)
        if limit >= 1 or any(key[0] == service.key for key in pinned_of(problem)):
            continue
        spot, all_ = (covered(problem, answer, service, rate, market) for market in ("spot", None))
        if spot > limit * all_ + SHARE:
            yield Violation("spot_share", f"{service.key}: {spot} of {all_} on spot, {limit} allowed")


def _budget(problem: Problem, answer: Answer) -> Iterator[Violation]:
    budget = problem.policy.budget_usd_per_hour
    if budget is None or pinned_of(problem):
        return
    if answer.usd_per_hour > budget * (1 + SHARE) + SHARE:
        yield Violation("budget", f"{answer.usd_per_hour} USD per hour, {budget} allowed")


def _apart(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """What is served apart is covered by prefill and by decode, in that region and by that variant."""
    pairs = {f"{p.model}/{p.slo_class}/both": p for p in problem.policy.disaggregation}
    for apart in answer.apart:
        pair = pairs.get(apart.service.key)
        if pair is None:
            yield Violation("apart", f"{apart.service.key} may not be served apart")
            continue
        place = apart.region, apart.variant
        there = [c for c in answer.chosen if (_region(c), c.template.variant) == place]
        part = answer.model_copy(update={"chosen": tuple(there)})
        names = {name for c in answer.chosen if _is_half(c, pair) for name in c.template.nodes}
        if pair.configurations and not names <= set(pair.configurations):
            odd = sorted(names - set(pair.configurations))
            yield Violation("apart", f"{apart.service.key}: pairs on {odd}, which do not pair")
        for phase, rate in (("prefill", pair.prefill_tokens_per_s), ("decode", pair.decode_tokens_per_s)):
            service = apart.service.model_copy(update={"phase": phase})
            share = covered(problem, part, service, rate)
            if share < apart.share - SHARE:
                where = f"{apart.variant} in {apart.region}"
                yield Violation("apart", f"{service.key} as {where}: covers {share} of {apart.share}")


def _added(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """What policies add to the cost: surcharges, risk, and what is missing of floors."""
    policy = problem.policy
    risk = {(s.pool.key, s.configuration): s.interruptions_per_hour for s in problem.stocks}
    price = {(s.pool.key, s.configuration): s.usd_per_hour for s in problem.stocks}
    usd = policy.breach_usd_per_hour * sum(b.asked - b.got for b in answer.breaches if b.policy != "pinned")
    for c in answer.chosen:
        names = set(c.template.nodes)
        steps = (len(c.template.nodes) > 1) + (len(names) > 1)
        usd += c.count * c.usd_per_hour * policy.surcharge_per_step * steps
        for name, nodes in c.template.uses().items():
            if slice_of(problem, name) is None:
                key = (c.pool.key, name)
                usd += c.count * nodes * price.get(key, 0.0) * risk.get(key, 0.0) * policy.interruption_hours
    for b in answer.nodes:
        rate = risk.get((b.pool.key, b.configuration), 0.0)
        usd += b.count * b.usd_per_hour * rate * policy.interruption_hours
    if not close(usd, answer.policy_usd_per_hour, MONEY):
        yield Violation("policy-price", f"{answer.policy_usd_per_hour}, policies add {usd}")


# ------------------------------------------------------------------------------------------------ helpers


def _rates(problem: Problem) -> dict[Service, float]:
    """All services with demand, the halves of pairs included."""
    found = {d.service: d.rate for d in problem.demands if d.rate > 0}
    for pair in problem.policy.disaggregation:
        whole = Service(model=pair.model, slo_class=pair.slo_class)
        if whole in found:
            found[whole.model_copy(update={"phase": "prefill"})] = pair.prefill_tokens_per_s
            found[whole.model_copy(update={"phase": "decode"})] = pair.decode_tokens_per_s
    return found


def _is_half(chosen: Chosen, pair: Disaggregation) -> bool:
    service = chosen.service
    return (service.model, service.slo_class) == (pair.model, pair.slo_class) and service.phase != "both"


def _services(problem: Problem, model: str) -> list[Service]:
    return [d.service for d in problem.demands if d.service.model == model]


def _counted(problem: Problem, service: Service) -> set[str]:
    """Services whose instances are replicas of one: decode too, where it may be served apart."""
    pairs = {f"{p.model}/{p.slo_class}/both" for p in problem.policy.disaggregation}
    decode = service.model_copy(update={"phase": "decode"}).key
    return {service.key, decode} if service.key in pairs else {service.key}


def _told(answer: Answer, policy: str, subject: str) -> int:
    """By how much the answer says to be short of a policy."""
    return sum(b.asked - b.got for b in answer.breaches if (b.policy, b.subject) == (policy, subject))


def _region(chosen: Chosen) -> str:
    return f"{chosen.pool.cloud}/{chosen.pool.region}"
