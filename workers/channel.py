"""How an agent's process hears of sessions: frames over its socket pair with the supervisor.

One channel serves all agents of a process; each sees it through a table of its own.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from gantrymq.shm import wire
from gantrymq.shm.arena import map_arena, plan_arena
from gantrymq.shm.bell import EventBell
from gantrymq.shm.errors import BrokerGone
from gantrymq.workers.session import Attached, Detached, Session

#: A busy agent looks at its channel this often; an idle one is woken by it.
LOOK_EVERY_NS: Final = 1_000_000
#: News of sessions that are taken at one time: to map an arena takes 100 us.
FRAMES_MAX: Final = 32
#: Events of one wait; without a bound Python makes room for a thousand each time.
EVENTS_MAX: Final = 16


class Speaker(Protocol):
    """What a table hands the agent's own frames to."""

    def say(self, frame: wire.Frame) -> None:
        """Speak to the supervisor."""
        ...

    def note(self, level: str, event: str, **fields: object) -> None:
        """A line for the broker's log."""
        ...


class Descriptor(Protocol):
    """Anything with a file descriptor."""

    def fileno(self) -> int:
        """The descriptor."""
        ...


class SessionEvents:
    """One agent's `SessionTable`: what came over the channel since it last asked."""

    def __init__(self, speaker: Speaker) -> None:
        self._speaker = speaker
        self._events: list[Attached | Detached] = []
        self._stopping = False

    def poll(self) -> Sequence[Attached | Detached]:
        """What has changed since the last call."""
        if not self._events:
            return ()
        events, self._events = self._events, []
        return events

    @property
    def unheard(self) -> bool:
        """Whether something has changed that its agent has not asked for."""
        return bool(self._events)

    def stopping(self) -> bool:
        """True once it is this agent's turn to finish."""
        return self._stopping

    def cut_off(self, session: int, why: str) -> None:
        """Ask the supervisor to end a session."""
        self._speaker.say(wire.CutOff(session, why))

    def failed(self, errno: int, what: str) -> None:
        """Tell the supervisor that the store failed."""
        self._speaker.say(wire.Failed(errno, what))

    def note(self, level: str, event: str, **fields: object) -> None:
        """A line for the broker's log."""
        self._speaker.note(level, event, **fields)

    def tell(self, event: Attached | Detached) -> None:
        """Called by whoever feeds the table."""
        self._events.append(event)

    def finish(self) -> None:
        """Called by the host when it is this agent's turn to finish."""
        self._stopping = True


class SocketSessionTable:
    """The agents' end of the socket pair with the supervisor."""

    def __init__(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self.channel = channel
        self.stop_wanted = False
        self._pass = 0  # number of a `Pass` that is not answered
        self._views: list[SessionEvents] = []
        self._sessions: set[int] = set()
        self._next_look_ns = 0

    def fileno(self) -> int:
        """Readable when the supervisor has said something."""
        return self.channel.fileno()

    def view(self) -> SessionEvents:
        """A table for one more agent of this process, which must poll it in each cycle.

        Events that it does not take keep the sessions' memory and descriptors.
        """
        view = SessionEvents(self)
        self._views.append(view)
        return view

    def pump(self, now_ns: int, *, heard: bool | None) -> int:
        """Hand on what the supervisor has said. Raises BrokerGone if it is dead.

        `heard`: what the sleep before has shown; None if there was none.
        """
        if heard is None and now_ns < self._next_look_ns:
            return 0
        self._next_look_ns = now_ns + LOOK_EVERY_NS
        if heard is False:
            return 0
        for count in range(FRAMES_MAX):
            if not self._take_one():
                return count
        self._next_look_ns = 0  # there may be more, for which the next cycle looks
        return FRAMES_MAX

    def answer_pass(self) -> None:
        """Called at the end of a cycle: say that all was heard, if that is asked and is so."""
        if self._pass and not any(view.unheard for view in self._views):
            number, self._pass = self._pass, 0
            self.note("debug", wire.PASSED, number=number)

    def say(self, frame: wire.Frame) -> None:
        """Speak to the supervisor; waits while its side is full."""
        try:
            try:
                wire.send(self.channel, frame)
            except BlockingIOError:
                select.select([], [self.channel], [], 5.0)
                wire.send(self.channel, frame)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise BrokerGone("the supervisor is gone") from error

    def note(self, level: str, event: str, **fields: object) -> None:
        """A line for the broker's log."""
        self.say(wire.Note(level, event, fields))

    def failed(self, errno: int, what: str) -> None:
        """Tell the supervisor that the store failed."""
        self.say(wire.Failed(errno, what))

    def close(self) -> None:
        """Give the channel back; maps and bells go with the last agent that holds them."""
        self.channel.close()

    def _take_one(self) -> bool:
        try:
            received = wire.receive(self.channel)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            received = None
        if received is None:
            raise BrokerGone("the supervisor is gone")
        frame, descriptors = received
        match frame:
            case wire.SessionAdded():
                self._add(frame, descriptors)
            case wire.SessionRemoved():
                self._remove(frame.session)
            case wire.Pass(number):
                self._pass = number
            case wire.Stop():
                self.stop_wanted = True
            case _:
                raise msgspec.ValidationError(f"an agent is not sent {type(frame).__name__}")
        return True

    def _add(self, frame: wire.SessionAdded, descriptors: list[int]) -> None:
        arena_descriptor, bell_descriptor = descriptors
        plan = plan_arena(*frame.ring_bytes)
        try:
            arena = map_arena(arena_descriptor, plan.size)
        finally:
            os.close(arena_descriptor)
        # Agents may ring once more before they take the news of its end, and the number must not
        # be another file's by then: the descriptor goes with the last reference to the bell.
        bell = EventBell(bell_descriptor)
        self._sessions.add(frame.session)
        session = Session(
            frame.session,
            arena,
            plan,
            bell,
            frame.pid,
            frame.producer,
            frame.groups,
            frame.scheduler,
            frame.transactions,
            frame.owner,
        )
        for view in self._views:
            view.tell(Attached(session))

    def _remove(self, session: int) -> None:
        if session not in self._sessions:
            return  # it ended before this process was told of it
        self._sessions.remove(session)
        for view in self._views:
            view.tell(Detached(session))


class EpollWaiter:
    """Sleeps on bells and channels; the loop's `Waiter`."""

    def __init__(self, bells: Sequence[EventBell], channels: Sequence[Descriptor]) -> None:
        self._epoll = select.epoll()
        for bell in bells:
            # Edge-triggered: each ring wakes once, and nothing has to be read to clear it.
            self._epoll.register(bell.fileno(), select.EPOLLIN | select.EPOLLET)
        self._bells = bells
        self._channels = {channel.fileno() for channel in channels}
        for descriptor in self._channels:
            self._epoll.register(descriptor, select.EPOLLIN)
        self.heard: bool | None = None

    def wait(self, timeout_ns: int) -> None:
        """Sleep until rung, spoken to, or timed out; `heard` says whether spoken to."""
        if timeout_ns < 10_000_000 and self._epoll.fileno() < 1024:
            # epoll counts milliseconds; a nap is shorter than one.
            self.heard = False
            if not select.select([self._epoll], [], [], timeout_ns / 1e9)[0]:
                return
            events = self._epoll.poll(0, EVENTS_MAX)
        else:
            events = self._epoll.poll(timeout_ns / 1e9, EVENTS_MAX)
        self.heard = False
        if not events:
            # A bell whose counter a client has filled rings no more until it is cleared.
            for bell in self._bells:
                bell.clear()
        for descriptor, _mask in events:
            if descriptor in self._channels:
                self.heard = True

    def close(self) -> None:
        """Give the descriptor back."""
        self._epoll.close()
