"""One settings model: defaults < YAML file < `CORAL_...` environment variables < command line.

Nested names are joined by two underscores: `CORAL_KAFKA__BOOTSTRAP_SERVERS=host:9092`.
Only the composition root (`streams.cli`) reads settings; everything else is handed what it needs.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)

from schemas.base import Millis, Name
from schemas.catalog import SHIPPED_CATALOG
from schemas.topics import AUDIT_MS, Topic

_CLOSED = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class KafkaSettings(BaseModel):
    """How to reach Kafka; the security fields are passed to the clients as they are."""

    model_config = _CLOSED
    bootstrap_servers: str = "127.0.0.1:9092"
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    sasl_username: str | None = None
    sasl_password: str | None = None
    ssl_cafile: Path | None = None
    replication_factor: Annotated[int, Field(ge=1)] = 1
    partitions: dict[str, Annotated[int, Field(ge=1)]] = {}
    """Topic -> partitions, where the table's number does not fit."""


class FoldSettings(BaseModel):
    """Windows and silence, in milliseconds."""

    model_config = _CLOSED
    window_ms: Annotated[int, Field(ge=1000)] = 10_000
    lateness_ms: Millis = 2_000
    source_idle_ms: Millis = 10_000
    """A source not heard for so long (broker time) no longer holds the watermark back."""
    future_ms: Millis = 5_000
    """A sample further ahead of its broker timestamp is a dead letter."""
    silent_after_ms: Millis = 4_000
    roll_call_after_ms: Millis = 5_000
    alive_every_ms: Millis = 2_000


class ControlSettings(BaseModel):
    """The control worker: everything about how it runs, nothing about what it decides."""

    model_config = _CLOSED
    serve: dict[str, list[str]] = {}
    """Model -> SLO classes to serve; empty serves every level of the catalog."""
    configurations: list[str] = []
    """Node configurations to plan with; empty means all of the catalog."""
    policy: dict[str, float | int] = {}
    """Overrides of `schemas.policy.CorePolicy`, by field."""
    solve_fuse_s: Annotated[float, Field(gt=0)] = 20.0
    snapshot_every: Annotated[int, Field(ge=1)] = 1000
    """Records of the control log between two snapshots."""


class Settings(BaseSettings):
    """Everything that can be set."""

    model_config = SettingsConfigDict(
        env_prefix="CORAL_", env_nested_delimiter="__", extra="forbid", frozen=True
    )
    fleet: Name = "coral"
    topic_prefix: Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]+$")] = "coral"
    state_dir: Path = Path(".coral")
    catalog: Path = SHIPPED_CATALOG
    audit_ms: Millis = AUDIT_MS
    kafka: KafkaSettings = KafkaSettings()
    fold: FoldSettings = FoldSettings()
    control: ControlSettings = ControlSettings()

    def topic(self, topic: Topic) -> str:
        """The full name of a topic."""
        return f"{self.topic_prefix}.{topic.name}"

    def partitions(self, topic: Topic) -> int:
        return self.kafka.partitions.get(topic.name, topic.partitions)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  the signature is pydantic's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings, env_settings, YamlConfigSettingsSource(settings_cls))


def load_settings(path: Path | None = None, **given: Any) -> Settings:
    """Settings from a YAML file, the environment and what is given, the last winning.

    Raises:
        FileNotFoundError: there is no such file, or it is no regular one.
        pydantic.ValidationError: a field is unknown or impossible; the error names it.
    """
    if path is None:
        return Settings(**given)
    if not path.is_file():  # which pydantic-settings would silently skip
        raise FileNotFoundError(f"--config: {path} is not a file, expected a YAML file of settings")
    config = SettingsConfigDict(**{**Settings.model_config, "yaml_file": path})
    configured: type[Settings] = type("FileSettings", (Settings,), {"model_config": config})
    return configured(**given)
