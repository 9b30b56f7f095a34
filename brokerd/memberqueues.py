"""Member queues, made by recovery of records that the reader could not make units of.

The reader makes a unit for a record. One that a RocketMQ stored in a topic of type BatchCQ may be
an inner batch of many messages (RD-70), and each gets a unit here, with the code of its own tag. So
recovery makes the units of such topics up to the log's end; the reader goes on from there, for what
we append are single messages (RD-72).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from gantrymq.brokerd import batchqueues
from gantrymq.brokerd.queuefiles import QueueKey, remove_files, write_units
from gantrymq.shm import layout
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.innerbatch import is_inner_batch
from gantrymq.shm.kernels import inner, scan
from gantrymq.shm.queuenames import MEMBERS
from gantrymq.shm.record_columns import number_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from gantrymq.brokerd.logscan import Piece
    from gantrymq.shm.storage import Storage

#: Messages that one call of the kernel lists.
_LISTED: Final = 1 << 16
#: More queue offsets without a record in a row are damage.
_GAP_MAX: Final = 1 << 24


def has_units(rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which records have a place in their queue (SF-61)."""
    kinds = rows[:, scan.SYS_FLAG] & layout.SYS_TRANSACTION
    found: NDArray[np.bool_] = (kinds == 0) | (kinds == layout.SYS_COMMIT)
    return found


class UnknownBatchTopic(Exception):
    """A topic has inner batches and no member queues: it has them now, begin anew."""


class Listed(NamedTuple):
    """Messages in the order of the log: the row, the queue, its offset and the unit of each."""

    rows: NDArray[np.int64]
    queue_ids: NDArray[np.int64]
    offsets: NDArray[np.int64]
    units: NDArray[Any]

    def queues(self) -> Iterator[tuple[int, NDArray[np.int64], NDArray[Any]]]:
        """Each queue's number, offsets and units."""
        for queue_id in np.unique(self.queue_ids).tolist():
            mine = self.queue_ids == queue_id
            yield queue_id, self.offsets[mine], self.units[mine]


class MessageLister:
    """Lists the messages of records that may be inner batches."""

    def __init__(self) -> None:
        self._room = np.zeros(_LISTED * inner.MESSAGE_WORDS, np.int64)
        self._scratch = np.zeros(scan.ROW_WORDS, np.int64)

    def units(
        self, view: NDArray[np.uint8], base: int, rows: NDArray[np.int64]
    ) -> Iterator[Listed]:
        """Of rows of `scan_log` over the map of the segment at log position `base`."""
        form = np.zeros(inner.FORM_WORDS, np.int64)
        flat = np.ascontiguousarray(rows).reshape(-1)
        while count := inner.list_messages(view, flat, form, self._scratch, self._room):
            used = self._room[: count * inner.MESSAGE_WORDS].reshape(count, -1).copy()
            numbers = used[:, inner.MESSAGE_ROW]
            of_rows = rows[numbers]
            units = np.zeros(count, layout.CQ_UNIT.dtype)
            units["physical_offset"] = base + of_rows[:, scan.AT]
            units["size"] = of_rows[:, scan.SIZE]
            units["tags_code"] = used[:, inner.MESSAGE_TAGS]
            queue_ids = of_rows[:, scan.QUEUE_ID]
            yield Listed(numbers, queue_ids, used[:, inner.MESSAGE_OFFSET], units)


class MemberQueues:
    """Takes the log's records in order. `queues` maps a queue to its next offset and first unit."""

    def __init__(self, storage: Storage, cq_bytes: int) -> None:
        """Raises Incompatible, see `batchqueues.settle_topics`."""
        self.topics = batchqueues.settle_topics(storage)
        self.queues: dict[QueueKey, tuple[int, int]] = {}
        self._storage = storage
        self._bytes = cq_bytes
        self._lister = MessageLister()

    def take(self, piece: Piece, topics: Iterable[str]) -> None:
        """Make the units of a piece's records; `topics` are those that it has records of.

        Raises UnknownBatchTopic, Incompatible, Corrupt, OSError.
        """
        batches = is_inner_batch(piece.rows[:, scan.SYS_FLAG])
        if self.topics.isdisjoint(topics) and not batches.any():
            return
        numbers, names = number_names(
            piece.view, piece.rows[:, scan.TOPIC_AT], piece.rows[:, scan.TOPIC_SIZE]
        )
        queued = has_units(piece.rows)
        for number, name in enumerate(names):
            chosen = (numbers == number) & queued
            if name in self.topics:
                self._take_topic(piece, piece.rows[chosen], name)
            elif (chosen & batches).any():
                batchqueues.add_topic(self._storage, name)
                self.topics.add(name)
                raise UnknownBatchTopic(name)

    def _take_topic(self, piece: Piece, rows: NDArray[np.int64], topic: str) -> None:
        for listed in self._lister.units(piece.view, piece.base, rows):
            for queue_id, offsets, units in listed.queues():
                self._append((topic, queue_id), offsets, units)

    def _append(self, key: QueueKey, offsets: NDArray[np.int64], units: NDArray[Any]) -> None:
        """Write units behind those that the queue has; what it has already is passed over."""
        per_file = self._bytes // layout.CQ_UNIT_BYTES
        first = int(offsets[0])
        following, low = self.queues.get(key, (first // per_file * per_file, first))
        anew = np.flatnonzero(offsets == 0)
        if len(anew) and (anew[-1] or following):  # its topic was made again: see QueueRows.begins
            offsets, units = offsets[anew[-1] :], units[anew[-1] :]
            following = low = 0
            remove_files(self._storage, self._folder(key))
        highest = np.maximum.accumulate(np.concatenate([[following - 1], offsets[:-1]]))
        new = offsets > highest
        if not new.any():
            return
        offsets, units = offsets[new], units[new]
        end = int(offsets[-1]) + 1
        if end - following > len(offsets) + _GAP_MAX:
            raise Corrupt(
                f"queue {key[1]} of topic {key[0]} jumps from offset {following} to {end - 1}"
                f" at log position {int(units['physical_offset'][-1])}",
                path="commitlog",
                position=int(units["physical_offset"][-1]),
            )
        whole = np.zeros(end - following, layout.CQ_UNIT.dtype)
        whole["size"] = layout.CQ_FILLER_SIZE  # SF-65: no record has that offset
        whole[offsets - following] = units
        folder, at = self._folder(key), following * layout.CQ_UNIT_BYTES
        data = memoryview(whole.tobytes())
        # Nothing is synced here: the reader syncs all that it has not noted as synced.
        write_units(self._storage, folder, self._bytes, at, data)
        self.queues[key] = (end, low)

    def _folder(self, key: QueueKey) -> str:
        return f"{MEMBERS}/{key[0]}/{key[1]}"
