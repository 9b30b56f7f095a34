"""A simulated machine whose agents share one process, as in profiles `small` and `temporary`.

They sit in a real `Host`: one loop, one sleep, one death for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from gantrymq.brokerd.children import name_of
from gantrymq.shm.codes import Role
from gantrymq.workers.agent import Agent
from gantrymq.workers.host import Host, Seat
from tests.support.simbell import SimBell
from tests.support.simmachine import RESTART_NS, ROLES, SimMachine, SimSessions
from tests.support.simulation import AgentActor

#: The process's name: that of its host.
NAME: Final = name_of(ROLES)


class SharedBell(SimBell):
    """The bells of all, which one loop waits on."""

    def __init__(self, bells: Sequence[SimBell]) -> None:
        self._bells = bells
        super().__init__()

    @property
    def rung(self) -> bool:
        """Whether one of them is."""
        return any(bell.rung for bell in self._bells)

    @rung.setter
    def rung(self, value: bool) -> None:
        for bell in self._bells:
            bell.rung = value


class _Channel:
    """The host's end of the channel to the supervisor: sessions come by the seats' own tables."""

    def __init__(self) -> None:
        self.stop_wanted = False

    def pump(self, now_ns: int, *, heard: bool | None) -> int:
        del now_ns, heard
        return 0

    def answer_pass(self) -> None:
        """Nobody asks."""


class SeatSessions(SimSessions):
    """A seat's table."""

    def finish(self) -> None:
        """It is this agent's turn to finish."""
        self.stop = True


class SimHostMachine(SimMachine):
    """See the module."""

    SESSIONS = SeatSessions

    def process_of(self, role: Role) -> str:
        del role
        return NAME

    def roles_in(self, name: str) -> tuple[Role, ...]:
        return ROLES if name == NAME else ()

    def processes(self) -> list[str]:
        return [NAME]

    def agent_of(self, role: Role) -> Agent | None:
        actor: Any = self.simulation.actors.get(NAME)
        return None if actor is None else actor.agent._seats[ROLES.index(role)].agent

    def tell_to_stop(self, name: str) -> None:
        actor: Any = self.simulation.actors[name]
        actor.agent._table.stop_wanted = True
        self.bell(ROLES[0]).ring()

    def _open_agents(self) -> None:
        self._not_up = set(ROLES)
        self.open_last = None
        self.start_process(NAME)

    def start_process(self, name: str) -> None:
        if self.board is None:
            return
        seats = []
        for role in ROLES:
            agent = self.build(role)
            if agent is None:
                self._later(RESTART_NS, partial(self.start_process, name))
                return
            table: Any = self.tables[role]
            seats.append(Seat(agent, table))
        channel: Any = _Channel()
        waiter: Any = SimpleNamespace(heard=None)
        host = Host(seats, channel, waiter)
        bell = SharedBell([self.bell(role) for role in ROLES])
        counted = [self.progress_of(role) for role in ROLES]
        self.simulation.add(AgentActor(host, bell, lambda: sum(count() for count in counted)))
        for role in ROLES:
            self.is_up(role)
