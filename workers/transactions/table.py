"""Half messages without a decision: one row each, in order of their queue offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROW: Final = np.dtype(
    [
        ("offset", "i8"),  # in the half queue
        ("position", "i8"),  # in the log
        ("size", "i4"),
        ("checks", "i4"),  # answered by nothing so far
        ("stored_ms", "i8"),
        ("next_ns", "i8"),  # when it is looked at next, monotonic
        ("tx", "i8"),  # hash of the transaction's id
        ("key", "i8"),  # hash of UNIQ_KEY
        ("group", "i4"),  # number of the producer group
        ("live", "i2"),  # 0: decided, and to be dropped
        ("kin", "i2"),  # ALONE, LATER, SUSPECT
    ]
)
#: What a row is in its transaction: its first half, a later one, or a later one of which it is not
#: known whether the transaction was decided before it came.
ALONE, LATER, SUSPECT = range(3)
#: Rows as bytes: these are copied at once, and not field by field.
_WHOLE: Final = np.dtype((np.void, ROW.itemsize))
FIRST_ROOM: Final = 256
#: Names of producer groups that are kept at least, whether a row has them or not.
NAMES_MIN: Final = 1024
#: Dead rows that are worth a compaction, at least.
DEAD_MIN: Final = 1024


class OpenHalves:
    """Rows ascend in offset and position. Found by bisection, dropped by compaction."""

    def __init__(self) -> None:
        self._rows: NDArray[np.void] = np.zeros(FIRST_ROOM, ROW)
        self._count = 0
        self._dead = 0
        self._first = 0  # all rows below are dead
        self._groups: dict[str, int] = {}
        #: By number; good until the next `add`.
        self.group_names: list[str] = []
        self._names_max = NAMES_MIN

    def __len__(self) -> int:
        return self._count - self._dead

    @property
    def rows(self) -> NDArray[np.void]:
        """All rows, dead ones too; good until the next `add` or `compact`."""
        return self._rows[: self._count]

    def group_number(self, name: str) -> int:
        """The number of a producer group's name."""
        number = self._groups.setdefault(name, len(self.group_names))
        if number == len(self.group_names):
            self.group_names.append(name)
        return number

    def reserve(self, count: int) -> None:
        """Make room for so many rows more; what is not used costs nothing."""
        need, room = self._count + count, len(self._rows)
        if need <= room:
            return
        while room < need:
            room *= 2
        rows = np.zeros(room, ROW)
        rows.view(_WHOLE)[: self._count] = self.rows.view(_WHOLE)
        self._rows = rows

    def add(self, more: NDArray[np.void]) -> None:
        """Take in rows that lie behind all others."""
        self.compact()
        self.reserve(len(more))
        need = self._count + len(more)
        self._rows.view(_WHOLE)[self._count : need] = more.view(_WHOLE)
        self._count = need
        if len(self.group_names) > self._names_max:
            self._forget_names()

    def _forget_names(self) -> None:
        """Keep the names that rows have; there may have been one for each producer ever."""
        numbers, groups = np.unique(self.rows["group"], return_inverse=True)
        self.group_names = [self.group_names[number] for number in numbers.tolist()]
        self._groups = {name: number for number, name in enumerate(self.group_names)}
        self.rows["group"] = groups
        self._names_max = max(NAMES_MIN, 2 * len(self.group_names))

    def find(self, offset: int) -> int:
        """Index of the live row of a half queue offset, or -1."""
        rows = self.rows
        at = int(np.searchsorted(rows["offset"], offset))
        found = at < self._count and rows["offset"][at] == offset and rows["live"][at]
        return at if found else -1

    def at_position(self, position: int) -> int:
        """Index of the live row of a log position, or -1."""
        rows = self.rows
        at = int(np.searchsorted(rows["position"], position))
        found = at < self._count and rows["position"][at] == position and rows["live"][at]
        return at if found else -1

    def remove(self, index: int) -> None:
        """Drop a live row."""
        self._rows["live"][index] = 0
        self._dead += 1

    def keep_only(self, kept: NDArray[np.bool_]) -> None:
        """Drop all others."""
        self.rows["live"][~kept] = 0
        self._dead = int((self.rows["live"] == 0).sum())
        self.compact(least=1)

    def compact(self, least: int = DEAD_MIN) -> None:
        """Close gaps, once they are worth it."""
        if self._dead < max(least, self._count // 2 if least > 1 else 1):
            return
        left = self.live()
        self._count, self._dead, self._first = len(left), 0, 0
        if FIRST_ROOM < 4 * len(left) < len(self._rows) or not len(left):
            self._rows = np.zeros(max(FIRST_ROOM, 2 * len(left)), ROW)
        self._rows[: self._count] = left

    def first(self) -> int:
        """Index of the first live row, or -1."""
        live = self.rows["live"]
        while self._first < self._count and not live[self._first]:
            self._first += 1
        return self._first if self._first < self._count else -1

    def live(self) -> NDArray[np.void]:
        """A copy of the live rows."""
        rows = self.rows
        found: NDArray[np.void] = rows.view(_WHOLE)[rows["live"] != 0].view(ROW)
        return found
