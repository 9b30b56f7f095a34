"""One or more agents in one process: they take turns in the one loop, and finish one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gantrymq.workers.agent import IDLE_NS, Agent
from gantrymq.workers.channel import EpollWaiter, SessionEvents, SocketSessionTable

#: While some work, those that have nothing to do announce sleep so often, and no more often than
#: after so many cycles: with very many sessions that costs as much as a cycle.
ROUND_NS: Final = 1_000_000
ROUND_CYCLES: Final = 8


@dataclass(slots=True)
class Seat:
    """An agent of the process and its view of the sessions."""

    agent: Agent
    events: SessionEvents
    idle: bool = False


class Host:
    """An `Agent` made of agents, fed by the process's channel to the supervisor.

    After the supervisor's Stop each in turn is told to finish, in the order of the seats: what the
    writer still appends is then seen by those behind it.
    """

    def __init__(
        self, seats: Sequence[Seat], table: SocketSessionTable, waiter: EpollWaiter
    ) -> None:
        self.name = "+".join(seat.agent.name for seat in seats)
        self._seats = list(seats)
        self._table = table
        self.waiter = waiter
        self._turn = 0
        self._armed_ns = self._cycles = 0  # when all last did, and cycles with work since

    @property
    def finished(self) -> bool:
        """True once every agent has finished what was accepted."""
        return self._turn == len(self._seats)

    def do_work(self, now_ns: int) -> int:
        """A duty cycle of each agent.

        One that has nothing to do goes on as it would in a process of its own, whose loop arms
        then: what it hears of in no other way (the writer, of lanes at rest) waits for no others.
        """
        work = self._table.pump(now_ns, heard=self.waiter.heard)
        self.waiter.heard = None
        for seat in self._seats:
            done = seat.agent.do_work(now_ns)
            seat.idle = done == 0
            work += done
        self._table.answer_pass()
        if self._table.stop_wanted and not self.finished:
            self._finish_in_turn()
        if work:
            self._cycles += 1
            if self._cycles >= ROUND_CYCLES and now_ns - self._armed_ns > ROUND_NS:
                self._arm_idle(now_ns)
        return work

    def _arm_idle(self, now_ns: int) -> None:
        self._armed_ns, self._cycles = now_ns, 0
        for seat in self._seats:
            if seat.idle:
                seat.agent.arm(now_ns)
                seat.agent.disarm()

    def arm(self, now_ns: int) -> int:
        """Announce sleep for all; the shortest sleep counts."""
        self._armed_ns, self._cycles = now_ns, 0
        if self._table.stop_wanted:
            return 0
        sleep_ns = IDLE_NS
        for seat in self._seats:
            sleep_ns = min(sleep_ns, seat.agent.arm(now_ns))
        return sleep_ns

    def disarm(self) -> None:
        """Take the announcements back."""
        for seat in self._seats:
            seat.agent.disarm()

    def close(self) -> None:
        """Close the agents. The channel stays: a failure is still to be told."""
        for seat in self._seats:
            seat.agent.close()

    def _finish_in_turn(self) -> None:
        seat = self._seats[self._turn]
        if not seat.events.stopping():
            seat.events.finish()
        elif seat.idle:
            self._turn += 1
