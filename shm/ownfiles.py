"""Edge to the operating system: files and folders that are made or written for this user alone.

Whatever is opened for writing on the way down from a home is opened here, or by `shm.storage` with
what is here: no symbolic link is followed, a file that is made is new, and what belongs to somebody
else, or lies where others may write, is refused with what to do about it. So nobody who could write
into a place before we came leads us to another one.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from gantrymq.shm.errors import NotPermitted
from gantrymq.shm.fromhandlers import Suppressed, require_ours
from gantrymq.shm.held import Descriptor

_ROOT: Final = 0
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_ENTER: Final = stat.S_IXGRP | stat.S_IXOTH
_PRIVATE: Final = 0o700
#: Mode of a store that is being made private: the next start goes on if this one is killed.
_NOT_YET_PRIVATE: Final = 0o1700
#: As many as the kernel follows.
_LINKS_MAX: Final = 40


def user() -> int:
    """Whose files are own."""
    return os.geteuid()


# ------------------------------------------------------------------------------------------ files


def open_file(path: str | os.PathLike[str], flags: int) -> Descriptor:
    """As os.open, but never by way of a link; closed once nobody has it. Raises PermissionError.

    A pipe in a file's place holds nobody up, and has nothing to read.
    """
    try:
        kept = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        return Descriptor(os.open, path, flags | kept, 0o600)
    except OSError as error:
        require_ours(error)
        if error.errno in (errno.ELOOP, errno.EEXIST, errno.ENOTDIR) and os.path.islink(path):
            raise link_refused(path) from error
        raise


def is_nowhere(error: OSError) -> bool:
    """Whether there is no such file, nor can be one of that name as long as its folder is none."""
    return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


def create_file(path: str | os.PathLike[str]) -> Descriptor:
    """A new file. Raises FileExistsError; PermissionError for a link."""
    return open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Errors of calls by a descriptor name its file, where they have no name, or a number."""
    try:
        yield
    except OSError as error:
        require_ours(error)
        if not isinstance(error.filename, (str, bytes)):
            error.filename = os.fspath(path)
        raise


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """All bytes of a file, never by way of a link. Raises PermissionError, OSError."""
    with open_file(path, os.O_RDONLY) as own, naming(path):
        return _read_all(own)


def read_given(path: str | os.PathLike[str]) -> bytes:
    """All bytes of a file that the user keeps, which may be a link to one. Raises OSError.

    Not of a pipe, which could hold the reader up for ever.
    """
    with Descriptor(os.open, path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK) as own, naming(path):
        mode = os.fstat(own.number).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a directory says so as it is read
            raise OSError(errno.EINVAL, "it is no file but a pipe or a device")
        return _read_all(own)


@contextmanager
def appending(path: Path) -> Iterator[IO[bytes]]:
    """A file of one's own to write at its end, made if it is not there."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    with open_file(path, flags) as own, os.fdopen(own.number, "ab", closefd=False) as file:
        _require_owner(path, os.fstat(own.number))
        yield file


def replace_whole(
    path: Path, data: bytes, *, temporary: Path | None = None, mode: int = 0o600, sync: bool = False
) -> None:
    """Write a file whole: who reads it finds the old one or the new one.

    It is called `temporary` first, beside it; what has that name is removed. Raises OSError.
    """
    fresh = temporary or path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    with (
        create_file(fresh) as own,
        naming(fresh),
        os.fdopen(own.number, "wb", closefd=False) as file,
    ):
        os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    os.replace(fresh, path)


def link_refused(path: str | os.PathLike[str]) -> PermissionError:
    """The error for a link where none may be."""
    text = "a symbolic link, which is not followed here: remove it, or put there what it names"
    return PermissionError(errno.EPERM, text, os.fspath(path))


# ---------------------------------------------------------------------------------------- folders


def user_folder(environment: Mapping[str, str], variable: str, below: str) -> Path:
    """This user's folder of a kind by the XDG rules: as a variable says, else below the user's own.

    Raises FileNotFoundError if neither is known by an absolute path: a relative one counts as
    unset, for it would be another folder wherever a program runs.
    """
    for folder in (Path(environment.get(variable, "")), Path(os.path.expanduser("~"), below)):
        if folder.is_absolute():
            return folder
    text = f"no folder of this user is known: set {variable}, or HOME, to an absolute path"
    raise FileNotFoundError(errno.ENOENT, text)


def make_home(home: Path) -> None:
    """Make a home, or see that the one that is there is this user's own.

    Raises NotPermitted, OSError.
    """
    require_links_lead(home)
    home.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
    require_home(home)


def require_links_lead(path: Path) -> None:
    """Raise FileNotFoundError for a link, there or on the way there, that leads nowhere."""
    for place in (path, *path.parents):
        if place.is_symlink() and not place.exists():
            text = f"a link to {os.readlink(place)}, which is not there: make it or remove the link"
            raise FileNotFoundError(errno.ENOENT, text, os.fspath(place))


def require_home(home: Path) -> None:
    """Raise NotPermitted for a home of another user but root, or in which others may write.

    A link on the way to it is fine if root or this user made it.
    """
    _require_links_own(home)
    status = home.stat()
    _require_owner(home, status, or_root=True)
    if status.st_mode & _OTHERS_WRITE:
        raise NotPermitted(
            f"others may write into {home}: look at what is in it, then `chmod 700 {home}`; or"
            " name a folder below it, which a start makes",
            home=str(home),
        )


def make_private(folder: Path) -> None:
    """Make a folder with 0700, or see that it is an own one, and no link, and give it 0700.

    Raises NotPermitted, PermissionError for a link, OSError.
    """
    with Suppressed(FileExistsError):
        folder.mkdir(mode=_PRIVATE)
    with open_file(folder, os.O_RDONLY | os.O_DIRECTORY) as opened:
        _require_owner(folder, os.fstat(opened.number))
        with naming(folder):
            os.fchmod(opened.number, _PRIVATE)


def make_store(store: Path) -> None:
    """Make a store's folder, or see that it is an own one.

    It alone may be a link to another disk, if root or this user made the link.
    Raises NotPermitted, OSError.
    """
    require_links_lead(store)
    with Suppressed(FileExistsError):
        store.mkdir(mode=_PRIVATE)
    _require_links_own(store)
    _require_owner(store, store.stat())


def make_all_private(root: Path) -> None:
    """Give a tree's folders 0700 and its files 0600, when nobody else can come in any more.

    Raises NotPermitted for what is another user's, PermissionError for a link.
    """
    os.chmod(root, _NOT_YET_PRIVATE)
    for path in _below(os.path.join(root, "")):
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            raise link_refused(path)
        _require_owner(path, status)
        wanted = _PRIVATE if stat.S_ISDIR(status.st_mode) else 0o600
        if stat.S_IMODE(status.st_mode) != wanted:
            os.chmod(path, wanted)
    os.chmod(root, _PRIVATE)


def is_private(folder: Path) -> bool:
    """Whether nobody else can come in, and all in it was once seen to be so."""
    return stat.S_IMODE(folder.stat().st_mode) == _PRIVATE


def require_own(path: Path) -> None:
    """Raise NotPermitted if a file or folder is another user's."""
    _require_owner(path, path.stat())


def require_settings(path: Path) -> None:
    """Raise NotPermitted for settings of another user but root, or that others can write.

    Who may not enter the folder cannot: an editor often leaves what the owner's group may write.
    """
    status = path.stat()
    _require_owner(path, status, or_root=True)
    folder = path.resolve().parent  # a link's own is another
    if status.st_mode & _OTHERS_WRITE and folder.stat().st_mode & _OTHERS_ENTER:
        raise NotPermitted(
            f"others may write {path}: look at what is in it, then `chmod go-w {path}`",
            path=str(path),
        )


def may_be_believed(uid: int, owner: int = -1) -> bool:
    """Whether what a user says is believed: this one, root, `owner` where this is root.

    Root looks at the broker of another user when it names its home.
    """
    return uid in (user(), _ROOT) or (user() == _ROOT and uid == owner)


def require_mappable(name: str, status: os.stat_result, owner: int = -1) -> None:
    """Raise NotPermitted for shared memory that somebody else may cut short or write."""
    if may_be_believed(status.st_uid, owner) and not status.st_mode & _OTHERS_WRITE:
        return
    raise NotPermitted(
        f"the shared memory {name} belongs to user {status.st_uid}, or others may write it: no"
        " broker of this user has made it. Remove it if it is in the way",
        name=name,
    )


def require_trusted(path: Path) -> None:
    """Raise PermissionError for what another user has, or others may write, or is a link."""
    _require_trusted(path, path.lstat())


def read_trusted(path: Path) -> bytes:
    """All bytes of a file that only this user can have written. Raises PermissionError, OSError."""
    with open_file(path, os.O_RDONLY) as own, naming(path):
        _require_trusted(path, os.fstat(own.number))
        return _read_all(own)


def _read_all(own: Descriptor) -> bytes:
    with os.fdopen(own.number, "rb", closefd=False) as file:
        return file.read()


def _require_trusted(path: Path, status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise link_refused(path)
    if status.st_uid != user() or status.st_mode & _OTHERS_WRITE:
        text = "it belongs to another user, or others may write there"
        raise PermissionError(errno.EPERM, text, os.fspath(path))


def _below(folder: str) -> Iterator[str]:
    """All paths below a folder, a folder before what it holds, which it is asked for later."""
    with os.scandir(folder) as entries:
        found = list(entries)
    for entry in found:
        yield entry.path
        if entry.is_dir(follow_symlinks=False):
            yield from _below(entry.path)


def _require_owner(
    path: str | os.PathLike[str], status: os.stat_result, *, or_root: bool = False
) -> None:
    owner = status.st_uid
    if owner == user() or (or_root and owner == _ROOT):
        return
    raise NotPermitted(
        f"{os.fspath(path)} belongs to user {owner}, this process is user {user()}: run it as that"
        f" user, or `chown -R` the home to this one with its broker stopped",
        path=os.fspath(path),
    )


def _require_links_own(path: Path) -> None:
    """Raise NotPermitted if another user has made a link on the way to a path."""
    left = [*reversed(path.absolute().parts[1:])]
    at, links = Path("/"), 0
    while left:
        part = left.pop()
        if part == "..":
            at = at.parent
            continue
        status = (at / part).lstat()
        if not stat.S_ISLNK(status.st_mode):
            at = at / part
            continue
        if status.st_uid not in (_ROOT, user()):
            raise NotPermitted(
                f"{at / part} is a link that user {status.st_uid} has made: name the home by the"
                " path that it leads to, or remove the link",
                path=str(at / part),
            )
        links += 1
        if links > _LINKS_MAX:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = Path(os.readlink(at / part))
        left.extend(reversed(target.parts[1:] if target.is_absolute() else target.parts))
        at = Path("/") if target.is_absolute() else at
