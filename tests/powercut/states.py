"""What a power cut at some moment of a recorded run could have left of the store."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.powercut.trace import Effect
from tests.support.simdisk import Disk, Inode, NameChange


def state_at(effects: Sequence[Effect], line: int, disk: Disk) -> None:
    """Bring an empty disk to where the machine's cache and disk were when a line was reached.

    A sync that had ended makes durable what had been written before it began, and no more; one
    that had not is as if it had not begun. A write that had begun and not ended has not happened.
    """
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
