"""What the settings ask of every plan: read, or refused where the controller starts."""

from pathlib import Path
from typing import Any

import pytest

from schemas.allocation import ROBUST, AllocationPolicy
from schemas.catalog import load_catalog
from schemas.policy import CorePolicy
from schemas.settings import load_settings
from streams.control import policy_of
from streams.live_policy import variants_of

PHI = "phi-4-14b"
RATES = "prefill_tokens_per_s: 1, decode_tokens_per_s: 1"
POOL = {"cloud": "aws", "region": "us-east-2", "market": "on-demand"}


def made(tmp_path: Path, file: str = "{}", **control: Any) -> CorePolicy:
    path = tmp_path / "policy.yaml"
    path.write_text(file)
    given = {"serve": {PHI: ["interactive"]}, "headroom": "off", "allocation": path, **control}
    settings = load_settings(control=given)
    return policy_of(settings, load_catalog(settings.catalog))


def test_all_that_is_live_travels_in_the_policy(tmp_path: Path) -> None:
    file = f"""
        weights: {{{PHI}: 2}}
        half_rule: [interactive]
        failures_per_node_hour: 0.01
        recovery_s: {{{PHI}: 400}}
        surcharge_per_step: 0.01
        variants: {{{PHI}: [bf16]}}
        replicas: [{{model: {PHI}, at_least: 2, at_most: 9}}]
        regions_at_least: {{{PHI}: 2}}
        spot_share: {{"*": 0.5}}
        budget_usd_per_hour: 100
        minimum_saving: 0.03
        excluded_configurations: [1xL4]
    """
    pins = [{"template": "d8bb8413433712e9", "pool": POOL, "count": 2}]
    policy = made(tmp_path, file, pinned=pins)
    assert (policy.allocation.weights, policy.allocation.budget_usd_per_hour) == ({PHI: 2.0}, 100.0)
    assert policy.excluded_configurations == ("1xL4",)
    assert policy.pinned_of("d8bb8413433712e9", policy.pinned[0].pool) == 2
    assert variants_of(policy) == {PHI: ["bf16"]}
    assert CorePolicy.model_validate_json(policy.model_dump_json()) == policy


def test_nothing_asked_for_is_nothing_said(tmp_path: Path) -> None:
    """So logs from before it replay to the digests that they were written with."""
    for policy in made(tmp_path), made(tmp_path, allocation="off"):
        said = policy.model_dump(mode="json")
        assert said.keys().isdisjoint({"allocation", "excluded_configurations", "pinned"})
        assert variants_of(policy) == {}


def test_plans_are_robust_unless_another_thing_is_said(tmp_path: Path) -> None:
    settings = load_settings(control={"headroom": "off"})
    assert policy_of(settings, load_catalog(settings.catalog)).allocation == ROBUST
    assert made(tmp_path, allocation="robust").allocation == ROBUST
    assert made(tmp_path, "half_rule: [interactive]").allocation.surcharge_per_step == 0


def test_a_bare_off_of_yaml_is_one_and_anything_else_is_refused(tmp_path: Path) -> None:
    assert made(tmp_path, allocation=False).allocation == AllocationPolicy()
    for wrong in True, 7:
        with pytest.raises(ValueError, match=r"allocation\n.*expected robust, off, or a file's path"):
            made(tmp_path, allocation=wrong)


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("interruption_hours: 0.5", "interruption_hours: not live yet, since no feed says"),
        (
            f"disaggregation: [{{model: {PHI}, slo_class: interactive, {RATES}}}]",
            "disaggregation: not live yet, since its rates are those of one demand",
        ),
        ("weights: {qwen3-32b: 2}", f"weights.*'qwen3-32b', expected one of {PHI}"),
        (f"variants: {{{PHI}: [int3]}}", f"variants.{PHI}.*'int3', expected one of"),
        ("excluded_configurations: [9xL4]", "'9xL4', expected one of"),
    ],
)
def test_what_is_not_live_or_not_there_is_refused(tmp_path: Path, file: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        made(tmp_path, file)
