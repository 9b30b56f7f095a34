"""Writes the sidecar of a full segment in short steps: its records and topics, its blocks' CRCs.

A segment of an earlier life, far behind the log's end, does not stay in memory for it (ADR 0023).
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import layout, sidecar
from gantrymq.shm.codes import Stop
from gantrymq.shm.kernels import blocks
from gantrymq.shm.kernels.scan import ROW_WORDS
from gantrymq.shm.lognames import segment_name
from gantrymq.shm.marks import mark
from gantrymq.shm.storage import made_anew, replace_file
from gantrymq.workers.failure import unfit_record
from gantrymq.workers.topicindex import TopicIndex

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.shm.storage import File, Storage
    from gantrymq.workers.housekeeper.queuesync import Steps

#: Records that are noted, and blocks that are summed, in one step.
RECORDS_A_STEP: Final = 2048
BLOCKS_A_STEP: Final = 1
#: Bytes of a segment whose records are found by their names in one step, without a kernel.
WALKED_A_STEP: Final = 64 << 10
#: Pieces of so many records that are written in one step.
PIECES_A_STEP: Final = 32


class SidecarWriter:
    """Makes the sidecar of one segment; `last_ms` is its newest storeTimestamp once it is there."""

    def __init__(self, storage: Storage, board: Board, base: int) -> None:
        self._storage = storage
        self._board = board
        self._base = base
        self._topics = TopicIndex(board)
        self._positions: list[NDArray[np.uint32]] = []
        self._slots: list[NDArray[np.uint16]] = []
        self._form = np.zeros(blocks.FORM_WORDS, np.int64)
        self._form[blocks.BASE] = base
        self.last_ms = 0

    @property
    def _name(self) -> str:
        return f"{sidecar.DIRECTORY}/{self._base:020d}"

    def steps(self, *, cold: bool) -> Steps:
        """All of it; `cold`: nobody is likely to read the segment soon. Raises OSError, Corrupt."""
        file = self._storage.open(segment_name(self._base))
        try:
            view = file.view()
            known = yield from self._note_records(view)
            if known:
                crcs = yield from _sum_blocks(view)
                yield from self._write(view, crcs)
            else:
                yield from self._build(view)
            del view
            if cold:
                with contextlib.suppress(OSError):
                    file.let_go(0, self._board.segment_bytes)
        finally:
            file.close()

    def _note_records(self, view: NDArray[np.uint8]) -> Generator[int, None, bool]:
        """Where all records are; False if the board does not know the topic of one."""
        self._topics.follow()
        passed, row = np.zeros(RECORDS_A_STEP, np.int64), np.zeros(ROW_WORDS, np.int64)
        stop, form, board = Stop.LIMIT, self._form, self._board.array()
        while stop is Stop.LIMIT:
            stop = Stop(
                blocks.note_records(view, form, board, self._topics.words, passed, row)
            )  # fmt: skip
            noted = passed[: int(form[blocks.NOTED])]
            self._positions.append((noted >> 16).astype(">u4"))
            self._slots.append((noted & 0xFFFF).astype(np.uint16))
            yield 0
        if stop not in (Stop.FILLER, Stop.END, Stop.UNKNOWN_TOPIC):
            position = self._base + int(form[blocks.AT])
            raise unfit_record("sealed", position, self._base, stop)
        return stop is not Stop.UNKNOWN_TOPIC

    def _write(self, view: NDArray[np.uint8], crcs: NDArray[np.uint32]) -> Steps:
        """The file piece by piece, its first bytes last."""
        used = sorted(set().union(*(np.unique(piece).tolist() for piece in self._slots)))
        names = [self._topic_name(slot) for slot in used]
        ranks = np.zeros(used[-1] + 1 if used else 0, ">u2")
        ranks[used], ordered = sidecar.by_name(np.arange(len(used), dtype=np.uint16), names)
        records = sum(map(len, self._positions))
        self.last_ms = int(self._form[blocks.LAST_MS])
        head, tail = sidecar.ends(
            sidecar.Sidecar(
                base=self._base,
                segment_bytes=len(view),
                end=self._base + int(self._form[blocks.AT]),
                first_ms=int(self._form[blocks.FIRST_MS]),
                last_ms=self.last_ms,
                positions=np.empty(0, np.uint32),
                topic_numbers=np.empty(0, np.uint16),
                names=ordered,
                block_crcs=crcs,
            ),
            records,
        )
        mark("housekeeper.before_sidecar")
        temporary = f"{self._name}.new"
        if self._storage.exists(temporary):
            self._storage.unlink(temporary)
        file = self._storage.create(temporary)
        try:
            yield from self._write_pieces(file, head, ranks, tail)
            with made_anew():
                file.sync()
        finally:
            file.close()
        self._storage.rename(temporary, self._name)
        self._storage.sync_directory(sidecar.DIRECTORY)

    def _write_pieces(
        self, file: File, head: bytes, ranks: NDArray[np.uint16], tail: bytes
    ) -> Steps:
        at, crc = len(head), zlib.crc32(head)
        columns = (
            (self._positions, lambda piece: piece.tobytes()),
            (self._slots, lambda piece: ranks[piece].tobytes()),
        )
        for pieces, encode in columns:
            for first in range(0, len(pieces), PIECES_A_STEP):
                data = b"".join(map(encode, pieces[first : first + PIECES_A_STEP]))
                file.write_at(data, at)
                file.start_sync(at, len(data))
                at, crc = at + len(data), zlib.crc32(data, crc)
                yield 0
        file.write_at(tail, at)
        file.write_at(sidecar.with_crc(head, zlib.crc32(tail, crc)), 0)
        yield 0

    def _topic_name(self, slot: int) -> str:
        topic = self._board.topic(slot)
        assert topic is not None, "it was found by its name"
        return topic.name

    def _build(self, view: NDArray[np.uint8]) -> Steps:
        """Of topics that nobody has told the board of: an old segment's, in a restored store."""
        found = yield from sidecar.build_in_steps(view, self._base, WALKED_A_STEP)
        self.last_ms = found.last_ms
        replace_file(self._storage, self._name, found.encode())


def _sum_blocks(view: NDArray[np.uint8]) -> Generator[int, None, NDArray[np.uint32]]:
    """CRC-32 of each block."""
    size = layout.SIDECAR_BLOCK_BYTES
    found = np.zeros(-(-view.size // size), np.int64)
    for first in range(0, len(found), BLOCKS_A_STEP):
        stop = first + BLOCKS_A_STEP
        blocks.crc_blocks(view[first * size : stop * size], size, found[first:stop])
        yield 0
    return found.astype(np.uint32)
