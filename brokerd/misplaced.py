"""Directories that stand where a store has a file: a start is refused, a check goes on without."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from gantrymq.brokerd import storefiles
from gantrymq.shm.configfile import BACKUP_SUFFIX
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.indexnote import DIRECTORY as INDEX
from gantrymq.shm.lognames import DIRECTORY as LOG
from gantrymq.shm.storage import PosixStorage

if TYPE_CHECKING:
    from gantrymq.shm.storage import PosixFile, Storage

_CONFIG: Final = (*storefiles.CONFIG_TABLES, *storefiles.OTHER_CONFIG)
#: By folder, names of files.
_FILES: Final = {
    "": frozenset(storefiles.OF_THE_ROOT),
    "config": frozenset(_CONFIG).union(name + BACKUP_SUFFIX for name in _CONFIG),
    storefiles.FOLDER: storefiles.KNOWN.union(storefiles.UNDER_WAY) - storefiles.FOLDERS,
}
#: Folders of files that have numbers for names, but for timers': the scheduler moves such aside.
_NUMBERED: Final = (LOG, INDEX, storefiles.path_of("segments"))


def find_misplaced(storage: Storage) -> list[str]:
    """Paths of directories in place of files, those of queues aside. Raises OSError."""
    return [path for path in _paths_of_files(storage) if storage.is_directory(path)]


def _paths_of_files(storage: Storage) -> Iterator[str]:
    """What is there by the name of a file, also of one that was being made."""
    for folder, names in _FILES.items():
        for name in storage.list(folder):
            if name in names or name.endswith(".new"):
                yield f"{folder}/{name}".lstrip("/")
    for folder in _NUMBERED:
        for name in storage.list(folder):
            if name.removesuffix(".new").isdecimal():
                yield f"{folder}/{name}"


def require_files(storage: PosixStorage) -> None:
    """Raise Corrupt for a directory in place of a file, before anybody meets it. OSError."""
    for path in find_misplaced(storage):
        raise Corrupt(
            f"{storage.root}/{path} is a directory, a store has a file of that name: move the"
            " directory away, and put the file back if there was one",
            path=path,
        )


class FilesOnly(PosixStorage):
    """A store as if no directory stood in place of a file, for who only reads it."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.misplaced: frozenset[str] = frozenset()
        self.misplaced = frozenset(find_misplaced(self))

    def open(self, name: str, *, write: bool = False) -> PosixFile:
        """Raise FileNotFoundError for a directory in place of a file, too."""
        if name in self.misplaced:
            raise FileNotFoundError(name)
        return super().open(name, write=write)

    def exists(self, name: str) -> bool:
        """Whether the name is there, and no directory in place of a file."""
        return name not in self.misplaced and super().exists(name)

    def list(self, name: str) -> list[str]:
        """Names in a directory, sorted, without directories in place of files."""
        below = f"{name}/" if name else ""
        return [one for one in super().list(name) if below + one not in self.misplaced]
