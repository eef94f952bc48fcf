"""Whether an answer keeps what its problem asks for beyond demand and stock (`schemas.allocation`)."""

from collections.abc import Iterator

from schemas.allocation import Disaggregation
from schemas.problems import Answer, Chosen, Problem, Service
from solver.verify_breaches import breaches, region_of, replicas_of, services_of
from solver.verify_parts import (
    MONEY,
    SHARE,
    Violation,
    close,
    covered,
    kept_pins,
    slice_of,
)


def policies(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """All violations, in a fixed order."""
    for check in (breaches, _variants, _ceilings, _spot, _budget, _apart, _added):
        yield from check(problem, answer)


def _variants(problem: Problem, answer: Answer) -> Iterator[Violation]:
    for chosen in answer.chosen:
        model, variant = chosen.template.model, chosen.template.variant
        if variant not in problem.policy.variants.get(model, (variant,)):
            yield Violation("variants", f"{chosen.template.id}: {model} as {variant} is not good enough")


def _ceilings(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """No more replicas than allowed, but for what is pinned."""
    for replicas in problem.policy.replicas:
        for service in services_of(problem, replicas.model):
            got = sum(c.count for c in replicas_of(problem, answer, service))
            pinned = replicas_of(problem, _pins_alone(problem, answer), service)
            most = replicas.at_most
            if most is not None and got > max(most, sum(c.count for c in pinned)):
                yield Violation("replicas", f"{service.key}: {got}, at most {most} allowed")


def _spot(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """Spot pools cover no more than their share of all, or exceed it by no more than pinned instances do."""
    pins = _pins_alone(problem, answer)
    for service, rate in _rates(problem).items():
        limit = problem.policy.spot_limit(service.model)
        over, pinned = (
            covered(problem, part, service, rate, "spot") - limit * covered(problem, part, service, rate)
            for part in (answer, pins)
        )
        if limit < 1 and not over <= max(0.0, pinned) + SHARE:
            yield Violation("spot_share", f"{service.key}: {over} above its share on spot, {limit}")


def _budget(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """The bill keeps to the budget, or to what pinned instances cost, with all nodes under slices if any of
    those is pinned."""
    budget = problem.policy.budget_usd_per_hour
    if budget is None:
        return
    pinned = 0.0
    for chosen in kept_pins(problem, answer):
        if any(slice_of(problem, name) for name in chosen.template.nodes):
            pinned += sum(bought.usd_per_hour * bought.count for bought in answer.nodes)
        pinned += chosen.usd_per_hour * chosen.count
    if not answer.usd_per_hour <= max(budget, pinned) * (1 + SHARE) + SHARE:
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
        there = [c for c in answer.chosen if (region_of(c), c.template.variant) == place]
        part = answer.model_copy(update={"chosen": tuple(there)})
        names = {name for c in answer.chosen if _is_half(c, pair) for name in c.template.nodes}
        if pair.configurations and not names <= set(pair.configurations):
            odd = sorted(names - set(pair.configurations))
            yield Violation("apart", f"{apart.service.key}: pairs on {odd}, which do not pair")
        for phase, rate in (("prefill", pair.prefill_tokens_per_s), ("decode", pair.decode_tokens_per_s)):
            service = apart.service.model_copy(update={"phase": phase})
            share = covered(problem, part, service, rate)
            if not 0 < apart.share <= share + SHARE:
                where = f"{apart.variant} in {apart.region}"
                yield Violation("apart", f"{service.key} as {where}: covers {share} of {apart.share}")


def _added(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """What policies add to the cost: surcharges and risk. What is missing of floors costs nobody anything."""
    policy = problem.policy
    risk = {(s.pool.key, s.configuration): s.interruptions_per_hour for s in problem.stocks}
    price = {(s.pool.key, s.configuration): s.usd_per_hour for s in problem.stocks}
    usd = 0.0
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


def _pins_alone(problem: Problem, answer: Answer) -> Answer:
    return answer.model_copy(update={"chosen": kept_pins(problem, answer)})
