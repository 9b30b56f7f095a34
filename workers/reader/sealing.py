"""Sealing: the sidecar of a rolled segment, and how far the reader's files are on the disk."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shm import layout, limits, sidecar
from shm.indexnote import safe_time
from shm.kernels import dispatch
from shm.kernels.blocks import crc_blocks
from shm.lognames import segment_name
from shm.marks import mark
from shm.record import STORED_MS_BYTES, stored_ms
from shm.storage import replace_file
from workers.reader.queues import QueueFiles, save_progress

if TYPE_CHECKING:
    from shm.board import Board
    from shm.storage import Storage

CHECKPOINT_FILE = "checkpoint"
SIDECARS = "gantry/segments"
#: Records that one array of notes has room for; only what is written to takes memory.
_ROOM = 2 * limits.DISPATCH_RECORDS_MAX


class Collector:
    """Positions and topics of the active segment's records, if the reader has seen all of them.

    `dispatch_log` notes them in `passed` by itself (offset << 16 | topic slot); the words NOTED and
    KEEPING of its form are this one's.
    """

    def __init__(self, form: NDArray[np.int64]) -> None:
        self._form = form
        self._pieces: dict[int, list[NDArray[np.int64]]] = {}
        self._base = -1
        self.passed = np.empty(_ROOM, np.int64)

    def begin(self, base: int, *, whole: bool) -> None:
        """From now on records are of the segment at `base`; `whole`: from its first one on."""
        self.make_room()
        self._base = base
        self._form[dispatch.KEEPING] = whole
        if whole:
            self._pieces[base] = []

    def make_room(self) -> None:
        """Put the notes so far aside."""
        noted = int(self._form[dispatch.NOTED])
        if noted > _ROOM // 4:
            self._pieces[self._base].append(self.passed[:noted])
            self.passed = np.empty(_ROOM, np.int64)
        elif noted:
            self._pieces[self._base].append(self.passed[:noted].copy())
        self._form[dispatch.NOTED] = 0

    def finish(self, base: int, view: NDArray[np.uint8], names: list[str]) -> bytes:
        """The sidecar of a rolled segment. `names` are the board's topics in slot order."""
        if base == self._base:
            self.make_room()
            self._form[dispatch.KEEPING] = 0
        pieces = self._pieces.pop(base, None)
        if not pieces:
            return sidecar.build_from_segment(view, base).encode()
        passed = np.concatenate(pieces)
        offsets = passed >> 16
        slots = passed & 0xFFFF
        used = np.flatnonzero(np.bincount(slots))
        numbers = np.zeros(used[-1] + 1, np.uint16)
        numbers[used] = np.arange(len(used))
        topic_numbers, topics = sidecar.by_name(
            numbers[slots], [names[slot] for slot in used.tolist()]
        )
        last = int(offsets[-1])
        end = last + _be(view, last + layout.RECORD.offset("total_size"), 4)
        return sidecar.Sidecar(
            base=base,
            segment_bytes=len(view),
            end=base + end,
            first_ms=_stored_ms(view, int(offsets[0])),
            last_ms=_stored_ms(view, last),
            positions=offsets.astype(np.uint32),
            topic_numbers=topic_numbers,
            names=topics,
            block_crcs=_block_crcs(view),
        ).encode()


class Sealer:
    """Writes sidecars of segments that are rolled and durable, and saves how far all is synced."""

    def __init__(
        self, storage: Storage, board: Board, queues: QueueFiles, form: NDArray[np.int64]
    ) -> None:
        self._storage = storage
        self._board = board
        self._queues = queues
        self._form = form
        self.collector = Collector(form)
        self._unsealed: deque[int] = deque()

    def find_unsealed(self, dispatched: int) -> None:
        """Note the segments that a reader before this one has left without a sidecar."""
        size = self._board.segment_bytes
        sealed = set(self._storage.list(SIDECARS))
        for base in range(self._board.word(layout.BOARD_LOW), dispatched - size + 1, size):
            if f"{base:020d}" not in sealed:
                self._unsealed.append(base)

    def rolled(self, base: int) -> None:
        """The segment at `base` is full and dispatched."""
        self._unsealed.append(base)

    def waits(self) -> bool:
        """Whether a segment waits for the disk."""
        return bool(self._unsealed)

    def seal(self, durable: int) -> int:
        """Write the sidecar of the oldest rolled segment if it is durable, and save progress."""
        if not self._unsealed or durable < self._unsealed[0] + self._board.segment_bytes:
            return 0
        base = self._unsealed[0]
        self._queues.sync()
        names = [topic.name for topic in self._board.topics()]
        file = self._storage.open(segment_name(base))
        data = self.collector.finish(base, file.view(), names)
        file.close()
        replace_file(self._storage, f"{SIDECARS}/{base:020d}", data)
        self._unsealed.popleft()
        mark("reader.after_sidecar")
        self.save_progress()
        return 1

    def save_progress(self) -> None:
        """Units of all queues are on the disk up to here: where recovery may start from."""
        self._queues.sync()
        queues: dict[tuple[str, int], int] = {}
        for topic in self._board.topics():
            for queue_id in range(topic.queue_count):
                at = self._board.queue_at(topic.queue_base + queue_id)
                written = self._board.word(at + layout.QUEUE_WRITTEN)
                if written:
                    queues[topic.name, queue_id] = written
        save_progress(self._storage, int(self._form[dispatch.DISPATCHED]), queues)
        self._save_checkpoint()

    def _save_checkpoint(self) -> None:
        """RocketMQ's file (SF-84): all messages up to these times are in log and queues, synced."""
        durable = self._board.word(layout.BOARD_DURABLE)
        if self._form[dispatch.DISPATCHED] > durable:
            return
        last_ms = int(self._form[dispatch.LAST_MS]) or self._board.word(layout.BOARD_STORE_MS)
        data = layout.CHECKPOINT.pack(
            physic_msg_timestamp=last_ms,
            logics_msg_timestamp=last_ms,
            index_msg_timestamp=safe_time(self._storage),
            master_flushed_offset=durable,
        )
        padded = data + bytes(layout.CHECKPOINT_FILE_BYTES - len(data))
        if self._storage.exists(CHECKPOINT_FILE):
            file = self._storage.open(CHECKPOINT_FILE, write=True)
        else:
            file = self._storage.create(CHECKPOINT_FILE)
        file.write_at(padded, 0)
        file.sync()
        file.close()


def _block_crcs(view: NDArray[np.uint8]) -> NDArray[np.uint32]:
    block = layout.SIDECAR_BLOCK_BYTES
    out = np.zeros(-(-view.size // block), np.int64)
    crc_blocks(view, block, out)
    return out.astype(np.uint32)


def _be(view: NDArray[np.uint8], at: int, size: int) -> int:
    return int.from_bytes(view[at : at + size].tobytes(), "big")


def _stored_ms(view: NDArray[np.uint8], at: int) -> int:
    return stored_ms(view[at : at + STORED_MS_BYTES].tobytes())
