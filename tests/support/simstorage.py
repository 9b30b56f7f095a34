"""`shm.storage.Storage` over the simulated disk: one per simulated process, with its own faults."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gantrymq.shm.storage import (
    mark_failed_change,
    mark_failed_sync,
    require_inside,
    zero_written,
)
from tests.support.faults import PAGE_BYTES, FaultPlan, KilledError
from tests.support.simdisk import Change, Disk, Inode, NameChange, parent_of

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

#: Calls that make something durable.
SYNCS = ("sync", "sync_directory")
#: Calls for which a process needs a descriptor.
OPENS = ("open", "create", "sync_directory")
#: Files that clients, and commands that look, have mapped, also over a kill and the next start.
MAPPED = ("commitlog/", "consumequeue/", "gantry/memberqueues/", "index/")


class SimFile:
    """A simulated process's descriptor of a file."""

    native = -1

    def __init__(self, storage: SimStorage, name: str, inode: Inode, *, write: bool) -> None:
        self.name = name
        self._storage = storage
        self._inode = inode
        self._write = write
        self._open = True

    def write_at(self, data: Buffer, position: int) -> None:
        """Write all of `data`; killed in the middle, up to a page boundary."""
        self._require(write=True)
        left = np.frombuffer(memoryview(data).cast("B"), np.uint8)

        def whole() -> None:
            self._storage.take_blocks(self._inode, position, position + left.size)
            self._inode.write(left, position)
            self._record("write", position, left.tobytes())

        def half() -> None:
            first = PAGE_BYTES - position % PAGE_BYTES
            cuts = range(first, left.size, PAGE_BYTES)
            if cuts:
                count = self._storage.faults.dice.choice(cuts)
                self._inode.write(left[:count], position)

        self._storage.change("write", self.name, whole, half, f"{position}+{left.size}")

    def read_into(self, buffer: Buffer, position: int) -> int:
        """Fill `buffer` as far as the file reaches."""
        self._require()
        self._storage.faults.look(self.name)
        target = np.frombuffer(memoryview(buffer).cast("B"), np.uint8)
        count = max(0, min(target.size, self._inode.length - position))
        target[:count] = self._inode.memory[position : position + count]
        return count

    def sync(self) -> None:
        """Make contents durable; a failure loses them as the kernel does."""
        self._require()
        try:
            self._storage.change("sync", self.name, self._sync)
        except OSError:
            self._inode.sync_failed(self._storage.faults.dice)
            raise

    def start_sync(self, start: int, count: int) -> None:
        """Nothing: what was not synced may be lost."""
        self._require(write=True)

    def let_go(self, start: int, count: int) -> None:
        """What counts as clean is read from the disk again."""
        self._require()
        assert 0 <= start <= start + count <= self._inode.length, (self.name, start, count)
        self._inode.let_go(start, start + count)

    def allocate(self, size: int, start: int = 0) -> None:
        """Give the file `size` bytes, and blocks to those from `start` on."""
        self._require(write=True)

        def effect() -> None:
            if size > self._storage.disk.allocate_max:
                raise OSError(errno.ENOSPC, "no room for that on the simulated disk")
            self._storage.take_blocks(self._inode, start, size, keeps=True)
            grown = size > self._inode.length
            self._inode.allocate(size, start)
            if grown:
                self._record("length", size)

        self._storage.change("allocate", self.name, effect, detail=f"{start} {size}")

    def bytes_without_blocks(self) -> int:
        """By pages."""
        self._require()
        pages = -(-self._inode.length // PAGE_BYTES)
        return (pages - len(self._inode.pages & set(range(pages)))) * PAGE_BYTES

    def zero_range(self, start: int, count: int) -> None:
        """Write zeroes."""
        if count > 0:
            self.write_at(bytes(count), start)

    def punch(self, start: int, count: int) -> None:
        """The range reads as zeroes; blocks stay, which is the worse case for space."""
        zero_written(self, start, start + count)

    def truncate(self, size: int) -> None:
        """Set the length. Files that readers map may not get shorter: that would be a SIGBUS."""
        mapped = self.name.startswith(MAPPED)
        assert not mapped or size >= self._inode.length, f"{self.name} is cut to {size}"
        self.cut(size)

    def cut(self, size: int) -> None:
        """The same of any file, as damage by somebody else."""
        self._require(write=True)

        def effect() -> None:
            self._inode.truncate(size)
            self._record("length", size)

        self._storage.change("truncate", self.name, effect, detail=str(size))

    def extents(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Runs of pages that are no holes."""
        self._require()
        stop = min(stop, self._inode.length)
        found: list[tuple[int, int]] = []
        for page in range(start // PAGE_BYTES, -(-stop // PAGE_BYTES)):
            begin, end = max(start, page * PAGE_BYTES), min(stop, (page + 1) * PAGE_BYTES)
            if begin >= end or self._inode.is_hole(page):
                continue
            if found and found[-1][1] == begin:
                begin = found.pop()[0]
            found.append((begin, end))
        return found

    def size(self) -> int:
        """Length in bytes."""
        self._require()
        return self._inode.length

    def view(self) -> NDArray[np.uint8]:
        """Read-only array over the same memory, at the present length."""
        self._require()
        self._storage.faults.look(self.name)
        view = self._inode.memory[: self._inode.length]
        view.flags.writeable = False
        return view

    def still_view(self) -> NDArray[np.uint8]:
        """The same: looking at a hole of the simulated disk takes nothing."""
        return self.view()

    def close(self) -> None:
        """Give the descriptor back. Safe to call twice."""
        self._open = False

    def _sync(self) -> None:
        self._inode.sync()
        self._record("sync")

    def _record(self, kind: str, position: int = 0, data: bytes = b"") -> None:
        self._storage.disk.record(Change(kind, self._inode, position, data))

    def _require(self, *, write: bool = False) -> None:
        self._storage.require_alive()
        if not self._open or (write and not self._write):
            raise OSError(errno.EBADF, "bad file descriptor", self.name)


class SimStorage:
    """One process's way to the disk. Once killed, it refuses everything."""

    def __init__(self, disk: Disk, process: str = "test", faults: FaultPlan | None = None) -> None:
        self.root = "/simulated"
        self.disk = disk
        self.process = process
        self.faults = faults or FaultPlan()
        self.dead = False

    def open(self, name: str, *, write: bool = False) -> SimFile:
        """Open a file that exists."""
        self.require_alive()
        self.faults.look(name, "open")
        return SimFile(self, name, self._inode(name), write=write)

    def create(self, name: str) -> SimFile:
        """Make an empty file and its directories."""
        if self._require_name(name) in self.disk.names.entries:
            raise FileExistsError(errno.EEXIST, "exists", name)
        self.make_directory(parent_of(name))
        inode = self.disk.new_inode()
        self.change("create", name, lambda: self.disk.change(NameChange("", name, inode)))
        return SimFile(self, name, inode, write=True)

    def exists(self, name: str) -> bool:
        """Whether a file or directory of that name is there."""
        return self._require_name(name) in self.disk.names.entries

    def size_of(self, name: str) -> int:
        """Length of a file."""
        self.require_alive()
        return self._inode(name).length

    def list(self, name: str) -> list[str]:
        """Names in a directory, sorted."""
        self._require_name(name)
        inside = (entry for entry in self.disk.names.entries if entry and parent_of(entry) == name)
        return sorted(entry.rpartition("/")[2] for entry in inside)

    def is_directory(self, name: str) -> bool:
        """Whether the name is a directory."""
        return self.disk.names.entries.get(self._require_name(name), self) is None

    def is_file(self, name: str) -> bool:
        """Whether the name is a plain file."""
        return self.disk.names.entries.get(self._require_name(name)) is not None

    def make_directory(self, name: str) -> None:
        """Make a directory and its parents if absent."""
        if self._require_name(name) in self.disk.names.entries:
            if self.disk.names.entries[name] is not None:
                raise FileExistsError(errno.EEXIST, "is a file", name)
            return
        self.make_directory(parent_of(name))
        change = NameChange("", name, None)
        self.change("make_directory", name, lambda: self.disk.change(change))

    def rename(self, old: str, new: str) -> None:
        """Atomically put a file in another's place."""
        inode = self._inode(old)
        if not self.is_directory(parent_of(self._require_name(new))):
            raise FileNotFoundError(errno.ENOENT, "no such directory", new)
        effect = NameChange(old, new, inode)
        self.change("rename", new, lambda: self.disk.change(effect), detail=f"from {old}")

    def unlink(self, name: str) -> None:
        """Remove a file; who has it open keeps it."""
        self._inode(name)
        self.change("unlink", name, lambda: self.disk.change(NameChange(name, "", None)))

    def sync_directory(self, name: str) -> None:
        """Make names of a directory durable."""
        self.require_alive()
        if not self.is_directory(name):
            raise FileNotFoundError(errno.ENOENT, "no such directory", name)
        self.change("sync_directory", name, lambda: self.disk.sync_directory(name))

    def free_bytes(self) -> int:
        """Space left on the disk."""
        return self.disk.capacity - self.disk.used()

    def used_bytes(self) -> int:
        """Space in use on the disk."""
        return self.disk.used()

    def change(
        self,
        kind: str,
        name: str,
        effect: Callable[[], None],
        half: Callable[[], None] | None = None,
        detail: str = "",
    ) -> None:
        """Every change goes through here: logged, counted, and open to faults."""
        self.require_alive()
        self.disk.log.append(f"{self.process}: {kind} {name} {detail}")
        self.disk.watch(self.process, kind, name)
        try:
            self.faults.around(kind, name, effect, half)
        except KilledError:
            self.dead = True
            raise
        except OSError as error:
            (mark_failed_sync if kind in SYNCS else mark_failed_change)(error)
            raise
        self.disk.watch(self.process, kind, name)

    def take_blocks(self, inode: Inode, start: int, end: int, *, keeps: bool = False) -> None:
        """Find room for a range. Raises OSError(ENOSPC).

        A failed allocation `keeps` what there was until its file is removed, as ext4 does.
        """
        fresh = set(range(start // PAGE_BYTES, -(-end // PAGE_BYTES))) - inode.pages
        free = max(0, self.free_bytes())
        if fresh and len(fresh) * PAGE_BYTES > free:
            if keeps:
                inode.pages |= set(sorted(fresh)[: free // PAGE_BYTES])
            raise OSError(errno.ENOSPC, "no space left on the simulated disk")
        inode.pages |= fresh

    def require_alive(self) -> None:
        """A dead process does nothing any more; before a living one does, others may go on."""
        self.disk.pause()
        if self.dead:
            raise KilledError(self.process)

    def _require_name(self, name: str) -> str:
        """The rule of the real one; a dead process does nothing."""
        self.require_alive()
        require_inside(name)
        return name

    def _inode(self, name: str) -> Inode:
        inode = self.disk.names.entries.get(self._require_name(name))
        if inode is None:
            kind = IsADirectoryError if name in self.disk.names.entries else FileNotFoundError
            raise kind(errno.ENOENT, "no such file", name)
        return inode
