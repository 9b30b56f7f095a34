"""Sessions, children and the order of start and stop: the broker's own agent.

It is driven by the same loop as every other. Signals and frames only set a phase; each step of a
stop is taken when the one before has ended.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from gantrymq.brokerd import agents, children
from gantrymq.brokerd.broker import Broker
from gantrymq.brokerd.children import Backoff, Child, Crew, Outbox, Resident
from gantrymq.brokerd.control import ControlServer
from gantrymq.brokerd.desk import SessionDesk
from gantrymq.brokerd.log import traced
from gantrymq.brokerd.notify import ServiceManager
from gantrymq.brokerd.reactor import Reactor
from gantrymq.brokerd.sessions import SessionRecord
from gantrymq.brokerd.storelost import StoreWatch
from gantrymq.brokerd.subscriptions import fields_of
from gantrymq.brokerd.textfile import Textfile
from gantrymq.brokerd.vacancies import Vacancies
from gantrymq.brokerd.watchdog import Hangs, Watchdog
from gantrymq.shm import layout, wire
from gantrymq.shm.codes import BrokerState, ExitCode, Role
from gantrymq.shm.errors import STORE_LOST, why_failed
from gantrymq.workers.channel import SocketSessionTable
from gantrymq.workers.inhand import forget_hand

#: Processes of each profile; the order within and between is that of a clean stop.
CREWS: Final[dict[str, tuple[tuple[Role, ...], ...]]] = {
    "standard": tuple((role,) for role in agents.CONSTRUCTORS),
    "small": (tuple(agents.CONSTRUCTORS),),
    "temporary": (tuple(agents.CONSTRUCTORS),),
}
_TICK_NS: Final = 500_000_000
_RETRY_NS: Final = 1_000_000
#: After a failure of the store, agents have this long to tell their clients.
_FAILED_STOP_NS: Final = 5_000_000_000
#: Between two lines about groups that were dropped.
_DROPPED_PAUSE_NS: Final = 60_000_000_000
#: What a service manager gives the last steps of a stop, behind `stop_timeout`.
_GRACE_S: Final = 10


class Supervisor:
    """Keeps one life of the broker going, and ends it."""

    name = "supervisor"

    def __init__(self, broker: Broker, manager: ServiceManager) -> None:
        self.broker = broker
        self.reactor = Reactor()
        self.exit_code = ExitCode.OK
        self.clean = False
        self.finished = False
        self.desk = SessionDesk(broker, self._tell_all, self.stop, self._pids)
        self._clock = broker.env.clock
        self._log = broker.log
        self._manager = manager
        self._watchdog = Watchdog(broker.board, tuple(agents.CONSTRUCTORS), manager, broker.log)
        limit_s = broker.configuration.settings.hung_agent_timeout
        self._hangs = Hangs(broker.board, limit_s)
        self._vacancies = Vacancies(broker.metadata, broker.sessions, self._tell_every_crew)
        self._textfile = Textfile(broker)
        self._store = StoreWatch(broker.home, broker.lock.number)
        self._control = ControlServer(broker.home, self.reactor, self.desk, broker.log)
        self._crews: list[Crew] = []
        self._backoffs: dict[Sequence[Role], Backoff] = {}
        self._not_up = set(CREWS[broker.configuration.settings.profile])
        self._restarts: list[tuple[int, Sequence[Role]]] = []  # (when, who)
        self._stopping = False
        self._stop_deadline_ns = sys.maxsize  # monotonic
        self._told_to_stop: Crew | None = None
        self._dropped = self._tell_dropped_ns = 0  # groups that were dropped since the last line

    # ------------------------------------------------------------------------------- as an agent

    def do_work(self, now_ns: int) -> int:
        """One look at everything that is ready or due."""
        if why := self._store.lost(now_ns):
            self._give_up(why)
            return 1
        work = self.reactor.poll()
        self._control.answer()
        self._write_groups(now_ns)
        for crew in self._crews:
            crew.outbox.flush()
        self._watchdog.look(now_ns)
        self._notice_failure()
        self._control.look(now_ns)
        self._textfile.write_if_due(now_ns)
        if self._stopping:
            return work + self._advance_stop(now_ns)
        self._end_hung(now_ns)
        self._vacancies.look(self._crews, now_ns)
        return work + self._start_again(now_ns)

    def arm(self, now_ns: int) -> int:
        """How long nothing is due."""
        if any(crew.outbox.behind for crew in self._crews):
            return _RETRY_NS
        due = [when - now_ns for when, _roles in self._restarts]
        groups_due = self.broker.metadata.groups.due_in(now_ns)
        due += [wait for wait in (groups_due, self._control.wait_ns(now_ns)) if wait is not None]
        if self._manager.watchdog_ns:
            due.append(self._manager.watchdog_ns)
        return max(1, min([_TICK_NS, *due]))

    def disarm(self) -> None:
        """Nothing was announced."""

    def close(self) -> None:
        """End whatever is left: after a clean stop that is nothing."""
        for crew in self._crews:
            if isinstance(crew, Child):
                os.kill(crew.pid, signal.SIGKILL)
                os.waitpid(crew.pid, 0)
                crew.close()
        self._control.close()
        self.reactor.close()

    # ----------------------------------------------------------------------------- start and stop

    def start(self) -> children.Resident | None:
        """Start the agents and open the door. Returns what must run in this process's loop.

        What it could not start whole has ended when it raises.
        """
        try:
            self.broker.begin()
            return self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> children.Resident | None:
        profile = self.broker.configuration.settings.profile
        resident = None
        for roles in CREWS[profile]:
            if profile == "temporary":
                resident = self._take_in(roles)
            else:
                self._fork(roles)
        self._note_process(Role.SUPERVISOR, os.getpid())
        if resident is not None:
            self._crew_is_up(resident)
        return resident

    def _crew_is_up(self, crew: Crew) -> None:
        """Open the door once every agent is open for the first time."""
        crew.is_up = True
        self._not_up.discard(tuple(crew.roles))
        if self._not_up or self._stopping or self.broker.state != BrokerState.STARTING:
            return
        self._control.listen()
        self.broker.set_state(BrokerState.READY)
        self._manager.tell(READY=1, STATUS="ready")
        self._log.info("ready", home=str(self.broker.home), epoch=f"{self.broker.life.epoch:x}")

    def stop(self, why: str) -> None:
        """Begin a clean stop; a second call changes nothing."""
        if self._stopping:
            return
        bound_s = self.broker.configuration.settings.stop_timeout
        self._manager.extend(f"stopping: {why}", bound_s + _GRACE_S)
        self._stop_deadline_ns = self._clock.monotonic_ns() + bound_s * 1_000_000_000
        self._begin_stop(why)

    def fail(self, code: ExitCode, why: str) -> None:
        """Begin to end after a failure, with an exit code that says so; a stop ends so, too.

        Of a store that was moved away agents may meet an error before the supervisor looks.
        """
        if self.exit_code == ExitCode.OK:
            if code != ExitCode.STORE_BUSY and (lost := self._store.why_lost()):
                self._give_up(f"{lost} ({why})")
                return
            self.exit_code = code
            self._log.error("failed", why=why, exit_code=int(code))
            self._manager.show(f"failed: {why}")
            self._restarts.clear()
            deadline_ns = self._clock.monotonic_ns() + _FAILED_STOP_NS
            self._stop_deadline_ns = min(self._stop_deadline_ns, deadline_ns)
        if not self._stopping:
            self._begin_stop(why)

    def _give_up(self, why: str) -> None:
        """End at once: whatever is still written goes into a store that is not ours.

        With a code by which nobody starts it again: the other store may be on its way still.
        """
        self.broker.board.set_half(layout.BOARD_FAILED_ERRNO, STORE_LOST)
        self.broker.set_state(BrokerState.FAILED)
        self.fail(ExitCode.STORE_BUSY, why)
        self.finished = True

    def _begin_stop(self, why: str) -> None:
        self._stopping = self.desk.closed = True
        self.broker.set_state(BrokerState.STOPPING)
        self._control.stop_listening()
        self._manager.tell(STOPPING=1)
        self._log.info("stopping", why=why)

    def _advance_stop(self, now_ns: int) -> int:
        """Stop crews one after the other; what one still hands on is seen by the next.

        Also what a dead one has left is handed on, by its successor.
        """
        left = [roles for _when, roles in self._restarts] + [crew.roles for crew in self._crews]
        if left and now_ns > self._stop_deadline_ns:
            names = ", ".join(map(children.name_of, left))
            self.fail(ExitCode.STORE, f"the stop took too long: {names} did not finish")
            self.finished = True
            return 1
        if self._restarts:
            return self._start_again(now_ns)
        if self._crews and self._told_to_stop is not self._crews[0]:
            self._told_to_stop = self._crews[0]
            self._told_to_stop.outbox.tell(wire.Stop())
            return 1
        for crew in self._crews:
            if isinstance(crew, Resident) and crew.ended() is not None:
                self._crews.remove(crew)
                return 1
        if not self._crews:
            self.clean = self.exit_code == ExitCode.OK
            self.finished = True
        return 0

    def _notice_failure(self) -> None:
        if self.broker.state == BrokerState.FAILED:
            number = self.broker.board.half(layout.BOARD_FAILED_ERRNO)
            self.fail(_code_of(number), f"the store failed: {why_failed(number)}")

    # ------------------------------------------------------------------------------------- agents

    def _fork(self, roles: Sequence[Role]) -> None:
        keep = [self.broker.lock.number, *(bell.fileno() for bell in self.broker.bells)]
        child = children.fork_child(roles, self.broker.env, keep)
        self.reactor.watch(child.pidfd, partial(self._child_ended, child))
        self._introduce(child)

    def _take_in(self, roles: Sequence[Role]) -> Resident:
        ours, theirs = children.socket_pair()
        host = agents.build_host(roles, self.broker.env, SocketSessionTable(theirs), self.reactor)
        resident = Resident(roles, Outbox(ours), host, os.getpid())
        self._introduce(resident)
        return resident

    def _introduce(self, crew: Crew) -> None:
        """Listen to a fresh crew, and tell it of every session, of ended ones as far as needed."""
        self._crews.append(crew)
        # Also for a successor: clean stops go in the order of the profile.
        order = list(CREWS[self.broker.configuration.settings.profile])
        self._crews.sort(key=lambda crew: order.index(tuple(crew.roles)))
        channel = crew.outbox.channel
        self.reactor.watch(channel.fileno(), partial(self._hear, crew))
        if Role.GROUPS in crew.roles:
            for session in self.broker.sessions.unsettled:
                crew.outbox.tell(session.added(), session)
                crew.outbox.tell(wire.SessionRemoved(session.session))
        if _meets_sessions(crew):
            for session in self.broker.sessions:
                crew.outbox.tell(session.added(), session)
        for role in crew.roles:
            self._note_process(role, crew.pid)

    def _hear(self, crew: Crew) -> None:
        try:
            received = wire.receive(crew.outbox.channel)
        except BlockingIOError:
            return
        except (OSError, msgspec.MsgspecError):
            received = None
        if received is None:
            # Its process is ending; the pidfd says when it is gone.
            self.reactor.forget(crew.outbox.channel.fileno())
            return
        match received[0]:
            case wire.CutOff(session, why):
                self._evict(session, why)
            case wire.Failed(number, what):
                self.fail(_code_of(number), what)
            case wire.Note(_level, children.AGENT_UP, _fields):
                self._crew_is_up(crew)
            case wire.Note() as note:
                self._heed_alone(crew, note)

    def _heed_alone(self, crew: Crew, note: wire.Note) -> None:
        """Do what an agent's news asks for; what fails of that is told, and ends nobody."""
        try:
            self._heed(crew, note)
        except Exception as error:
            name, trace = children.name_of(crew.roles), traced(error)
            self._log.error(
                "note_failed", agent=name, note=note.event, why=repr(error), trace=trace
            )

    def _heed(self, crew: Crew, note: wire.Note) -> None:
        if note.event in (wire.GROUP_JOINED, wire.GROUP_LEFT, wire.GROUPS_DROPPED):
            self._heed_groups(note)
            return
        if note.event == wire.QUEUES_BEGIN:
            self.broker.metadata.begin_queues(note.fields["queues"])
            return
        if note.event == wire.GROUP_TOPIC_WANTED:
            self.broker.metadata.have_again(str(note.fields["topic"]))
            return
        if note.event == wire.SESSIONS_SETTLED:
            for session in note.fields["sessions"]:
                self.broker.sessions.settled(session)
            return
        if note.event == wire.PASSED:
            self._vacancies.passed(crew.pid, note.fields["number"])
            return
        if note.event == wire.TOPIC_WANTED:
            self.broker.metadata.have(str(note.fields["topic"]))
        self._write(crew, note)

    def _heed_groups(self, note: wire.Note) -> None:
        metadata = self.broker.metadata
        if note.event == wire.GROUP_JOINED:
            self.desk.roster.joined(note.fields)
            metadata.groups.add(str(note.fields["group"]), fields_of(note.fields))
        elif note.event == wire.GROUP_LEFT:
            self.desk.roster.left(note.fields["session"])
        else:
            names = [str(name) for name in note.fields["groups"]]
            for name in names:
                metadata.plan_delete_group(name)
            metadata.commit()
            self._tell_dropped(names)

    def _tell_dropped(self, names: Sequence[str]) -> None:
        """One line now and then: whoever makes group after group does not fill the log."""
        self._dropped += len(names)
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._tell_dropped_ns:
            self._tell_dropped_ns = now_ns + _DROPPED_PAUSE_NS
            self._log.warning("groups_dropped", count=self._dropped, group=names[-1])
            self._dropped = 0

    def _write(self, crew: Crew, note: wire.Note) -> None:
        if note.event == wire.REQUEST_SET_ASIDE:
            self._backoffs.pop(tuple(crew.roles), None)  # why it died is over
        if note.event == children.AGENT_FAILED:
            self._backoff_of(crew.roles).error = str(note.fields["error"])
        fields = {"agent": children.name_of(crew.roles), **note.fields}
        self._log.write(note.level, note.event, fields)

    def _write_groups(self, now_ns: int) -> None:
        """Put new groups into their file, at its pace; at once in a stop."""
        groups = self.broker.metadata.groups
        due_ns = groups.due_in(now_ns)
        if due_ns is None or (due_ns and not self._stopping):
            return
        if number := groups.commit(self._log):
            self.fail(_code_of(number), "a write of subscriptionGroup.json failed")

    def _child_ended(self, child: Child) -> None:
        code = child.ended()
        if code is None:
            return
        while self._has_more_to_say(child):
            self._hear(child)
        self.reactor.forget(child.pidfd)
        self.reactor.forget(child.outbox.channel.fileno())
        self._crews.remove(child)
        lived_ns = self._clock.monotonic_ns() - child.started_ns
        child.close()
        self.broker.ring_all()
        for role in child.roles:
            self._note_process(role, 0)
            if code == -signal.SIGKILL and not child.hung_ns:
                forget_hand(self.broker.board, role)
        if self.exit_code != ExitCode.OK or (self._told_to_stop is child and code == 0):
            return
        name = children.name_of(child.roles)
        backoff = self._backoff_of(child.roles)
        why = "hung" if child.hung_ns else backoff.error or children.said_of_code(code)
        backoff.error = ""
        lived_ms = lived_ns // 1_000_000
        self._log.warning("agent_ended", agent=name, code=code, error=why, lived_ms=lived_ms)
        # One that hung soon after its start may do so again and again.
        self._plan_restart(child.roles, lived_ns - child.hung_ns, why)

    def _end_hung(self, now_ns: int) -> None:
        """Kill what hangs: a successor may take over only from the dead."""
        up = [c for c in self._crews if isinstance(c, Child) and c.is_up and not c.hung_ns]
        for child, hung_ns in self._hangs.look(up, now_ns):
            name = children.name_of(child.roles)
            self._log.error("agent_hung", agent=name, pid=child.pid, hung_ms=hung_ns // 1_000_000)
            child.kill()

    def _has_more_to_say(self, child: Child) -> bool:
        try:
            return bool(child.outbox.channel.recv(1, _PEEK))
        except OSError:
            return False

    def _backoff_of(self, roles: Sequence[Role]) -> Backoff:
        return self._backoffs.setdefault(tuple(roles), Backoff())

    def _plan_restart(self, roles: Sequence[Role], lived_ns: int, why: str) -> None:
        wait_ns = self._backoff_of(roles).after_death(lived_ns)
        if wait_ns is None:
            deaths = f"{children.name_of(roles)} died {children.QUICK_DEATHS_MAX} times in a row"
            self.fail(ExitCode.STORE, f"{deaths}, last of: {why}")
            return
        self._restarts.append((self._clock.monotonic_ns() + wait_ns, roles))

    def _start_again(self, now_ns: int) -> int:
        due = [item for item in self._restarts if item[0] <= now_ns]
        for item in due:
            self._restarts.remove(item)
            for role in item[1]:
                at = self.broker.board.process_at(role) + layout.PROCESS.offset("restarts")
                self.broker.board.set_half(at, self.broker.board.half(at) + 1)
            self._fork(item[1])
            self._log.info("agent_replaced", agent=children.name_of(item[1]))
        return len(due)

    def _note_process(self, role: Role, pid: int) -> None:
        board, at = self.broker.board, self.broker.board.process_at(role)
        board.set_half(at + layout.PROCESS.offset("pid"), pid)
        board.set_word(at + layout.PROCESS.offset("started_ms"), self._clock.wall_ms())

    def _evict(self, session: int, why: str) -> None:
        if self.desk.evict(session, why):
            self._control.evict(session, why)

    def _tell_all(self, frame: wire.Frame, session: SessionRecord | None = None) -> None:
        for crew in filter(_meets_sessions, self._crews):
            crew.outbox.tell(frame, session)

    def _tell_every_crew(self, frame: wire.Frame) -> None:
        for crew in self._crews:
            crew.outbox.tell(frame, None)

    def _pids(self) -> dict[str, int]:
        return {children.name_of(crew.roles): crew.pid for crew in self._crews}


def _meets_sessions(crew: Crew) -> bool:
    """Whether one of its agents has to do with sessions: the others get no arena of a client."""
    return any(role is not Role.HOUSEKEEPER for role in crew.roles)


_PEEK: Final = 0x2 | 0x40  # MSG_PEEK, MSG_DONTWAIT


def _code_of(number: int) -> ExitCode:
    """EIO, ENOSPC and the like are the disk's; damage has no errno, or EBADMSG."""
    return ExitCode.STORE if number in (0, errno.EBADMSG) else ExitCode.IO_ERROR
