"""From a solved program to the answer that travels: cost, proof, unmet demand and what stands in its way."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from schemas.problems import Answer, Apart, Bought, Breach, Chosen, Step, Unmet
from solver.columns import Question
from solver.keeping import unmet_by_step
from solver.obstacles import binding, obstacles
from solver.partials import aside_of
from solver.program import Proof, Solved
from solver.slices import spare_nodes

METHOD = "coral"
RELATIVE_GAP = 1e-6
"""An answer within this of its bound is called optimal."""
OPEN = "nothing that is known: the search was stopped"
"""What stands in the way, where that is not looked for."""
SHARE_TOLERANCE = 1e-6
"""Unmet demand below this share is HiGHS's rounding. Its rows are scaled to 1, its tolerance is 1e-6."""


def make_answer(question: Question, solved: Solved, *, kept: bool = False, done: bool = True) -> Answer:
    """The answer of a solved question; without `seconds`, which the caller measures.

    Args:
        kept: it is the running plan, since a new one saves too little.
        done: the search is over, so it can be said what limits cost and what leaves demand unmet.
    """
    solved = _without_spare_nodes(question, solved)
    bill, penalty, added = _costs(question, solved)
    total = bill + penalty + added
    proven = bool(solved.proofs) and solved.proofs[-1].step == "cost"
    # A plan that is short of no more than this one has no higher prices for that in its cost.
    aside = aside_of(question.program, solved.extras)
    bound = min(total, max(0.0, solved.bound - aside)) if proven else 0.0
    gap = (total - bound) / total if total > 0 else 0.0
    steps = tuple(
        Step(minimised="cost", value=total, bound=bound, gap=gap)
        if p.step == "cost"
        else _step_of_shares(question, solved, p)
        for p in solved.proofs
        if p.step == "cost" or not proven or solved.unmet.any()
    )
    left = max((s.gap for s in steps if s.minimised != "cost"), default=0.0)
    closed = proven and gap <= 2 * RELATIVE_GAP and left <= SHARE_TOLERANCE
    return Answer(
        problem=question.problem.id,
        method=METHOD,
        status="optimal" if closed else "feasible",
        chosen=tuple(_chosen(question, solved)),
        unmet=tuple(_unmet(question, solved, done)),
        usd_per_hour=bill,
        penalty_usd_per_hour=penalty,
        policy_usd_per_hour=added,
        bound_usd_per_hour=bound,
        gap=gap,
        seconds=0.0,
        nodes=tuple(_bought(question, solved)),
        apart=tuple(_apart(question, solved)),
        columns=question.program.size,
        steps=steps,
        binding=binding(question, solved) if done else (),
        breaches=(*question.breaches, *_missing(question, solved)),
        kept=kept,
        ignored=question.ignored,
        timings=dict(solved.seconds),
    )


def _without_spare_nodes(question: Question, solved: Solved) -> Solved:
    """The same plan with no node bought that no slice needs.

    What costs nothing (reserved nodes) a search may buy or not, and what costs little it may leave open.
    """
    uses: dict[str, Counter[int]] = {}
    for b, row, count in solved.counts:
        used = uses.setdefault(question.pool(b).key, Counter())
        used.update({c: nodes * count for c, nodes in question.uses(b, row).items()})
    extras, saved = solved.extras.copy(), 0.0
    for place in question.places:
        at = {stock.configuration: k for k, (there, stock) in question.bought.items() if there is place}
        bought = {name: round(float(extras[k])) for name, k in at.items()}
        for name, spare in spare_nodes(place, uses.get(place.pool.key, {}), bought).items():
            extras[at[name]] -= spare
            saved += spare * float(question.program.extras.price[at[name]])
    proofs = tuple(p._replace(value=p.value - saved) if p.step == "cost" else p for p in solved.proofs)
    return replace(solved, extras=extras, cost=solved.cost - saved, proofs=proofs)


def _step_of_shares(question: Question, solved: Solved, proof: Proof) -> Step:
    """What the plan reaches: a later step may have found one that leaves even less."""
    value = min(proof.value, unmet_by_step(question.program, proof.step, solved.unmet))
    bound = min(proof.bound, value)
    return Step(minimised=proof.step, value=value, bound=bound, gap=value - bound)


def _costs(question: Question, solved: Solved) -> tuple[float, float, float]:
    """The bill, what starting costs, and what policies add; USD per hour. What they are short of is told, and
    no cost: its price is there to have it avoided."""
    problem, program = question.problem, question.program
    running = {(s.block, s.row): s.running for s in program.specials}
    bill, penalty, added = 0.0, 0.0, 0.0
    for b, row, count in solved.counts:
        block, site = program.blocks[b], question.sites[b]
        for c, nodes in question.uses(b, row).items():
            bill += count * nodes * float(block.price[c])
        ratio = problem.startup_ratio.get(site.asked.service.model, 0.0)
        penalty += max(0, count - running.get((b, row), 0)) * question.bill(b, row) * ratio
        added += 0.0 if block.surcharge is None else count * float(block.surcharge[row])
    for k, value in enumerate(solved.extras.tolist()):
        usd = float(program.extras.price[k])
        if k in question.bought:
            own = question.bought[k][1].usd_per_hour
            bill, added = bill + value * own, added + value * (usd - own)
        elif k in question.apart:
            bill += _share(value) * usd
    return bill, penalty, added


def _share(value: float) -> float:
    """Of demand, without HiGHS's rounding."""
    return min(1.0, value) if value > SHARE_TOLERANCE else 0.0


def _chosen(question: Question, solved: Solved) -> Iterator[Chosen]:
    for b, row, count in solved.counts:
        rated = question.rated(b, row)
        yield Chosen(
            template=rated.template,
            rating=rated.rating,
            pool=question.pool(b),
            count=count,
            usd_per_hour=question.bill(b, row),
        )


def _bought(question: Question, solved: Solved) -> Iterator[Bought]:
    for k, (_, stock) in question.bought.items():
        if count := round(float(solved.extras[k])):
            yield Bought(
                pool=stock.pool,
                configuration=stock.configuration,
                count=count,
                usd_per_hour=stock.usd_per_hour,
            )


def _apart(question: Question, solved: Solved) -> Iterator[Apart]:
    for k, (service, region, variant) in question.apart.items():
        if share := _share(float(solved.extras[k])):
            whole = question.asked[service].service
            yield Apart(service=whole, region=region, variant=variant, share=share)


def _missing(question: Question, solved: Solved) -> Iterator[Breach]:
    for k, missing in question.missing.items():
        got = missing.floor - round(float(solved.extras[k]))
        if got < missing.asked:
            yield Breach(policy=missing.policy, subject=missing.subject, asked=missing.asked, got=got)


def _unmet(question: Question, solved: Solved, done: bool) -> Iterator[Unmet]:
    shares = dict(zip(question.program.services, solved.unmet.tolist(), strict=True))
    for key, asked in question.asked.items():
        share = min(1.0, shares.get(key, 1.0))
        if asked.need > 0 and share > SHARE_TOLERANCE:
            yield Unmet(
                service=asked.service,
                rate=share * asked.rate,
                share=share,
                binding=obstacles(question, solved, asked.service) if done else OPEN,
            )
