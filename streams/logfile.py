"""The control log as a file: one JSON object a line, every byte kept.

    {"offset": 7, "timestamp_ms": 1700000000000, "value": "{...}",
     "headers": [{"name": "ce_type", "value": "coral.Tick"}]}

Bytes that are no UTF-8 stand under `value_b64` instead of `value`; a record without a value has null.
"""

import base64
import binascii
import json
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from streams.log import Entry


class LogFileError(ValueError):
    """A line that is no record; the text names the line and the field."""


def write(file: TextIO, entries: Iterable[Entry]) -> int:
    """Write entries, one a line. Returns how many."""
    count = 0
    for entry in entries:
        file.write(line_of(entry) + "\n")
        count += 1
    return count


def line_of(entry: Entry) -> str:
    """One entry as one line of JSON, without the line's end."""
    return json.dumps(
        {
            "offset": entry.offset,
            "timestamp_ms": entry.timestamp_ms,
            **_said(entry.value),
            "headers": [{"name": name, **_said(value)} for name, value in entry.headers],
        }
    )


def read(lines: Iterable[str]) -> Iterator[Entry]:
    """Entries of a file's lines.

    Raises:
        LogFileError: a line is no record, or its offset does not follow the one before.
    """
    expected: int | None = None
    for number, line in enumerate(lines, start=1):
        entry = _entry(number, line)
        if expected is not None and entry.offset < expected:
            raise LogFileError(f"line {number}: offset {entry.offset} comes after {expected - 1}")
        expected = entry.offset + 1
        yield entry


def _entry(number: int, line: str) -> Entry:
    try:
        said = json.loads(line)
        return Entry(
            offset=_whole(said["offset"]),
            timestamp_ms=_whole(said["timestamp_ms"]),
            value=_meant(said),
            headers=tuple((header["name"], _meant(header) or b"") for header in said["headers"]),
        )
    except KeyError as error:
        raise LogFileError(f"line {number}: {error.args[0]} is missing") from error
    except (TypeError, ValueError, binascii.Error) as error:
        raise LogFileError(f"line {number}: {error}, expected a record of the control log") from error


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


def _said(value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {"value": None}
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_b64": base64.b64encode(value).decode()}


def _meant(said: dict[str, Any]) -> bytes | None:
    if "value_b64" in said:
        return base64.b64decode(said["value_b64"], validate=True)
    value = said["value"]
    if value is not None and not isinstance(value, str):
        raise TypeError(f"value: {str(value)[:80]!r} is no text")
    return None if value is None else value.encode()
