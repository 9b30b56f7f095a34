"""A broker whose storage fails on request.

The file `faults.json` in the home says which calls fail from now on, in all of its processes:
`[{"kind": "sync", "under": "commitlog/", "errno": 5}]`. `"half": true` lets half of a write
through, the kind `stall` holds syncs up. Failed calls are listed in `failed`, one a line.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gantrymq.shm.storage import PosixFile, PosixStorage, syncs
from tests.support.brokers import ServingBroker
from tests.support.forked import start_forked

if TYPE_CHECKING:
    from typing_extensions import Buffer

FAULTS, FAILED = "faults.json", "failed"
_DISK_BYTES = 1 << 20


def fault(kind: str, number: int, under: str, *, half: bool = False) -> dict[str, Any]:
    """One entry of the file; kinds are read, write, sync, allocate, create and unlink.

    Of kind `used` the number is how many percent of a disk of a MiB are in use.
    """
    return {"kind": kind, "errno": number, "under": under, "half": half}


def stall(under: str) -> dict[str, Any]:
    """An entry by which syncs take as long as it is there (F25)."""
    return fault("stall", 0, under)


class FaultyFile(PosixFile):
    """A file whose calls look at the faults first."""

    def __init__(self, file: PosixFile, storage: FaultyStorage) -> None:
        super().__init__(file._opened, file.name)
        self.native = -1
        self._storage = storage

    def read_into(self, buffer: Buffer, position: int) -> int:
        """Read or fail."""
        self._storage.raise_due(self._storage.due("read", self.name), "read", self.name)
        return super().read_into(buffer, position)

    def write_at(self, data: Buffer, position: int) -> None:
        """Write all, nothing, or the first half."""
        found = self._storage.due("write", self.name)
        if found and found["half"]:
            view = memoryview(data).cast("B")
            super().write_at(view[: len(view) // 2], position)
        self._storage.raise_due(found, "write", self.name)
        super().write_at(data, position)

    @syncs
    def sync(self) -> None:
        """Fdatasync or fail, or first wait for a device that stalls."""
        while self._storage.due("stall", self.name):
            time.sleep(0.01)
        self._storage.raise_due(self._storage.due("sync", self.name), "sync", self.name)
        super().sync()

    def allocate(self, size: int, start: int = 0) -> None:
        """posix_fallocate or fail."""
        self._storage.raise_due(self._storage.due("allocate", self.name), "allocate", self.name)
        super().allocate(size, start)


class FaultyStorage(PosixStorage):
    """The operating system's files, with the faults of the home above the store."""

    def due(self, kind: str, name: str) -> dict[str, Any] | None:
        """The fault that a call meets."""
        try:
            text = (Path(self.root).parent / FAULTS).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        found = (f for f in json.loads(text) if f["kind"] == kind and name.startswith(f["under"]))
        return next(found, None)

    def raise_due(self, found: dict[str, Any] | None, kind: str, name: str) -> None:
        """Fail as the fault says, and note it."""
        if found is not None:
            with (Path(self.root).parent / FAILED).open("a", encoding="utf-8") as notes:
                notes.write(f"{kind} {name}\n")
            raise OSError(found["errno"], os.strerror(found["errno"]), name)

    def used_bytes(self) -> int:
        """What is in use, or said to be."""
        said = self.due("used", "")
        return said["errno"] * _DISK_BYTES // 100 if said else super().used_bytes()

    def free_bytes(self) -> int:
        """What is left beside it."""
        said = self.due("used", "")
        return _DISK_BYTES - self.used_bytes() if said else super().free_bytes()

    def open(self, name: str, *, write: bool = False) -> FaultyFile:
        """Open a file that exists."""
        return FaultyFile(super().open(name, write=write), self)

    def create(self, name: str) -> FaultyFile:
        """Make a file or fail."""
        self.raise_due(self.due("create", name), "create", name)
        return FaultyFile(super().create(name), self)

    def unlink(self, name: str) -> None:
        """Remove a file or fail."""
        self.raise_due(self.due("unlink", name), "unlink", name)
        super().unlink(name)


class FaultyBroker(ServingBroker):
    """Such a broker in a process of its own."""

    def _launch(
        self,
        arguments: list[str],
        **streams: Any,  # noqa: ANN401 - as Popen has them
    ) -> subprocess.Popen[str]:
        return start_forked("faulty_broker", arguments, **streams)

    def fail(self, *faults: dict[str, Any]) -> None:
        """From now on these calls fail; without any, none does."""
        new = self.home / "faults.new"
        new.write_text(json.dumps(faults), encoding="utf-8")
        new.replace(self.home / FAULTS)

    @property
    def failed(self) -> list[str]:
        """Calls that have failed so far: kind and name."""
        path = self.home / FAILED
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def main() -> int:
    """Run the broker's own program over the faulty storage."""
    from gantrymq.brokerd import broker
    from gantrymq.brokerd.__main__ import main as serve

    vars(broker)["PosixStorage"] = FaultyStorage
    return serve()
