"""Time in rounds: in each of them all that can go on have taken a whole step.

Who is drawn next is the dice's, so that one may take many steps while another takes none; rounds do
not depend on that. An agent that sleeps takes no part in them, and rounds of an agent are those in
which it has taken a step. While the writer waits for its next segment all that appends waits, and
no round ends: how long that takes is a matter of time (tests/system/floods.py).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from gantrymq.brokerd.writer import Writer
from gantrymq.shm.codes import Role
from tests.support.simulation import Actor, AgentActor

if TYPE_CHECKING:
    from gantrymq.workers.agent import Agent
    from tests.support.simmachine import SimMachine


class Counted:
    """An agent whose whole steps are counted."""

    def __init__(self, agent: Agent) -> None:
        self.name = agent.name
        self.steps = 0
        self.agent = agent

    def do_work(self, now_ns: int) -> int:
        """One more, once it is over."""
        done = self.agent.do_work(now_ns)
        if not (isinstance(self.agent, Writer) and self.agent.waits):
            self.steps += 1
        return done

    def arm(self, now_ns: int) -> int:
        """As the agent does."""
        return self.agent.arm(now_ns)

    def disarm(self) -> None:
        """As the agent does."""
        self.agent.disarm()

    def close(self) -> None:
        """As the agent does."""
        self.agent.close()


class Rounds:
    """What each took; see the module."""

    def __init__(self, machine: SimMachine) -> None:
        self._machine = machine
        self._rounds: Counter[str] = Counter()
        self._all = 0
        self._watched: dict[str, Actor] = {}
        self._left: set[str] = set()  # who has not taken its step in this round
        self._stepped: set[str] = set()
        self._steps: dict[str, int] = {}
        self.times: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self.after_step: Callable[[str], None] = lambda who: None  # a whole one of an agent
        self.timers: Callable[[], int] = lambda: 0  # that are not delivered
        #: What tells whether the scheduler has read all timers that are in the log by now.
        self.read: Callable[[], Callable[[], bool]] = lambda: lambda: True

    def watch(self, clients: list[Actor]) -> None:
        """Rounds are of all agents and of these clients from now on."""
        actors = self._machine.simulation.actors
        agents = {name: actor for name, actor in actors.items() if isinstance(actor, AgentActor)}
        for name, agent in agents.items():
            assert isinstance(agent.agent, Counted), "each agent of this machine"
            self._steps[name] = agent.agent.steps
        self._watched = agents | {client.name: client for client in clients}
        self._begin()

    def _begin(self) -> None:
        self._left, self._stepped = set(self._watched), set()

    def of(self, role: Role) -> int:
        """Rounds in which this agent has taken a step."""
        return self._rounds[role.name.lower()]

    def steps_of(self, role: Role) -> int:
        """Whole steps that this agent has taken."""
        return self._steps.get(role.name.lower(), 0)

    def took(self, work: str, rounds: int, ahead: int) -> None:
        """Somebody's work has taken so many rounds, or steps, of an agent.

        `ahead`: timers that were to be delivered before.
        """
        self.times[work].append((rounds, ahead))

    def note_step(self, who: str) -> None:
        """After each step of anybody."""
        actor = self._watched.get(who)
        if actor is None:
            return
        if isinstance(actor, AgentActor):
            agent = actor.agent
            assert isinstance(agent, Counted), "each agent of this machine"
            if agent.steps == self._steps.get(who):
                return
            self._steps[who] = agent.steps
            self._stepped.add(who)
            self.after_step(who)
        self._left.discard(who)
        now_ns = self._machine.simulation.clock.monotonic_ns()
        self._left = {name for name in self._left if self._watched[name].ready_at(now_ns) <= now_ns}
        if not self._left:
            self._all += 1
            self._rounds.update(self._stepped)
            self._begin()
