"""A signal handler that takes messages amid a take of the same lane: none is lost or mixed up."""

from __future__ import annotations

from gantrymq.shm.arena import plan_arena
from gantrymq.shm.controllane import ControlLane, End
from tests.support.interrupts import Interrupt, interrupt_each
from tests.support.memory_sessions import memory_session
from tests.support.trials import mends

SENT = [bytes([65 + number]) * (7 + 40 * number) for number in range(3)]


@mends("S117")
def test_a_handler_takes_amid_a_take() -> None:
    """Some may be told twice: who asks knows his answers by their numbers."""
    session = memory_session(1, plan_arena())
    agent = ControlLane(session.arena, session.plan.transactions, End.AGENT)
    client = ControlLane(session.arena, session.plan.transactions, End.CLIENT)
    got: list[bytes | None] = []

    def take_all() -> None:
        while (body := client.take()) is not None:
            got.append(body)

    def play(interrupt: Interrupt) -> None:
        got.clear()
        for body in SENT:
            assert agent.put(body)
        with interrupt:
            take_all()
        assert {body for body in got if body is not None} == set(SENT)

    interrupt_each(play, r"ControlLane\.", 1, handler=take_all)
