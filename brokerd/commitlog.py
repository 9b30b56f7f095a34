"""The commit log's segments: names, the active one, the spare one, rolling.

A segment gets all its blocks in `gantry/` and is then renamed into `commitlog/`: a file of the
wrong length there would keep a real RocketMQ from starting (SF-11), and a full disk shows itself
before the space is needed. Its length is durable before it has that name, and the name before
there is a segment behind it: a power cut leaves no short one, and no gap.
"""

from __future__ import annotations

import errno

from gantrymq.shm.errors import Corrupt, StoreFailed
from gantrymq.shm.lognames import DIRECTORY, is_position, segment_name
from gantrymq.shm.storage import File, Storage, made_anew

SPARE = "gantry/spare"
#: A new segment leaves this part of its size free: for queues, the ledger, and others' files.
MARGIN_PARTS = 16


def segment_bases(storage: Storage, segment_bytes: int) -> list[int]:
    """Base positions of the segments there are, checked to be contiguous and of full length.

    A last file of another length is what a kill leaves of RocketMQ's preallocation: not counted.
    Raises Corrupt for anything else.
    """
    names = storage.list(DIRECTORY)
    bases: list[int] = []
    for name in names:
        path = f"{DIRECTORY}/{name}"
        if not is_position(name):
            raise Corrupt(
                f"{path} is no segment: move it out of {DIRECTORY}/", path=path, position=0
            )
        if storage.size_of(path) != segment_bytes:
            if name == names[-1]:
                break
            raise Corrupt(
                f"{path} has {storage.size_of(path)} bytes, segments have {segment_bytes}: bring it"
                " back, or save the rest by `gantrymq store verify --salvage DEST`",
                path=path,
                position=int(name),
            )
        if bases and int(name) != bases[-1] + segment_bytes:
            raise Corrupt(
                f"a segment is missing between {bases[-1]:020d} and {name}",
                path=path,
                position=bases[-1] + segment_bytes,
            )
        bases.append(int(name))
    return bases


@made_anew()
def prepare_spare(storage: Storage, segment_bytes: int, temporary: str) -> None:
    """Make the spare segment with all its blocks. `temporary` is the caller's own name for it.

    Raises OSError.
    """
    path = f"gantry/{temporary}"
    if storage.exists(path):
        storage.unlink(path)
    _require_room(storage, segment_bytes, path)
    file = storage.create(path)
    try:
        file.allocate(segment_bytes)
        file.sync()
    except OSError:
        storage.unlink(path)
        raise
    finally:
        file.close()
    storage.rename(path, SPARE)


def room_for_segment(segment_bytes: int) -> int:
    """Bytes that have to be free where a segment is made."""
    return segment_bytes + segment_bytes // MARGIN_PARTS


def _require_room(storage: Storage, segment_bytes: int, path: str) -> None:
    """Raise OSError if a segment would leave less than the margin.

    Nobody may ask for room to see whether there is some: an allocation that fails has all that is
    free until its file is removed, and others' writes fail meanwhile.
    """
    free, wanted = storage.free_bytes(), room_for_segment(segment_bytes)
    if free < wanted:
        text = f"{free} bytes are free, and a segment with what it leaves to others takes {wanted}"
        raise OSError(errno.ENOSPC, text, path)


class CommitLog:
    """The active segment, written at its end only."""

    def __init__(self, storage: Storage, segment_bytes: int, appended: int) -> None:
        """Open the segment that `appended` is in, makes it if it is the first.

        One that is just due is left to `roll`: a full disk has no room for it.
        """
        self._storage = storage
        self.segment_bytes = segment_bytes
        self.base = appended // segment_bytes * segment_bytes
        if self._is_due(appended):
            self.base -= segment_bytes
        self._file = self._open(self.base)

    @property
    def end(self) -> int:
        """Log position behind the active segment."""
        return self.base + self.segment_bytes

    def _is_due(self, appended: int) -> bool:
        """Whether the last segment is full, and there is none behind it."""
        exists = self._storage.exists
        if appended != self.base or exists(segment_name(self.base)) or not self.base:
            return False
        return exists(segment_name(self.base - self.segment_bytes))

    def _open(self, base: int) -> File:
        name = segment_name(base)
        if not self._storage.exists(name):
            if not self._storage.exists(DIRECTORY):
                self._storage.make_directory(DIRECTORY)
                self._storage.sync_directory("")  # or a power cut takes the log with its name
            else:
                self._storage.sync_directory(DIRECTORY)  # the flusher may be behind, or dead
            # An older broker's spare may lack the length that a power cut took.
            if not self._spare_is_whole():
                prepare_spare(self._storage, self.segment_bytes, "spare.writer")
            self._storage.rename(SPARE, name)
        return self._storage.open(name, write=True)

    def _spare_is_whole(self) -> bool:
        return self._storage.exists(SPARE) and self._storage.size_of(SPARE) == self.segment_bytes

    def append(self, data: memoryview, position: int) -> None:
        """Write records (bytes) at the log's end. Raises OSError, which is final for the store."""
        at = position - self.base
        if at < 0 or at + len(data) > self.segment_bytes:
            raise StoreFailed(
                f"append of {len(data)} bytes at {position} leaves segment {self.base}"
            )
        self._file.write_at(data, at)

    def roll(self) -> None:
        """Go on in the next segment. Raises OSError (ENOSPC) and changes nothing if it can't."""
        following = self._open(self.end)
        self._file.close()
        self._file = following
        self.base = self.end

    def clear_behind(self, position: int, count: int) -> None:
        """Zero what a writer that died may have left behind the log's end."""
        start = position - self.base
        self._file.zero_range(start, min(count, self.segment_bytes - start))

    def sync(self) -> None:
        """Make the active segment durable, for who has no flusher. Raises OSError: final."""
        self._file.sync()

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()
