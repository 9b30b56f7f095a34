"""Agents in processes of their own: fork, watch, speak to, start again.

A child is replaced only after its pidfd has said that it is gone. The supervisor must have one
thread when it forks. `Resident` is the same for agents that live in the supervisor's own loop.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import os
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TextIO, cast

from gantrymq.brokerd import agents
from gantrymq.brokerd.agents import AgentEnv
from gantrymq.brokerd.sessions import SessionRecord
from gantrymq.brokerd.unwaiting import Unwaiting
from gantrymq.shm import wire
from gantrymq.shm.codes import ExitCode, Role
from gantrymq.shm.errors import BrokerGone, Corrupt, GantryError, Incompatible
from gantrymq.shm.exitcode import exit_code
from gantrymq.workers.agent import run
from gantrymq.workers.channel import SocketSessionTable
from gantrymq.workers.host import Host

_PR_SET_PDEATHSIG: Final = 1
#: Agents that clients wait for.
WAKE_OTHERS: Final = frozenset({Role.WRITER, Role.FLUSHER, Role.TXN_CHECKER})
#: The note by which the supervisor knows that a process's agents are open.
AGENT_UP: Final = "agent_up"
#: The note that says of what an agent dies, and how much of it: a frame has 64 KiB at most.
AGENT_FAILED: Final = "agent_failed"
_ERROR_MAX: Final = 2000
_TRACE_MAX: Final = 8000
#: Errors of a send that say nothing of the child. This user's processes, clients too, may have so
#: many descriptors on their way together.
_TRY_AGAIN: Final = (errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM)
#: Deaths after less than this count as quick.
QUICK_NS: Final = 10_000_000_000
QUICK_DEATHS_MAX: Final = 6
BACKOFF_FIRST_NS: Final = 20_000_000
BACKOFF_MAX_NS: Final = 2_000_000_000


class Outbox:
    """The supervisor's end of a channel: frames wait here while the other side is slow."""

    def __init__(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self.channel = channel
        self._waiting: deque[tuple[wire.Frame, SessionRecord | None]] = deque()

    @property
    def behind(self) -> bool:
        """True while frames wait for room."""
        return bool(self._waiting)

    def tell(self, frame: wire.Frame, session: SessionRecord | None = None) -> None:
        """Send in order; descriptors of `session` go along."""
        self._waiting.append((frame, session))
        self.flush()

    def flush(self) -> None:
        """Send what fits. A dead child's frames are dropped: its successor is told everything."""
        while self._waiting:
            frame, session = self._waiting[0]
            if session is None or session.is_open:
                descriptors = session.descriptors if session else ()
                try:
                    wire.send(self.channel, frame, descriptors)
                except BlockingIOError:
                    return
                except OSError as error:
                    if error.errno in _TRY_AGAIN:
                        return
                    self._waiting.clear()
                    return
            self._waiting.popleft()


class Crew(Protocol):
    """One process's agents as the supervisor sees them."""

    roles: Sequence[Role]
    outbox: Outbox
    pid: int
    is_up: bool

    def ended(self) -> int | None:
        """Exit code, negative for a signal; None while it lives."""
        ...


@dataclass(slots=True)
class Child:
    """Agents in a forked process."""

    roles: Sequence[Role]
    outbox: Outbox
    pid: int
    pidfd: int
    started_ns: int
    is_up: bool = False  # its agents are open
    hung_ns: int = 0  # more than 0: it hangs, for so long

    def ended(self) -> int | None:
        """Exit code, negative for a signal; None while it lives."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def kill(self) -> None:
        """End it; the pidfd says when it is gone."""
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Give back what watched it. It has ended."""
        os.close(self.pidfd)
        self.outbox.channel.close()


@dataclass(slots=True)
class Resident:
    """Agents in the supervisor's own loop; if they fail, all does."""

    roles: Sequence[Role]
    outbox: Outbox
    host: Host
    pid: int
    is_up: bool = False

    def ended(self) -> int | None:
        """0 once all have finished."""
        return 0 if self.host.finished else None


@dataclass(slots=True)
class Backoff:
    """How long to wait before the next start, and when to give up."""

    deaths: int = 0
    #: What the last one died of, if it has said so.
    error: str = ""

    def after_death(self, lived_ns: int) -> int | None:
        """Nanoseconds to wait; None after too many quick deaths."""
        self.deaths = self.deaths + 1 if lived_ns < QUICK_NS else 1
        if self.deaths >= QUICK_DEATHS_MAX:
            return None
        return min(BACKOFF_FIRST_NS << (self.deaths - 1), BACKOFF_MAX_NS)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """The supervisor's end and the agents' end."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def fork_child(roles: Sequence[Role], env: AgentEnv, keep: Sequence[int]) -> Child:
    """Start the agents of `roles` in a child that keeps only `keep` and its channel open."""
    _require_one_thread()
    ours, theirs = socket_pair()
    parent = os.getpid()
    gc.freeze()
    pid = os.fork()
    if pid == 0:
        _child(roles, env, theirs, [*keep, theirs.fileno()], parent)
    theirs.close()
    return Child(roles, Outbox(ours), pid, os.pidfd_open(pid), env.clock.monotonic_ns())


def _require_one_thread() -> None:
    """Raise GantryError beside other threads: a fork would copy their locks as they are, held."""
    tasks = len(os.listdir("/proc/self/task"))
    if tasks != 1:
        raise GantryError(f"a fork copies one thread only, and this process has {tasks}")


def _child(
    roles: Sequence[Role],
    env: AgentEnv,
    channel: socket.socket,
    keep: Sequence[int],
    parent: int,
) -> None:
    """Run the agents and leave the process; nothing of the parent's stack is ever unwound.

    Objects of the parent stay referenced from that stack, so none of them closes a descriptor
    number that belongs to somebody else here.
    """
    table = SocketSessionTable(channel)
    code = int(ExitCode.STORE)
    try:
        gc.freeze()
        sys.stderr = cast(TextIO, Unwaiting(2))
        _detach_from_parent(parent, keep)
        if not any(role in WAKE_OTHERS for role in roles):
            # Who is woken by the writer must not take its CPU while it answers its clients.
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        _run_agents(roles, env, table)
        code = ExitCode.OK
    except BrokerGone:
        code = ExitCode.NO_BROKER  # the supervisor is gone, and with it whoever could be told
    except BaseException as error:
        code = exit_code(error)
        _tell_why(table, error)
    finally:
        os._exit(code)


def _tell_why(table: SocketSessionTable, error: BaseException) -> None:
    """Say to the supervisor of what the agents die. Never raises, and never waits for long."""
    with contextlib.suppress(Exception):
        trace = "".join(traceback.format_exception(error)[-6:])
        said, trace = _plain(said_of(error)[:_ERROR_MAX]), _plain(trace[-_TRACE_MAX:])
        table.note("error", "agent_failed", error=said, trace=trace)


def said_of(error: BaseException) -> str:
    """An error in one line: of a file also its name, which its `repr` leaves out."""
    return "".join(traceback.format_exception_only(error)).strip()


def _plain(text: str) -> str:
    """In characters that a frame can carry: names of files may have others."""
    return text.encode(errors="backslashreplace").decode()


def _detach_from_parent(parent: int, keep: Sequence[int]) -> None:
    signal.set_wakeup_fd(-1)
    # A terminal's ^C and a service manager's SIGTERM reach the whole group; the supervisor alone
    # knows the order of a clean stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(ExitCode.NO_BROKER)  # it died before the line above
    allowed = {0, 1, 2, *keep}
    for descriptor in [int(name) for name in os.listdir("/proc/self/fd")]:
        if descriptor not in allowed:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(descriptor)


def _run_agents(roles: Sequence[Role], env: AgentEnv, table: SocketSessionTable) -> None:
    host = _open_agents(roles, env, table)
    table.note("debug", AGENT_UP)
    run(
        host,
        clock=env.clock,
        waiter=host.waiter,
        keep_running=lambda: not host.finished,
    )


def _open_agents(roles: Sequence[Role], env: AgentEnv, table: SocketSessionTable) -> Host:
    """Raises what opening raises; a file that cannot be read is told at once.

    No successor would read it otherwise.
    """
    try:
        return agents.build_host(roles, env, table)
    except (Corrupt, Incompatible) as error:
        table.failed(0, str(error))
        raise


def name_of(roles: Sequence[Role]) -> str:
    """For the log and the process list."""
    return "+".join(role.name.lower() for role in roles)


def said_of_code(code: int) -> str:
    """How a process ended that has not said why: its exit code, or the name of a signal."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):  # a signal for real time has no name
        return f"signal {signal.Signals(-code).name}"
    return f"signal {-code}"
