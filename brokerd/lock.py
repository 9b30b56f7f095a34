"""The store's lock: an open-file-description lock on byte 0 of `lock` (SF-86).

It belongs to the open file, not to the process: children inherit it, so a new broker waits until
the last of them is gone. A POSIX record lock would go with the supervisor. It excludes RocketMQ as
well, whose lock covers the same byte.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gantrymq.shm import ownfiles
from gantrymq.shm.errors import Rejected, StoreBusy
from gantrymq.shm.held import Descriptor
from gantrymq.shm.storelock import BOARD_BYTE, FLOCK, LOCK_NAME, STORE_BYTE

_RETRY_S: Final = 0.02
_F_OFD_SETLK: Final = 37


def acquire(
    store: Path,
    timeout_s: float,
    alive: Callable[[], bool] = lambda: True,
    *,
    to_write: bool = True,
) -> Descriptor:
    """Take the lock: it is held as long as somebody has what this returns open.

    Tries for `timeout_s` while `alive()`. Raises StoreBusy if another process keeps it. Who wants
    to write into another user's store, as root can, gets NotPermitted: files of ours would end that
    user's broker.
    """
    if to_write:
        ownfiles.require_own(store)
    opened, kind = _open(store) if to_write else _open_to_read(store)
    deadline = time.monotonic() + timeout_s
    while not _try(opened.number, kind=kind):
        if time.monotonic() >= deadline or not alive():
            raise StoreBusy(
                f"another broker holds {store}: stop it first (gantrymq status shows a GantryMQ; "
                "a RocketMQ broker takes the same lock)",
                store=str(store),
            )
        time.sleep(_RETRY_S)
    return opened


def _open(store: Path) -> tuple[Descriptor, int]:
    return ownfiles.open_file(store / LOCK_NAME, os.O_RDWR | os.O_CREAT), fcntl.F_WRLCK


def _open_to_read(store: Path) -> tuple[Descriptor, int]:
    """Where nothing can be written a lock that others share: it keeps a broker out as well.

    One may have the same store by another mount, which can be written.
    """
    try:
        opened, kind = _open(store)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return _open_read_only(store), fcntl.F_RDLCK
    _give_to_owner(store, opened.number)
    return opened, kind


def _open_read_only(store: Path) -> Descriptor:
    try:
        return ownfiles.open_file(store / LOCK_NAME, os.O_RDONLY)
    except FileNotFoundError:
        raise Rejected(
            f"{store} has no lock, and none can be made, for its file system is mounted read-only:"
            " copy the whole directory as it is"
        ) from None


def _give_to_owner(store: Path, descriptor: int) -> None:
    """A lock that root has made just to read is no reason that the owner cannot take it later."""
    owner = store.stat().st_uid
    if os.fstat(descriptor).st_uid != owner:
        os.fchown(descriptor, owner, -1)


def mark_board(held: Descriptor) -> None:
    """Say that `run/board` names the board of the life that has the lock, as long as it has it."""
    if not _try(held.number, BOARD_BYTE):
        raise StoreBusy("somebody else has the other byte of the store's lock: stop that program")


def _try(descriptor: int, byte: int = STORE_BYTE, kind: int = fcntl.F_WRLCK) -> bool:
    wanted = FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0)
    try:
        fcntl.fcntl(descriptor, _F_OFD_SETLK, wanted)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True
