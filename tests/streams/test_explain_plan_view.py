"""What is said of a neighbour that leaves more or less unmet."""

import pytest

from solver.explain_plan import Outcome
from streams.explain_plan_view import unmet_said

WORST, TOTAL = "56.00% instead of 55.00%", "1.73 instead of 2.38"


def outcome(worst: float, total: float) -> Outcome:
    return Outcome(usd_per_hour=1.0, bound_usd_per_hour=1.0, worst_unmet=worst, total_unmet=total)


@pytest.mark.parametrize(
    ("there", "order", "said"),
    [
        (
            outcome(0.56, 1.73),
            "worst-first",
            f"leaves more unmet of the worst service, {WORST}, but less in all, {TOTAL}",
        ),
        (
            outcome(0.56, 1.73),
            "most-met",
            f"leaves less unmet in all, {TOTAL}, but more of the worst service, {WORST}",
        ),
        (
            outcome(0.56, 2.5),
            "worst-first",
            f"leaves more unmet of the worst service, {WORST}",
        ),
        (outcome(0.55, 2.0), "worst-first", "leaves less unmet in all, 2.00 instead of 2.38"),
    ],
)
def test_it_is_said_which_share_of_the_demand_goes_unmet(there: Outcome, order: str, said: str) -> None:
    assert (
        unmet_said(outcome(0.55, 2.38), there, "most-met" if order == "most-met" else "worst-first") == said
    )
