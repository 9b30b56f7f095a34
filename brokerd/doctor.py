"""What a broker needs of the machine: looked at without changing anything, and how to mend it.

Loads neither numpy nor numba. Every check is a function of the `Patient`; a new one is added to
`CHECKS`.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import pwd
import re
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

import psutil

from gantrymq.brokerd import config, epoch, processlimits
from gantrymq.brokerd.commitlog import room_for_segment
from gantrymq.brokerd.startable import require_settings
from gantrymq.clients.control import look_at
from gantrymq.clients.home import (
    HELD_UNSEEN,
    MEND_UNSEEN,
    SOCKET_NAME,
    board_file,
    owner_of,
    read_board_file,
    run_of,
    store_of,
)
from gantrymq.clients.running import board_name
from gantrymq.clients.spark.needs import JAVA_MIN
from gantrymq.shm import layout, ownfiles, readonly
from gantrymq.shm.board import Board, attach_board, place_of
from gantrymq.shm.codes import BrokerState, Role
from gantrymq.shm.errors import GantryError, NotPermitted, why_failed
from gantrymq.shm.storage import PosixStorage
from gantrymq.shm.storelock import is_held

#: `note`: nothing needs to be done, but it is good to know.
Verdict = Literal["ok", "note", "wrong"]

PYTHON_MIN: Final = (3, 11)
_REMOTE: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph"})
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
#: How long a broker that is ready has for its answer; one at work takes milliseconds.
ANSWER_S: Final = 5.0
_PAGE: Final = mmap.PAGESIZE


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found; `mend` says what to do."""

    check: str
    verdict: Verdict
    found: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Patient:
    """Whose broker is looked at."""

    home: Path
    environment: Mapping[str, str]
    settings: config.Settings

    @property
    def store(self) -> Path:
        """The store root."""
        return store_of(self.home)


Check = Callable[[Patient], Iterator[Finding]]


def examine(home: Path, environment: Mapping[str, str]) -> list[Finding]:
    """All findings about a broker at `home`, run by the user who calls this."""
    try:
        config.require_told(home)
        configuration = config.load(home, None, environment)
        if store_of(home).is_dir():
            storage = PosixStorage(str(store_of(home)))
            configuration = epoch.settle_sizes(storage, configuration)
        settings = configuration.settings
        require_settings(home, settings)
        findings = [Finding("settings", "ok", f"those of {home} are in order")]
    except GantryError as error:
        findings = [Finding("settings", "wrong", str(error), "see `gantrymq serve --print-config`")]
        settings = config.load(None, None, {}).settings
    except OSError as error:
        findings = [_unseen("settings", error)]
        settings = config.load(None, None, {}).settings
    patient = Patient(home, environment, settings)
    for check in CHECKS:
        try:
            findings += check(patient)
        except OSError as error:
            findings.append(_unseen(check.__name__.removeprefix("_check_"), error))
    return findings


def _unseen(check: str, error: OSError) -> Finding:
    mend = readonly.MEND if error.errno == errno.EROFS else "run this as the user of the broker"
    return Finding(check, "wrong", str(error), mend)


# ---------------------------------------------------------------------------------- the machine


def _check_python(_patient: Patient) -> Iterator[Finding]:
    found = f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()}"
    right = sys.version_info >= PYTHON_MIN and platform.python_implementation() == "CPython"
    if not right:
        yield Finding("python", "wrong", found, "use CPython 3.11 or newer")
    elif sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        yield Finding("python", "wrong", f"{found} on {sys.platform}", "run it on Linux")
    else:
        yield Finding("python", "ok", found)


def _check_packages(_patient: Patient) -> Iterator[Finding]:
    again = "install gantrymq again into an environment of its own"
    try:
        found = ", ".join(f"{name} {version(name)}" for name in ("numba", "llvmlite", "numpy"))
    except PackageNotFoundError as error:
        yield Finding("packages", "wrong", str(error), again)
        return
    yield Finding("packages", "ok", found)


def _check_executable_memory(_patient: Patient) -> Iterator[Finding]:
    """The loader of the kernels writes machine code, then makes it executable."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    size = ctypes.c_size_t(_PAGE)
    at = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, ctypes.c_long(0))
    refused = libc.mprotect(ctypes.c_void_p(at), size, mmap.PROT_READ | mmap.PROT_EXEC)
    libc.munmap(ctypes.c_void_p(at), size)
    if refused:
        mend = "leave MemoryDenyWriteExecute= out of the unit (SELinux: allow execmem)"
        yield Finding("executable memory", "wrong", "memory cannot be made executable", mend)
    else:
        yield Finding("executable memory", "ok", "compiled kernels can be loaded")


def _check_shared_memory(patient: Patient) -> Iterator[Finding]:
    """The board lies in /dev/shm; arenas are memfds, which its size does not bound."""
    folder = Path("/dev/shm")
    settings = patient.settings
    needed = layout.board_bytes(settings.topics_max, settings.board_queues_max)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        mend = "mount a tmpfs there, mode 1777"
        yield Finding("/dev/shm", "wrong", "it is not there, or not for this user to write", mend)
        return
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    found = f"{_mib(free)} free, a board takes {_mib(needed)}"
    if free < needed and not _is_running(patient):
        mend = "make it larger (mount -o remount,size=..., docker run --shm-size=...), or lower"
        yield Finding("/dev/shm", "wrong", found, f"{mend} topics_max and board_queues_max")
    else:
        yield Finding("/dev/shm", "ok", found)


def _check_namesakes(patient: Patient) -> Iterator[Finding]:
    if not patient.store.exists():
        return
    for name, owner in epoch.namesakes_of(patient.home).items():
        found = f"{str(place_of(name))!r} of user {owner} has the name of a board, and is none"
        mend = "a start leaves it alone; whose it is, or root, may remove it"
        yield Finding("/dev/shm", "note", found, mend)


def _check_memory(patient: Patient) -> Iterator[Finding]:
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    available = 1024 * int(re.findall(r"MemAvailable: +(\d+)", text)[0])
    wanted = patient.settings.session_memory_max
    found = f"{_mib(available)} available, sessions may take {_mib(wanted)}"
    if available < wanted:
        yield Finding("memory", "note", found, "lower session_memory_max, or free memory")
    else:
        yield Finding("memory", "ok", found)


def _check_kernels(_patient: Patient) -> Iterator[Finding]:
    from gantrymq.shm.jit import cache_directory

    mend = "set XDG_CACHE_HOME to a folder of the broker's user: else every start compiles"
    try:
        folder = cache_directory()
    except FileNotFoundError as error:
        yield Finding("kernel cache", "wrong", str(error.strerror), mend)
        return
    if not folder.exists():
        parent = next(path for path in folder.parents if path.exists())
        if os.access(parent, os.W_OK | os.X_OK):
            found = "not compiled yet for this version and processor"
            yield Finding("kernel cache", "note", found, "the first start takes about a minute")
        else:
            yield Finding("kernel cache", "wrong", f"{parent} is not writable", mend)
        return
    status = folder.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid():
        mend = f"give each user a cache of its own (XDG_CACHE_HOME), or remove {folder}"
        yield Finding("kernel cache", "wrong", f"{folder} is another user's", mend)
    elif mode & 0o022:
        mend = f"chmod 700 {folder}, and remove what is in it: it is machine code that is run"
        yield Finding("kernel cache", "wrong", f"others may write to {folder}", mend)
    elif not (folder / "kernels").exists():
        yield Finding("kernel cache", "note", "not compiled yet", "the first start compiles")
    else:
        yield Finding("kernel cache", "ok", str(folder))


def _check_java(patient: Patient) -> Iterator[Finding]:
    if find_spec("pyspark") is None:
        yield Finding("java", "ok", "not needed: the extra `spark` is not installed")
        return
    named = patient.environment.get("JAVA_HOME")
    program = str(Path(named) / "bin" / "java") if named else shutil.which("java")
    mend = f"install Java {JAVA_MIN} or newer for Spark, or set JAVA_HOME; the broker needs none"
    if program is None:
        yield Finding("java", "wrong", "none, but pyspark is installed", mend)
        return
    try:
        ran = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    except OSError as error:
        yield Finding("java", "wrong", str(error), mend)
        return
    number = re.search(r'version "(\d+)', ran.stderr)
    found = f"{program}: {(ran.stderr.splitlines() or ['says nothing'])[0]}"
    right = number is not None and int(number[1]) >= JAVA_MIN
    yield Finding("java", "ok" if right else "wrong", found, "" if right else mend)


def _check_limits(patient: Patient) -> Iterator[Finding]:
    settings = patient.settings
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    needed = processlimits.descriptors_for(settings)
    found = f"RLIMIT_NOFILE {_limit(hard)}, {settings.sessions_max} sessions take {needed}"
    if not processlimits.has_descriptors(needed):
        mend = f"set LimitNOFILE={needed} (ulimit -Hn), or lower sessions_max"
        yield Finding("descriptors", "wrong", found, mend)
    else:
        yield Finding("descriptors", "ok", found)
    if found := processlimits.too_small_for(settings):
        yield Finding("file size", "wrong", found, "set LimitFSIZE=infinity (ulimit -f)")


def _check_logout(_patient: Patient) -> Iterator[Finding]:
    """systemd-logind removes a user's shared memory at the end of the last login (RemoveIPC)."""
    user = os.geteuid()
    if user < _first_user() or not Path("/run/systemd/seats").exists():
        return
    name = pwd.getpwuid(user).pw_name
    if not Path(f"/var/lib/systemd/linger/{name}").exists():
        mend = f"loginctl enable-linger {name}, or run it as a system user"
        found = "the broker's board may be removed when you log out (RemoveIPC of logind)"
        yield Finding("logout", "note", found, mend)


# ------------------------------------------------------------------------------------- the store


def _check_owner(patient: Patient) -> Iterator[Finding]:
    home, user = patient.home, os.geteuid()
    try:
        ownfiles.require_links_lead(patient.store)
    except FileNotFoundError as error:
        yield Finding("home", "wrong", str(error), "a start refuses it; or name another --home")
        return
    if not home.exists():
        parent = next(path for path in home.parents if path.exists())
        if readonly.is_read_only(parent):
            yield Finding("home", "wrong", f"{home}: {parent} is read-only", readonly.MEND)
        elif os.access(parent, os.W_OK | os.X_OK):
            yield Finding("home", "ok", f"{home} is not there yet; a start makes it")
        else:
            mend = "choose another --home, or make it and give it to the broker's user"
            yield Finding("home", "wrong", f"{home}: {parent} is not writable", mend)
        return
    mend = f"chown -R {pwd.getpwuid(user).pw_name} {home}, with the broker stopped"
    foreign = [path for path in _own_files(home) if path.lstat().st_uid != user]
    if foreign:
        found = f"{len(foreign)} files of other users, {foreign[0]} is the first"
        yield Finding("owner", "wrong", found, mend)
        return
    yield Finding("owner", "ok", f"all of {home} is this user's")
    for folder in (patient.store, run_of(home)):
        if folder.exists():
            yield from _check_rights(folder)


def _check_rights(folder: Path) -> Iterator[Finding]:
    mend = f"chmod 700 {folder}"
    if stat.S_IMODE(folder.stat().st_mode) & 0o077:
        yield Finding("rights", "wrong", f"{folder} is open to other users", mend)
    elif readonly.is_read_only(folder):
        yield Finding("rights", "wrong", f"nothing can be written in {folder}", readonly.MEND)
    elif not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield Finding("rights", "wrong", f"{folder} is not writable", mend)


def _check_home(patient: Patient) -> Iterator[Finding]:
    """What a start refuses about a home that is there."""
    home = patient.home
    if not home.exists():
        return
    try:
        ownfiles.require_home(home)
    except NotPermitted as error:
        yield Finding("home", "wrong", str(error), f"see {home} and the links on the way to it")
    fine = (home, patient.store, home / config.FILE_NAME)
    links = [path for path in _own_files(home) if path.is_symlink() and path not in fine]
    if links:
        found = f"{len(links)} symbolic links, {links[0]} is the first: a start refuses them"
        mend = "put there what they name; the store as a whole may be a link"
        yield Finding("home", "wrong", found, mend)


def _check_disk(patient: Patient) -> Iterator[Finding]:
    place = next(p for p in (patient.store, *patient.store.parents) if p.exists())
    room = os.statvfs(place)
    free = room.f_bavail * room.f_frsize
    segment = room_for_segment(patient.settings.mapped_file_size_commit_log)
    kind = _file_system(place)
    found = f"{_mib(free)} free on {kind}, a segment takes {_mib(segment)}"
    if free < segment:
        mend = "free space: sends are refused once the segment and its spare are full"
        yield Finding("disk", "wrong", found, mend)
    elif room.f_files and room.f_favail < 1000:
        mend = "free some: each queue has files of its own"
        yield Finding("disk", "wrong", f"{room.f_favail} inodes are left", mend)
    elif kind in _REMOTE | _IN_MEMORY:
        mend = "keep the store on a local disk: durable means what the file system makes of fsync"
        yield Finding("disk", "note", found, mend)
    else:
        yield Finding("disk", "ok", found)


def _check_runtime(patient: Patient) -> Iterator[Finding]:
    """What a kill leaves is mended by the next start; what stands in its way is wrong."""
    if _is_running(patient):
        yield from _check_broker(patient.home)
        return
    stray = []
    if read_board_file(patient.home).get("board"):
        stray.append(str(run_of(patient.home) / "board"))
    if (run_of(patient.home) / SOCKET_NAME).exists():
        stray.append(str(run_of(patient.home) / SOCKET_NAME))
    if patient.store.exists():
        stray += [f"/dev/shm{board}" for board in epoch.boards_of(patient.home)]
    if stray:
        mend = "nothing to do: the next start recovers from them, and removes them"
        yield Finding("runtime files", "note", f"left by a kill: {', '.join(stray)}", mend)
    else:
        yield Finding("runtime files", "ok", "none is stale; no broker runs")


def _check_broker(home: Path) -> Iterator[Finding]:
    name, held = board_name(home), HELD_UNSEEN.format(home=home)
    if not name:
        yield Finding("broker", "wrong", f"{held}: {board_file(home)} names no board", MEND_UNSEEN)
        return
    try:
        board = attach_board(name, owner=owner_of(home))
    except GantryError as error:
        yield Finding("broker", "wrong", f"{held}: {error}", MEND_UNSEEN)
        return
    state = BrokerState(board.half(layout.BOARD_STATE))
    stopped = _stopped(board)
    if stopped:
        who = ", ".join(f"{role.name.lower()} ({pid})" for role, pid in stopped.items())
        mend = f"kill -CONT {' '.join(map(str, dict.fromkeys(stopped.values())))}"
        yield Finding("broker", "wrong", f"processes of it are stopped: {who}", mend)
    elif state == BrokerState.FAILED:
        number = board.half(layout.BOARD_FAILED_ERRNO)
        mend = "docs/operate.md, `Failed store`: mend the disk, then start it again"
        yield Finding("broker", "wrong", f"the store failed: {why_failed(number)}", mend)
    elif state == BrokerState.READY and (why := _why_mute(home)):
        mend = "look at its log; if it says nothing and answers nobody, restart it"
        yield Finding("broker", "wrong", why, mend)
    else:
        yield Finding("broker", "ok", f"it runs and is {state.name.lower()}")


def _stopped(board: Board) -> dict[Role, int]:
    """Its processes that SIGSTOP, a debugger or ^Z has stopped."""
    pids = {role: board.process(role)["pid"] for role in Role}
    return {role: pid for role, pid in pids.items() if pid and _is_stopped(pid)}


def _is_stopped(pid: int) -> bool:
    try:
        status = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return False
    return status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def _why_mute(home: Path) -> str:
    """Why a broker that is ready does not answer; empty if it does."""
    try:
        look_at(home, ANSWER_S).close()
    except GantryError as error:
        return str(error)
    return ""


CHECKS: Final[tuple[Check, ...]] = (
    _check_python,
    _check_packages,
    _check_executable_memory,
    _check_shared_memory,
    _check_namesakes,
    _check_memory,
    _check_kernels,
    _check_java,
    _check_limits,
    _check_logout,
    _check_owner,
    _check_home,
    _check_disk,
    _check_runtime,
)


def _is_running(patient: Patient) -> bool:
    return patient.store.is_dir() and is_held(patient.store)


def _own_files(home: Path) -> Iterator[Path]:
    yield home
    for name in (config.FILE_NAME, "store", "run"):
        path = home / name
        if path.exists():
            yield path
        for folder, folders, files in os.walk(path):
            yield from (Path(folder) / name for name in (*folders, *files))


def _file_system(place: Path) -> str:
    """Type of the file system around a path: the longest mount point that is above it."""
    found, longest = "an unknown file system", -1
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        point, kind = line.split(" ")[1:3]
        above = place.resolve().is_relative_to(point.replace("\\040", " "))
        if above and len(point) > longest:
            found, longest = kind, len(point)
    return found


def _first_user() -> int:
    """The first uid that is no system user's."""
    try:
        text = Path("/etc/login.defs").read_text(encoding="utf-8")
    except OSError:
        return 1000
    found = re.search(r"^UID_MIN\s+(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 1000


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.0f} MiB"
