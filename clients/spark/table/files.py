"""Edge to the operating system: the folder of a table, with what a store's files do not need."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil

from gantrymq.clients.filelock import try_lock
from gantrymq.shm.errors import StoreBusy
from gantrymq.shm.held import Descriptor
from gantrymq.shm.storage import PosixStorage

_RENAMEAT2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_LIMITS = ("PC_NAME_MAX", "PC_PATH_MAX")


class TableFiles(PosixStorage):
    """Files below the table's root, by names relative to it."""

    FOLDER_MODE = 0o777  # less the umask: tables are for whom it lets in

    def path(self, name: str) -> str:
        """A name as a path of the operating system."""
        return self._path(name)

    def can_have(self, name: str) -> bool:
        """Whether a file may have that name: no part of it, and not all of it, is too long."""
        parts = os.fsencode(name).split(b"/")
        whole = len(os.fsencode(self._path(name)))
        name_max, path_max = (os.pathconf(self.root, what) for what in _LIMITS)
        return max(map(len, parts)) <= name_max and whole < path_max

    def remove_empty(self, name: str) -> None:
        """Remove a directory and those above it, as far as nothing is in them."""
        while name:
            try:
                os.rmdir(self._path(name))
            except OSError:
                return
            name = os.path.dirname(name)

    def lock(self, name: str) -> Descriptor:
        """Keep others out as long as somebody has it. Raises StoreBusy if one is in."""
        path = self._path(name)
        lock = try_lock(path)
        if lock is None:
            text = f"another ingest writes {self.root}: one at a time, or another folder"
            raise StoreBusy(text, path=path)
        return lock

    def exchange(self, one: str, other: str) -> bool:
        """Let two directories change names in one step; False where the system cannot."""
        if _RENAMEAT2 is None:
            return False
        paths = self._path(one).encode(), self._path(other).encode()
        done = _RENAMEAT2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE)
        number = ctypes.get_errno()
        if done == 0:
            return True
        if number in (errno.EINVAL, errno.ENOSYS):
            return False
        raise OSError(number, os.strerror(number), self._path(one))

    def link(self, old: str, new: str) -> None:
        """Give a file a second name; where the file system cannot, copy it."""
        try:
            os.link(self._path(old), self._path(new))
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
                raise
            shutil.copyfile(self._path(old), self._path(new))
            self.sync_file(new)

    def sync_file(self, name: str) -> None:
        """Make a file's contents durable."""
        file = self.open(name)
        try:
            os.fsync(file.descriptor)
        finally:
            file.close()

    def sync_parent(self) -> None:
        """Make the table's own name durable."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        with Descriptor(os.open, os.path.join(self.root, ".."), flags) as parent:
            os.fsync(parent.number)

    def remove_tree(self, name: str) -> None:
        """Remove a directory with what is in it; who still writes there keeps what he adds."""
        shutil.rmtree(self._path(name), ignore_errors=True)
