"""Whether what an answer says of itself holds together: its bound, gap and steps, and that it was kept."""

from collections.abc import Iterator

from schemas.problems import Answer, Problem, Step
from solver.verify_parts import MONEY, SHARE, Violation, close, key_of, running_of

OPTIMAL = 1e-5
"""The largest gap of an answer that is called optimal."""
ORDERS = {"worst-first": ("worst", "total", "cost"), "most-met": ("total", "cost")}


def proof(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """All violations, in a fixed order. Whether a bound is one only another solve could tell; what can be
    seen is that it is not above the cost, and that the figures agree."""
    for check in (_bound, _order, _steps, _kept):
        yield from check(problem, answer)


def _bound(_: Problem, answer: Answer) -> Iterator[Violation]:
    """The bound is not above the cost, the gap is what lies between them, and little where it is optimal."""
    cost, bound = answer.value, answer.bound_usd_per_hour
    if not bound <= cost * (1 + MONEY) + MONEY:  # also where it is NaN
        yield Violation("bound", f"bound {bound} above cost {cost}")
    gap = (cost - bound) / cost if cost > 0 else 0.0
    if not abs(gap - answer.gap) <= 1e-6:
        yield Violation("bound", f"gap {answer.gap}, bound and cost give {gap}")
    widest = max((step.gap for step in answer.steps), default=answer.gap)
    if answer.status == "optimal" and not max(widest, answer.gap) <= OPTIMAL:
        yield Violation("bound", f"optimal with a gap of {max(widest, answer.gap)}")


def _order(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """The steps follow the order that was asked for, or are the cost alone."""
    found, order = tuple(step.minimised for step in answer.steps), ORDERS[problem.policy.scarcity]
    if found != ("cost",) and found != order[: len(found)]:
        yield Violation("steps", f"{', '.join(found)}: expected {', '.join(order)}")


def _steps(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """What each step says to have reached is what the answer reaches, and its gap what its bound leaves."""
    for step in answer.steps:
        low, high = _reached(problem, answer, step)
        slack = max(SHARE, OPTIMAL * abs(high))
        if not low - slack <= step.value <= high + slack:
            yield Violation("steps", f"{step.minimised}: {step.value}, the answer reaches {high}")
        if not step.bound <= step.value + SHARE * max(1.0, abs(step.value)):
            yield Violation("steps", f"{step.minimised}: bound {step.bound} above value {step.value}")
        over = max(0.0, step.value - step.bound)
        gap = over / step.value if step.minimised == "cost" and step.value > 0 else over
        if not abs(gap - step.gap) <= 1e-6:
            yield Violation("steps", f"{step.minimised}: gap {step.gap}, bound and value give {gap}")
        if step.minimised == "cost" and not close(step.bound, answer.bound_usd_per_hour, SHARE):
            yield Violation("steps", f"cost: bound {step.bound}, the answer's is {answer.bound_usd_per_hour}")


def _reached(problem: Problem, answer: Answer, step: Step) -> tuple[float, float]:
    """Least and most that a step can have reached: services that nothing serves at all may have been left
    out, since what nobody could serve must not hide what others lack."""
    if step.minimised == "cost":
        return answer.value, answer.value
    shares = [(problem.policy.weight(u.service.model) * u.share, u.share < 1 - SHARE) for u in answer.unmet]
    served = [weighed for weighed, is_served in shares if is_served]
    every = [weighed for weighed, _ in shares]
    if step.minimised == "worst":
        return max(served, default=0.0), max(every, default=0.0)
    return sum(served), sum(every)


def _kept(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """The running plan starts nothing."""
    running = running_of(problem)
    for chosen in answer.chosen if answer.kept else ():
        if chosen.count > running[key_of(chosen)]:
            more = f"{chosen.count}, {running[key_of(chosen)]} run"
            yield Violation("kept", f"{chosen.template.id} in {chosen.pool.key}: {more}")
