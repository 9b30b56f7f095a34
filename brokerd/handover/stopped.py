"""Which parked messages wait in a store that no broker runs on, for those who look at it.

By one pass over the log, as a hand-over tells it; nothing is recovered or changed (ADR 0017).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gantrymq.brokerd import config, epoch
from gantrymq.brokerd.handover.timerfiles import timer_of
from gantrymq.clients.home import store_of
from gantrymq.shm import jit
from gantrymq.shm.errors import Incompatible
from gantrymq.shm.properties import SCHEDULE_TOPIC, TIMER_TOPIC, parse_delay_levels
from gantrymq.shm.storage import PosixStorage
from gantrymq.workers.logviews import LogViews
from gantrymq.workers.scheduler.waiting import WAITING

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from gantrymq.brokerd.handover.pending import Pending, Progress


@dataclass(frozen=True, slots=True)
class _Sizes:
    segment_bytes: int
    cq_bytes: int


class StoppedMessages:
    """A look at the store of a broker that has ended, stopped or killed."""

    def __init__(self, home: Path) -> None:
        """Raises Incompatible if there is no store, SettingIllegal."""
        if not (store_of(home) / "commitlog").is_dir():
            raise Incompatible(f"{store_of(home)} is no store: name the broker's home with --home")
        jit.warm()
        self._storage = PosixStorage(str(store_of(home)))
        self.settings = epoch.settle_sizes(self._storage, config.load(home)).settings
        self._segment_bytes = self.settings.mapped_file_size_commit_log
        queue_bytes = self.settings.mapped_file_size_consume_queue
        self.views = LogViews(self._storage, _Sizes(self._segment_bytes, queue_bytes))
        self._board = epoch.find_old_board(home)

    def read(self, progress: Progress | None = None) -> NDArray[np.void]:
        """Rows of WAITING in order of time. Raises Corrupt, OSError."""
        from gantrymq.brokerd.handover.reading import read_unrecovered

        pending = read_unrecovered(self._storage, self._segment_bytes, self._board, progress)
        found = np.concatenate(
            [np.zeros(0, WAITING), *self._levels(pending), *self._timers(pending)]
        )
        return np.asarray(found[np.argsort(found["due_ms"], kind="stable")])

    def _levels(self, pending: Pending) -> list[NDArray[np.void]]:
        delays = parse_delay_levels(self.settings.message_delay_level)
        found = []
        for queue_id, records in pending.waiting(SCHEDULE_TOPIC):
            rows = _rows(records)
            rows["due_ms"] = records["store_ms"] + delays[min(queue_id, len(delays) - 1)]
            rows["level"] = queue_id + 1
            found.append(rows)
        return found

    def _timers(self, pending: Pending) -> list[NDArray[np.void]]:
        from gantrymq.brokerd.handover.pending import messages

        found = []
        for _queue, records in pending.waiting(TIMER_TOPIC):
            rows = _rows(records)
            places = records[["position", "size", "store_ms"]].tolist()
            properties = messages(self._storage, self._segment_bytes, records)
            timers = (timer_of(*each) for each in zip(properties, places, strict=True))
            rows["due_ms"] = [timer.due_ms or timer.out_ms for timer in timers]
            found.append(rows)
        return found


def _rows(records: NDArray[np.void]) -> NDArray[np.void]:
    rows = np.zeros(len(records), WAITING)
    rows["position"], rows["size"] = records["position"], records["size"]
    return rows
