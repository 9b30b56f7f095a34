"""Topics of type BatchCQ: RocketMQ's units against the log, and what member queues have to be.

A record of such a topic may be many messages; RocketMQ's unit counts them, a member queue has a
unit for each (shm/queuenames.py).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gantrymq.brokerd.batchunits import file_bytes_of
from gantrymq.brokerd.dump.queues import BatchQueue
from gantrymq.brokerd.memberqueues import Listed, MessageLister, has_units
from gantrymq.shm import layout
from gantrymq.shm.errors import Incompatible
from gantrymq.shm.kernels import scan
from gantrymq.shm.lognames import segment_name
from gantrymq.shm.queuenames import DIRECTORY, MEMBERS, has_members
from gantrymq.shm.storage import map_still
from gantrymq.workers.housekeeper.progress import read_progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from gantrymq.brokerd.verify.log import LogCheck, Records
    from gantrymq.brokerd.verify.report import Report
    from gantrymq.brokerd.verify.scope import Scope
    from gantrymq.shm.storage import Storage

#: Topic number, queue id, queue offsets and units of messages.
Units = tuple[int, int, "NDArray[np.int64]", "NDArray[Any]"]
#: What RocketMQ keeps for itself is not compared.
_COMPARED: Final = (
    *("physical_offset", "size", "tags_code", "store_timestamp", "base_offset", "batch_size"),
)


class BatchCheck:
    """Takes such topics' records out of the others."""

    def __init__(
        self, storage: Storage, scope: Scope, report: Report, log: LogCheck,
        topics: frozenset[str],
    ) -> None:  # fmt: skip
        self._storage = storage
        self._scope = scope
        self._report = report
        self._log = log
        self._topics = topics
        self._lister = MessageLister()
        self._roots: dict[str, str] = {}
        self._wanted: defaultdict[tuple[str, int], list[NDArray[Any]]] = defaultdict(list)

    def root_of(self, topic: str) -> str:
        """Where the units of a topic's messages are."""
        root = self._roots.get(topic)
        if root is None:
            is_batch = topic in self._topics or has_members(self._storage, topic)
            root = self._roots[topic] = MEMBERS if is_batch else DIRECTORY
        return root

    def split(self, records: Records) -> tuple[Records, list[Units]]:
        """The records of other topics, and the units that member queues must have for the rest."""
        names = self._log.names
        numbers = [n for n, name in enumerate(names) if self.root_of(name) == MEMBERS]
        if not numbers:
            return records, []
        mine = np.isin(records.topics, numbers)
        others = replace(records, rows=records.rows[~mine], topics=records.topics[~mine])
        found: list[Units] = []
        for number in numbers:
            rows = records.rows[(records.topics == number) & has_units(records.rows)]
            if len(rows):
                found += self._units(records.base, rows, number, names[number])
        return others, found

    def _units(
        self, base: int, rows: NDArray[np.int64], number: int, topic: str
    ) -> Iterator[Units]:
        view = map_still(self._storage, segment_name(base))
        counts = np.zeros(len(rows), np.int64)
        bound = self._bound()
        for listed in self._lister.units(view, base, rows):
            counts += np.bincount(listed.rows, minlength=len(rows))
            known = listed.units["physical_offset"] < bound
            part = Listed(*(column[known] for column in listed))
            yield from ((number, *queue) for queue in part.queues())
        for queue_id in np.unique(rows[:, scan.QUEUE_ID]).tolist():
            chosen = rows[:, scan.QUEUE_ID] == queue_id
            wanted = _batch_units(base, rows[chosen], counts[chosen])
            self._wanted[topic, queue_id].append(wanted)

    def _bound(self) -> int:
        """Log position up to which member queues were made: what a RocketMQ adds has none yet."""
        scope = self._scope
        if not scope.ours:
            return -1
        ends = [np.iinfo(np.int64).max if scope.units_end is None else scope.units_end]
        if scope.passed_on:
            progress = read_progress(self._storage)
            ends.append(progress[0] if progress else -1)
        return int(min(ends))

    def finish(self, starts: Mapping[tuple[str, int], int]) -> None:
        """Compare RocketMQ's own units with the records, of a store that was stopped.

        `starts`: log positions from which on queues have their records.
        """
        if not self._scope.whole or self._log.lost:
            return
        file_bytes = file_bytes_of(self._storage)
        for (topic, queue_id), wanted in sorted(self._wanted.items()):
            records = np.concatenate(wanted)
            records = records[records["physical_offset"] >= starts.get((topic, queue_id), 0)]
            self._compare(BatchQueue(topic, queue_id, file_bytes), records)

    def _compare(self, queue: BatchQueue, records: NDArray[Any]) -> None:
        path = f"{queue.directory}/{queue.topic}/{queue.queue_id}"
        try:
            queue.load(self._storage)
        except Incompatible as error:
            self._report.add(path, None, "wrong length", found=str(error))
            return
        found = [np.asarray(file.units[: file.count]) for file in queue.files]
        units = np.concatenate([np.zeros(0, layout.BATCH_CQ_UNIT.dtype), *found])
        units = units[units["physical_offset"] >= self._report.log_start]
        if len(units) != len(records):
            self._report.add(
                path, None, "wrong number of units", str(len(records)), str(len(units))
            )
            return
        wrong = np.zeros(len(units), np.bool_)
        for name in _COMPARED:
            wrong |= units[name] != records[name]
        for number in np.flatnonzero(wrong).tolist():
            what = f"wrong unit {number}"
            self._report.add(path, None, what, _told(records[number]), _told(units[number]))


def _batch_units(base: int, rows: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[Any]:
    """RocketMQ's units of records with so many messages."""
    units = np.zeros(len(rows), layout.BATCH_CQ_UNIT.dtype)
    units["physical_offset"], units["size"] = base + rows[:, scan.AT], rows[:, scan.SIZE]
    units["tags_code"], units["store_timestamp"] = rows[:, scan.TAGS_CODE], rows[:, scan.STORE_MS]
    units["base_offset"], units["batch_size"] = rows[:, scan.QUEUE_OFFSET], counts
    return units


def _told(unit: Any) -> str:  # noqa: ANN401 - a row of a structured array
    return " ".join(f"{name} {int(unit[name])}" for name in _COMPARED)
