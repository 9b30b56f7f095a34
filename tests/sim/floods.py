"""Sessions that flood one agent, and others who may not be later by it than the budgets explain.

    python -m tests.sim.floods --seeds 0:40

A seed floods each agent that serves sessions in turn, by two kinds of which the seed chooses one:
some sessions keep their lanes full all the time, while ordinary clients each do one thing after the
other. How long that takes is counted in steps of the agent that answers, or in rounds where others
have a part in it (tests/support/simrounds.py), and so is what an agent takes in one step.
`--faults` names kinds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from gantrymq.shm.arena import ArenaPlan
from gantrymq.shm.codes import Role
from gantrymq.workers.groups import agent as groups
from gantrymq.workers.scheduler import recalls
from gantrymq.workers.scheduler.agent import Scheduler
from gantrymq.workers.scheduler.timers import Timers
from gantrymq.workers.transactions import agent as checker
from gantrymq.workers.transactions import desk
from tests.sim.downfalls import SELDOM, STEPS_MAX
from tests.sim.flood_plants import PLANTS
from tests.sim.scenario import World
from tests.support.model import Model
from tests.support.simflooder import PLAN, Flooder, Kind, floods
from tests.support.simmachine import SETTINGS, Client, SimMachine
from tests.support.simordinary import WORKS, Ordinary
from tests.support.simrounds import Counted, Rounds
from tests.support.simtalker import LANE_OF
from tests.support.simulation import AgentActor, Simulation

TOPICS: Final = {"plain": (2, "written"), "safe": (1, "durable"), "due": (1, "written")}
#: Of files; the writer fills some segments of other runs in a step, the reader ends one there.
SIZES: Final[dict[str, object]] = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 20 * 4096,
    "max_hash_slot_num": 4000,
    "max_index_num": 20_000,
}
#: Sessions that flood: more than have their turn in one step of `groups`.
SESSIONS: Final = groups.CYCLE_COST // groups.SESSION_COST + 1
#: How often each ordinary client does its work beside one flood.
TIMES: Final = 3
#: A step that had begun before is not the one that serves.
AMID: Final = 1
#: What is in the ledger may have to be on the disk before anybody hears of it.
SYNC: Final = 1
#: Rounds from one agent's step to the next one's in which that is seen, and to the client's look.
HOP: Final = 2
LOOK: Final = 1
#: Steps of agents on the way of what others have a part in, and turns of its session on that way.
WAYS: Final = {
    "syncs": (1, 0),  # flusher
    "reads": (2, 0),  # reader; twice at a segment's end
    "timers": (4, 0),  # scheduler, writer, reader, twice at a segment's end
    "ends": (5, 1),  # txn-checker, writer, txn-checker; and once more if it follows a longer batch
    # Reader; scheduler: asked, read, put, which may come upon a full ring; writer; scheduler:
    # answered, sure.
    "recalls": (8, 4),
}
#: Whose lane an ordinary client's requests take.
ASKS: Final = {
    "sends": Role.WRITER, "commits": Role.GROUPS, "attaches": Role.GROUPS,
    "ends": Role.TXN_CHECKER, "recalls": Role.SCHEDULER,
}  # fmt: skip
#: Copies of timers that the scheduler's own ring has room for at least, in one step.
COPIES: Final = 80
#: More than all of them take.
PHASE_STEPS_MAX: Final = 200_000
#: Of each lane the kind of flood of which an agent takes most in one step.
MOST: Final = {
    "writer": "writer.SEND", "groups": "groups.Failed", "scheduler": "scheduler.Recall.unknown",
    "transactions": "transactions.Unknown",
}  # fmt: skip


class UnfairError(AssertionError):
    """Somebody was late by another's requests, or a step took more than its budget."""


@dataclass(frozen=True)
class Budget:
    """What requests of all sessions may cost in one step of an agent, and those of one."""

    step: float
    session: float
    #: Most requests that are taken in one step, whatever they cost.
    most: float

    def turn(self, sessions: int) -> int:
        """Steps until each of so many sessions has had its turn."""
        return math.ceil(sessions / max(1, self.step // self.session))


#: Of agents as they are, whatever a plant makes of them later.
GROUPS: Final = Budget(
    groups.CYCLE_COST, groups.SESSION_COST, groups.CYCLE_COST + groups.SESSION_COST
)
#: Each request is taken, and looked at.
SCHEDULER: Final = Budget(recalls.LOOKS_MAX, 2 * recalls.ASKED_MAX, recalls.LOOKS_MAX)
CHECKER: Final = Budget(
    checker.REQUESTS_MAX, desk.REQUESTS_MAX, 2 * checker.REQUESTS_MAX + checker.ENDS_AWAKE
)
#: Each lane in each step, one ring of it.
WRITER: Final = Budget(1 << 62, 1, math.inf)


def budget(kind: Kind) -> Budget:
    """Of the agent that a kind of flood is for, with what its requests cost."""
    if kind.role is Role.GROUPS:
        return replace(GROUPS, session=GROUPS.session + kind.cost)
    if kind.role is Role.TXN_CHECKER:
        return replace(CHECKER, session=CHECKER.session * kind.cost)
    return SCHEDULER if kind.role is Role.SCHEDULER else WRITER


def bound(work: str, kind: Kind, ahead: int = 0) -> int:
    """Within how many steps or rounds a work is done beside a flood.

    `ahead`: timers that are not delivered; all are in one queue, and read in its order.
    """
    turn = budget(kind).turn(SESSIONS + 1) if ASKS.get(work) is kind.role else 1
    if work not in WAYS:
        syncs = SYNC * (ASKS[work] is Role.GROUPS)
        joins = int(work == "attaches")  # the session is met, then it may ask
        return AMID + turn + syncs + joins
    steps, turns = WAYS[work]
    waits = -(-max(0, ahead) // COPIES) if kind.is_due and work in ("timers", "recalls") else 0
    return HOP * steps + turns * (turn - 1) + LOOK + waits


class FloodMachine(SimMachine):
    """A machine with room for floods, whose agents' steps are counted.

    What an agent takes in one step is more than in other runs: its files are larger, too.
    """

    def __init__(self, simulation: Simulation, model: Model) -> None:
        super().__init__(simulation, model, TOPICS)
        self.disk.file_bytes_max = 32 << 20  # a minute of timers is one file
        self.disk.capacity = 1 << 30
        self.rounds = Rounds(self)
        self.rounds.after_step = self._after_agent
        self.rounds.timers = self._waiting_timers
        self.rounds.read = self._read_timers
        simulation.after_step = self._after_step
        self._kind: Kind | None = None
        self._given = 0  # steps of the flooded agent when it last gave anything back
        self._flooders: list[Flooder] = []
        self._ordinary: list[Ordinary] = []

    def settings(self) -> dict[str, object]:
        """No filters, whose work the reader does in pieces that are small here."""
        return SETTINGS | SIZES

    def plan_for(self, client: Client) -> ArenaPlan:
        """Who floods has large rings."""
        return PLAN if isinstance(client, Flooder) else super().plan_for(client)

    def start_agent(self, role: Role) -> None:
        """An agent whose steps are counted."""
        super().start_agent(role)
        actor = self.simulation.actors.get(role.name.lower())
        if isinstance(actor, AgentActor):
            actor.agent = Counted(actor.agent)

    def _waiting_timers(self) -> int:
        timers = self._timers()
        return timers.waiting if timers is not None else 0

    def _read_timers(self) -> Callable[[], bool]:
        """Whether the scheduler, which may be yet to begin, has read what is parked by now."""
        ends: list[int] = []

        def has_read() -> bool:
            timers = self._timers()
            if timers is None or timers.queue < 0:
                return False
            ends[:] = ends or [timers.written()]
            return timers.has_read(ends[0])

        has_read()
        return has_read

    def _timers(self) -> Timers | None:
        actor = self.simulation.actors[Role.SCHEDULER.name.lower()]
        assert isinstance(actor, AgentActor), "an agent"
        assert isinstance(actor.agent, Counted), "of this machine"
        assert isinstance(actor.agent.agent, Scheduler), "by its name"
        return getattr(actor.agent.agent, "_timers", None)  # once its own session is met

    def _after_step(self, who: str) -> None:
        """Whoever floods the one who has taken a step fills what that has left free."""
        self.observe(who)
        self.rounds.note_step(who)
        if self._kind is not None and who == self._kind.role.name.lower():
            for flooder in self._flooders:
                flooder.fill()

    def _after_agent(self, who: str) -> None:
        role, kind = Role[who.upper()], self._kind
        if role not in LANE_OF or kind is None:
            return
        for client in self._ordinary:
            if client.session is not None:
                client.hear()
            self._require(client.work, client.waited, bound(client.work, kind, client.ahead))
        taken = sum(flooder.given_back(role) for flooder in self._flooders)
        if role is kind.role and taken:
            # What changes wait for the disk for is given back together with what was taken later.
            steps, self._given = (
                self.rounds.steps_of(role) - self._given,
                self.rounds.steps_of(role),
            )
            if taken > budget(kind).most * max(1, steps):
                raise UnfairError(f"{who} has taken {taken} requests in {steps} steps")

    def flood(self, name: str) -> None:
        """Some sessions flood, others do what they do; all leave in the end."""
        kind, simulation = floods()[name], self.simulation
        simulation.note(f"flood: {name}")
        self._kind, self._given = kind, self.rounds.steps_of(kind.role)
        for number in range(SESSIONS):
            self._flooders.append(Flooder(f"{name}-{number}", self, kind.flood))
            simulation.add(self._flooders[-1])
        simulation.run_until(self._are_attached, STEPS_MAX)
        for work, script in WORKS.items():
            self._ordinary.append(Ordinary(work, self, script, TIMES, self.rounds))
            simulation.add(self._ordinary[-1])
        self.rounds.watch(list(self._ordinary))
        simulation.run_until(self._are_done, PHASE_STEPS_MAX, SELDOM)
        for client in (*self._flooders, *self._ordinary):
            client.die()
        self._flooders.clear()
        self._ordinary.clear()
        self._kind = None
        self._judge(name, kind)

    def _are_attached(self) -> bool:
        return all(flooder.session is not None for flooder in self._flooders)

    def _are_done(self) -> bool:
        return all(one.done for one in self._ordinary)

    def _require(self, work: str, took: int, most: int) -> None:
        if took > most:
            raise UnfairError(f"{work} takes {took} steps or rounds, of {most}")

    def _judge(self, name: str, kind: Kind) -> None:
        times = dict(self.rounds.times)
        self.rounds.times.clear()
        self.model.tally[name.partition(".")[0] + " floods"] += 1
        for work, took in times.items():
            self.model.tally[work] += len(took)
            self.simulation.note(f"{name}: {work} {max(took)[0]} of {bound(work, kind)}")
            for rounds, ahead in took:
                self._require(work, rounds, bound(work, kind, ahead))


def _flood(name: str, world: World) -> None:
    assert isinstance(world.machine, FloodMachine), "of `run`"
    world.machine.flood(name)


Fault = Callable[[World], None]
FLOODS: Final[dict[str, Fault]] = {name: partial(_flood, name) for name in floods()}
ALL: Final = tuple(FLOODS.values())


def run(seed: int, faults: tuple[Fault, ...] = ALL) -> World:
    """Two floods of each lane, or all of those that are named. Raises UnfairError."""
    simulation, model = Simulation(seed), Model(frozenset({"safe"}))
    machine = FloodMachine(simulation, model)
    world = World(simulation, model, machine, [], [])
    simulation.run_until(lambda: machine.running, STEPS_MAX)
    for fault in _chosen(world) if faults is ALL else faults:
        fault(world)
    return world


def _chosen(world: World) -> list[Fault]:
    """Of each lane the one that asks most, and another."""
    chosen = []
    for lane in LANE_OF.values():
        others = [name for name in FLOODS if name.startswith(f"{lane}.")]
        chosen += [FLOODS[MOST[lane]], FLOODS[world.dice.choice(others)]]
    world.dice.shuffle(chosen)
    return chosen


def main() -> None:
    """Run many seeds."""
    from tests.sim.seeds import run_seeds

    run_seeds("tests.sim.floods", run, (ALL, FLOODS), PLANTS)


if __name__ == "__main__":
    main()
