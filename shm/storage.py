"""Edge to the operating system: files of one store, by names relative to its root.

Agents know files only through these two interfaces, so the simulator can lose, tear and fail every
write. Errors are `OSError`s, never SIGBUS: everything is written with pwrite.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
from collections import Counter
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from gantrymq.shm import ownfiles
from gantrymq.shm.fromhandlers import Suppressed, require_ours
from gantrymq.shm.held import Descriptor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

_P = ParamSpec("_P")
_R = TypeVar("_R")

_ZEROES = bytes(1 << 20)
_LIBC = ctypes.CDLL(None)
_FALLOCATE = ctypes.CDLL(None, use_errno=True).fallocate
_SYNC_FILE_RANGE_WRITE = 2
#: Names of folders that a storage remembers: about a MiB.
_FOLDERS_SEEN_MAX = 8192
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_MMAP = ctypes.CDLL(None, use_errno=True).mmap
_MMAP.restype = ctypes.c_void_p
_MAP_FIXED, _MAP_NORESERVE, _MAP_FAILED = 0x10, 0x4000, ctypes.c_void_p(-1).value
#: What `st_blocks` counts by, whatever a file system's blocks are (inode(7)).
_STAT_BLOCK_BYTES = 512
#: Shorter parts of a sparse file are copied.
_MAPPED_MIN = 1 << 20
_MARK, _SYNC_MARK = "is_failed_change", "is_failed_sync"
#: Of a call that opens something: it has changed nothing by then.
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


def changes(call: Callable[_P, _R]) -> Callable[_P, _R]:
    """A call of a storage that changes the store: its error is final, where it is the truth."""
    return _noting(call, mark_failed_change)


def syncs(call: Callable[_P, _R]) -> Callable[_P, _R]:
    """A call that makes something durable: its error is final, whatever it is."""
    return _noting(call, mark_failed_sync)


def _noting(call: Callable[_P, _R], note: Callable[[OSError], None]) -> Callable[_P, _R]:
    @wraps(call)
    def told(*given: _P.args, **named: _P.kwargs) -> _R:
        try:
            return call(*given, **named)
        except OSError as error:
            require_ours(error)
            note(error)
            raise

    return told


def mark_failed_change(error: OSError) -> None:
    """Note of an error that it is of a call that was to change the store."""
    if error.errno not in _NO_DESCRIPTORS:
        setattr(error, _MARK, True)


def mark_failed_sync(error: OSError) -> None:
    """Note of an error that it is of a sync of a file or a directory."""
    mark_failed_change(error)
    setattr(error, _SYNC_MARK, is_failed_change(error))


@contextmanager
def made_anew() -> Iterator[None]:
    """Around a sync: who tries again first writes all anew that it is to make durable.

    So for want of room it is not final: what the kernel has dropped does not count.
    """
    try:
        yield
    except OSError as error:
        require_ours(error)
        setattr(error, _SYNC_MARK, False)
        raise


def is_failed_change(error: OSError) -> bool:
    """Whether a write, a sync or the like has failed; else a look at a file, or another call.

    What a failed change has left is not known: it is never tried again. To look once more is safe.
    """
    return getattr(error, _MARK, False)


def is_shortage(error: OSError) -> bool:
    """Whether a process has come to its limit of descriptors or memory, and has changed nothing.

    No fault of the store: the process ends, and its successor goes on.
    """
    return error.errno in (*_NO_DESCRIPTORS, errno.ENOMEM) and not is_failed_change(error)


class File(Protocol):
    """An open file of a store."""

    name: str
    #: A descriptor that kernels may write to; -1 where all writes go by `write_at`.
    native: int

    def write_at(self, data: Buffer, position: int) -> None:
        """Write all of `data` (short writes go on). Raises OSError."""
        ...

    def read_into(self, buffer: Buffer, position: int) -> int:
        """Fill `buffer` as far as the file reaches; returns the bytes read."""
        ...

    def sync(self) -> None:
        """Make contents durable (fdatasync). An error is final: never call it again."""
        ...

    def start_sync(self, start: int, count: int) -> None:
        """Begin to write a range out, so that a later `sync` waits less; promises nothing."""
        ...

    def let_go(self, start: int, count: int) -> None:
        """Keep a range no longer in memory, as far as it is on the disk and nobody maps it."""
        ...

    def allocate(self, size: int, start: int = 0) -> None:
        """Give the file `size` bytes, and blocks to those from `start` on: writes find space."""
        ...

    def bytes_without_blocks(self) -> int:
        """How much room its bytes would still take, if all were written."""
        ...

    def zero_range(self, start: int, count: int) -> None:
        """Write zeroes."""
        ...

    def punch(self, start: int, count: int) -> None:
        """Give blocks back; the range reads as zeroes."""
        ...

    def truncate(self, size: int) -> None:
        """Set the length; grown parts are holes."""
        ...

    def extents(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Ranges within [start, stop) outside of which all bytes are zero."""
        ...

    def size(self) -> int:
        """Length in bytes."""
        ...

    def view(self) -> NDArray[np.uint8]:
        """Read-only map of the file at its present length, which shows what is written later.

        For what a broker has written: on a tmpfs, to look at a hole through a map takes memory, and
        is SIGBUS where there is none left.
        """
        ...

    def still_view(self) -> NDArray[np.uint8]:
        """The same of what the file holds now, later writes or not; holes may be looked at."""
        ...

    def close(self) -> None:
        """Give the descriptor back; views stay valid."""
        ...


class Storage(Protocol):
    """The files below one store root."""

    root: str

    def open(self, name: str, *, write: bool = False) -> File:
        """Open a file that exists. Raises FileNotFoundError."""
        ...

    def create(self, name: str) -> File:
        """Make an empty file and its directories. Raises FileExistsError."""
        ...

    def exists(self, name: str) -> bool:
        """Whether a file or directory of that name is there."""
        ...

    def size_of(self, name: str) -> int:
        """Length of a file. Raises FileNotFoundError."""
        ...

    def list(self, name: str) -> list[str]:
        """Names in a directory, sorted; empty if there is no such directory."""
        ...

    def is_directory(self, name: str) -> bool:
        """Whether the name is a directory."""
        ...

    def is_file(self, name: str) -> bool:
        """Whether the name is a file that can be read; no link, pipe or directory."""
        ...

    def make_directory(self, name: str) -> None:
        """Make a directory and its parents if absent."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomically put a file in another's place."""
        ...

    def unlink(self, name: str) -> None:
        """Remove a file. Raises FileNotFoundError."""
        ...

    def sync_directory(self, name: str) -> None:
        """Make names of a directory durable."""
        ...

    def free_bytes(self) -> int:
        """Space left for this user on the store's disk."""
        ...

    def used_bytes(self) -> int:
        """Space in use on the store's disk, by whomever."""
        ...


def _names_file(
    call: Callable[Concatenate[PosixFile, _P], _R],
) -> Callable[Concatenate[PosixFile, _P], _R]:
    """A call by descriptor, whose error would not say of which file it is."""

    @wraps(call)
    def named(file: PosixFile, /, *given: _P.args, **rest: _P.kwargs) -> _R:
        try:
            return call(file, *given, **rest)
        except OSError as error:
            require_ours(error)
            error.filename = error.filename or file.name
            raise

    return named


class PosixFile:
    """A file of the operating system. All errors name it."""

    def __init__(self, opened: Descriptor, name: str) -> None:
        self._opened = opened
        self.descriptor = self.native = opened.number
        self.name = name

    def write_at(self, data: Buffer, position: int) -> None:
        """Write all of `data`."""
        try:
            done = os.pwrite(self.descriptor, data, position)
        except OSError as error:
            require_ours(error)
            error.filename = self.name
            mark_failed_change(error)
            raise
        if done != memoryview(data).nbytes:  # hardly ever
            self._write_on(memoryview(data).cast("B"), done, position)

    @changes
    @_names_file
    def _write_on(self, data: memoryview, done: int, position: int) -> None:
        """Go on after a short write of `done` bytes."""
        while done < len(data):
            count = os.pwrite(self.descriptor, data[done:], position + done)
            if count == 0:
                raise OSError(errno.EIO, "pwrite wrote nothing", self.name)
            done += count

    @_names_file
    def read_into(self, buffer: Buffer, position: int) -> int:
        """Fill `buffer` as far as the file reaches."""
        left = memoryview(buffer).cast("B")
        total = 0
        while left:
            done = os.preadv(self.descriptor, [left], position + total)
            if done == 0:
                break
            left = left[done:]
            total += done
        return total

    @syncs
    @_names_file
    def sync(self) -> None:
        """Fdatasync."""
        os.fdatasync(self.descriptor)

    def start_sync(self, start: int, count: int) -> None:
        """sync_file_range without waiting: an error is left for `sync` to meet."""
        _LIBC.sync_file_range(
            self.descriptor, ctypes.c_int64(start), ctypes.c_int64(count), _SYNC_FILE_RANGE_WRITE
        )

    @_names_file
    def let_go(self, start: int, count: int) -> None:
        """posix_fadvise: the kernel drops clean pages."""
        os.posix_fadvise(self.descriptor, start, count, os.POSIX_FADV_DONTNEED)

    @changes
    @_names_file
    def allocate(self, size: int, start: int = 0) -> None:
        """posix_fallocate."""
        os.posix_fallocate(self.descriptor, start, size - start)

    @_names_file
    def bytes_without_blocks(self) -> int:
        """By what the file system counts."""
        status = os.fstat(self.descriptor)
        return max(0, status.st_size - status.st_blocks * _STAT_BLOCK_BYTES)

    def zero_range(self, start: int, count: int) -> None:
        """Write zeroes in pieces of 1 MiB."""
        while count > 0:
            piece = min(count, len(_ZEROES))
            self.write_at(memoryview(_ZEROES)[:piece], start)
            start += piece
            count -= piece

    @changes
    @_names_file
    def punch(self, start: int, count: int) -> None:
        """Make a hole; where the file system cannot, write zeroes. The length stays."""
        mode = _PUNCH_HOLE | _KEEP_SIZE
        place, size = ctypes.c_int64(start), ctypes.c_int64(count)
        if _FALLOCATE(self.descriptor, mode, place, size) != 0:
            number = ctypes.get_errno()
            if number != errno.EOPNOTSUPP:
                raise OSError(number, os.strerror(number), self.name)
            self.zero_range(start, count)

    @changes
    @_names_file
    def truncate(self, size: int) -> None:
        """Set the length."""
        os.ftruncate(self.descriptor, size)

    @_names_file
    def extents(self, start: int, stop: int) -> list[tuple[int, int]]:
        """What was written: blocks that were only allocated need not be read."""
        found: list[tuple[int, int]] = []
        while start < stop:
            try:
                begin = os.lseek(self.descriptor, start, os.SEEK_DATA)
            except OSError as error:
                require_ours(error)
                if error.errno == errno.ENXIO:  # only a hole is left
                    break
                raise
            if begin >= stop:
                break
            start = min(stop, os.lseek(self.descriptor, begin, os.SEEK_HOLE))
            found.append((begin, start))
        return found

    @_names_file
    def size(self) -> int:
        """Length in bytes."""
        return os.fstat(self.descriptor).st_size

    @_names_file
    def view(self) -> NDArray[np.uint8]:
        """Read-only map; an empty file gives an empty array."""
        import numpy as np  # commands that only look at small files do without

        if self.size() == 0:
            return np.empty(0, np.uint8)
        mapped = mmap.mmap(self.descriptor, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        return np.frombuffer(mapped, np.uint8)

    @_names_file
    def still_view(self) -> NDArray[np.uint8]:
        """Zeroes of nobody's memory, and over them what the file holds: long parts as maps."""
        import numpy as np  # as above

        size = self.size()
        if size == 0:
            return np.empty(0, np.uint8)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        shown = np.frombuffer(mmap.mmap(-1, size, flags=flags), np.uint8)
        for start, stop in self.extents(0, size):
            first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
            if stop - first < _MAPPED_MIN:  # a process has a limit of maps as well
                self.read_into(shown[start:stop].data, start)
                continue
            self.read_into(shown[start:first].data, start)
            self._map_over(shown, first, stop)
        shown.flags.writeable = False
        return shown

    def _map_over(self, shown: NDArray[np.uint8], start: int, stop: int) -> None:
        """Put a map of a part in the place of the memory there, which goes with that."""
        whole = stop if stop == len(shown) else stop // mmap.PAGESIZE * mmap.PAGESIZE
        place, count = ctypes.c_void_p(shown.ctypes.data + start), ctypes.c_size_t(whole - start)
        flags = mmap.MAP_SHARED | _MAP_FIXED
        at = ctypes.c_int64(start)
        if _MMAP(place, count, mmap.PROT_READ, flags, self.descriptor, at) == _MAP_FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), self.name)
        self.read_into(shown[whole:stop].data, whole)

    def close(self) -> None:
        """Give the descriptor back. Safe to call twice, and from any thread."""
        self.descriptor = -1
        self._opened.close()


class PosixStorage:
    """Files below a directory of the operating system, whose own path may go by links.

    Below it no link is followed. Its folders can only be changed by who could do all else, so a
    folder that was seen once is not looked at again.
    """

    FOLDER_MODE = 0o700

    def __init__(self, root: str) -> None:
        self.root = root
        self._seen: set[str] = {""}

    def _path(self, name: str) -> str:
        """Of a name whose folders are no links. Raises PermissionError."""
        require_inside(name)
        folder = name.rpartition("/")[0]
        if folder not in self._seen:
            self._see(folder)
        return f"{self.root}/{name}"

    def _folder(self, name: str) -> str:
        """Of a folder that is itself no link, either; it need not be there."""
        require_inside(name)
        if name not in self._seen:
            self._see(name)
        return f"{self.root}/{name}"

    def _see(self, folder: str) -> None:
        if len(self._seen) > _FOLDERS_SEEN_MAX:
            self._seen = {""}
        at = 0
        while at >= 0:
            at = folder.find("/", at + 1)
            part = folder[:at] if at >= 0 else folder
            if part in self._seen:
                continue
            path = f"{self.root}/{part}"
            try:
                mode = os.lstat(path).st_mode
            except OSError as error:  # what is wanted with it will say so
                require_ours(error)
                return
            if stat.S_ISLNK(mode):
                raise ownfiles.link_refused(path)
            self._seen.add(part)

    def open(self, name: str, *, write: bool = False) -> PosixFile:
        """Open a file that exists; a pipe in its place holds nobody up, and has nothing to read."""
        flags = os.O_RDWR if write else os.O_RDONLY
        return PosixFile(ownfiles.open_file(self._path(name), flags), name)

    @changes
    def create(self, name: str) -> PosixFile:
        """Make an empty file and its directories."""
        path = self._path(name)
        try:
            return PosixFile(ownfiles.create_file(path), name)
        except FileNotFoundError as error:
            require_ours(error)
            self.make_directory(name.rpartition("/")[0])
        return PosixFile(ownfiles.create_file(path), name)

    def exists(self, name: str) -> bool:
        """Whether the name is there; a link is, and can be nothing but removed."""
        return os.path.lexists(self._path(name))

    def size_of(self, name: str) -> int:
        """Length of a file."""
        status = os.lstat(self._path(name))
        if stat.S_ISLNK(status.st_mode):
            raise ownfiles.link_refused(f"{self.root}/{name}")
        return status.st_size

    def list(self, name: str) -> list[str]:
        """Names in a directory, sorted."""
        try:
            return sorted(os.listdir(self._folder(name)))
        except FileNotFoundError as error:
            require_ours(error)
            return []

    def is_directory(self, name: str) -> bool:
        """Whether the name is a directory."""
        return stat.S_ISDIR(self._mode_of(name))

    def is_file(self, name: str) -> bool:
        """Whether the name is a plain file."""
        return stat.S_ISREG(self._mode_of(name))

    def _mode_of(self, name: str) -> int:
        """What stands there, without following links; 0: nothing."""
        try:
            return os.lstat(self._path(name)).st_mode
        except (FileNotFoundError, NotADirectoryError) as error:
            require_ours(error)
            return 0

    @changes
    def make_directory(self, name: str) -> None:
        """Make a directory and its parents."""
        path = self._folder(name)
        try:
            os.mkdir(path, self.FOLDER_MODE)  # nearly always its own parent is there
        except FileNotFoundError as error:
            require_ours(error)
            if not name:
                os.makedirs(self.root, self.FOLDER_MODE)
                return
            self.make_directory(name.rpartition("/")[0])
            os.mkdir(path, self.FOLDER_MODE)
        except FileExistsError as error:
            require_ours(error)
            if not os.path.isdir(path):
                raise

    @changes
    def rename(self, old: str, new: str) -> None:
        """Atomically put a file in another's place."""
        os.rename(self._path(old), self._path(new))

    @changes
    def unlink(self, name: str) -> None:
        """Remove a file."""
        os.unlink(self._path(name))

    @syncs
    def sync_directory(self, name: str) -> None:
        """Fsync the directory."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        with Descriptor(os.open, self._folder(name), flags) as opened:
            os.fsync(opened.number)

    def free_bytes(self) -> int:
        """Space left for this user."""
        room = os.statvfs(self.root)
        return room.f_bavail * room.f_frsize

    def used_bytes(self) -> int:
        """Space in use."""
        room = os.statvfs(self.root)
        return (room.f_blocks - room.f_bfree) * room.f_frsize


def require_inside(name: str) -> None:
    """Raise PermissionError for a name that could lead out of a store, whatever is there.

    Names of topics and queues are parts of names of files, and files say what topics there are.
    """
    if name[:1] == "/" or "\0" in name or (".." in name and ".." in name.split("/")):
        text = "a name that leads out of the store: what names it so is damaged, or was forged"
        raise PermissionError(errno.EPERM, text, name.replace("\0", "\\0"))


def clear_behind(file: File, start: int, size: int) -> None:
    """Make a file `size` bytes long, with a hole from byte `start` on.

    It is at no moment shorter than it was, if it was not too long: who reads behind the end of a
    file that he has mapped dies of SIGBUS, and clients keep their maps over a restart.
    """
    if file.size() != size:
        file.truncate(size)
    if start < size:
        file.punch(start, size - start)


def zero_written(file: File, start: int, stop: int) -> None:
    """Write zeroes over what was written within [start, stop): what is a hole stays one."""
    for begin, end in file.extents(start, stop):
        file.zero_range(begin, end - begin)


def is_disk_full(error: OSError) -> bool:
    """Whether an error means that space ran out, so that the same may be tried again.

    Or that a file has come to the limit of its user, its process or its file system, which are room
    as well.
    Not if a sync has failed for that: the kernel has dropped what it could not write, and a second
    sync would say that all is well.
    """
    if getattr(error, _SYNC_MARK, False):
        return False
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def read_file(storage: Storage, name: str) -> bytes:
    """All bytes of a file. Raises FileNotFoundError."""
    file = storage.open(name)
    try:
        buffer = bytearray(file.size())
        return bytes(buffer[: file.read_into(buffer, 0)])
    finally:
        file.close()


def map_file(storage: Storage, name: str) -> NDArray[np.uint8]:
    """`view` of a file; it holds no descriptor. Raises FileNotFoundError."""
    file = storage.open(name)
    try:
        return file.view()
    finally:
        file.close()


def map_still(storage: Storage, name: str) -> NDArray[np.uint8]:
    """`still_view` of a file; it holds no descriptor. Raises FileNotFoundError."""
    file = storage.open(name)
    try:
        return file.still_view()
    finally:
        file.close()


def folders_in(storage: Storage, name: str) -> list[str]:
    """Names of the directories in one, sorted."""
    return [inner for inner in storage.list(name) if storage.is_directory(f"{name}/{inner}")]


def usual_length(lengths: Iterable[int], unit: int = 1) -> int:
    """The length that most files have, and of two the longer: all have one, unless some were cut.

    One that is no number of whole units is nobody's setting. 0 if there is none.
    """
    counts = Counter(length for length in lengths if length % unit == 0)
    return max(counts, key=lambda length: (counts[length], length), default=0)


def lengths_below(storage: Storage, directory: str, depth: int = 0) -> Iterator[int]:
    """Bytes of the files with any, `depth` folders below a directory, in their names' order."""
    for path in (f"{directory}/{name}" for name in storage.list(directory)):
        if storage.is_directory(path):
            if depth:
                yield from lengths_below(storage, path, depth - 1)
        elif depth == 0 and (length := _length_of(storage, path)):
            yield length


def _length_of(storage: Storage, path: str) -> int:
    try:
        return storage.size_of(path)
    except FileNotFoundError as error:  # a broker has removed it since it was listed
        require_ours(error)
        return 0


@made_anew()
def replace_file(storage: Storage, name: str, data: bytes) -> None:
    """Write a small file of `gantry/` whole: a crash leaves the old or the new one.

    Not for RocketMQ's directories, where a stray temporary file stops the store (SF-11).
    """
    temporary = name + ".new"
    if storage.exists(temporary):
        storage.unlink(temporary)
    file = storage.create(temporary)
    try:
        file.write_at(data, 0)
        file.sync()
    except OSError as error:
        require_ours(error)
        with Suppressed(OSError):  # nobody may try again before the store is checked
            storage.unlink(temporary)
        raise
    finally:
        file.close()
    storage.rename(temporary, name)
    storage.sync_directory(os.path.dirname(name))
