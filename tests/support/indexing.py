"""The indexer over a store's log, without a broker around it."""

from __future__ import annotations

from pathlib import Path

from gantrymq.brokerd.config import Settings, load
from gantrymq.shm import layout
from gantrymq.shm.board import Board
from gantrymq.shm.storage import PosixStorage, Storage
from gantrymq.workers.housekeeper.indexer import Indexer
from tests.support.golden import GoldenStore
from tests.support.memory_sessions import MemorySessions, memory_board
from tests.support.simclock import SimClock


class Indexing:
    """One life of an indexer; the log ends at `end` and all of it is dispatched and durable."""

    def __init__(self, storage: Storage, settings: Settings, end: int, *, low: int = 0) -> None:
        self.storage = storage
        self.board: Board = memory_board({}, segment_bytes=settings.mapped_file_size_commit_log)
        self.board.set_word(layout.BOARD_LOW, low)
        self.table = MemorySessions()
        self.clock = SimClock()
        self.follow(end)
        self.indexer = Indexer(storage, self.clock, self.board, self.table, settings)

    def follow(self, end: int) -> None:
        """The log has grown."""
        for word in (layout.BOARD_APPENDED, layout.BOARD_DISPATCHED, layout.BOARD_DURABLE):
            self.board.set_word(word, end)

    def run(self) -> None:
        """Until it has nothing to do; time passes by itself."""
        while (
            self.indexer.do_work(self.clock.monotonic_ns())
            or self.indexer.arm(self.clock.monotonic_ns()) < 1_000_000_000
        ):
            self.clock.advance(1_000_000)

    def stop(self) -> None:
        """A clean stop: everything is written and noted."""
        self.table.stop = True
        self.run()
        self.indexer.close()


def settings_of(golden: GoldenStore, **more: object) -> Settings:
    """A broker's settings from those of a golden set."""
    return load(given={**golden.sizes, **more}, environment={}).settings


def index_bytes(root: Path) -> list[bytes]:
    """Contents of a store's index files, oldest first."""
    return [path.read_bytes() for path in sorted((root / "index").iterdir())]


def storage_of(root: Path) -> PosixStorage:
    """A store's files."""
    return PosixStorage(str(root))
