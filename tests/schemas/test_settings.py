"""How Kafka is reached: what fits together, and that the password shows nowhere."""

from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from schemas.codec import describe
from schemas.policy import CorePolicy
from schemas.settings import KafkaSettings, load_settings
from schemas.yamlfile import load_yaml

SASL = {"security_protocol": "SASL_SSL", "sasl_username": "alice", "sasl_password": "wonder"}


def wrong(**kafka: object) -> str:
    with pytest.raises(ValidationError) as error:
        load_settings(kafka=kafka)
    return describe(error.value)


@pytest.mark.parametrize("missing", ["sasl_username", "sasl_password"])
def test_sasl_needs_a_name_and_a_password(missing: str) -> None:
    line = wrong(**{name: value for name, value in SASL.items() if name != missing})
    assert line == f"kafka.{missing}: missing, expected with SASL_SSL (got 'None')"


@pytest.mark.parametrize("field", ["ssl_cafile", "ssl_certfile", "ssl_keyfile"])
def test_a_file_that_is_not_there_is_named(field: str) -> None:
    line = wrong(security_protocol="SSL", **{field: "/nowhere/x.pem"})
    assert line == f"kafka.{field}: Path does not point to a file (got '/nowhere/x.pem')"


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ({"drain_deadline_ms": -1}, "drain_deadline_ms: -1, Input should be greater than or equal to 5000"),
        ({"drain_deadline_ms": 1e12}, "drain_deadline_ms: 1000000000000, Input should be less than"),
        ({"patience": 3}, "patience: 3, Extra inputs are not permitted"),
    ],
)
def test_every_command_refuses_a_policy_that_cannot_be(override: dict[str, float], told: str) -> None:
    with pytest.raises(ValidationError) as error:
        load_settings(control={"policy": override})
    assert f"control.policy: {told}" in describe(error.value)


def test_an_infinity_in_yaml_is_refused_and_not_taken_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("served: []\nheadroom: .inf\n")
    with pytest.raises(ValidationError) as error:
        load_yaml(CorePolicy, path)
    assert describe(error.value).endswith("headroom: Input should be a finite number (got 'inf')")


def test_a_password_shows_in_no_error_and_in_no_repr() -> None:
    assert "31415" not in wrong(**{**SASL, "sasl_password": 31415})
    settings = load_settings(kafka=SASL)
    assert "wonder" not in f"{settings!r} {settings} {settings.model_dump_json()}"


def test_keys_show_in_no_repr() -> None:
    settings = load_settings(router={"api_keys": {"sk-very-secret": "a"}})
    assert "sk-very" not in f"{settings!r} {settings}"


def test_a_process_that_we_start_reaches_the_same_kafka(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ca = tmp_path / "ca.pem"
    ca.touch()
    ours = load_settings(kafka={**SASL, "ssl_cafile": ca, "partitions": {"telemetry": 2}}).kafka
    for name, value in ours.environment().items():
        monkeypatch.setenv(name, value)
    theirs = load_settings().kafka
    assert theirs == ours
    assert theirs.sasl_password == SecretStr("wonder")
    assert KafkaSettings().environment()["CORAL_KAFKA__SECURITY_PROTOCOL"] == "PLAINTEXT"
