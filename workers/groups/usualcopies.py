"""Copies of failed messages by a kernel, many at a time: of those that are as nearly all are.

What it leaves out (damaged, of another writer's form, twice the same property, too long) goes the
slow way (`retrycopy.copy_of`); both make the same bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import groupwire, layout
from gantrymq.shm.kernels import retrycopy as kernel
from gantrymq.shm.limits import PROGRESS_WINDOW
from gantrymq.shm.properties import SCHEDULE_TOPIC, TIMER_TOPIC
from gantrymq.workers.groups.progress import QueueKey
from gantrymq.workers.groups.retrycopy import FIRST_LEVEL, REASON, Parking, reason_of

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.workers.groups.membership import Topics
    from gantrymq.workers.groups.records import LiveReader

assert (kernel.LADDER, kernel.DEAD_LETTER) == (groupwire.LADDER, groupwire.DEAD_LETTER)

#: Bytes of copies of one call of the kernel.
_OUT_BYTES: Final = 1 << 18
_NO_VIEW: Final = np.zeros(0, np.uint8)
_WORDS: Final = kernel.FAILED_WORDS
_DEAD: Final = kernel.DEAD_LETTER
_NOTHING_FOUND: Final = [0] * (_WORDS - kernel.ASKED_WORDS)

#: Offset, its entry (as `outlet.entry_of` makes it), its record's position, attempt, 1 if dead.
Made = tuple[int, bytes, int, int, int]


class UsualCopies:
    """See the module."""

    def __init__(self, reader: LiveReader, board: Board, topics: Topics) -> None:
        self._reader = reader
        self._board = board
        self._topics = topics
        self._form = np.zeros(kernel.FORM_WORDS, np.int64)
        self._rows = np.zeros(PROGRESS_WINDOW * _WORDS, np.int64)
        self._out = np.zeros(_OUT_BYTES, np.uint8)
        # What numpy would take most of the time for.
        self._words = self._form.data.cast("B").cast("q")
        self._cells = self._rows.data.cast("B").cast("q")
        self._bytes = self._out.data

    def make(
        self, key: QueueKey, failed: Sequence[tuple[int, int, str]], died: Sequence[int],
        limits: tuple[int, int], parking: Parking,
    ) -> list[Made]:  # fmt: skip
        """Copies of those messages that are usual: offset, delay and reason of each.

        `died`: deliveries that ended with their consumers, none: of no message. `limits`: attempts
        of a message, and bytes of entries, which are passed by the last one at most.
        """
        texts = bytearray(parking.retry_topic)
        self._ask(failed, died, texts)
        most, room = limits
        first = min(failure[0] for failure in failed)
        count = max(failure[0] for failure in failed) - first + 1
        units = self._reader.units_from(*key, first, min(count, PROGRESS_WINDOW))
        self._aim(parking, (len(failed), first, most))
        made: list[Made] = []
        for part in self._call(np.frombuffer(units, np.uint8), np.frombuffer(texts, np.uint8)):
            made += part
            room -= int(self._words[kernel.FILLED])
            if room <= 0:
                break
        # Looked at last: what retention has taken meanwhile may read as zeroes.
        low = self._board.word(layout.BOARD_LOW)
        return [item for item in made if item[2] >= low]

    def _ask(
        self, failed: Sequence[tuple[int, int, str]], died: Sequence[int], texts: bytearray
    ) -> None:
        """Write the rows, and the reasons behind `texts`."""
        places: dict[str, list[int]] = {}
        cells: list[int] = []
        for number, (offset, delay, why) in enumerate(failed):
            known = places.get(why)
            if known is None:
                known = places[why] = [*_add_reason(texts, why), *_NOTHING_FOUND]
            dead = delay < _DEAD
            cells += (offset, died[number] if died else 0, _DEAD if dead else delay, *known)
        self._cells[: len(cells)] = array("q", cells)

    def _aim(self, parking: Parking, asked: tuple[int, int, int]) -> None:
        """`asked`: rows, offset of the first unit, attempts of a message."""
        slots = self._topics.slots
        self._words[: kernel.GIVEN_WORDS] = array("q", (
            0, 0, 0, *asked, FIRST_LEVEL, parking.levels, parking.now_ms, parking.precision_ms,
            parking.retry_queues, len(parking.retry_topic), slots.get(SCHEDULE_TOPIC, -1),
            slots.get(TIMER_TOPIC, -1), self._topics.slot_of(parking.dead_topic),
        ))  # fmt: skip

    def _call(self, units: NDArray[np.uint8], texts: NDArray[np.uint8]) -> Iterator[list[Made]]:
        """Run the kernel over the segments that records lie in; what it has made, in parts."""
        words, log, begun = self._words, _NO_VIEW, 0
        while True:
            stop = kernel.make_copies(log, units, self._form, self._rows, texts, self._out)
            if stop == kernel.ROLL:
                position = self._cells[words[kernel.NEXT] * _WORDS + kernel.POSITION]
                try:
                    base, view = self._reader.segment_view(position)
                except FileNotFoundError:  # retention was quicker
                    words[kernel.NEXT] += 1
                    continue
                if view is log:  # which is shorter than a segment
                    words[kernel.NEXT] += 1
                words[kernel.BASE], log = base, view
                continue
            if stop == kernel.LIMIT and not words[kernel.FILLED]:
                words[kernel.NEXT] += 1  # too large for all of `out`
                continue
            yield self._made(begun, words[kernel.NEXT])
            if stop == kernel.DONE:
                return
            begun = words[kernel.NEXT]
            words[kernel.FILLED] = 0

    def _made(self, begun: int, end: int) -> list[Made]:
        """What was made of rows [begun, end)."""
        cells, out = self._cells[begun * _WORDS : end * _WORDS].tolist(), self._bytes
        columns = [cells[column::_WORDS] for column in _FOUND]
        return [
            (offset, bytes(out[start:stop]), position, attempt, dead)
            for offset, made, start, stop, position, attempt, dead in zip(*columns, strict=True)
            if made
        ]


_FOUND: Final = (
    kernel.OFFSET, kernel.MADE, kernel.ENTRY_AT, kernel.ENTRY_END, kernel.POSITION, kernel.ATTEMPT,
    kernel.DEAD,
)  # fmt: skip


def _add_reason(texts: bytearray, why: str) -> tuple[int, int]:
    """Place and length of DLQ_REASON as a property; none without a reason."""
    text = reason_of(why).encode()
    data = b"%b\x01%b\x02" % (REASON, text) if text else b""
    texts += data
    return len(texts) - len(data), len(data)
