"""Which offsets of a partition are read, and which are done: both move strictly in order.

Kafka stores one offset per partition, the next to read, so an event may be acknowledged only after all before
it; and whoever is given a partition must begin where that offset stands and miss none (faust-streaming #221,
#606).
"""

from collections import deque


class Cursor:
    """The next offset to take.

    Args:
        start: the committed offset, or the first that is kept where nothing was committed.
    """

    def __init__(self, start: int) -> None:
        self.next = start

    def is_seen(self, offset: int) -> bool:
        """Whether this offset was taken, or lies before the start: a leftover or a repetition."""
        return offset < self.next

    def missing_before(self, offset: int) -> range:
        """The offsets to look for elsewhere before this one is taken; some may not exist on the log."""
        return range(self.next, offset)

    def take(self, offset: int) -> None:
        self.next = offset + 1


class AckPrefix:
    """The events at the head of a partition that are done; the rest is read again after a crash."""

    def __init__(self, start: int) -> None:
        self.position = start
        """The offset to commit: all events before it are done."""
        self._waiting: deque[tuple[int, int]] = deque()

    def add(self, offset: int, due_ms: int = 0) -> None:
        """Note the next event; it is done once everything up to event time `due_ms` is."""
        if self._waiting and self._waiting[-1][1] >= due_ms:
            # It waits for the one before it anyhow: at most one entry for each open window.
            due_ms = self._waiting.pop()[1]
        self._waiting.append((offset, due_ms))

    def settle(self, closed_ms: int = 0) -> None:
        """All that is due at `closed_ms` or before is done: its effects are on the log."""
        while self._waiting and self._waiting[0][1] <= closed_ms:
            offset, _ = self._waiting.popleft()
            self.position = offset + 1

    def __len__(self) -> int:
        return len(self._waiting)
