"""CSV that people give: cells read strictly, and all that is wrong with them told at once."""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import NamedTuple

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf(inity)?", re.IGNORECASE)
_DATE = re.compile(r"(\d{4})-?(\d{2})-?(\d{2})([-T ].*)?")


class Problem(NamedTuple):
    """One thing that is wrong; lines count from 1, the header's."""

    line: int
    field: str
    value: str
    expected: str


class TableError(ValueError):
    """A file that is not the table it should be; its text has one line a problem.

    Args:
        unread: lines after the last problem that were not looked at, since there are enough.
    """

    def __init__(self, name: str, problems: Sequence[Problem], unread: int = 0) -> None:
        self.problems = tuple(sorted(problems))
        said = [f"{name}:{p.line}: {p.field}: {p.value}, expected {p.expected}" for p in self.problems]
        if unread:
            said.append(f"{name}: {len(said)} faults so far; {unread} more lines were not looked at")
        super().__init__("\n".join(said))


def lines_of(data: bytes, name: str) -> list[tuple[int, list[str]]]:
    """(number, cells) of each line that is not blank.

    Raises:
        TableError: it is no UTF-8, or no CSV.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TableError(name, [Problem(line, "row", f"byte {error.start}", "UTF-8 text")]) from error
    rows, began = csv.reader(io.StringIO(text, newline=""), strict=True), 1
    found = []
    try:
        for cells in rows:
            if cells:
                found.append((began, [cell.strip() for cell in cells]))
            began = rows.line_num + 1
    except csv.Error as error:
        raise TableError(name, [Problem(began, "row", str(error), "CSV with commas")]) from error
    return found


class Row:
    """A line's cells by column, read strictly.

    Args:
        columns: name -> what is expected in it.
        problems: where what is wrong with the line goes.
    """

    def __init__(
        self,
        line: int,
        header: Sequence[str],
        cells: Sequence[str],
        columns: Mapping[str, str],
        problems: list[Problem],
    ) -> None:
        self.line = line
        self._columns = columns
        self._problems = problems
        self._before = len(problems)
        if len(cells) != len(header):
            self.wrong("row", f"{len(cells)} cells", f"{len(header)}, as the header has")
        self._cells = dict(zip(header, cells, strict=False))

    def well(self) -> bool:
        """Whether nothing is wrong so far."""
        return len(self._problems) == self._before

    def wrong(self, field: str, value: str, expected: str = "") -> None:
        """Note it; what is expected of the column if nothing else is said."""
        self._problems.append(Problem(self.line, field, value, expected or self._columns[field]))

    def text(self, field: str, known: Sequence[str] = ()) -> str:
        """1 to 200 characters; one of `known` if there are some."""
        value = self._cells.get(field, "")
        if not 0 < len(value) <= 200 or (known and value not in known):
            self.wrong(field, repr(value[:80]))
        return value

    def number(self, field: str, *, may_miss: bool = False) -> float | None:
        """A finite number above 0; None if it is not, and where it may miss if it does."""
        value = self._cells.get(field, "")
        if may_miss and not value:
            return None
        number = float(value) if _NUMBER.fullmatch(value) else math.nan
        if not (math.isfinite(number) and number > 0):
            self.wrong(field, repr(value[:80]))
            return None
        return number

    def whole(self, field: str, least: int) -> int:
        """A whole number; `4.0`, as some write it, is one. `least` if it is not."""
        value = self._cells.get(field, "")
        number = float(value) if _NUMBER.fullmatch(value) else math.nan
        if not (math.isfinite(number) and number.is_integer() and number >= least):
            self.wrong(field, repr(value[:80]))
            return least
        return int(number)

    def rate(self, field: str) -> float | None:
        """As `number`; infinite is as good as none."""
        endless = self._cells.get(field, "").lower() in {"inf", "infinity"}
        return None if endless else self.number(field, may_miss=True)

    def day(self, field: str) -> str:
        """As YYYY-MM-DD."""
        value = self._cells.get(field, "")
        parts = _DATE.fullmatch(value)
        try:
            return date(*map(int, parts.groups()[:3])).isoformat() if parts else self._no_day(field, value)
        except ValueError:
            return self._no_day(field, value)

    def _no_day(self, field: str, value: str) -> str:
        self.wrong(field, repr(value[:80]))
        return ""
