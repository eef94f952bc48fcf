"""Records of problems and answers: old ones are read, and what says nothing new is written as they were."""

import json

import pytest
from pydantic import ValidationError

from schemas.allocation import AllocationPolicy, Disaggregation, Replicas
from schemas.base import Frozen, canonical, digest
from schemas.plans import Target
from schemas.problems import Answer, Pool, Problem, Stock

OLD_PROBLEM = {
    "id": "p1-9",
    "library": "feed",
    "demands": [{"service": {"model": "m", "slo_class": "interactive", "phase": "both"}, "rate": 2.0}],
    "stocks": [
        {
            "pool": {"cloud": "c", "region": "east", "zone": "*", "market": "spot"},
            "configuration": "1xL4",
            "nodes": 4,
            "usd_per_hour": 1.0,
            "refused": [],
        }
    ],
    "running": [],
    "startup_ratio": {"m": 0.25},
    "excluded_configurations": [],
    "unfit": [],
}
OLD_ANSWER = {
    "problem": "p1-9",
    "method": "coral",
    "status": "optimal",
    "chosen": [],
    "unmet": [],
    "usd_per_hour": 0.0,
    "penalty_usd_per_hour": 0.0,
    "bound_usd_per_hour": 0.0,
    "gap": 0.0,
    "seconds": 0.01,
}


OLD_TARGET = {
    "id": "t1-9",
    "reason": "first",
    "cause_offset": 8,
    "problem": "p1-8",
    "inputs": "feed",
    "method": "coral",
    "usd_per_hour": 2.0,
    "bound_usd_per_hour": 2.0,
    "gap": 0.0,
    "demand": {"m/interactive/both": 2.0},
    "unmet": [],
}


@pytest.mark.parametrize(
    ("kind", "old"), [(Problem, OLD_PROBLEM), (Answer, OLD_ANSWER), (Target, OLD_TARGET)]
)
def test_an_old_record_keeps_its_digest(kind: type[Frozen], old: dict[str, object]) -> None:
    read = kind.model_validate_json(json.dumps(old))
    assert canonical(read) == canonical(old)
    assert digest(read) == digest(old)


def test_what_is_asked_for_travels() -> None:
    asked = AllocationPolicy(
        replicas=(Replicas(model="m", at_least=1, at_most=3),),
        half_rule=("interactive",),
        variants={"m": ("bf16",)},
        budget_usd_per_hour=0.0,
    )
    problem = Problem.model_validate_json(json.dumps(OLD_PROBLEM)).model_copy(update={"policy": asked})
    assert Problem.model_validate_json(problem.model_dump_json()) == problem
    assert digest(problem) != digest(OLD_PROBLEM)


def test_only_reserved_nodes_are_free() -> None:
    """skypilot-org/skypilot#9156, #3615: H100 at 0."""
    spot = Pool(cloud="c", region="east", market="spot")
    with pytest.raises(ValidationError, match="0 for 1xL4 in c/east/\\*/spot, expected above 0"):
        Stock(pool=spot, configuration="1xL4", nodes=1, usd_per_hour=0.0)
    reserved = spot.model_copy(update={"market": "reserved"})
    assert Stock(pool=reserved, configuration="1xL4", nodes=1, usd_per_hour=0.0).usd_per_hour == 0


@pytest.mark.parametrize(
    ("policy", "match"),
    [
        ({"replicas": ({"model": "m", "at_least": 3, "at_most": 2},)}, "at_most: 2, expected at least"),
        ({"replicas": ({"model": "m"}, {"model": "m"})}, "replicas: m given twice"),
        ({"spot_share": {"m": 1.5}}, "spot_share"),
        ({"weights": {"m": 0.0}}, "weights"),
        ({"minimum_saving": 1.0}, "minimum_saving"),
        ({"budget_usd_per_hour": float("nan")}, "budget_usd_per_hour"),
    ],
)
def test_policies_that_cannot_be_are_refused(policy: dict[str, object], match: str) -> None:
    with pytest.raises(ValidationError, match=match):
        AllocationPolicy.model_validate(policy)


def test_a_pair_is_given_once() -> None:
    pair = Disaggregation(model="m", slo_class="x", prefill_tokens_per_s=1.0, decode_tokens_per_s=1.0)
    with pytest.raises(ValidationError, match="disaggregation: m/x given twice"):
        AllocationPolicy(disaggregation=(pair, pair))
