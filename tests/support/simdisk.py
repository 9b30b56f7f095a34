"""A simulated disk behind a write-back cache: what is current, and what a power cut would leave.

Contents are lost or kept by sectors of 512 bytes, names by directory operations. A file's sync says
nothing about its name; a directory's sync says nothing about what its files hold.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SECTOR_BYTES = 512
PAGE_BYTES = 4096
_POISON = 0xDB  # what a view sees behind the end of a file that was cut (really: SIGBUS)
_VERSIONS_MAX = 4
#: `Disk.allocate_max` of a disk that is not short of room.
ROOM_FOR_ALL = 1 << 62
#: Size of a disk that nobody else fills.
DISK_BYTES = 64 << 20


class Inode:
    """A file's contents: memory that views follow, the durable copy, and what lies between."""

    def __init__(self, capacity: int) -> None:
        self.memory = np.zeros(capacity, np.uint8)  # pages that are never touched cost nothing
        self.length = 0
        self.durable = np.zeros(capacity, np.uint8)
        self.lengths = [0]  # the durable length, then those since; any of them may be left
        self.dirty: dict[int, list[bytes]] = {}  # sector -> contents that it had since its sync
        self.pages: set[int] = set()  # that have blocks on the disk

    def clone(self) -> Inode:
        """An equal file that shares nothing."""
        twin = Inode(self.memory.size)
        reach = max(self.length, *self.lengths)
        twin.memory[:reach] = self.memory[:reach]
        twin.durable[:reach] = self.durable[:reach]
        twin.length, twin.lengths = self.length, list(self.lengths)
        twin.dirty = {sector: list(kept) for sector, kept in self.dirty.items()}
        twin.pages = set(self.pages)
        return twin

    def write(self, data: NDArray[np.uint8], position: int) -> None:
        """Change the cache only."""
        end = position + data.size
        if end > self.memory.size:
            raise ValueError(f"the simulated disk holds files of up to {self.memory.size} bytes")
        if end > self.length:
            self._set_length(end)
        self.memory[position:end] = data
        self._touch(position, end)

    def truncate(self, size: int) -> None:
        """Set the length; what a shrunk file loses is poisoned for views that still look at it."""
        if size < self.length:
            self.memory[size : self.length] = _POISON
        else:
            self.memory[self.length : size] = 0
        old = self.length
        self._set_length(size)
        self._touch(min(old, size), max(old, size), zero_from=size)
        if size < old:
            self.pages = {page for page in self.pages if page * PAGE_BYTES < size}

    def allocate(self, size: int, start: int = 0) -> None:
        """`size` bytes, and blocks for those from `start` on; contents do not change."""
        if size > self.length:
            self.truncate(size)
        self.pages.update(range(start // PAGE_BYTES, -(-size // PAGE_BYTES)))

    def is_hole(self, page: int) -> bool:
        """Whether nothing was ever written there, nor blocks taken for it."""
        return page not in self.pages and not self._of(self.memory, page).any()

    def lose_blocks(self) -> None:
        """As in a sparse copy: only what holds anything has blocks."""
        per_page = PAGE_BYTES // SECTOR_BYTES
        dirty = {sector // per_page for sector in self.dirty}
        self.pages = {
            page for page in self.pages
            if page in dirty or self._of(self.memory, page).any()
            or self._of(self.durable, page).any()
        }  # fmt: skip

    @staticmethod
    def _of(contents: NDArray[np.uint8], page: int) -> NDArray[np.uint8]:
        return contents[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]

    def sync(self) -> None:
        """All contents are durable from now on."""
        for sector, versions in self.dirty.items():
            self._settle(sector, versions[-1])
        self.dirty.clear()
        self.lengths = [self.length]

    def let_go(self, start: int, end: int) -> None:
        """Whole pages in a range are read from the disk again, as far as they count as clean."""
        for at in range(-(-start // PAGE_BYTES) * PAGE_BYTES, end - PAGE_BYTES + 1, PAGE_BYTES):
            sectors = range(at // SECTOR_BYTES, (at + PAGE_BYTES) // SECTOR_BYTES)
            if self.dirty.keys().isdisjoint(sectors):
                self.memory[at : at + PAGE_BYTES] = self.durable[at : at + PAGE_BYTES]

    def sync_failed(self, dice: random.Random) -> None:
        """As the kernel does it: every page is clean now, whether it reached the disk or not."""
        for sector, versions in self.dirty.items():
            if dice.random() < 0.5:
                self._settle(sector, versions[-1])
        self.dirty.clear()
        # Without the journal's word the length is what it was, or what it is.
        self.lengths = [dice.choice(self.lengths)]

    def power_cut(self, dice: random.Random) -> None:
        """Each unsynced sector keeps one of the contents it had; the length likewise."""
        kept = dice.randrange(len(self.lengths))
        reach = max(self.lengths)
        self.durable[min(self.lengths[: kept + 1]) : reach] = 0  # once cut off, it never comes back
        for sector in sorted(self.dirty):
            version = dice.randint(-1, len(self.dirty[sector]) - 1)
            if version >= 0:
                self._settle(sector, self.dirty[sector][version])
        self.length = self.lengths[kept]
        self.durable[self.length : reach + SECTOR_BYTES] = 0
        self.memory = np.zeros(self.memory.size, np.uint8)  # old views belong to dead processes
        self.memory[: self.length] = self.durable[: self.length]
        self.dirty.clear()
        self.lengths = [self.length]

    def _set_length(self, size: int) -> None:
        self.length = size
        self.lengths.append(size)

    def _touch(self, start: int, end: int, zero_from: int | None = None) -> None:
        for sector in range(start // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
            at = sector * SECTOR_BYTES
            contents = self.memory[at : at + SECTOR_BYTES]
            if zero_from is not None and at + SECTOR_BYTES > zero_from:
                contents = contents.copy()
                contents[max(0, zero_from - at) :] = 0
            versions = self.dirty.setdefault(sector, [])
            versions.append(contents.tobytes())
            del versions[:-_VERSIONS_MAX]

    def _settle(self, sector: int, contents: bytes) -> None:
        at = sector * SECTOR_BYTES
        self.durable[at : at + SECTOR_BYTES] = np.frombuffer(contents, np.uint8)


class Dropping(random.Random):
    """Dice by which no page of a failed sync reaches the disk."""

    def random(self) -> float:
        return 0.999


@dataclass(frozen=True, slots=True)
class NameChange:
    """One entry of a directory that appeared, moved or went; a directory has no inode."""

    removed: str  # "" = nothing
    added: str  # "" = nothing
    inode: Inode | None


@dataclass(frozen=True, slots=True)
class Change:
    """One effect on the disk, to be replayed: write, length, sync, name or sync_names."""

    kind: str
    inode: Inode | None = None
    position: int = 0
    data: bytes = b""
    change: NameChange | None = None
    directory: str = ""


def _go_on() -> None:
    """No simulation lets others come in between."""


def _nobody(process: str, kind: str, name: str) -> None:
    """No test watches."""


@dataclass(slots=True)
class Namespace:
    """Names and what they stand for; None = a directory."""

    entries: dict[str, Inode | None] = field(default_factory=lambda: {"": None})

    def apply(self, change: NameChange) -> None:
        """Carry a change out, as far as what it names is there."""
        if change.removed:
            self.entries.pop(change.removed, None)
        if change.added:
            self.entries[change.added] = change.inode

    def without_orphans(self) -> Namespace:
        """Names whose directories exist too."""
        return Namespace({name: inode for name, inode in self.entries.items() if self._held(name)})

    def _held(self, name: str) -> bool:
        while name:
            if name not in self.entries:
                return False
            name = parent_of(name)
        return True


class Disk:
    """One machine's disk under a store root: shared by all simulated processes."""

    def __init__(self, capacity: int = DISK_BYTES, file_bytes_max: int = 1 << 18) -> None:
        self.capacity = capacity
        self.file_bytes_max = file_bytes_max
        self.allocate_max = ROOM_FOR_ALL  # bytes that one `allocate` still finds room for
        self.names = Namespace()
        self.durable_names = Namespace()
        self.pending: list[NameChange] = []
        self.log: list[str] = []  # every change, for the report of a failing seed
        self.cuts = 0
        #: Told of each change before and after its effect: process, kind, name.
        self.watch: Callable[[str, str, str], None] = _nobody
        #: Called before each call of a process, within which others may go on.
        self.pause: Callable[[], None] = _go_on
        self.journal: list[Change] | None = None  # every effect, if somebody wants to replay it

    def record(self, change: Change) -> None:
        """Note an effect."""
        if self.journal is not None:
            self.journal.append(change)

    def used(self) -> int:
        """Bytes of blocks that files have."""
        files = set(self.names.entries.values())
        return sum(len(inode.pages) for inode in files if inode is not None) * PAGE_BYTES

    def new_inode(self) -> Inode:
        """An empty file without a name."""
        return Inode(self.file_bytes_max)

    def change(self, change: NameChange) -> None:
        """Change names now; durable once the directory is synced."""
        self.names.apply(change)
        self.pending.append(change)
        self.record(Change("name", change=change))

    def sync_directory(self, directory: str) -> None:
        """Make the changes of one directory's names durable, in their order."""
        self.record(Change("sync_names", directory=directory))
        for change in [c for c in self.pending if parent_of(c.added or c.removed) == directory]:
            self.durable_names.apply(change)
            self.pending.remove(change)

    def power_cut(self, dice: random.Random) -> None:
        """Lose what may be lost: of the names' changes a prefix is kept, or any subset."""
        self.cuts += 1
        if dice.random() < 0.5:
            kept = self.pending[: dice.randint(0, len(self.pending))]
        else:
            kept = [change for change in self.pending if dice.random() < 0.5]
        for change in kept:
            self.durable_names.apply(change)
        self.durable_names = self.durable_names.without_orphans()
        self.pending.clear()
        self.names = Namespace(dict(self.durable_names.entries))
        done: set[int] = set()
        for name in sorted(self.names.entries):
            inode = self.names.entries[name]
            if inode is not None and id(inode) not in done:
                inode.power_cut(dice)
                done.add(id(inode))
        self.log.append("-- power cut --")

    def clone(self) -> Disk:
        """An equal disk that shares nothing, to try several ends from one state."""
        twin = Disk(self.capacity, self.file_bytes_max)
        every = [*self.names.entries.values(), *self.durable_names.entries.values()]
        every += [change.inode for change in self.pending]
        twins = {id(inode): inode.clone() for inode in {id(i): i for i in every if i}.values()}
        twin.names = Namespace(
            {n: twins[id(i)] if i else None for n, i in self.names.entries.items()}
        )
        twin.durable_names = Namespace(
            {n: twins[id(i)] if i else None for n, i in self.durable_names.entries.items()}
        )
        twin.pending = [
            NameChange(c.removed, c.added, twins[id(c.inode)] if c.inode else None)
            for c in self.pending
        ]
        twin.log, twin.cuts = list(self.log), self.cuts
        twin.allocate_max = self.allocate_max
        return twin

    def __deepcopy__(self, _memo: dict[int, object]) -> Disk:
        """A clone: who watches this disk belongs to its machine."""
        return self.clone()


@cache
def parent_of(name: str) -> str:
    """Directory that holds a name; "" is the root."""
    return name.rpartition("/")[0]
