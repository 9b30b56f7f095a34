"""Where the broker is: its home directory, and the names below it.

Reads the environment for `GANTRYMQ_HOME` and the XDG state folder; loads neither numpy nor numba.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gantrymq.shm.errors import (
    ArgumentIllegal,
    BrokerGone,
    GantryError,
    NotPermitted,
    Timeout,
    Unavailable,
)
from gantrymq.shm.fromhandlers import is_ours, require_ours
from gantrymq.shm.held import Descriptor
from gantrymq.shm.jsontext import parse_object
from gantrymq.shm.ownfiles import is_nowhere, may_be_believed, read_bytes, user_folder
from gantrymq.shm.storelock import is_held

SYSTEM_HOME: Final = Path("/var/lib/gantrymq")
SOCKET_NAME: Final = "control.sock"
#: What is said of a store that a broker has locked which is not to be found, and what to do.
HELD_UNSEEN: Final = "a broker holds the store of {home}, but it is not to be reached there"
MEND_UNSEEN: Final = (
    "wait if it is just starting or stopping; if its run directory, or its board in /dev/shm, was"
    " removed while it ran, restart it; a RocketMQ takes the same lock"
)
_UCRED: Final = struct.Struct("3i")
#: Between two looks whether the backlog has room, at first and at most.
_PAUSE_S: Final = 0.001
_PAUSE_MAX_S: Final = 0.05


def find_home(given: str | os.PathLike[str] | None = None) -> Path:
    """The home directory: as given, else `GANTRYMQ_HOME`, else the user's or the system's."""
    if given:
        return _written_out(given, "home")
    named = os.environ.get("GANTRYMQ_HOME")
    if named:
        return _written_out(named, "GANTRYMQ_HOME")
    if os.geteuid() == 0:
        return SYSTEM_HOME
    return state_folder() / "gantrymq"


def state_folder() -> Path:
    """The user's folder for what programs keep. Raises ArgumentIllegal."""
    try:
        return user_folder(os.environ, "XDG_STATE_HOME", ".local/state")
    except FileNotFoundError as error:
        require_ours(error)
        raise ArgumentIllegal(str(error.strerror)) from error


def _written_out(place: str | os.PathLike[str], what: str) -> Path:
    """An absolute path, `~` and `~user` replaced. Raises ArgumentIllegal for a user that is not."""
    try:
        return Path(place).expanduser().absolute()
    except RuntimeError as error:
        require_ours(error)
        raise ArgumentIllegal(
            f"{what} is {str(place)!r}, and the system knows no directory of that user: write out"
            " the path"
        ) from error


def store_of(home: Path) -> Path:
    """The store root, in RocketMQ's layout."""
    return home / "store"


def run_of(home: Path) -> Path:
    """The directory of what lives only as long as the broker."""
    return home / "run"


def board_file(home: Path) -> Path:
    """The file that names the board."""
    return run_of(home) / "board"


def read_board_file(home: Path) -> dict[str, str]:
    """Name, boot id and epoch of the board that was made last; empty if there is none."""
    try:
        content = parse_object(read_bytes(board_file(home)))
    except OSError as error:
        require_ours(error)
        # A link names nothing of ours; a start puts a file there.
        is_link = isinstance(error, PermissionError) and board_file(home).is_symlink()
        if is_link or is_nowhere(error):
            return {}
        raise
    except ValueError as error:
        require_ours(error)
        # It is replaced atomically, so this was not us; a start writes it anew.
        return {}
    return {name: value for name, value in content.items() if isinstance(value, str)}


@contextmanager
def socket_address(home: Path) -> Iterator[str]:
    """An address of the control socket that fits into 107 bytes, however long the path is."""
    with Descriptor(os.open, run_of(home), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) as run:
        yield f"/proc/self/fd/{run.number}/{SOCKET_NAME}"


def _connect_in_turn(channel: socket.socket, address: str, timeout_s: float | None) -> None:
    """Connect; while the socket's backlog is full try again. Raises OSError."""
    # Not a blocking connect: one that a signal interrupts is taken for connected by Python.
    channel.setblocking(False)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    pause_s = _PAUSE_S
    while True:
        try:
            channel.connect(address)
        except BlockingIOError as error:
            require_ours(error)
            left_s = pause_s if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                raise
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        else:
            return


def owner_of(home: Path) -> int:
    """The user whose broker may run at a home; -1 where none ever did."""
    try:
        return os.lstat(run_of(home)).st_uid
    except OSError as error:
        require_ours(error)
        return -1


def peer_uid(channel: socket.socket) -> int:
    """The user at the other end, by SO_PEERCRED."""
    credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    uid: int = _UCRED.unpack(credentials)[1]
    return uid


def _require_peer(channel: socket.socket, home: Path) -> None:
    """Raise NotPermitted before anything is said to somebody else's broker."""
    uid = peer_uid(channel)
    if not may_be_believed(uid, owner_of(home)):
        raise NotPermitted(
            f"a process of user {uid} answers at {home}, and this process is of user"
            f" {os.geteuid()}: nothing was said to it. See who may write into that folder, or name"
            " another home",
            home=str(home),
        )


def connect(home: Path, timeout_s: float | None = None) -> socket.socket:
    """Connect to the broker at `home`; where many are about to, wait `timeout_s` for a turn.

    Raises BrokerGone, NotPermitted, Unavailable or Timeout with what to do.
    """
    try:
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        require_ours(error)
        raise unreachable(home, error) from error
    try:
        with socket_address(home) as address:
            _connect_in_turn(channel, address, timeout_s)
        channel.settimeout(timeout_s)
        _require_peer(channel, home)
    except NotPermitted:
        channel.close()
        raise
    except BlockingIOError as error:
        require_ours(error)
        channel.close()
        raise Timeout(
            f"the broker at {home} did not take this connection in {timeout_s or 0:.1f} s: others"
            " wait for it as well, as many as its socket has room for; it is busy, or stopped. Try"
            " again later",
            home=str(home),
        ) from error
    except PermissionError as error:
        require_ours(error)
        channel.close()
        raise NotPermitted(
            f"the broker at {home} belongs to another user: run this as that user", home=str(home)
        ) from error
    except OSError as error:
        require_ours(error)
        channel.close()
        raise unreachable(home, error) from error
    return channel


def unreachable(home: Path, error: OSError) -> GantryError:
    """What an error of the way to the broker at `home` says: it is not there, as a rule."""
    return shortage(error) or no_broker(
        home,
        f"no broker answers at {home}: start one with `gantrymq serve --home {home}`, "
        "or name its home with GANTRYMQ_HOME or home=",
    )


def no_store(home: Path) -> BrokerGone:
    """The error of a home without a broker where there is no store either."""
    return BrokerGone(
        f"there is neither a broker nor a store at {home}: name another home with --home, home="
        " or GANTRYMQ_HOME",
        home=str(home),
    )


def no_broker(home: Path, otherwise: str) -> BrokerGone:
    """The error of a home where no broker, or no board of one, is found.

    `otherwise`: what it says unless a broker holds the store there, as a second one could not.
    """
    text = f"{HELD_UNSEEN.format(home=home)}: {MEND_UNSEEN}" if _is_store_held(home) else otherwise
    return BrokerGone(text, home=str(home))


def _is_store_held(home: Path) -> bool:
    try:
        return is_held(store_of(home))
    except OSError as error:  # another user's, or nothing that a broker can have locked
        require_ours(error)
        return False


def shortage(error: BaseException) -> Unavailable | None:
    """What to say of an error that means that this process, or the system, has no more to give.

    None of any other error.
    """
    if not isinstance(error, OSError) or not is_ours(error):
        return None
    if error.errno == errno.ENOMEM:
        return Unavailable(
            "no memory is left for a session: end some of this process's clients, or raise its"
            " limit (ulimit -v)"
        )
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        return None
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return Unavailable(
        f"no descriptor is left for a session: this process may have {limit}. End some of its"
        " clients, close what else it has open, or raise the limit (ulimit -n)"
    )
