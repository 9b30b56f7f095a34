"""`ledger.json` of a folder of staged rows: what has been sent, and what is being sent.

Before the first message of a batch is sent, the ledger names its files, and under which identity
they are sent. So a batch that is done again, by another process, sends the files of the first
time, and the log says how many of their rows it has (sending.py). A file of
clients/spark/sumfile.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from gantrymq.clients.filelock import try_lock
from gantrymq.clients.spark.sink.staging import SUFFIX, Staged
from gantrymq.clients.spark.sumfile import load, save
from gantrymq.shm.errors import Incompatible, StoreBusy
from gantrymq.shm.storage import PosixStorage
from gantrymq.shm.valueranges import Count, Offset, Position

FILE: Final = "ledger.json"
LOCK: Final = "lock"
VERSION: Final = 1
_LOOK_S: Final = 0.05


class Pending(msgspec.Struct, frozen=True):
    """A batch that is being sent: `sent` of its rows were in the log when this attempt began.

    `identity` is the attempt's, in hex; `position` the end of the log at that time, `store` the id
    of its store ("": of an older version).
    """

    batch: Count
    files: tuple[Staged, ...]
    sent: Count = 0
    identity: str = ""
    position: Position = 0
    store: str = ""

    @property
    def rows(self) -> int:
        """Messages of the batch."""
        return sum(file.rows for file in self.files)

    @property
    def topics(self) -> list[str]:
        """All that they go to."""
        return sorted({topic for file in self.files for topic in file.topics})


class Ledger(msgspec.Struct, frozen=True):
    """`done` is the last batch that is in the log, durably; -1 before the first."""

    version: Count = VERSION
    done: Offset = -1
    pending: Pending | None = None


class StagingFolder:
    """A folder of staged rows and its ledger."""

    def __init__(self, root: str) -> None:
        self.root = root
        Path(root).mkdir(parents=True, exist_ok=True)
        self._storage = PosixStorage(root)

    @contextmanager
    def locked(self, timeout_s: float) -> Iterator[None]:
        """Keep other drivers out. Raises StoreBusy if one is in for so many seconds."""
        path = Path(self.root, LOCK)
        deadline = time.monotonic() + timeout_s
        while (lock := try_lock(path)) is None:
            if time.monotonic() >= deadline:
                raise StoreBusy(f"another process sends what is staged in {self.root}")
            threading.Event().wait(_LOOK_S)
        try:
            yield
        finally:
            del lock

    def load(self) -> Ledger:
        """The ledger as it is; a new one has nothing. Raises Corrupt, Incompatible."""
        found = load(self._storage, FILE, Ledger) or Ledger()
        if found.version != VERSION:
            text = f"{FILE} of {self.root} has version {found.version}, not {VERSION}"
            raise Incompatible(text, path=FILE)
        return found

    def save(self, ledger: Ledger) -> None:
        """Replace the ledger, durably."""
        save(self._storage, FILE, ledger)

    def drop(self, files: Iterable[Staged]) -> None:
        """Remove files that are not to be sent."""
        for file in files:
            with suppress(FileNotFoundError):
                self._storage.unlink(file.name)

    def clear(self) -> None:
        """Remove all that is staged: what was sent, and what tasks that failed have left."""
        for path in Path(self.root).glob(f"*{SUFFIX}"):
            path.unlink(missing_ok=True)
