"""The writer is rung for what a send puts, whatever another thread or a handler does amid it."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

from gantrymq.clients.delays import NOW
from gantrymq.clients.lane import WriterLane
from gantrymq.clients.message import Message
from gantrymq.clients.sends import Sends
from gantrymq.clients.writerlink import WriterLink
from gantrymq.shm import layout, wire
from gantrymq.shm.codes import AgentState, Level
from gantrymq.shm.kernels.words import store_half
from tests.support.interrupts import Interrupt
from tests.support.memory_sessions import memory_board, memory_session
from tests.support.simbell import SimBell
from tests.support.trials import mends

WITHIN = r"Sends\.submit|WriterLink\.(put_until_room|ring_if_wanted|claim|require_taken)"


class Sending:
    """A producer's link, and a writer that sleeps."""

    def __init__(self) -> None:
        made, board = memory_session(1), memory_board({"orders": 1})
        self.bell = SimBell()
        session: Any = SimpleNamespace(
            arena=made.arena, plan=made.plan, writer_bell=self.bell, bell=SimBell(), board=board,
            topics_seen=board.half(layout.BOARD_TOPIC_CHANGES), look_at_times=lambda: False,
            knows=lambda _topic: True,
            open_topic=lambda name: wire.TopicOpened(0, name, 0, 1, 1, int(Level.WRITTEN)),
        )  # fmt: skip
        self.sends = Sends(None, 1.0, None)
        self.link: WriterLink = self.sends.link
        self.link._attach(session, WriterLane(made.arena, made.plan.writer, 0, 0))
        state = made.plan.writer.control + layout.LANE_AGENT_STATE
        store_half(made.arena, state, int(AgentState.ARMED))
        self.link.is_open = True

    def send(self) -> None:
        """Hand one over."""
        assert self.sends.submit(Message("orders", b"x"), 0, None, NOW) == self.link.lane.seq


@mends("S216")
def test_the_writer_is_rung_whoever_looks_amid_a_send() -> None:
    """As `done` and `result` of a future do: a handler, and other threads where it has no lock."""
    for place in count():
        sending = Sending()
        with Interrupt(place, WITHIN, sending.link.look) as interrupt:
            sending.send()
        assert sending.bell.rings, interrupt.place
        sending.link.is_open = False
        if not interrupt.was_hit:
            break
    assert place


def test_a_send_rings_once() -> None:
    """Each ring is a call of the system, and wakes the writer."""
    sending = Sending()
    for number in range(1, 4):
        sending.send()
        sending.link.look()
        assert sending.bell.rings == number
    sending.link.is_open = False
