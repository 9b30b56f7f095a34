"""Makes ConsumeQueue files durable, file by file, and says how far all of them are.

Nobody hands a list of changed files over: a queue's files have changed from where the last round
has left it to where the board's `written` is now. The reader writes units before it moves
`written`, and moves `written` before `dispatched`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gantrymq.shm import layout
from gantrymq.shm.bitmapnote import extension_directory
from gantrymq.shm.errors import StoreFailed
from gantrymq.shm.kernels.words import load_word
from gantrymq.shm.lognames import positions_in
from gantrymq.shm.marks import mark
from gantrymq.shm.queuenames import queue_directory
from gantrymq.shm.storage import is_shortage
from gantrymq.workers.housekeeper.progress import read_progress

if TYPE_CHECKING:
    from gantrymq.shm.board import Board, TopicSlot
    from gantrymq.shm.storage import Storage

#: Steps of a job: each item is how long to wait before the next one, in ns.
Steps = Generator[int, None, None]
#: Topics that are looked at in one step.
_TOPICS_A_STEP: Final = 64


@dataclass(frozen=True, slots=True)
class Synced:
    """All records below `position` have their units on the disk: `written` of each queue.

    There may be units of later records among them, which end at or below `end`.
    """

    position: int
    written: dict[tuple[str, int], int]
    end: int


class QueueSync:
    """Rounds over the files of all queues that have got units since the round before."""

    def __init__(self, storage: Storage, board: Board) -> None:
        self._storage = storage
        self._board = board
        self._words = board.array()
        progress = read_progress(storage)
        self._synced = progress[1] if progress else {}
        #: As it was saved last.
        self.position = progress[0] if progress else 0
        #: By folder of extensions, its last file as of the last round: what came later is in it or
        #: behind it. Bits that the reader adds elsewhere it syncs by itself.
        self._extensions: dict[str, str] = {}

    def round(self) -> Generator[int, None, Synced]:
        """Sync what has changed, one file a step. Raises StoreFailed: a failed sync is final."""
        position = load_word(self._words, layout.BOARD_DISPATCHED)
        written: dict[tuple[str, int], int] = {}
        changed: list[tuple[str, int]] = []
        for number, topic in enumerate(self._board.topics()):
            self._look_at(topic, written, changed)
            if number % _TOPICS_A_STEP == _TOPICS_A_STEP - 1:
                yield 0
        end = load_word(self._words, layout.BOARD_APPENDED)
        folders: set[str] = set()
        for key in changed:
            for name in self._changed_files(key, self._synced.get(key, 0), written[key]):
                if self._sync(name):
                    folders.update(_parents(name))
                mark("housekeeper.between_queues")
                yield 0
        for folder in sorted(folders, reverse=True):
            self._sync_directory(folder)
            yield 0
        self._synced = written
        return Synced(position, {key: units for key, units in written.items() if units}, end)

    def _look_at(
        self, topic: TopicSlot, written: dict[tuple[str, int], int], changed: list[tuple[str, int]]
    ) -> None:
        for queue_id in range(topic.queue_count):
            at = self._board.queue_at(topic.queue_base + queue_id)
            units = self._board.word(at + layout.QUEUE_WRITTEN)
            written[topic.name, queue_id] = units
            if units != self._synced.get((topic.name, queue_id), 0):
                changed.append((topic.name, queue_id))

    def _changed_files(self, key: tuple[str, int], first: int, units: int) -> Iterator[str]:
        """Extensions before the units that have their addresses."""
        extensions = extension_directory(*key)
        names = positions_in(self._storage, extensions)
        known = self._extensions.get(extensions, "")
        for name in names:
            if name >= known:
                yield f"{extensions}/{name}"
        if names:
            self._extensions[extensions] = names[-1]
        folder, size = queue_directory(self._storage, *key), self._board.cq_bytes
        start = first * layout.CQ_UNIT_BYTES // size * size
        for base in range(start, units * layout.CQ_UNIT_BYTES, size):
            yield f"{folder}/{base:020d}"

    def _sync(self, name: str) -> bool:
        """Whether the file is there: retention may have been quicker."""
        try:
            file = self._storage.open(name, write=True)
        except FileNotFoundError:
            return False
        try:
            file.sync()
        except OSError as error:  # final, also if space was short
            raise StoreFailed(f"sync of {name}: {error}", errno=error.errno) from error
        finally:
            file.close()
        return True

    def _sync_directory(self, name: str) -> None:
        try:
            self._storage.sync_directory(name)
        except OSError as error:
            if is_shortage(error):
                raise
            raise StoreFailed(f"sync of {name or '.'}: {error}", errno=error.errno) from error


def _parents(name: str) -> Iterator[str]:
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name
    yield ""
