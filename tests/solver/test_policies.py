"""Each policy on a case small enough to reckon by hand: it changes the answer, and the check misses it."""

import random
from collections.abc import Sequence

import pytest

from schemas.allocation import AllocationPolicy, Disaggregation, Replicas
from schemas.problems import Answer, Pool, Problem, Running, Stock
from solver.allocation import solve
from solver.asked import ProblemError
from solver.candidates import Rated
from solver.verify import verify
from tests.solver.brute import brute_force, measured, within_the_proof
from tests.solver.cases import random_case
from tests.solver.conftest import EAST, WEST, MadeUp, Toolbox

RESERVED = Pool(cloud="c", region="east", market="reserved")
Plan = list[tuple[str, str, int]]
"""(nodes, region, instances)."""


def plan(answer: Answer) -> Plan:
    return sorted(("+".join(c.template.nodes), c.pool.region, c.count) for c in answer.chosen)


class Case:
    """One question, asked with policies and without."""

    def __init__(
        self,
        box: Toolbox,
        rated: Sequence[Rated],
        stocks: Sequence[Stock],
        demands: dict[str, float],
        running: Sequence[Running] = (),
        ratio: dict[str, float] | None = None,
    ) -> None:
        self._box, self._stocks, self._demands, self._running = box, stocks, demands, running
        self._ratio = ratio
        self.library: MadeUp = box.library(*sorted(rated, key=lambda r: r.template.id))

    def problem(self, **policy: object) -> Problem:
        return self._box.problem(
            self.library,
            self._demands,
            self._stocks,
            running=self._running,
            ratio=self._ratio,
            policy=AllocationPolicy.model_validate(policy),
        )

    def answer(self, **policy: object) -> Answer:
        """A proven answer, that the check finds nothing wrong with."""
        problem = self.problem(**policy)
        answer = solve(problem, self.library)
        assert verify(problem, answer) == ()
        return answer

    def misses(self, answer: Answer, **policy: object) -> set[str]:
        """What the check misses in an answer that was given without the policy."""
        return {violation.name for violation in verify(self.problem(**policy), answer)}


def test_half_rule_no_instance_counts_for_more_than_half(box: Toolbox) -> None:
    big, small = box.rated(["a"], 10.0), box.rated(["b"], 5.0)
    case = Case(box, [big, small], [box.stock("a", 9, 1.0), box.stock("b", 9, 0.7)], {"m": 8.0})
    off = case.answer()
    assert plan(off) == [("a", "east", 1)]
    assert plan(case.answer(half_rule=("interactive",))) == [("b", "east", 2)]
    assert plan(case.answer(half_rule=("batch",))) == plan(off)
    assert "demand" in case.misses(off, half_rule=("interactive",))


def test_half_rule_is_named_where_it_leaves_demand_unmet(box: Toolbox) -> None:
    case = Case(box, [box.rated(["a"], 10.0)], [box.stock("a", 1, 1.0)], {"m": 8.0})
    (unmet,) = case.answer(half_rule=("interactive",)).unmet
    assert unmet.share == 0.5
    assert unmet.binding == "half rule: no instance counts for more than half; stock of a"


def test_restarts_discount_instances_of_many_nodes(box: Toolbox) -> None:
    whole, single = box.rated(["a", "a"], 2.0), box.rated(["b"], 2.1)
    case = Case(box, [whole, single], [box.stock("a", 9, 1.0), box.stock("b", 9, 2.5)], {"m": 1.95})
    often = {"failures_per_node_hour": 0.05, "recovery_s": {"m": 3600.0}}  # 5% of the time a node
    off = case.answer()
    assert plan(off) == [("a+a", "east", 1)]
    assert plan(case.answer(**often)) == [("b", "east", 1)]
    assert "demand" in case.misses(off, **often)


def test_a_mix_must_pay_for_being_complex(box: Toolbox) -> None:
    mix, single = box.rated(["a", "b"], 1.0), box.rated(["c"], 1.0)
    stocks = [box.stock("a", 9, 1.0), box.stock("b", 9, 0.9), box.stock("c", 9, 2.0)]
    case = Case(box, [mix, single], stocks, {"m": 1.0})
    off = case.answer()
    assert plan(off) == [("a+b", "east", 1)]
    assert plan(case.answer(surcharge_per_step=0.05)) == [("c", "east", 1)]  # 1.9 x 1.1 is more than 2
    little = case.answer(surcharge_per_step=0.01)
    assert plan(little) == plan(off)
    assert little.usd_per_hour == pytest.approx(1.9)
    assert little.policy_usd_per_hour == pytest.approx(0.038)
    assert "policy-price" in case.misses(off, surcharge_per_step=0.05)


def test_the_risk_of_spot_is_priced_in(box: Toolbox) -> None:
    spot = box.stock("a", 9, 0.9, WEST, interruptions_per_hour=0.1)
    case = Case(box, [box.rated(["a"], 1.0)], [box.stock("a", 9, 1.0), spot], {"m": 1.0})
    off = case.answer()
    assert plan(off) == [("a", "west", 1)]
    assert plan(case.answer(interruption_hours=2.0)) == [("a", "east", 1)]  # 0.9 x 1.2 is more than 1
    assert case.answer(interruption_hours=0.5).policy_usd_per_hour == pytest.approx(0.045)
    assert "policy-price" in case.misses(off, interruption_hours=2.0)


def test_a_variant_that_is_not_good_enough_is_not_chosen(box: Toolbox) -> None:
    rated = [box.rated(["a"], 1.0), box.rated(["a"], 2.0, variant="fp8")]
    case = Case(box, rated, [box.stock("a", 9, 1.0)], {"m": 2.0})
    off = case.answer()
    assert [c.template.variant for c in off.chosen] == ["fp8"]
    only = case.answer(variants={"m": ("bf16",)})
    assert [(c.template.variant, c.count) for c in only.chosen] == [("bf16", 2)]
    assert "variants" in case.misses(off, variants={"m": ("bf16",)})


def test_floors_and_ceilings_of_replicas(box: Toolbox) -> None:
    rated = [box.rated(["a"], 4.0), box.rated(["b"], 2.0)]
    case = Case(box, rated, [box.stock("a", 9, 3.0), box.stock("b", 9, 1.0)], {"m": 4.0})
    off = case.answer()
    assert plan(off) == [("b", "east", 2)]
    more, fewer = (
        {"replicas": (Replicas(model="m", at_least=3),)},
        {"replicas": (Replicas(model="m", at_most=1),)},
    )
    assert plan(case.answer(**more)) == [("b", "east", 3)]
    assert plan(case.answer(**fewer)) == [("a", "east", 1)]
    assert "replicas" in case.misses(off, **more)
    assert "replicas" in case.misses(off, **fewer)


def test_a_floor_holds_without_demand_and_is_told_where_stock_is_short(box: Toolbox) -> None:
    case = Case(box, [box.rated(["a"], 4.0)], [box.stock("a", 2, 3.0)], {"m": 0.0})
    floor = {"replicas": (Replicas(model="m", at_least=1),)}
    assert plan(case.answer(**floor)) == [("a", "east", 1)]
    short = case.answer(replicas=(Replicas(model="m", at_least=3),))
    assert plan(short) == [("a", "east", 2)]
    (breach,) = short.breaches
    assert (breach.policy, breach.subject, breach.asked, breach.got) == (
        "replicas",
        "m/interactive/both",
        3,
        2,
    )
    assert short.unmet == ()
    assert (short.usd_per_hour, short.policy_usd_per_hour, short.bound_usd_per_hour) == (6.0, 0.0, 6.0)


def test_models_are_spread_over_regions(box: Toolbox) -> None:
    stocks = [box.stock("a", 9, 1.0), box.stock("a", 9, 2.0, WEST)]
    case = Case(box, [box.rated(["a"], 1.0)], stocks, {"m": 3.0})
    off = case.answer()
    assert plan(off) == [("a", "east", 3)]
    assert plan(case.answer(regions_at_least={"m": 2})) == [("a", "east", 2), ("a", "west", 1)]
    assert "regions_at_least" in case.misses(off, regions_at_least={"m": 2})
    (breach,) = case.answer(regions_at_least={"m": 3}).breaches
    assert (breach.policy, breach.asked, breach.got) == ("regions_at_least", 3, 2)


def test_spot_pools_cover_no_more_than_their_share(box: Toolbox) -> None:
    stocks = [box.stock("a", 9, 1.0), box.stock("a", 9, 0.3, WEST)]
    case = Case(box, [box.rated(["a"], 1.0)], stocks, {"m": 4.0})
    off = case.answer()
    assert plan(off) == [("a", "west", 4)]
    for share, west in ((0.5, 2), (0.3, 1)):
        assert plan(case.answer(spot_share={"m": share})) == [("a", "east", 4 - west), ("a", "west", west)]
        assert "spot_share" in case.misses(off, spot_share={"*": share})
    assert plan(case.answer(spot_share={"m": 0.0})) == [("a", "east", 4)]


def test_a_budget_leaves_demand_unmet_rather(box: Toolbox) -> None:
    case = Case(box, [box.rated(["a"], 1.0)], [box.stock("a", 9, 1.0)], {"m": 2.0})
    off = case.answer()
    tight = case.answer(budget_usd_per_hour=1.5)
    assert plan(tight) == [("a", "east", 1)]
    assert [(u.share, u.binding) for u in tight.unmet] == [(0.5, "budget")]
    assert "budget" in case.misses(off, budget_usd_per_hour=1.5)


def test_pinned_instances_stay_whatever_they_cost(box: Toolbox) -> None:
    dear, cheap = box.rated(["a"], 1.0), box.rated(["b"], 1.0)
    stocks = [box.stock("a", 2, 5.0), box.stock("b", 9, 1.0)]

    def case(pinned: int) -> Case:
        return Case(box, [dear, cheap], stocks, {"m": 2.0}, [box.running(dear, 3, pinned=pinned)])

    off = case(0).answer()
    assert plan(off) == [("b", "east", 2)]
    assert plan(case(1).answer()) == [("a", "east", 1), ("b", "east", 1)]
    assert "pinned" in case(1).misses(off)
    limits = {"replicas": (Replicas(model="m", at_most=1),), "budget_usd_per_hour": 3.0}
    lost = case(3).answer(**limits)  # two nodes are left; pinned instances override limits
    assert plan(lost) == [("a", "east", 2)]
    assert [(b.policy, b.asked, b.got) for b in lost.breaches] == [("pinned", 3, 2)]


def test_a_pinned_instance_stays_without_demand(box: Toolbox) -> None:
    a = box.rated(["a"], 1.0)
    for demands in ({"m": 0.0}, {}):
        case = Case(box, [a], [box.stock("a", 2, 5.0)], demands, [box.running(a, 1, pinned=1)])
        assert plan(case.answer()) == [("a", "east", 1)]


def test_reserved_nodes_are_paid_anyway(box: Toolbox) -> None:
    stocks = [box.stock("a", 9, 1.0), box.stock("b", 1, 0.0, RESERVED)]
    case = Case(box, [box.rated(["a"], 1.0), box.rated(["b"], 1.0)], stocks, {"m": 2.0})
    answer = case.answer()
    assert plan(answer) == [("a", "east", 1), ("b", "east", 1)]
    assert answer.usd_per_hour == 1.0


def test_weights_say_who_goes_short(box: Toolbox) -> None:
    rated = [box.rated(["a"], 1.0, "m"), box.rated(["a"], 1.0, "n")]
    case = Case(box, rated, [box.stock("a", 6, 1.0)], {"m": 6.0, "n": 6.0})
    even, heavy = case.answer(), case.answer(weights={"m": 2.0})
    assert {c.service.model: c.count for c in even.chosen} == {"m": 3, "n": 3}
    assert {c.service.model: c.count for c in heavy.chosen} == {"m": 4, "n": 2}  # 2 x 2/6 = 1 x 4/6
    assert [s.minimised for s in heavy.steps] == ["worst", "total", "cost"]
    assert all(step.gap <= 1e-3 for step in heavy.steps)


def test_most_met_demand_may_let_one_model_starve(box: Toolbox) -> None:
    rated = [box.rated(["a"], 5.0, "m"), box.rated(["a", "a", "a"], 5.0, "n")]
    case = Case(box, rated, [box.stock("a", 4, 1.0)], {"m": 20.0, "n": 10.0})
    assert {c.service.model: c.count for c in case.answer().chosen} == {"m": 1, "n": 1}  # 0.75 and 0.5
    most = case.answer(scarcity="most-met")
    assert {c.service.model: c.count for c in most.chosen} == {"m": 4}  # 0 and 1
    assert [s.minimised for s in most.steps] == ["total", "cost"]


def test_what_runs_stays_unless_moving_saves_enough(box: Toolbox) -> None:
    a, b = box.rated(["a"], 1.0), box.rated(["b"], 1.0)
    stocks = [box.stock("a", 9, 1.0), box.stock("b", 9, 0.9)]
    case = Case(box, [a, b], stocks, {"m": 2.0}, [box.running(a, 2)])
    assert plan(case.answer()) == [("b", "east", 2)]
    kept = case.answer(minimum_saving=0.15)
    assert (plan(kept), kept.kept) == ([("a", "east", 2)], True)
    assert kept.bound_usd_per_hour == pytest.approx(1.8)
    assert plan(case.answer(minimum_saving=0.05)) == [("b", "east", 2)]
    short = Case(box, [a, b], stocks, {"m": 3.0}, [box.running(a, 2)])
    assert not short.answer(minimum_saving=0.9).kept  # what runs does not serve as well


PAIR = Disaggregation(
    model="m", slo_class="interactive", prefill_tokens_per_s=100.0, decode_tokens_per_s=50.0
)


def test_prefill_and_decode_apart_where_that_is_cheaper(box: Toolbox) -> None:
    rated = [
        box.rated(["a"], 5.0),
        box.rated(["b"], 100.0, phase="prefill"),
        box.rated(["c"], 50.0, phase="decode"),
    ]
    stocks = [box.stock("a", 9, 2.0), box.stock("b", 9, 1.0), box.stock("c", 9, 1.5, EAST)]
    case = Case(box, rated, stocks, {"m": 10.0})
    assert plan(case.answer()) == [("a", "east", 2)]
    apart = case.answer(disaggregation=(PAIR,))
    assert plan(apart) == [("b", "east", 1), ("c", "east", 1)]
    (pair,) = apart.apart
    assert (pair.region, pair.variant) == ("c/east", "bf16")
    assert pair.share == pytest.approx(1.0)
    dear = PAIR.model_copy(update={"transfer_usd_per_hour": 2.0})
    assert plan(case.answer(disaggregation=(dear,))) == [("a", "east", 2)]
    half = apart.model_copy(update={"chosen": apart.chosen[:1]})
    assert "apart" in case.misses(half, disaggregation=(PAIR,))


def test_a_pair_lies_in_one_region_and_has_one_variant(box: Toolbox) -> None:
    prefill, decode = (
        box.rated(["b"], 100.0, phase="prefill"),
        box.rated(["c"], 50.0, phase="decode", variant="fp8"),
    )
    aggregated, matching = box.rated(["a"], 10.0), box.rated(["d"], 50.0, phase="decode")
    stocks = [box.stock("a", 9, 9.0), box.stock("b", 9, 1.0), box.stock("c", 9, 1.0)]
    policy = {"disaggregation": (PAIR,)}
    case = Case(box, [prefill, decode, aggregated], stocks, {"m": 10.0})
    assert plan(case.answer(**policy)) == [("a", "east", 1)]
    for pool, expected in ((WEST, [("a", "east", 1)]), (EAST, [("b", "east", 1), ("d", "east", 1)])):
        there = [*stocks, box.stock("d", 9, 2.0, pool)]
        case = Case(box, [prefill, matching, aggregated], there, {"m": 10.0})
        assert plan(case.answer(**policy)) == expected


def random_policy(rng: random.Random) -> AllocationPolicy:
    """Each policy in every other case."""
    fields: dict[str, object] = {
        "weights": {"m": rng.choice((0.5, 3.0))},
        "scarcity": "most-met",
        "half_rule": ("interactive",),
        "failures_per_node_hour": 0.05,
        "surcharge_per_step": rng.choice((0.02, 0.2)),
        "interruption_hours": 2.0,
        "replicas": (Replicas(model="m", at_least=rng.randint(0, 2), at_most=rng.randint(2, 3)),),
        "regions_at_least": {"n": 2},
        "spot_share": {"*": rng.choice((0.0, 0.4, 0.7))},
        "budget_usd_per_hour": rng.uniform(2, 12),
    }
    picked = {name: value for name, value in fields.items() if rng.random() < 0.5}
    return AllocationPolicy(recovery_s={"m": 3600.0, "n": 7200.0}, **picked)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(24))
def test_policies_together_equal_brute_force(box: Toolbox, seed: int) -> None:
    problem, library = random_case(seed, box)
    stocks = [s.model_copy(update={"interruptions_per_hour": 0.1}) for s in problem.stocks]
    policy = random_policy(random.Random(seed))
    problem = problem.model_copy(update={"policy": policy, "stocks": tuple(stocks)})
    answer = solve(problem, library)
    assert verify(problem, answer) == ()
    within_the_proof(answer, measured(problem, library, answer), brute_force(problem, library))


def test_only_nodes_that_read_each_others_caches_are_paired(box: Toolbox) -> None:
    """vLLM: no mix of CUDA and ROCm (vllm.md)."""
    rated = [
        box.rated(["a"], 10.0),
        box.rated(["b"], 100.0, phase="prefill"),
        box.rated(["c"], 50.0, phase="decode"),
        box.rated(["d"], 50.0, phase="decode"),
    ]
    stocks = [box.stock("a", 9, 9.0), box.stock("b", 9, 1.0), box.stock("c", 9, 1.0), box.stock("d", 9, 2.0)]
    case = Case(box, rated, stocks, {"m": 10.0})
    off = case.answer(disaggregation=(PAIR,))
    assert plan(off) == [("b", "east", 1), ("c", "east", 1)]
    alike = PAIR.model_copy(update={"configurations": ("b", "d")})
    assert plan(case.answer(disaggregation=(alike,))) == [("b", "east", 1), ("d", "east", 1)]
    assert "apart" in case.misses(off, disaggregation=(alike,))


@pytest.mark.parametrize(
    ("policy", "match"),
    [
        ({"replicas": (Replicas(model="z", at_least=1),)}, "policy.replicas: 'z'"),
        ({"regions_at_least": {"z": 2}}, "policy.regions_at_least: 'z'"),
        ({"weights": {"z": 2.0}}, "policy.weights: 'z'"),
        ({"disaggregation": (PAIR.model_copy(update={"slo_class": "batch"}),)}, "m/batch/both has no demand"),
    ],
)
def test_a_policy_for_nobody_is_a_typed_error(box: Toolbox, policy: dict[str, object], match: str) -> None:
    library = box.library(box.rated(["a"], 1.0))
    problem = box.problem(library, {"m": 1.0}, [box.stock("a", 1, 1.0)])
    changed = problem.model_copy(update={"policy": AllocationPolicy(**policy)})  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match=match):
        solve(changed, library)
