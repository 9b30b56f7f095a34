"""Whether every agent's heartbeat goes on: told to the service manager and to the log.

An agent that hangs is killed after a while (only a death hands work over), and replaced as any that
has died. Where that is switched off, or does not help, a service manager that misses the pats ends
the broker, and starts it again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gantrymq.shm import layout
from gantrymq.shm.codes import BrokerState

if TYPE_CHECKING:
    from gantrymq.brokerd.children import Child
    from gantrymq.brokerd.log import Log
    from gantrymq.brokerd.notify import ServiceManager
    from gantrymq.shm.board import Board
    from gantrymq.shm.codes import Role

#: An idle agent beats about once a second; a sync of a disk that hangs may take many.
SILENT_NS: Final = 10_000_000_000
_STATUS_NS: Final = 5_000_000_000
#: How often a manager is told again what it had no room for.
_REPEAT_NS: Final = 500_000_000
#: How often hung processes are looked for.
_LOOK_NS: Final = 500_000_000
#: Of the time between two looks no more counts: the supervisor itself may have stood still, by a
#: signal, a suspended machine or a want of processors, and its children with it.
_LOOK_COUNTS_NS: Final = 1_000_000_000
_NS_PER_TICK: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_PID: Final = layout.PROCESS.offset("pid")


class Watchdog:
    """Looks at the board's heartbeats; pats only when all have advanced since the last pat."""

    def __init__(
        self, board: Board, roles: Sequence[Role], manager: ServiceManager, log: Log
    ) -> None:
        self._board = board
        self._manager = manager
        self._log = log
        self._last = dict.fromkeys(roles, -1)
        self._since_ns = dict.fromkeys(roles, -1)
        self._waited_for = set(roles)
        self._silent: set[Role] = set()
        self._next_ns = 0
        self._status_ns = self._repeat_ns = 0

    @property
    def silent(self) -> set[Role]:
        """Agents whose heartbeat stands still for longer than SILENT_NS."""
        return self._silent

    def look(self, now_ns: int) -> None:
        """See who has advanced; pat, renew the status and repeat what is owed, when it is due."""
        for role, before in self._last.items():
            at = self._board.process_at(role)
            beat = self._board.word(at + layout.PROCESS_HEARTBEAT)
            dead = self._board.half(at + _PID) == 0  # its successor is on its way
            if beat != before or dead or self._since_ns[role] < 0:
                self._last[role] = beat
                self._note_beat(role, now_ns)
            elif now_ns - self._since_ns[role] > SILENT_NS and role not in self._silent:
                self._silent.add(role)
                seconds = SILENT_NS // 1_000_000_000
                self._log.warning("agent_silent", agent=role.name.lower(), seconds=seconds)
                self._status_ns = 0
        if now_ns >= self._repeat_ns:
            self._repeat_ns = now_ns + _REPEAT_NS
            self._manager.repeat()
        state = self._board.half(layout.BOARD_STATE)
        if state != BrokerState.STARTING:  # until then the start's own time limit counts
            self._pat(now_ns)
        if state == BrokerState.READY and now_ns >= self._status_ns:
            self._status_ns = now_ns + _STATUS_NS
            self._show()

    def _note_beat(self, role: Role, now_ns: int) -> None:
        if role in self._silent:
            self._silent.discard(role)
            silent_ms = (now_ns - self._since_ns[role]) // 1_000_000
            self._log.info("agent_beats_again", agent=role.name.lower(), silent_ms=silent_ms)
            self._status_ns = 0
        self._since_ns[role] = now_ns
        self._waited_for.discard(role)

    def _pat(self, now_ns: int) -> None:
        wanted = self._manager.watchdog_ns
        if wanted and now_ns >= self._next_ns and not self._waited_for:
            self._next_ns = now_ns + wanted
            self._waited_for = set(self._last)
            self._manager.tell(WATCHDOG=1)

    def _show(self) -> None:
        board = self._board
        names = ", ".join(sorted(role.name.lower() for role in self._silent))
        state = f"does not go on: {names}" if names else "ready"
        sessions = board.half(layout.BOARD_SESSION_COUNT)
        topics = board.half(layout.BOARD_TOPIC_COUNT)
        appended = board.word(layout.BOARD_APPENDED)
        self._manager.show(f"{state}; {sessions} sessions, {topics} topics, log {appended} bytes")


@dataclass(slots=True)
class Silence:
    """A process whose agents' heartbeats stand still."""

    beats: tuple[int, ...]
    cpu_ns: int
    hung_ns: int = 0


class Hangs:
    """Finds processes of agents that do nothing though they could.

    What counts is time in which the process could have worked: asleep, or stopped by a signal, all
    of it; running only as much as it got of a processor; in the kernel on a device (state D), or
    held by a debugger, nothing.
    """

    def __init__(self, board: Board, limit_s: int) -> None:
        """`limit_s`: 0 means never."""
        self._board = board
        self._limit_ns = limit_s * 1_000_000_000
        self._silences: dict[int, Silence] = {}
        self._looked_ns = 0

    def look(self, children: Iterable[Child], now_ns: int) -> list[tuple[Child, int]]:
        """Those of `children`, which are all open, that hang, and for how many ns.

        Call it as often as you like.
        """
        passed_ns = now_ns - self._looked_ns
        if not self._limit_ns or passed_ns < _LOOK_NS:
            return []
        self._looked_ns = now_ns
        before, self._silences = self._silences, {}
        for child in children:
            silence = self._silence_of(
                child, before.get(child.pid), min(passed_ns, _LOOK_COUNTS_NS)
            )
            self._silences[child.pid] = silence
            if silence.hung_ns >= self._limit_ns:
                child.hung_ns = silence.hung_ns
        return [(child, child.hung_ns) for child in children if child.hung_ns]

    def _silence_of(self, child: Child, before: Silence | None, passed_ns: int) -> Silence:
        state, cpu_ns = _usage(child.pid)
        places = [self._board.process_at(role) + layout.PROCESS_HEARTBEAT for role in child.roles]
        beats = tuple(map(self._board.word, places))
        if before is None or before.beats != beats:
            return Silence(beats, cpu_ns)
        counts = {"S": passed_ns, "T": passed_ns, "R": min(passed_ns, cpu_ns - before.cpu_ns)}
        return Silence(beats, cpu_ns, before.hung_ns + counts.get(state, 0))


def _usage(pid: int) -> tuple[str, int]:
    """State of a process, and how long it has had a processor; nothing if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return "", 0
    return fields[0].decode(), (int(fields[11]) + int(fields[12])) * _NS_PER_TICK
