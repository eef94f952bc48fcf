"""One settings model: defaults < YAML file < `CORAL_...` environment variables < command line.

Nested names are joined by two underscores: `CORAL_KAFKA__BOOTSTRAP_SERVERS=host:9092`. What is unknown is
refused, in the file and in the environment alike: a misspelt setting must not be a silent default.
Only the composition root (`streams.cli`) reads settings; everything else is handed what it needs.
"""

import json
import os
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FilePath,
    SecretStr,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    YamlConfigSettingsSource,
)

from schemas.base import Millis, Name
from schemas.catalog import SHIPPED_CATALOG
from schemas.marked import Marked
from schemas.performance import SHIPPED_EFFICIENCIES
from schemas.policy import CorePolicy, Pin
from schemas.secret import is_secret
from schemas.topics import AUDIT_MS, Topic

_CLOSED = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

PREFIX = "CORAL_"
NO_SETTINGS = frozenset(
    {
        "CORAL_CONFIG",  # the command line's --config
        "CORAL_LOCAL_NODE",  # by which the local cloud knows its nodes again
        "CORAL_RANK",  # by which guards know the processes of their engines
        "CORAL_BROKER",  # this and the rest: the tests'
        "CORAL_KAFKA_IMAGE",
        "CORAL_REQUIRE",
        "CORAL_CHAOS_ROUNDS",
        "CORAL_VLLM_MATRIX",
        "CORAL_REWRITE_GOLDEN",
        "CORAL_SHARED_DATA",
    }
)
"""Environment variables with our prefix that set something else."""
KUBERNETES = ("CORAL_SERVICE_", "CORAL_PORT")
"""What Kubernetes tells every pod about a service named `coral`; the pod did not ask for it."""


def _addresses(servers: str) -> str:
    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not (host and port.isdecimal() and 0 < int(port) <= 65_535):
            raise ValueError("expected host:port[,host:port] with ports from 1 to 65535")
    return servers


def _whole(number: float) -> float:
    """15000.0 as 15000, since the policy is strict about what it counts; 1 is as good a share as 1.0."""
    return int(number) if number.is_integer() else number


class KafkaSettings(BaseModel):
    """How to reach Kafka; the security fields are passed to the clients as they are."""

    model_config = _CLOSED
    bootstrap_servers: Annotated[str, AfterValidator(_addresses)] = "127.0.0.1:9092"
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    sasl_username: Annotated[str | None, Field(validate_default=True)] = None
    sasl_password: Annotated[SecretStr | None, Field(validate_default=True)] = None
    ssl_cafile: FilePath | None = None
    """Who may have signed the brokers' certificates (PEM); None trusts whom the system trusts."""
    ssl_certfile: FilePath | None = None
    """Our certificate and its chain (PEM), for brokers that want one."""
    ssl_keyfile: FilePath | None = None
    """Its key (PEM, without a password); None finds it in `ssl_certfile`."""
    replication_factor: Annotated[int, Field(ge=1)] = 1
    partitions: dict[str, Annotated[int, Field(ge=1)]] = {}
    """Topic -> partitions, where the table's number does not fit."""

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol.startswith("SASL")

    @field_validator("sasl_username", "sasl_password")
    @classmethod
    def _is_there_for_sasl(cls, given: object, info: ValidationInfo) -> object:
        protocol = info.data.get("security_protocol", "")
        if given is None and protocol.startswith("SASL"):
            raise ValueError(f"missing, expected with {protocol}")
        return given

    def environment(self) -> dict[str, str]:
        """The variables with which a process that we start has these settings, the password in clear."""
        plain = self.model_dump(mode="json", exclude={"partitions", "sasl_password"}, exclude_none=True)
        if self.sasl_password is not None:
            plain["sasl_password"] = self.sasl_password.get_secret_value()
        named = {**plain, "partitions": json.dumps(self.partitions)}
        return {f"{PREFIX}KAFKA__{name.upper()}": str(value) for name, value in named.items()}


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


def _choice_of(expected: str) -> WrapValidator:
    def choice(given: object, choose: ValidatorFunctionWrapHandler) -> object:
        # YAML reads a bare `off` as false, and `on` as true, which is neither a factor of 1 nor a file.
        try:
            return choose({False: "off", True: None}[given] if isinstance(given, bool) else given)
        except ValidationError as error:  # a line for each kind that it is not, with pydantic's names of them
            raise ValueError(f"expected {expected}") from error

    return WrapValidator(choice)


HeadroomChoice = Annotated[
    Literal["auto", "off"] | Annotated[float, Field(ge=1)],
    _choice_of("auto, off, or a finite number of at least 1"),
]
"""auto: as the catalog's burstiness and promises ask for (docs/headroom.md). off: none. Else: the factor."""

AllocationChoice = Annotated[Literal["robust", "off"] | Path, _choice_of("robust, off, or a file's path")]
"""robust: `schemas.allocation.ROBUST`. off: nothing. Else: a file, as `coral plan --policy` takes it."""


class ControlSettings(BaseModel):
    """The control worker: everything about how it runs, nothing about what it decides."""

    model_config = _CLOSED
    serve: dict[str, list[str]] = {}
    """Model -> SLO classes to serve; empty serves every level of the catalog."""
    configurations: list[str] = []
    """Node configurations to plan with; empty means all that the catalog has a list price of."""
    allocation: AllocationChoice = "robust"
    """What plans are asked for beyond demand met at least cost."""
    pinned: list[Pin] = []
    """What runs and is to stay."""
    policy: dict[str, Annotated[float, AfterValidator(_whole)]] = {}
    """Overrides of `schemas.policy.CorePolicy`, by field."""

    headroom: HeadroomChoice = "auto"
    """What demand is multiplied by so that bursts keep the promises."""
    headroom_of: dict[str, HeadroomChoice] = {}
    """The same for single services: model/class -> choice."""
    headroom_at_most: Annotated[float, Field(ge=1)] = 4.0
    """`auto` asks for no more: beyond it a promise is given up, not paid for; `coral control` logs it."""
    solve_fuse_s: Annotated[float, Field(gt=0)] = 20.0
    snapshot_every: Annotated[int, Field(ge=1)] = 1000
    """Records of the control log between two snapshots."""

    @field_validator("policy")
    @classmethod
    def _is_a_policy(cls, given: dict[str, float]) -> dict[str, float]:
        try:
            CorePolicy.model_validate({"served": (), **given})
        except ValidationError as error:
            wrong = (f"{'.'.join(map(str, e['loc']))}: {e['input']!r}, {e['msg']}" for e in error.errors())
            raise ValueError("; ".join(wrong)) from error
        return given


class NodeSettings(BaseModel):
    """How this machine runs engines: the same for every node agent on it."""

    model_config = _CLOSED
    engine: Literal["simulated", "vllm"] = "simulated"
    vllm: Path | None = None
    """The `vllm` command of vLLM's own environment; needed for engine `vllm`."""
    platform: Literal["cuda", "cpu"] = "cuda"
    """cpu: for development and tests, where the catalog's devices are pretended."""
    models: dict[str, Path] = {}
    """Checkpoint -> the folder that has it."""
    store: Path | None = None
    """A folder (a mounted bucket, say) of folders named by revision, from which weights are pulled."""
    cache: Path | None = None
    """Where pulled weights are kept; `state_dir/models` if none."""
    address: str = "127.0.0.1"
    """Of this machine, as other nodes and the routers reach it; private, since vLLM does not encrypt."""
    guard_port: Annotated[int, Field(ge=1024, le=65_000)] | None = None
    """First of the ports of the guards, one a device; None picks free ones once and keeps them."""
    stuck_after_s: Annotated[float, Field(gt=0)] = 120.0
    """An engine whose check and token counters stand still for so long is dead (vLLM's execute time-out)."""
    kv_cache_bytes: Annotated[int, Field(gt=0)] | None = None
    """Of an engine on the CPU; on GPUs the template's memory says it."""
    notices: Literal["none", "aws", "gcp"] = "none"
    """Whose metadata service tells that a spot node will be taken away."""


ApiKey = Annotated[str, Field(pattern=r"^\S+$")]
"""As it stands after `Bearer`; never empty."""


class RouterSettings(BaseModel):
    """The OpenAI-compatible door of the fleet."""

    model_config = _CLOSED
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8000
    """0 picks a free one."""
    api_keys: Annotated[dict[ApiKey, Name], Field(repr=False)] = {}
    """Key -> tenant; empty lets everybody in as tenant `default`."""
    max_body_bytes: Annotated[int, Field(gt=0)] = 16 * 1024 * 1024
    prefer_region: str | None = None
    """Instances of this region first, while they have room; None treats all alike."""


class Settings(BaseSettings):
    """Everything that can be set."""

    model_config = SettingsConfigDict(
        env_prefix="CORAL_", env_nested_delimiter="__", extra="forbid", frozen=True
    )
    fleet: Name = "coral"
    topic_prefix: Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]+$")] = "coral"
    state_dir: Path = Path(".coral")
    catalog: Path = SHIPPED_CATALOG
    """File, or folder whose files are one catalog (docs/catalogs.md)."""
    efficiencies: Path = SHIPPED_EFFICIENCIES
    """How close each GPU of the catalog comes to its datasheet (`coral profile fit`)."""
    profiles: list[Path] = []
    """Files of measured points, which correct those figures (`coral profile import`)."""
    audit_ms: Millis = AUDIT_MS
    kafka: KafkaSettings = KafkaSettings()
    fold: FoldSettings = FoldSettings()
    control: ControlSettings = ControlSettings()
    node: NodeSettings = NodeSettings()
    router: RouterSettings = RouterSettings()

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
        return (init_settings, env_settings, _File(settings_cls))


class _File(YamlConfigSettingsSource):
    """The settings file, with errors of one line that name it."""

    def _read_file(self, path: Path | Traversable) -> dict[str, Any]:
        file = Path(str(path))
        marked = Marked(file)
        plain = marked.content(file)
        if marked.faults or plain is None:
            raise ValueError(f"--config: {'; '.join(map(str, marked.faults))}")
        return plain


def load_settings(path: Path | None = None, **given: Any) -> Settings:
    """Settings from a YAML file, the environment and what is given, the last winning.

    Raises:
        FileNotFoundError: there is no such file, or it is no regular one.
        ValueError: the file is no YAML of settings, or a variable is unknown or no JSON; it is named.
        pydantic.ValidationError: a field is unknown or impossible; the error names it.
    """
    _check_names(os.environ)
    try:
        return _class_for(path)(**given)
    except SettingsError as error:
        raise _not_json(error, os.environ) from error


def _class_for(path: Path | None) -> type[Settings]:
    if path is None:
        return Settings
    if not path.is_file():  # which pydantic-settings would silently skip
        raise FileNotFoundError(f"--config: {path} is not a file, expected a YAML file of settings")
    config = SettingsConfigDict(**{**Settings.model_config, "yaml_file": path})
    return type("FileSettings", (Settings,), {"model_config": config})


def _check_names(environment: Mapping[str, str]) -> None:
    """pydantic-settings refuses unknown nested names by itself, and passes over all others."""
    for name in sorted(environment):
        field = name.upper().removeprefix(PREFIX).partition("__")[0].lower()
        if not name.upper().startswith(PREFIX) or name in NO_SETTINGS or name.startswith(KUBERNETES):
            continue
        if field not in Settings.model_fields:
            known = ", ".join(f"{PREFIX}{known.upper()}" for known in Settings.model_fields)
            raise ValueError(f"{name}: no such setting, expected one of {known}")


def _not_json(error: SettingsError, environment: Mapping[str, str]) -> ValueError:
    cause = error.__cause__
    if not isinstance(cause, json.JSONDecodeError):
        return error
    names = [n for n, value in environment.items() if n.upper().startswith(PREFIX) and value == cause.doc]
    got = "a secret" if is_secret(f"{names} {cause.doc}") else repr(cause.doc[:80])
    return ValueError(f"{', '.join(names)}: {got}, expected JSON ({cause})")
