"""`coral explain headroom`."""

import json

import pytest
from typer.testing import CliRunner

from streams.cli import app


def said(*options: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["explain", "headroom", *options])
    assert result.exit_code == code, result.output
    return result.output


def test_it_says_the_factor_what_binds_and_why() -> None:
    text = said("--model", "phi-4-14b", "--rate", "10")
    assert text.startswith("phi-4-14b/interactive/both at 10 requests/s: demand x 1.")
    for part in ("binds       ttft", "ttft ", "tpot ", "over 60 s", "horizon     350 s", "by rate"):
        assert part in text


def test_json_has_the_same_figures() -> None:
    found = json.loads(said("--model", "phi-4-14b", "--rate", "10", "--phase", "decode", "--json"))
    assert found["service"] == "phi-4-14b/interactive/decode"
    assert list(found["promises"]) == ["tpot"]
    kept = found["promises"]["tpot"]
    assert 1 < kept["without_bursts"] < kept["factor"] <= found["factor"] <= kept["factor"] + 0.001


def test_settings_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORAL_CONTROL__HEADROOM", "1.5")
    assert "demand x 1.50\n  setting     1.5\n" in said("--model", "phi-4-14b", "--rate", "10")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--model", "nosuch", "--rate", "1"), "'nosuch', expected one of phi-4-14b/interactive"),
        (("--model", "phi-4-14b", "--slo-class", "x", "--rate", "1"), "'phi-4-14b/x', expected one of"),
        (("--model", "phi-4-14b", "--rate", "0"), "--rate: 0, expected 1e-06 to 1e+09 requests/s"),
        (("--model", "phi-4-14b", "--rate", "nan"), "--rate: nan"),
        (("--model", "phi-4-14b", "--rate", "1e308"), "--rate: 1e+308, expected 1e-06 to 1e+09"),
        (("--model", "phi-4-14b", "--rate", "1", "--phase", "x"), "--phase: 'x', expected one of prefill"),
    ],
)
def test_what_is_not_there_is_refused(options: tuple[str, ...], named: str) -> None:
    assert named in said(*options, code=2)


def test_a_catalog_may_be_named() -> None:
    asked = ("--model", "phi-4-14b", "--rate", "10")
    assert said(*asked, "--catalog", "shipped") == said(*asked)
    assert "demand x" in said(*asked, "--catalog", "paper")


def test_settings_of_a_service_that_is_none_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORAL_CONTROL__HEADROOM_OF", '{"phi-4/interactive": 2}')
    told = said("--model", "phi-4-14b", "--rate", "10", code=2)
    assert "control.headroom_of: ['phi-4/interactive'] not served, expected some of " in told


@pytest.mark.parametrize("given", ["0.5", "nan", "inf", "maybe", "[]"])
def test_a_setting_that_cannot_be_is_refused_in_our_words(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("CORAL_CONTROL__HEADROOM", given)
    told = said("--model", "phi-4-14b", "--rate", "10", code=2)
    assert told.startswith(
        "coral: control.headroom: expected auto, off, or a finite number of at least 1 (got "
    )
