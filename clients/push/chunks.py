"""Rows of batches on their way to listener threads, a few at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from gantrymq.clients.batch import MessageBatch
from gantrymq.clients.push.window import Window
from gantrymq.shm.groupwire import Done

#: A chunk is about so much work, and no more rows: what it has done is acknowledged at its end.
CHUNK_NS: Final = 1_000_000
CHUNK_ROWS: Final = 128
_RISE: Final = 1.25


class Run:
    """Rows [first, end) of a batch, all of one queue and by rising offset."""

    __slots__ = ("batch", "first", "offsets", "start", "window")

    def __init__(
        self, batch: MessageBatch, offsets: Sequence[int], window: Window, first: int, start: int
    ) -> None:
        """`offsets` are those of all rows of the batch; what `first` covers begins at `start`."""
        self.batch, self.offsets, self.window = batch, offsets, window
        self.first, self.start = first, start

    def low(self, row: int) -> int:
        """First offset that a row covers: its own, or that of what was passed over before it."""
        return self.start if row == self.first else self.offsets[row - 1] + 1

    def high(self, row: int) -> int:
        """Offset behind the row."""
        return self.offsets[row] + 1


class Chunk:
    """Rows that one listener thread works through, in order.

    `rows` are those that are not begun: whoever pops one has it, the thread from the left, or the
    fetching thread from the right where the others have nothing to do. All rows from the first on
    that are below `current` are finished, or have failed: `failed` has those rows, `untold` what
    the thread has not handed on yet, so that it takes no lock for each.
    """

    __slots__ = (
        "alone", "begun_ns", "current", "exhausted", "failed", "rows", "run", "sent_back",
        "settled", "stuck", "untold",
    )  # fmt: skip

    def __init__(
        self, run: Run, rows: Iterable[int], *, alone: bool = False, exhausted: bool = False
    ) -> None:
        """`alone`: nothing else may run meanwhile; `exhausted`: not to be delivered any more."""
        self.run = run
        self.rows = deque(rows)
        self.settled = self.current = self.rows[0]
        self.failed: list[int] = []
        self.untold: deque[tuple[int, Failure]] = deque()
        self.alone, self.exhausted = alone, exhausted
        self.begun_ns = 0
        self.stuck = -1  # the row that was last reported to take too long
        self.sent_back = False  # that row was, while its call goes on

    def begin(self) -> bool:
        """Say that the rows are about to be handed out; False if they may not be."""
        return bool(self.rows) and self.run.window.begin(self.run.high(self.rows[-1]))

    def tell(self) -> list[Failure]:
        """Failures since the last call, but for rows that were sent back before. With the lock."""
        told: list[Failure] = []
        while self.untold:
            row, failure = self.untold.popleft()
            if row not in self.failed:
                self.failed.append(row)
                told.append(failure)
        return told

    def settle(self, end: int) -> int:
        """Acknowledge rows below `end` but for failed ones; returns how many were refused."""
        run, first, rows = self.run, self.settled, 0
        ranges: list[Done] = []
        for row in [*sorted(row for row in self.failed if first <= row < end), end]:
            if first < row:
                ranges.append((run.low(first), run.high(row - 1)))
                rows += row - first
            first = row + 1
        self.failed = [row for row in self.failed if row >= end]
        self.settled = max(self.settled, end)
        return 0 if not ranges or run.window.finish(ranges) else rows


class Failure(NamedTuple):
    """A delivery that failed: [first, offset] is done with once `groups` has it."""

    window: Window
    first: int
    offset: int
    delay: int  # as groupwire.SendBack has them
    why: str
    chunk: Chunk
    keep: bool  # ordered: the message stays in its place and comes again
    attempt: int = 0  # which delivery it was, from 1 on; 0: not known
    topic: str = ""  # the message's own, and its id, for the log; empty of a damaged one
    name: str = ""


class Pace:
    """How long a message takes, and so how many make a chunk."""

    def __init__(self) -> None:
        self._message_ns = float(CHUNK_NS)

    def note(self, rows: int, elapsed_ns: int) -> None:
        """So many messages have taken so long."""
        if rows > 0:
            # Down at once, up slowly: most of what takes long has waited for other threads.
            most = self._message_ns * _RISE + 1
            self._message_ns = min(elapsed_ns / rows, most)

    @property
    def rows(self) -> int:
        """Of a chunk."""
        return min(CHUNK_ROWS, max(1, int(CHUNK_NS / max(1.0, self._message_ns))))
