"""What binds is what a plan uses up; what stands in the way is what more of would help."""

from schemas.allocation import AllocationPolicy, Disaggregation, Replicas
from schemas.problems import Answer, Problem, Sliced
from solver.allocation import solve
from solver.verify import verify
from tests.solver.conftest import WEST, MadeUp, Toolbox

KIND = Sliced(gpu="H", gpus={f"{n}xH": n for n in (1, 8)})
SERVICE = "m/interactive/both"


def answered(problem: Problem, library: MadeUp) -> Answer:
    answer = solve(problem, library)
    assert verify(problem, answer) == ()
    return answer


def limits(answer: Answer) -> list[str]:
    return [binding.limit for binding in answer.binding]


# ---------------------------------------------------------------------------------------------- what binds


def sliced(box: Toolbox, nodes: int) -> Answer:
    """Five slices of a node of eight."""
    library = box.library(box.rated(["1xH"], 1.0))
    problem = box.problem(library, {"m": 5.0 * nodes}, [box.stock("8xH", nodes, 8.0)], sliced=[KIND])
    return answered(problem, library)


def test_nodes_with_room_left_do_not_bind(box: Toolbox) -> None:
    answer = sliced(box, 2)
    assert [(node.configuration, node.count) for node in answer.nodes] == [("8xH", 2)]
    assert limits(answer) == []


def test_gpus_bind_where_all_of_them_are_used_and_no_node_is_left(box: Toolbox) -> None:
    library = box.library(*sorted([box.rated(["1xH"], 1.0), box.rated(["b"], 1.0)], key=str))
    for nodes, found in ((1, ["GPUs of H nodes with 8 or more in c/east/*/on-demand"]), (2, [])):
        stocks = [box.stock("8xH", nodes, 8.0), box.stock("b", 9, 5.0)]
        answer = answered(box.problem(library, {"m": 8.0}, stocks, sliced=[KIND]), library)
        assert [limit for limit in limits(answer) if limit.startswith("GPUs")] == found


def test_stock_binds_where_less_than_a_node_is_left(box: Toolbox) -> None:
    """In fractions a pair and a half of three nodes is used; of whole pairs one, and a node is over."""
    rated = [box.rated(nodes, float(len(nodes)), m) for m in ("m", "n") for nodes in (("b", "b"), ("a",))]
    library = box.library(*sorted(rated, key=lambda r: r.template.id))
    for nodes, found in ((3, []), (2, ["stock of b in c/east/*/on-demand"])):
        stocks = [box.stock("b", nodes, 1.0), box.stock("a", 9, 3.0)]
        answer = answered(box.problem(library, {"m": 2.0, "n": 2.0}, stocks), library)
        assert limits(answer) == found


def test_rows_that_tie_the_program_together_are_no_limits(box: Toolbox) -> None:
    rated = [
        box.rated(["a"], 100.0, phase="prefill"),
        box.rated(["a"], 50.0, phase="decode"),
    ]
    library = box.library(*sorted(rated, key=lambda r: r.template.id))
    pair = Disaggregation(
        model="m", slo_class="interactive", prefill_tokens_per_s=250.0, decode_tokens_per_s=120.0
    )
    policy = AllocationPolicy(disaggregation=(pair,), regions_at_least={"m": 2})
    stocks = [box.stock("a", 9, 1.0), box.stock("a", 9, 2.0, WEST)]
    answer = answered(box.problem(library, {"m": 3.0}, stocks, policy=policy), library)
    assert limits(answer) == [f"regions of {SERVICE}"]


def test_floors_and_ceilings_bind_where_they_are_reached(box: Toolbox) -> None:
    big, small = box.rated(["a"], 4.0), box.rated(["b"], 1.0)
    library = box.library(*sorted([big, small], key=lambda r: r.template.id))
    stocks = [box.stock("a", 9, 6.0), box.stock("b", 9, 1.0)]

    def asked(floor: int, ceiling: int | None = None) -> list[str]:
        policy = AllocationPolicy(replicas=(Replicas(model="m", at_least=floor, at_most=ceiling),))
        return limits(answered(box.problem(library, {"m": 4.0}, stocks, policy=policy), library))

    assert asked(6) == [f"replicas of {SERVICE}, at least"]
    assert asked(2) == []
    assert asked(0, 1) == [f"replicas of {SERVICE}, at most"]
    assert f"replicas of {SERVICE}, at least" not in asked(99)  # a breach, and more than can be


# ------------------------------------------------------------------------------ what leaves demand unmet


def because(box: Toolbox, nodes: int, **policy: object) -> str:
    """Of demand for more than anybody sells; the second kind is sold out, the third sold nowhere."""
    rated = [box.rated([name], 1.0) for name in "abc"]
    library = box.library(*sorted(rated, key=lambda r: r.template.id))
    stocks = [box.stock("a", nodes, 1.0), box.stock("b", 0, 3.0)]
    asked = AllocationPolicy.model_validate(policy)
    (unmet,) = answered(box.problem(library, {"m": 5000.0}, stocks, policy=asked), library).unmet
    return unmet.binding


def test_stock_is_named_where_more_of_it_would_help_and_not_where_a_policy_keeps_it_out(box: Toolbox) -> None:
    assert because(box, 5) == "stock of a, b, c"
    assert because(box, 1000, budget_usd_per_hour=15.5) == "budget"
    assert because(box, 5, budget_usd_per_hour=5.5) == "budget"  # another `a` would not be paid for either
    assert because(box, 5, budget_usd_per_hour=6.5) == "stock of a"
    assert because(box, 5, budget_usd_per_hour=9.5) == "stock of a, b"
    for most in (0, 3):
        ceiling = (Replicas(model="m", at_most=most),)
        assert because(box, 1000, replicas=ceiling) == f"replicas of {SERVICE}, at most"
    assert because(box, 5, variants={"m": ()}) == "variants: none of bf16 is good enough"


def test_a_budget_that_buys_no_node_for_one_more_slice_is_named(box: Toolbox) -> None:
    library = box.library(box.rated(["8xH"], 8.0))
    policy = AllocationPolicy(budget_usd_per_hour=12.0)
    problem = box.problem(library, {"m": 16.0}, [box.stock("8xH", 9, 8.0)], sliced=[KIND], policy=policy)
    (unmet,) = answered(problem, library).unmet
    assert unmet.binding == "budget"
