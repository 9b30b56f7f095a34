"""Who is at the other end of a connection, and what that user may ask for.

One uid is one trust domain: its processes map the log. So the broker's own uid is served, and root,
who could do all of it anyway. Nobody else is, unless named a guest; a guest may not send what
`wire.OWNERS_ONLY` lists. No setting names guests.
"""

from __future__ import annotations

import os
import resource
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_UCRED: Final = struct.Struct("3i")
_ROOT: Final = 0
#: Descriptors that no client gets.
DESCRIPTORS_KEPT: Final = 64
#: Of the numbers behind the command in /proc/PID/stat, the start in clock ticks since the boot.
_START_TICKS: Final = 19


@dataclass(frozen=True, slots=True)
class Peer:
    """A process as the kernel names it; a pid alone may come again, its start may not."""

    pid: int  # 0: in a pid namespace that this process does not see
    uid: int
    started: int  # clock ticks since the boot; 0: it had ended already, or is not to be seen

    def is_same_process(self, other: Peer) -> bool:
        """True if both are surely one process."""
        return self == other and bool(self.pid and self.started)


@dataclass(frozen=True, slots=True)
class Access:
    """Who may connect, and who is an owner."""

    owner: int
    guests: frozenset[int] = frozenset()

    def is_owner(self, uid: int) -> bool:
        """The user who started the broker, and root."""
        return uid in (self.owner, _ROOT)

    def may_connect(self, uid: int) -> bool:
        """Owners and guests."""
        return self.is_owner(uid) or uid in self.guests


def peer_of(channel: socket.socket) -> Peer:
    """Who connected, by SO_PEERCRED: what a client says of itself counts for nothing."""
    credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _gid = _UCRED.unpack(credentials)
    return Peer(pid, uid, started_of(pid))


def started_of(pid: int) -> int:
    """When a process was started, in clock ticks since the boot; 0 if it is not to be seen."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    # The command may hold blanks and brackets; nothing behind it does.
    return int(stat.rpartition(")")[2].split()[_START_TICKS])


def is_reserved(descriptor: int) -> bool:
    """True if a descriptor is one of the last: those are for agents that have to be replaced.

    The kernel gives the lowest number that is free.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit != resource.RLIM_INFINITY and descriptor >= limit - DESCRIPTORS_KEPT


def own_access() -> Access:
    """That of a broker of this process."""
    return Access(os.geteuid())
