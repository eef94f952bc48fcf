"""From `control.headroom` of the settings to what travels in the policy."""

import logging
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from schemas.catalog import load_catalog
from schemas.policy import CorePolicy
from schemas.settings import load_settings
from solver.headroom import Assumptions, headroom
from streams.control import policy_of

PHI, OSS = "phi-4-14b", "gpt-oss-20b"


def made(**control: Any) -> CorePolicy:
    settings = load_settings(control={"serve": {PHI: ["interactive"], OSS: ["interactive"]}, **control})
    return policy_of(settings, load_catalog(settings.catalog))


def factors(policy: CorePolicy, rate: float) -> dict[str, float]:
    return {served.model: served.headroom_at("both", rate) for served in policy.served}


def test_off_leaves_demand_as_it_is() -> None:
    assert factors(made(headroom="off"), 0.1) == {PHI: 1.0, OSS: 1.0}


def test_a_number_holds_at_every_rate() -> None:
    policy = made(headroom=1.5)
    assert factors(policy, 0.01) == factors(policy, 500.0) == {PHI: 1.5, OSS: 1.5}


def test_auto_is_the_default_and_what_the_catalog_asks_for() -> None:
    policy = made(headroom_at_most=100.0)
    settings = load_settings()
    (level,) = load_catalog(settings.catalog).model(PHI).levels
    # 3 windows of 10 s, a solve of 20 s, a start of 300 s.
    exact = headroom(level, "both", 10.0, Assumptions(horizon_s=350.0, at_most=100.0)).factor
    found = factors(policy, 10.0)
    assert exact <= found[PHI] <= exact + 0.001
    assert found[OSS] > 2 * found[PHI], "the code trace is that much burstier"


def test_one_service_may_differ_from_the_rest() -> None:
    policy = made(headroom="off", headroom_of={f"{OSS}/interactive": 2.0})
    assert factors(policy, 5.0) == {PHI: 1.0, OSS: 2.0}


def test_the_most_is_kept_to_and_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        policy = made(headroom_at_most=2.0)
    assert max(factors(policy, 0.01).values()) == 2.0
    (line,) = [record.message for record in caplog.records]
    assert f"{OSS}/interactive/both ends at 2" in line


def test_a_quicker_planner_needs_less() -> None:
    """A horizon of fewer windows leaves less to head-room."""
    slow, quick = (made(headroom_at_most=100.0, solve_fuse_s=fuse) for fuse in (600.0, 1.0))
    assert factors(quick, 10.0)[OSS] < factors(slow, 10.0)[OSS]


def test_the_same_settings_give_the_same_policy() -> None:
    assert made() == made()


def test_the_policy_survives_the_log() -> None:
    policy = made()
    assert CorePolicy.model_validate_json(policy.model_dump_json()) == policy


@pytest.mark.parametrize("bad", ["some", 0.5, float("nan"), float("inf"), -1, True])
def test_an_impossible_headroom_is_refused(bad: object) -> None:
    with pytest.raises(ValidationError, match="headroom"):
        made(headroom=bad)


def test_a_service_that_is_not_served_is_refused() -> None:
    with pytest.raises(ValueError, match=r"headroom_of.*qwen3-32b/interactive"):
        made(headroom_of={"qwen3-32b/interactive": "off"})


def test_off_may_stand_bare_in_yaml(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("control: { headroom: off, headroom_of: { m/c: off } }\n")
    control = load_settings(path).control
    assert (control.headroom, control.headroom_of) == ("off", {"m/c": "off"})
