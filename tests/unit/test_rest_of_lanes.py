"""Lanes at rest are served, whatever else the writer and its process have to do."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gantrymq.brokerd.writer import Writer
from gantrymq.shm.arena import plan_arena
from gantrymq.shm.codes import ParkMode, Role
from gantrymq.shm.kernels import frames
from gantrymq.workers.agent import IDLE_NS
from gantrymq.workers.channel import EpollWaiter, SocketSessionTable
from gantrymq.workers.host import Host, Seat
from gantrymq.workers.inhand import InHand
from gantrymq.workers.session import Attached, Session
from tests.support.lanes import lane_words
from tests.support.simbell import SimBell
from tests.support.trials import mends
from tests.unit.test_park import Parking, machine

NOT_LATER = (int(ParkMode.NONE), 0)


class Restless:
    """An agent that has something to do in each cycle."""

    name = "restless"

    def do_work(self, now_ns: int) -> int:
        del now_ns
        return 1

    def arm(self, now_ns: int) -> int:
        del now_ns
        return IDLE_NS

    def disarm(self) -> None:
        """Nothing was announced."""

    def close(self) -> None:
        """Nothing was opened."""


@pytest.fixture
def parking(tmp_path: Path) -> Iterator[Parking]:
    made = machine(tmp_path / "store", ("orders", 4))
    yield made
    made.close()


def come_to_rest(writer: Writer, now_ns: int) -> None:
    while writer.do_work(now_ns) or not writer.arm(now_ns):
        writer.disarm()
    writer.disarm()
    writer.do_work(now_ns)


@mends("S120")
def test_a_lane_at_rest_is_served_beside_an_agent_that_never_rests(parking: Parking) -> None:
    """In one process no agent sleeps while another works: its lanes would be at rest for good."""
    writer = parking.agents[0]
    assert isinstance(writer, Writer)
    come_to_rest(writer, parking.clock.monotonic_ns())
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    table = SocketSessionTable(theirs)
    seats = [Seat(Restless(), table.view()), Seat(writer, table.view())]
    host = Host(seats, table, EpollWaiter([], [table]))
    parking.put(parking.route("orders"), NOT_LATER)
    for _ in range(10):
        host.do_work(parking.clock.advance(1_000_000))
    assert len(parking.answers()) == 1
    host.waiter.close()
    ours.close()
    table.close()


@mends("S120")
def test_a_careful_writer_wakes_all_lanes(parking: Parking) -> None:
    """It serves one lane at a time; those behind the first are looked at, too."""
    writer = parking.agents[0]
    assert isinstance(writer, Writer)
    plan = plan_arena()
    first = Session(9, np.zeros(plan.size, np.uint8), plan, SimBell(), 0, bytes(range(10, 20)))
    now_ns = parking.clock.monotonic_ns()
    come_to_rest(writer, now_ns)
    writer._meet([Attached(first)], now_ns)
    assert [lane.session.session for lane in writer._lanes] == [1, 9]
    come_to_rest(writer, now_ns)
    parking.session, parking.lane = first, lane_words(plan.writer)
    parking.put(parking.route("orders"), NOT_LATER)
    writer._batch[frames.WOKEN] = 1
    writer._appender.cycle_one_by_one(now_ns, InHand(parking.board, Role.WRITER))
    assert len(parking.answers()) == 1
