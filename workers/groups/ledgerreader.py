"""The ledger for those who only look: read while `groups` writes it, nothing is changed."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from gantrymq.shm.storage import PosixFile
from gantrymq.workers.groups.ledger import Ledger
from gantrymq.workers.groups.ledgerentries import NAME, Names
from gantrymq.workers.groups.progress import GroupProgress

if TYPE_CHECKING:
    from gantrymq.shm.storage import PosixStorage


class LedgerReader:
    """Follows the ledger of a store; each `refresh` reads what is new only."""

    def __init__(self, storage: PosixStorage) -> None:
        self._storage = storage
        self._forget()

    def _forget(self) -> None:
        self._ledger = Ledger(self._storage)
        self._names = Names()
        self._end = 0
        self._inode = 0

    def refresh(self) -> dict[str, GroupProgress]:
        """What the groups have told so far; nothing without a ledger. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            file = self._storage.open(NAME)
            try:
                self._read(file)
            finally:
                file.close()
        return self._ledger.groups

    def _read(self, file: PosixFile) -> None:
        status = os.fstat(file.descriptor)
        if status.st_ino != self._inode or status.st_size < self._end:
            self._forget()  # it was compacted: another file that says the same
            self._inode = status.st_ino
        data = bytearray(status.st_size - self._end)
        read = file.read_into(data, self._end)
        self._end += self._ledger.replay(bytes(data[:read]), self._names)
