"""Model <-> bytes: JSON body, CloudEvents binary headers, schema version.

`encode` and `decode` are the only way on and off a topic. A reader ignores unknown fields of its own
major version and refuses a newer major (house.md, law 11).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from opentelemetry import propagate
from pydantic import ValidationError

from schemas.base import Frozen
from schemas.faults import causes
from schemas.secret import is_secret, shown
from schemas.topics import TOPICS, Topic

MAJOR, MINOR = 1, 0
Headers = list[tuple[str, bytes]]

_TYPES: dict[str, type[Frozen]] = {t.__name__: t for topic in TOPICS for t in topic.types}


class MessageError(ValueError):
    """A message that is not what its topic carries; the text says which field and why."""


class SchemaTooNewError(MessageError):
    """A message of a later major version than this reader knows."""


@dataclass(frozen=True)
class Envelope:
    """A message as it goes on a topic."""

    key: bytes | None
    value: bytes
    headers: Headers


def encode(event: Frozen, *, key: str | None, event_id: str, source: str, time: str) -> Envelope:
    """Wrap an event.

    Args:
        key: what the topic is partitioned by; None on topics with one partition.
        event_id: CloudEvents id; the same event sent again has the same one.
        source: CloudEvents source: which process says it.
        time: CloudEvents time, RFC 3339.
    """
    carrier: dict[str, str] = {}
    propagate.inject(carrier)  # traceparent of the current span, where there is one
    name = type(event).__name__
    headers = {
        "ce_specversion": "1.0",
        "ce_type": f"coral.{name}",
        "ce_dataschema": f"urn:coral:{name}:{MAJOR}.{MINOR}",
        "ce_id": event_id,
        "ce_source": source,
        "ce_time": time,
        "content-type": "application/json",
        **carrier,
    }
    return Envelope(
        key=None if key is None else key.encode(),
        value=event.model_dump_json().encode(),
        headers=[(name, value.encode()) for name, value in headers.items()],
    )


def decode(topic: Topic, value: bytes | None, headers: Iterable[tuple[str, bytes]]) -> Frozen:
    """Unwrap a message of `topic`.

    Raises:
        SchemaTooNewError: it is of a later major version.
        MessageError: anything else that is wrong with it.
    """
    named = header_map(headers)
    model = _type_of(topic, named)
    _check_version(named)
    if value is None:
        raise MessageError("value: empty, expected a JSON object")
    try:
        return model.model_validate_json(value, extra="ignore")
    except ValidationError as error:
        raise MessageError(f"{model.__name__}: {describe(error)}") from error


def header_map(headers: Iterable[tuple[str, bytes]]) -> dict[str, str]:
    """Headers by name; the last of a repeated one wins."""
    return {name: (value or b"").decode("utf-8", "replace") for name, value in headers}


def describe(error: ValidationError) -> str:
    """A validation error on one line: each field, what was wrong, and the value, unless it is secret.

    The error's notes come first: they name the file, where there is one.
    """
    parts = []
    for item in causes(error):
        where = _where(item["loc"])
        what = (
            "unknown key" if item["type"] == "extra_forbidden" else item["msg"].removeprefix("Value error, ")
        )
        secret = item["input"] is not None and is_secret(f"{where} {item['input']}")
        got = "a secret" if secret else repr(str(item["input"])[:80])
        parts.append(f"{where}: {what} (got {got})")
    return ": ".join([*getattr(error, "__notes__", ()), "; ".join(parts)])


def _where(steps: Sequence[int | str]) -> str:
    """The field's name."""
    return ".".join(shown([str(step) for step in steps])) or "body"


def _type_of(topic: Topic, headers: Mapping[str, str]) -> type[Frozen]:
    allowed = {f"coral.{t.__name__}" for t in topic.types}
    given = headers.get("ce_type")
    if given not in allowed:
        raise MessageError(f"ce_type: {given!r} on {topic.name}, expected one of {sorted(allowed)}")
    return _TYPES[given.removeprefix("coral.")]


def _check_version(headers: Mapping[str, str]) -> None:
    schema = headers.get("ce_dataschema", "")
    version = schema.rpartition(":")[2]
    major, dot, minor = version.partition(".")
    if not (dot and major.isdecimal() and minor.isdecimal()):
        raise MessageError(f"ce_dataschema: {schema!r}, expected urn:coral:<type>:<major>.<minor>")
    if int(major) > MAJOR:
        raise SchemaTooNewError(f"ce_dataschema: major version {major}, this reader knows {MAJOR}")
    if int(major) < MAJOR:
        raise MessageError(f"ce_dataschema: major version {major} is no longer read")
