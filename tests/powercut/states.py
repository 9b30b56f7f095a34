"""What a power cut at some moment of a recorded run could have left of the store.

Only states that a real file system can leave are made; for ext4 and xfs, the hosts' usual ones,
and none stronger than POSIX asks:

Before the cut. A write that had begun and not ended has not happened, or all of it is in the cache
(the cut a line later). A sync that has returned covers what was written before it began: what comes
between goes by luck, as the kernel walks the pages once. One that has not returned promises
nothing, and neither does `sync_file_range`.

Contents. The kernel writes pages back when it likes and in any order (delayed allocation, its own
threads, the device's queue), so that of what was not synced any part may be there, of one file all
and of another nothing. What a device writes at once is a sector: 512 bytes, or 4096 where blocks
are so large, as in the cache; larger writes tear. A page that was written several times may have
gone out in between: a sector keeps any of its last contents.

Lengths. A length is the journal's (ext4 `ordered` and xfs set it once the data is there, ext4
`writeback` and a length that was set by `ftruncate` or `fallocate` before): any that the file had
since its sync, with zeroes where no data came. `fdatasync` keeps the length, for without it the
data is not to be read.

Names. The journals of ext4 and xfs keep the changes of names in their order: a prefix of all.
btrfs and others keep folders apart: then of each change that no sync of its folder has covered
either all is there or nothing. A file's sync need not keep its name (POSIX), a folder's sync keeps
what was changed in it; a rename from one folder into another is one change, which the sync of
either keeps: a file that is at neither place is a state that no journal leaves.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.powercut.trace import Effect
from tests.support.simdisk import PAGE_BYTES, SECTOR_BYTES, Disk, Inode, NameChange, parent_of

#: What may be left of a file's unsynced changes, each as likely as the others.
_LEFT = ("nothing", "all", "lengths", "pages", "sectors")


class FileSystem(Disk):
    """The simulated disk, with the rules above."""

    def sync_directory(self, directory: str) -> None:
        """Make the changes of one directory's names durable, of renames from it or into it too."""
        for change in list(self.pending):
            if directory in {parent_of(name) for name in (change.removed, change.added) if name}:
                self.durable_names.apply(change)
                self.pending.remove(change)

    def power_cut(self, dice: random.Random) -> None:
        """Lose what may be lost, of each file in its own way."""
        every = {id(inode): inode for inode in self.names.entries.values() if inode is not None}
        every |= {id(inode): inode for inode in self.durable_names.entries.values() if inode}
        for inode in every.values():
            _lose(inode, dice)
        super().power_cut(dice)


def _lose(inode: Inode, dice: random.Random) -> None:
    """Leave so much of what was not synced as was drawn; sectors are left to the disk."""
    match dice.choice(_LEFT):
        case "nothing":
            inode.dirty.clear()
            del inode.lengths[1:]
        case "all":
            inode.sync()
        case "lengths":
            inode.dirty.clear()
        case "pages":
            kept: dict[int, bool] = {}
            for sector, versions in inode.dirty.items():
                page = sector * SECTOR_BYTES // PAGE_BYTES
                if kept.setdefault(page, dice.random() < 0.5):
                    at = sector * SECTOR_BYTES
                    inode.durable[at : at + SECTOR_BYTES] = np.frombuffer(versions[-1], np.uint8)
            inode.dirty.clear()


def state_at(effects: Sequence[Effect], line: int, disk: Disk) -> None:
    """Bring an empty disk to where the machine's cache and disk were when a line was reached."""
    done = [effect for effect in effects if effect.ended <= line]
    syncs = [e for e in done if e.kind in ("sync", "sync_names")]
    others = [e for e in done if e.kind not in ("sync", "sync_names")]
    timed = [(e.ended, 1, e) for e in others] + [(e.begun, 0, e) for e in syncs]
    for _when, _order, effect in sorted(timed, key=lambda item: item[:2]):
        _apply(effect, disk)


def _apply(effect: Effect, disk: Disk) -> None:
    match effect.kind:
        case "create":
            disk.change(NameChange("", effect.name, disk.new_inode()))
        case "directory":
            if effect.name not in disk.names.entries:
                disk.change(NameChange("", effect.name, None))
        case "rename" | "unlink":
            if effect.name in disk.names.entries:
                _move(effect.name, effect.other, disk)
        case "sync_names":
            disk.sync_directory(effect.name)
        case _:
            inode = disk.names.entries.get(effect.name)
            if inode is not None:  # else its name went between the call and strace's look
                _apply_to(inode, effect)


def _apply_to(inode: Inode, effect: Effect) -> None:
    match effect.kind:
        case "write":
            inode.write(np.frombuffer(effect.data, np.uint8), effect.position)
        case "sync":
            inode.sync()
        case "length":
            inode.truncate(effect.position)
        case "allocate":
            inode.allocate(effect.position)
        case kind:
            raise ValueError(f"no effect is called {kind}")


def _move(old: str, new: str, disk: Disk) -> None:
    """Give what is called `old` another name, or none; a directory takes along what is in it."""
    inode = disk.names.entries[old]
    if inode is None and new:
        for name in [each for each in disk.names.entries if each.startswith(f"{old}/")]:
            disk.change(NameChange(name, new + name[len(old) :], disk.names.entries[name]))
    disk.change(NameChange(old, new, inode))


def differences(disk: Disk, store: Path) -> list[str]:
    """Names that a disk and a real folder do not have alike: what the recording did not see."""
    there = {str(path.relative_to(store)): path for path in store.rglob("*")}
    known = {name: inode for name, inode in disk.names.entries.items() if name}
    found = sorted(there.keys() ^ known.keys())
    for name in there.keys() & known.keys():
        inode, path = known[name], there[name]
        data = None if path.is_dir() else path.read_bytes()
        if data != (None if inode is None else inode.memory[: inode.length].tobytes()):
            found.append(name)
    return found


def lay_out(disk: Disk, store: Path) -> None:
    """Write what a disk holds into a fresh folder."""
    store.mkdir(mode=0o700, parents=True)
    for name in sorted(disk.names.entries):
        inode, path = disk.names.entries[name], store / name
        if inode is None:
            path.mkdir(mode=0o700, exist_ok=True)
            continue
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(inode.memory[: inode.length].tobytes())
