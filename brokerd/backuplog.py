"""The log's part of a back-up, beside a broker that appends to it and removes what has expired.

Retention moves a segment out of `commitlog/` before its bytes change, the oldest first. So what
was read of a file counts if the file is still in its place afterwards; otherwise it is dropped with
all before it, and the copy begins with the oldest segment that is there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gantrymq.brokerd.queuestarts import read_starts, save_starts, starts_at
from gantrymq.shm.errors import Incompatible, Rejected
from gantrymq.shm.lognames import DIRECTORY, bases_of, segment_name
from gantrymq.shm.record import Filler, Record
from gantrymq.shm.segment import open_log
from gantrymq.shm.storage import made_anew

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.shm.storage import PosixStorage

_PIECE_BYTES: Final = 64 << 20
_BUFFER_BYTES: Final = 1 << 20
#: What copy_file_range says of files that it cannot copy, on different disks above all.
_NOT_INSIDE_THE_KERNEL: Final = (errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

#: Called with bytes that were copied, and how much of the log is there and wanted by now.
Told = Callable[[int, int, int], None]


class LogCopy:
    """Copies the log up to position `durable` into an empty store."""

    def __init__(
        self, source: PosixStorage, target: PosixStorage, size: int, durable: int, told: Told
    ) -> None:
        """`size`: of a segment."""
        self._source = source
        self._target = target
        self._size = size
        self._durable = durable
        self._told = told
        self._low = 0

    def run(self) -> int:
        """Copy all of it; the position at which the copy begins. Raises Rejected, OSError."""
        self._target.make_directory(DIRECTORY)
        base = self._low = first_segment(self._source)
        while base < self._durable:
            if self._copy_segment(base):
                base += self._size
            else:
                base = self._begin_anew(base)
        return self._low

    def _copy_segment(self, base: int) -> bool:
        """Whether the segment was there up to the end of the copying, and so is whole."""
        name = segment_name(base)
        try:
            source = self._source.open(name)
        except FileNotFoundError:
            return False
        try:
            self._copy_file(source.descriptor, base)
        finally:
            source.close()
        return self._source.exists(name)

    def _copy_file(self, source: int, base: int) -> None:
        """The part below `durable`; the rest of the file is a hole."""
        name = segment_name(base)
        count = min(self._size, self._durable - base)
        target = self._target.create(name)
        try:
            done = 0
            while done < count:
                piece = min(_PIECE_BYTES, count - done)
                moved = _move(source, target.descriptor, piece, done)
                if moved == 0:
                    raise Incompatible(f"{name} is shorter than {count} bytes", path=name)
                done += moved
                self._told(moved, base + done - self._low, self._durable - self._low)
            target.truncate(self._size)
            with made_anew():
                target.sync()
        finally:
            target.close()

    def _begin_anew(self, gone: int) -> int:
        """Drop what was copied up to a segment that is gone; the segment to go on with."""
        self._low = first_segment(self._source)
        if self._low <= gone:
            raise Incompatible(f"{segment_name(gone)} is missing", path=segment_name(gone))
        if self._low >= self._durable:
            raise Rejected(
                f"the log up to {self._durable} has expired while it was copied: make the back-up"
                " again"
            )
        for name in self._target.list(DIRECTORY):
            self._target.unlink(f"{DIRECTORY}/{name}")
        return self._low


def copy_starts(source: PosixStorage, target: PosixStorage, board: Board, low: int) -> None:
    """Note for a copy from log position `low` on where its queues begin.

    The note of the store may be of another position; of queues that have left the board, too.
    """
    noted = read_starts(source)
    known = noted[1] if noted else {}
    if low:
        save_starts(target, low, {**known, **starts_at(source, board, low)})


def first_segment(storage: PosixStorage) -> int:
    """Where the log's oldest segment begins; 0 without any."""
    return min(bases_of(storage), default=0)


def goes_on_behind(storage: PosixStorage, end: int) -> bool:
    """Whether there are records from log position `end` on."""
    items = (item for _position, item in open_log(storage).scan(end))
    return isinstance(next((one for one in items if not isinstance(one, Filler)), None), Record)


def _move(source: int, target: int, count: int, at: int) -> int:
    """Copy up to `count` bytes of a file to the same place of another; how many it was.

    Inside the kernel where it can, which between two disks of different kinds it does not.
    """
    try:
        return os.copy_file_range(source, target, count, at, at)
    except OSError as error:
        if error.errno not in _NOT_INSIDE_THE_KERNEL:
            raise
    return os.pwrite(target, os.pread(source, min(count, _BUFFER_BYTES), at), at)
