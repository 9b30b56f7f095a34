"""Takes segments below the board's `low` off the disk, and what belongs to them, in small steps.

A segment is renamed out of `commitlog/` first, as a whole, so whatever is in there is whole at any
moment; then its blocks are given back piece by piece, for one unlink of a GiB holds up other
writes; what is mapped stays mapped and reads as zeroes (F17). Each step may be the last one of a
life: the next one looks at what is there and goes on.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from gantrymq.brokerd.holders import firsts_of
from gantrymq.brokerd.queuefiles import unit_of
from gantrymq.brokerd.queuestarts import queue_start, read_starts, save_starts
from gantrymq.shm import layout, sidecar, wire
from gantrymq.shm.bitmapnote import extension_directory
from gantrymq.shm.lognames import DIRECTORY, bases_of, positions_in, segment_name
from gantrymq.shm.queuenames import queue_directory
from gantrymq.shm.storage import is_disk_full
from gantrymq.workers.housekeeper.progress import UNFINISHED

if TYPE_CHECKING:
    from gantrymq.brokerd.queuefiles import QueueKey
    from gantrymq.shm.board import Board
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.session import SessionTable

EXPIRED: Final = "gantry/expired"
PUNCH_BYTES: Final = 4 << 20
PUNCH_PAUSE_NS: Final = 5_000_000
#: Between two looks whether the supervisor has moved `min_offset`.
SHOWN_NS: Final = 2_000_000
#: Looks until it is asked again.
SHOWN_LOOKS: Final = 500
_QUEUES_A_STEP: Final = 16
_QUEUES_A_NOTE: Final = 256

#: Steps of a job: each item is how long to wait before the next one, in ns.
Steps = Generator[int, None, None]


class Removal:
    """The jobs; whoever runs them takes one step at a time."""

    def __init__(
        self, storage: Storage, board: Board, sessions: SessionTable, grace_ns: int
    ) -> None:
        self._storage = storage
        self._board = board
        self._sessions = sessions
        self._grace_ns = grace_ns

    def is_due(self) -> bool:
        """Whether an earlier life has left something to do."""
        low = self._board.word(layout.BOARD_LOW)
        if self._expired() or self._segments_below(low) or self._sidecars_below(low):
            return True
        noted = read_starts(self._storage)
        return low > 0 and (noted is None or noted[0] != low)

    def find_firsts(self, low: int) -> Generator[int, None, dict[int, int]]:
        """By board queue, the first queue offset whose record is at `low` or above."""
        firsts: dict[int, int] = {}
        for topic in self._board.topics():
            for queue_id in range(topic.queue_count):
                queue = topic.queue_base + queue_id
                if self._board.word(self._board.queue_at(queue) + layout.QUEUE_WRITTEN):
                    firsts[queue] = queue_start(self._storage, self._board, topic, queue_id, low)
                if len(firsts) % _QUEUES_A_STEP == 1:
                    yield 0
        return firsts

    def steps(self, firsts: dict[int, int]) -> Steps:
        """All that follows once `low` is raised. Raises OSError."""
        low = self._board.word(layout.BOARD_LOW)
        yield from self._show(firsts)
        bases = self._segments_below(low)
        begun = firsts_of(self._board, firsts)
        if bases:
            yield self._grace_ns
            self._note_before(low, begun)
        for base in bases:
            self._take_out(base)
            yield 0
        yield from self._give_back()
        yield from self._remove_sidecars(low)
        save_starts(self._storage, low, begun)
        yield 0
        yield from self._remove_extensions(firsts)
        yield from self._remove_queue_files(firsts)

    def _note_before(self, low: int, begun: dict[QueueKey, int]) -> None:
        """Where a queue goes on may stand in these segments alone, should the power fail.

        On a full disk their sidecars make room for it: they go anyway, and a start makes them again
        if it finds the segments. Without that the segments go all the same: it is what makes room.
        """
        room = self._sidecars_below(low)
        while not self._has_noted(begun):
            if not room:  # one that comes back would tell a start that its segment is missed
                self._storage.sync_directory(sidecar.DIRECTORY)
                return
            self._storage.unlink(f"{sidecar.DIRECTORY}/{room.pop(0)}")

    def _has_noted(self, begun: dict[QueueKey, int]) -> bool:
        """Whether the disk had room for it."""
        try:
            save_starts(self._storage, UNFINISHED, begun)
        except OSError as error:
            if not is_disk_full(error):
                raise
            return False
        return True

    def _segments_below(self, low: int) -> list[int]:
        return [base for base in bases_of(self._storage) if base < low]

    def _show(self, firsts: dict[int, int]) -> Steps:
        """Have `min_offset` raised by the supervisor, its one writer, and wait until it is."""
        while wanted := self._not_shown(firsts):
            for start in range(0, len(wanted), _QUEUES_A_NOTE):
                pairs = wanted[start : start + _QUEUES_A_NOTE]
                self._sessions.note("debug", wire.QUEUES_BEGIN, queues=pairs)
            for _ in range(SHOWN_LOOKS):
                yield SHOWN_NS
                if not self._not_shown(firsts):
                    break

    def _not_shown(self, firsts: dict[int, int]) -> list[list[int]]:
        begin = layout.QUEUE_MIN_OFFSET
        word, at = self._board.word, self._board.queue_at
        return [
            [queue, first] for queue, first in firsts.items() if word(at(queue) + begin) < first
        ]

    def _take_out(self, base: int) -> None:
        """Out of `commitlog/`, for good: only then may its bytes change.

        A disk without a block for the folder's names gets all of the segment's at once.
        """
        try:
            if not self._storage.is_directory(EXPIRED):
                self._storage.make_directory(EXPIRED)
                self._storage.sync_directory("gantry")
            self._storage.rename(segment_name(base), f"{EXPIRED}/{base:020d}")
        except OSError as error:
            if not is_disk_full(error):
                raise
            self._storage.unlink(segment_name(base))
            self._storage.sync_directory(DIRECTORY)
            return
        self._storage.sync_directory(EXPIRED)
        self._storage.sync_directory(DIRECTORY)

    def _expired(self) -> list[str]:
        """Segments that were taken out."""
        return [f"{EXPIRED}/{name}" for name in self._files_below(EXPIRED)]

    def _files_below(self, folder: str, low: int | None = None) -> list[str]:
        """Names of files of positions below `low`, or all; what else lies there is nobody's."""
        names = positions_in(self._storage, folder)
        below = [name for name in names if low is None or int(name) < low]
        return [name for name in below if self._storage.is_file(f"{folder}/{name}")]

    def _give_back(self) -> Steps:
        for path in self._expired():
            file = self._storage.open(path, write=True)
            try:
                size = file.size()
                for start in range(0, size, PUNCH_BYTES):
                    file.punch(start, min(PUNCH_BYTES, size - start))
                    yield PUNCH_PAUSE_NS
            finally:
                file.close()
            self._storage.unlink(path)
            yield 0

    def _sidecars_below(self, low: int) -> list[str]:
        """A power cut may leave them where the segments' own renames are durable."""
        return self._files_below(sidecar.DIRECTORY, low)

    def _remove_sidecars(self, low: int) -> Steps:
        for name in self._sidecars_below(low):
            self._storage.unlink(f"{sidecar.DIRECTORY}/{name}")
            yield 0

    def _remove_queue_files(self, firsts: dict[int, int]) -> Steps:
        """Files whose units all name removed records, never a queue's last one (SF-70)."""
        for folder, first in list(self._folders(firsts)):
            removed = False
            for name in positions_in(self._storage, folder)[:-1]:
                if int(name) + self._board.cq_bytes > first * layout.CQ_UNIT_BYTES:
                    break
                self._storage.unlink(f"{folder}/{name}")
                removed = True
                yield 0
            if removed:
                self._storage.sync_directory(folder)

    def _remove_extensions(self, firsts: dict[int, int]) -> Steps:
        """Files that end before the extension of a queue's first unit (SF-73)."""
        for folder, first in list(self._folders(firsts)):
            _, topic, queue_id = folder.rsplit("/", 2)
            row = unit_of(self._storage, self._board.cq_bytes, (topic, int(queue_id)), first)
            if row is None or row["tags_code"] > layout.CQ_EXT_ADDRESS_MAX:
                continue
            address = row["tags_code"] - layout.CQ_EXT_ADDRESS_BASE
            extensions = extension_directory(topic, int(queue_id))
            for name, following in pairwise(positions_in(self._storage, extensions)):
                if int(following) > address:
                    break
                self._storage.unlink(f"{extensions}/{name}")
                yield 0

    def _folders(self, firsts: dict[int, int]) -> Iterator[tuple[str, int]]:
        for topic in self._board.topics():
            for queue_id in range(topic.queue_count):
                first = firsts.get(topic.queue_base + queue_id, 0)
                if first:
                    yield queue_directory(self._storage, topic.name, queue_id), first
