"""Units of rmq_sys_wheel_timer as entries: when each is due, by whose clock, under which key.

The records are read by a kernel, many at one time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.shm import layout
from gantrymq.shm.codes import Stop
from gantrymq.shm.kernels import timer
from gantrymq.shm.kernels.timer import TIMER_WORDS, read_timers
from gantrymq.workers.scheduler.timerpool import ENTRY, KIND_SHIFT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.workers.logviews import LogViews
    from gantrymq.workers.scheduler.strikes import Records
    from gantrymq.workers.scheduler.timeline import Timeline
    from gantrymq.workers.scheduler.timerpool import Entries

#: Units that are read at one time.
UNITS_MAX: Final = 8_192


class TimerUnits:
    """Reads parked records; see the module."""

    def __init__(
        self, views: LogViews, records: Records, timeline: Timeline, precision_ms: int
    ) -> None:
        self._views = views
        self._records = records
        self._time = timeline
        self._form = np.zeros(timer.FORM_WORDS, np.int64)
        self._form[timer.PRECISION_MS] = precision_ms
        self._out = np.zeros(UNITS_MAX * TIMER_WORDS, np.int64)

    def rows(self, positions: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of `read_timers` of up to UNITS_MAX records; valid until the next call."""
        rows = self._rows(positions, sizes)
        nothing = (rows[:, timer.KIND] & timer.NOTHING != 0) & (sizes != layout.CQ_FILLER_SIZE)
        for position in positions[nothing].tolist():
            self._records.record(position)  # which names what is damaged
        return rows

    def _rows(self, positions: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        form = self._form
        form[timer.NEXT], form[timer.COUNT] = 0, len(positions)
        while form[timer.NEXT] < form[timer.COUNT]:
            unit = int(form[timer.NEXT])
            try:
                base, view = self._views.segment(int(positions[unit]))
            except FileNotFoundError:  # it has expired
                place = unit * TIMER_WORDS
                self._out[place : place + TIMER_WORDS] = 0
                self._out[place + timer.KIND] = timer.NOTHING
                form[timer.NEXT] = unit + 1
                continue
            form[timer.BASE] = base
            if read_timers(view, form, positions, sizes, self._out) == Stop.DONE:
                break
        return self._out[: len(positions) * TIMER_WORDS].reshape(-1, TIMER_WORDS)

    def among(self, positions: NDArray[np.int64]) -> Entries:
        """Entries of those records that are timers; `positions` (sorted) are of any."""
        found = [np.zeros(0, ENTRY)]
        for first in range(0, len(positions), UNITS_MAX):
            part = positions[first : first + UNITS_MAX]
            rows = self._rows(part, self._sizes(part))
            found.append(self.entries(rows[rows[:, timer.KIND] & timer.NOTHING == 0]))
        return np.concatenate(found)

    def _sizes(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """By the log; 0 of what has expired."""
        sizes, first = np.zeros(len(positions), np.int64), 0
        while first < len(positions):
            try:
                base, view = self._views.segment(int(positions[first]))
            except FileNotFoundError:
                first += 1
                continue
            end = int(np.searchsorted(positions, base + len(view)))
            places = positions[first:end, None] - base + np.arange(4)
            sizes[first:end] = view[places].view(">u4")[:, 0]
            first = end
        return sizes

    def entries(self, rows: NDArray[np.int64]) -> Entries:
        """Rows of the kernel as entries, delays by the time of buckets."""
        due, stored = rows[:, timer.DUE_MS], rows[:, timer.STORED_MS]
        after = rows[:, timer.KIND] & timer.AFTER != 0
        if after.any():
            due = due.copy()
            begun = self._time.due_after(stored[after], 0) - 1 + self._time.shift_ms
            due[after] += begun - stored[after]
        entries = np.zeros(len(rows), ENTRY)
        entries["ms"] = due
        entries["position"] = rows[:, timer.POSITION]
        entries["size"] = rows[:, timer.SIZE] | rows[:, timer.KIND] << KIND_SHIFT
        entries["hash"] = rows[:, timer.KEY_HASH]
        return entries
