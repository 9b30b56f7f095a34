"""The commit log's segments: names, the active one, the spare one, rolling.

A segment gets all its blocks in `gantry/` and is then renamed into `commitlog/`: a file of the
wrong length there would keep a real RocketMQ from starting (SF-11), and a full disk shows itself
before the space is needed. One that came without them, from a back-up or from a RocketMQ, gets
them before anything is appended to it. Its length is durable before it has that name, and the name
before there is a segment behind it: a power cut leaves no short one, and no gap.
"""

from __future__ import annotations

import errno

from gantrymq.shm.errors import Corrupt, StoreFailed
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.lognames import DIRECTORY, is_position, segment_name
from gantrymq.shm.storage import File, Storage, made_anew, zero_written

SPARE = "gantry/spare"
#: Names of a spare segment that is being made, by its maker.
OF_FLUSHER, OF_WRITER = "spare.flusher", "spare.writer"
#: How long one may not grow that is waited for.
_STILL_NS = 20_000_000
#: Of the flusher's next segment: its bytes, and since when.
_NONE_COMES = (-1, 0)
#: A new segment leaves this part of its size free: for queues, the ledger, and others' files.
MARGIN_PARTS = 16
#: A spare segment is made in so many pieces, of whole blocks.
PIECES = 64
BLOCK_BYTES = 4096


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
            missing = f"{DIRECTORY}/{bases[-1] + segment_bytes:020d}"
            raise Corrupt(
                f"{missing} is missing, and {path} is there: bring it back, or save the rest by"
                " `gantrymq store verify --salvage DEST`",
                path=missing,
                position=bases[-1] + segment_bytes,
            )
        bases.append(int(name))
    return bases


def prepare_spare(storage: Storage, segment_bytes: int, temporary: str) -> None:
    """Make the spare segment with all its blocks. `temporary` is the caller's own name for it.

    Raises OSError.
    """
    spare = SpareSegment(storage, segment_bytes, temporary)
    while not spare.step():
        pass


class SpareSegment:
    """The spare segment, made in pieces: where blocks are memory, all of one takes long."""

    def __init__(self, storage: Storage, segment_bytes: int, temporary: str) -> None:
        """Make nothing yet. `temporary` is the maker's own name for it."""
        self._storage = storage
        self._bytes = segment_bytes
        self._piece_bytes = -(-segment_bytes // (PIECES * BLOCK_BYTES)) * BLOCK_BYTES
        self._path = f"gantry/{temporary}"
        self._file: File | None = None
        self._made = 0

    @property
    def is_begun(self) -> bool:
        """Whether a part of it is made."""
        return self._file is not None

    @made_anew()
    def step(self) -> bool:
        """Make one piece; True once all of it is durable and has its name.

        Raises OSError: nothing of it is left then, and the next call begins anew.
        """
        try:
            if self._file is None:
                self._forget_left()
            self._require_room()
            file = self._file = self._file or self._storage.create(self._path)
            end = min(self._bytes, self._made + self._piece_bytes)
            file.allocate(end, start=self._made)
            self._made = end
            if end < self._bytes:
                return False
            file.sync()
        except OSError:
            self.drop()
            raise
        self.close()
        self._storage.rename(self._path, SPARE)
        return True

    def drop(self) -> None:
        """Leave nothing of one that is begun."""
        if self._file is not None:
            self.close()
            self._storage.unlink(self._path)

    def close(self) -> None:
        """Give the descriptor back. What is made stays, for the next maker to remove."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _forget_left(self) -> None:
        """Nothing of an earlier one counts, nor takes room."""
        if self._storage.exists(self._path):
            self._storage.unlink(self._path)
        self._made = 0

    def _require_room(self) -> None:
        """Raise OSError if the rest of it would leave less than the margin.

        Nobody may ask for room to see whether there is some: an allocation that fails has all that
        is free until its file is removed, and others' writes fail meanwhile.
        """
        _require_room(self._storage, room_for_segment(self._bytes) - self._made, self._path)


def _require_room(storage: Storage, wanted: int, path: str) -> None:
    free = storage.free_bytes()
    if free < wanted:
        text = f"{free} bytes are free, and a segment with what it leaves to others takes {wanted}"
        raise OSError(errno.ENOSPC, text, path)


def room_for_segment(segment_bytes: int) -> int:
    """Bytes that have to be free where a segment is made."""
    return segment_bytes + segment_bytes // MARGIN_PARTS


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
        self._appended = appended
        #: A full one needs no blocks any more.
        self._is_sparse = appended < self.end and self._file.bytes_without_blocks() > 0
        self._coming, self._grown_ns = _NONE_COMES

    @property
    def end(self) -> int:
        """Log position behind the active segment."""
        return self.base + self.segment_bytes

    @property
    def limit(self) -> int:
        """Log position up to which an append is sure to find room: `end`, as a rule.

        Where the log ends, until the active segment has all its blocks.
        """
        return self._appended if self._is_sparse else self.end

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
                prepare_spare(self._storage, self.segment_bytes, OF_WRITER)
            self._storage.rename(SPARE, name)
        return self._storage.open(name, write=True)

    def _spare_is_whole(self) -> bool:
        return self._storage.exists(SPARE) and self._storage.size_of(SPARE) == self.segment_bytes

    def append(self, data: memoryview, position: int) -> None:
        """Write records (bytes) at the log's end. Raises OSError, which is final for the store."""
        at = position - self.base
        if position < self._appended or at + len(data) > self.segment_bytes:
            raise StoreFailed(
                f"append of {len(data)} bytes at {position}: the log ends at {self._appended}, and"
                f" its segment at {self.end}"
            )
        self._file.write_at(data, at)
        self._appended = position + len(data)

    def is_next_coming(self, now_ns: int) -> bool:
        """Whether the flusher is at the segment that comes next, and gets on with it.

        One made beside it comes later: where blocks are memory both need the processor.
        """
        if self._is_sparse:
            return False
        exists = self._storage.exists
        try:
            if exists(segment_name(self.end)) or exists(SPARE):
                return False
            made = self._storage.size_of(f"gantry/{OF_FLUSHER}")
        except OSError as error:
            require_ours(error)
            return False  # what else is wrong there `roll` meets, if it is in its way
        if made > self._coming:  # one that begins anew has failed
            self._coming, self._grown_ns = made, now_ns
        return now_ns - self._grown_ns < _STILL_NS

    def go_on(self) -> None:
        """Raise `limit`: give the active segment its blocks, or roll, where it has them.

        Raises OSError (ENOSPC) and changes nothing if it can't.
        """
        if self._is_sparse:
            self._take_blocks()
        else:
            self.roll()

    def roll(self) -> None:
        """Go on in the next segment. Raises OSError (ENOSPC) and changes nothing if it can't."""
        following = self._open(self.end)
        self._file.close()
        self._file = following
        self.base = self.end
        self._is_sparse = False
        self._coming, self._grown_ns = _NONE_COMES

    def _take_blocks(self) -> None:
        """Give all of the active segment its blocks; what is written stays."""
        start, margin = self._appended - self.base, self.segment_bytes // MARGIN_PARTS
        _require_room(self._storage, self._file.bytes_without_blocks() + margin, self._file.name)
        try:
            self._file.allocate(self.segment_bytes)
        except OSError:
            self._file.punch(start, self.segment_bytes - start)  # others need what it has got
            raise
        self._is_sparse = False

    def clear_behind(self, position: int, count: int) -> None:
        """Zero what a writer that died may have left behind the log's end."""
        start = position - self.base
        zero_written(self._file, start, min(start + count, self.segment_bytes))

    def sync(self) -> None:
        """Make the active segment durable, for who has no flusher. Raises OSError: final."""
        self._file.sync()

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()
