"""An agent's process: what it hears from the supervisor, how it sleeps, how its agents finish."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from gantrymq.shm import wire
from gantrymq.shm.arena import create_arena, plan_arena
from gantrymq.shm.bell import EventBell
from gantrymq.shm.errors import BrokerGone, Corrupt
from gantrymq.workers.agent import run
from gantrymq.workers.channel import EpollWaiter, SessionEvents, SocketSessionTable
from gantrymq.workers.host import Host, Seat
from gantrymq.workers.session import Attached, Detached
from tests.support.trials import mends

PLAN = plan_arena(4096, 4096, 4096, 4096)
RINGS = (4096, 4096, 4096, 4096)


class Clock:
    """Counts; nothing here depends on real time."""

    def __init__(self) -> None:
        self.now = 0

    def monotonic_ns(self) -> int:
        self.now += 1
        return self.now

    def wall_ms(self) -> int:
        return 0


@dataclass
class Counter:
    """An agent with `left` units of work to do before it may stop, writing down its turns."""

    name: str
    events: SessionEvents
    left: int
    history: list[str] = field(default_factory=list)
    sleep_ns: int = 1_000_000_000
    closed: bool = False

    def do_work(self, now_ns: int) -> int:
        del now_ns
        if not self.events.stopping() or not self.left:
            return 0
        self.left -= 1
        self.history.append(self.name)
        return 1

    def arm(self, now_ns: int) -> int:
        del now_ns
        return self.sleep_ns

    def disarm(self) -> None:
        self.history.append(f"{self.name} awake")

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, SocketSessionTable]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    table = SocketSessionTable(theirs)
    yield ours, table
    table.close()
    ours.close()


def add(channel: socket.socket, session: int) -> EventBell:
    """Tell of a session as the supervisor does; returns the client's bell."""
    bell = EventBell()
    arena = create_arena(PLAN, 7, session)
    added = wire.SessionAdded(session, 1, PLAN.size, RINGS, b"p" * 10, True)
    wire.send(channel, added, (arena, bell.fileno()))
    os.close(arena)
    return bell


def test_each_agent_hears_of_each_session(pair: tuple[socket.socket, SocketSessionTable]) -> None:
    channel, table = pair
    views = [table.view(), table.view()]
    bell = add(channel, 3)
    assert table.pump(1, heard=True) == 1
    (first,), (second,) = (view.poll() for view in views)
    assert isinstance(first, Attached)
    assert isinstance(second, Attached)
    session = first.session
    assert (session.session, session.producer, session.groups) == (3, b"p" * 10, True)
    assert session.arena.size == PLAN.size
    assert second.session is session
    session.bell.ring()
    assert bell.wait(5.0)
    wire.send(channel, wire.SessionRemoved(3))
    table.pump(2, heard=True)
    assert views[0].poll() == [Detached(3)]
    assert views[1].poll() == [Detached(3)]
    assert views[0].poll() == ()
    session.bell.ring()  # the news may come late: the bell still is what it was
    assert bell.wait(5.0)
    bell.close()


def test_an_end_before_the_beginning_was_told_is_nothing(
    pair: tuple[socket.socket, SocketSessionTable],
) -> None:
    channel, table = pair
    view = table.view()
    wire.send(channel, wire.SessionRemoved(9))
    table.pump(1, heard=True)
    assert view.poll() == ()


def test_a_busy_agent_looks_now_and_then(pair: tuple[socket.socket, SocketSessionTable]) -> None:
    channel, table = pair
    table.pump(0, heard=True)
    wire.send(channel, wire.Stop())
    assert table.pump(10, heard=None) == 0
    assert table.pump(10_000_000, heard=None) == 1
    assert table.stop_wanted


def test_without_a_supervisor_there_is_nothing_to_do(
    pair: tuple[socket.socket, SocketSessionTable],
) -> None:
    channel, table = pair
    channel.close()
    with pytest.raises(BrokerGone):
        table.pump(1, heard=True)
    with pytest.raises(BrokerGone):
        table.view().cut_off(1, "why")


def test_agents_speak_up(pair: tuple[socket.socket, SocketSessionTable]) -> None:
    channel, table = pair
    view = table.view()
    view.cut_off(4, "why")
    view.failed(5, "what")
    view.note("info", "event", number=1)
    heard = [wire.receive(channel) for _ in range(3)]
    assert [item and item[0] for item in heard] == [
        wire.CutOff(4, "why"),
        wire.Failed(5, "what"),
        wire.Note("info", "event", {"number": 1}),
    ]


def test_a_frame_for_somebody_else_ends_the_agent(
    pair: tuple[socket.socket, SocketSessionTable],
) -> None:
    channel, table = pair
    wire.send(channel, wire.Done())
    with pytest.raises(ValueError, match="Done"):
        table.pump(1, heard=True)


def test_a_waiter_wakes_once_per_ring(pair: tuple[socket.socket, SocketSessionTable]) -> None:
    channel, table = pair
    bell = EventBell()
    waiter = EpollWaiter([bell], [table])
    for timeout_ns in (200_000, 20_000_000_000):  # a nap, and a sleep
        bell.ring()
        waiter.wait(timeout_ns)
    waiter.wait(200_000)  # nobody rings: the timeout ends it
    assert not waiter.heard
    wire.send(channel, wire.Stop())
    waiter.wait(20_000_000_000)
    assert waiter.heard
    waiter.close()
    bell.close()


def test_agents_of_a_process_finish_one_after_the_other(
    pair: tuple[socket.socket, SocketSessionTable],
) -> None:
    channel, table = pair
    history: list[str] = []
    seats = []
    for name, work in (("writer", 3), ("flusher", 0), ("reader", 2)):
        events = table.view()
        seats.append(Seat(Counter(name, events, work, history), events))
    host = Host(seats, table, EpollWaiter([], [table]))
    assert host.name == "writer+flusher+reader"
    wire.send(channel, wire.Stop())
    run(host, clock=Clock(), waiter=host.waiter, keep_running=lambda: not host.finished)
    turns = [turn for turn in history if "awake" not in turn]
    assert turns == ["writer"] * 3 + ["reader"] * 2
    assert all(isinstance(seat.agent, Counter) and seat.agent.closed for seat in seats)
    host.waiter.close()


def test_the_shortest_sleep_counts(pair: tuple[socket.socket, SocketSessionTable]) -> None:
    _channel, table = pair
    seats = []
    for sleep_ns in (5000, 300, 70_000):
        events = table.view()
        seats.append(Seat(Counter("a", events, 0, sleep_ns=sleep_ns), events))
    host = Host(seats, table, EpollWaiter([], [table]))
    assert host.arm(1) == 300
    host.waiter.close()


class Unfinished(Counter):
    """One that ends amid its making, as by a damaged file."""

    closed = False

    def do_work(self, now_ns: int) -> int:
        del now_ns
        raise Corrupt("gantry/imported.json is damaged")

    def close(self) -> None:
        self.closed = True
        raise AttributeError("_timers")


@mends("S271")
def test_what_has_ended_an_agent_is_told_whatever_becomes_of_its_end(
    pair: tuple[socket.socket, SocketSessionTable],
) -> None:
    _channel, table = pair
    agent = Unfinished("scheduler", table.view(), 1, [])
    waiter = EpollWaiter([], [table])
    with pytest.raises(Corrupt, match="imported"):
        run(agent, clock=Clock(), waiter=waiter, keep_running=lambda: True)
    assert agent.closed
