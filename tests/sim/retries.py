"""Runs of push consumers that fail, die of messages, and are killed, as are all agents.

Three producers, whose messages are due now or later, three members, a client that cancels, kills of
agents, members and the broker, power cuts, connections that end, a wall clock that is set. Topics
are `written` or `durable` by the seed. `python -m tests.sim.retries --seeds 0:20`. Prints the
failing seed and exits 1. P5; P8: nothing is early, recalls win or lose; P9: attempts end in one
dead letter; each failure is one copy. P10: all messages are finished, wait, or are dead; who was
told that a durable topic's message was sent back has its copy after a power cut. P12: whoever dies
holds nobody up.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial

from gantrymq.shm import layout
from gantrymq.shm.properties import SCHEDULE_TOPIC
from gantrymq.workers.groups.pending import Asked
from gantrymq.workers.groups.sendbacks import SendBacks
from tests.sim import scenario
from tests.sim.downfalls import SELDOM, kill_everything, lose_power
from tests.sim.kills import kill_an_agent
from tests.sim.scenario import World
from tests.support.delivering import check_all_delivered, check_copies
from tests.support.model import End, Model
from tests.support.recalling import is_recall
from tests.support.simmachine import SimMachine
from tests.support.simpace import tarry
from tests.support.simproducer import SimProducer
from tests.support.simpusher import (
    DEAD,
    MAX_ATTEMPTS,
    PUSHED,
    RETRY,
    Deliveries,
    SimPusher,
)  # fmt: skip
from tests.support.simulation import Simulation
from tests.support.storedlog import Stored, broken, read_log, require

#: Name -> how many queues it has.
TOPICS = {PUSHED: 2, RETRY: 2, DEAD: 1}
LEVELS = ("written", "durable")
MEMBERS = 3
#: A last attempt waits 30 s, in which an idle flusher of 5 ms looks 6,000 times.
STEPS_MAX = 200_000
#: Room in each file: each attempt costs the ledger some entries.
FILE_BYTES_MAX = 256 * 1024
#: After all is calm: longer than the shorter delays.
WAIT_MS = 1_500


class Pushing:
    """A machine with producers and push consumers only."""

    def __init__(self, seed: int) -> None:
        level = LEVELS[seed % len(LEVELS)]
        self.durable = level == "durable"
        simulation = Simulation(seed)
        model = Model(frozenset(TOPICS) if self.durable else frozenset())
        machine = SimMachine(simulation, model, {t: (n, level) for t, n in TOPICS.items()})
        machine.disk.file_bytes_max = FILE_BYTES_MAX
        machine.recovered = self._recovered
        self.world = World(simulation, model, machine, [], [])
        self.world.produces, self.world.consumes = _producer, self._pusher
        self.deliveries = Deliveries()
        self._as_of = (0, -1)  # life and end of the log that was read
        self._low = 0  # where the log that was read begins
        self._uncopied: list[int] = []
        self._waits = False
        for _ in range(MEMBERS):
            self.world.add_producer(simulation.dice.randint(5, 30))
            self.world.add_consumer()
        self.world.add_recaller(scenario.RECALLS)

    def _pusher(self, name: str, machine: SimMachine) -> SimPusher:
        return SimPusher(name, machine, self.deliveries, self.dies)

    @property
    def pushers(self) -> list[SimPusher]:
        """Members that live: there are no other consumers here."""
        return [member for member in self.world.consumers if isinstance(member, SimPusher)]

    def _recovered(self, end: int, after: End) -> None:
        """A power cut takes what was not durable, and positions above the end are used again."""
        if after is End.POWER:
            self.deliveries.power_cut(self.world.model.log, end, durable=self.durable)

    def dies(self, pusher: SimPusher) -> None:
        """A process dies, and its supervisor starts another."""
        if pusher in self.world.consumers:
            self.world.consumers.remove(pusher)
        pusher.die()
        self.world.add_consumer()

    def kill_a_pusher(self, _world: World) -> None:
        """Between two of its steps."""
        self.dies(self.world.dice.choice(self.pushers))

    def lose_power(self, world: World) -> None:
        """With all clients, as many of which come back; perhaps amid a stall of the disk."""
        lose_power(world)
        for _ in range(1, MEMBERS):
            world.add_producer(world.dice.randint(5, 20))
            world.add_consumer()

    def drop_a_session(self, world: World) -> None:
        """A member's socket ends; the process attaches again."""
        attached = [p.session.session for p in self.pushers if p.session is not None]
        if attached:
            world.simulation.note("a member's connection ends")
            world.machine.end_session(world.dice.choice(attached))

    def settled(self) -> bool:
        """All sent, and nothing is left to deliver, to park or to release."""
        board = self.world.machine.board
        if board is None or not all(producer.done for producer in self.world.producers):
            return False
        if any(running for pusher in self.pushers for running in pusher.running.values()):
            return False
        if board.word(layout.BOARD_DISPATCHED) < board.word(layout.BOARD_APPENDED):
            return False
        if not all(recaller.done for recaller in self.world.recallers):
            return False
        as_of = self.world.machine.lives, board.word(layout.BOARD_APPENDED)
        if as_of != self._as_of:
            self._as_of = as_of
            self.world.model.log = self.read()
            self._uncopied = self._find_uncopied()
            self._waits = self._is_waiting()
        return self.deliveries.finished.issuperset(self._uncopied) and not self._waits

    def _is_waiting(self) -> bool:
        """Whether a message that has failed waits for its next attempt."""
        log = self.world.model.log
        copied = {record.origin for record in log}
        return any(
            r.topic == SCHEDULE_TOPIC and r.attempt and r.position not in copied for r in log
        )

    def read(self) -> list[Stored]:
        """The log as it is, behind what retention has removed of it."""
        board = self.world.machine.board
        assert board is not None, "it runs"
        storage = self.world.machine.storage_for("oracle")
        there = read_log(storage, board.word(layout.BOARD_APPENDED), whole=False)
        self._low = there[0].position if there else 0
        return [r for r in self.world.model.expired if r.position < self._low] + there

    def _find_uncopied(self) -> list[int]:
        """Positions of messages that have to be finished, since they did not become a copy.

        What retention removes that a group has not read is judged when it goes.
        """
        log = self.world.model.log
        copied = {record.origin for record in log}
        messages = [record.position for record in log if record.topic in (PUSHED, RETRY)]
        return [at for at in messages if at >= self._low and at not in copied]

    def check(self) -> None:
        """P9 and P10 by what the log says."""
        log = self.world.model.log
        by_position = {record.position: record for record in log}
        copies = [record for record in log if record.origin >= 0]
        check_copies(self.world.model, [r for r in copies if not is_recall(r)])
        self.world.model.recalls.check(log)
        for origin, count in Counter(record.origin for record in copies).items():
            require(count == 1, "P9", f"{count} copies of {by_position[origin]}")
        for record in copies:
            require(record.attempt <= MAX_ATTEMPTS, "P9", f"too many attempts: {record}")
        dead = [record for record in log if record.topic == DEAD]
        for record in dead:
            require(record.attempt >= MAX_ATTEMPTS, "P9", f"dead too early: {record}")
        roots = Counter((record.producer, record.seq) for record in dead)
        require(max(roots.values(), default=0) <= 1, "P9", "two dead letters of one message")
        for position in self.deliveries.sent_back:
            if position not in {record.origin for record in copies}:
                broken("P10", f"{by_position[position]} was sent back and has no copy")
        self.world.model.tally["copies"] += len(copies)
        self.world.model.tally["dead letters"] += len(dead)


def _producer(name: str, machine: SimMachine, count: int) -> SimProducer:
    producer = SimProducer(name, machine, count)
    producer.topics = [PUSHED]  # nobody sends to a retry topic
    return producer


def run(seed: int, kinds: frozenset[str]) -> Pushing:
    """One run; raises what the oracle or an agent finds."""
    pushing = Pushing(seed)
    world, simulation = pushing.world, pushing.world.simulation
    faults: dict[str, Callable[[World], None]] = {
        "kill_an_agent": kill_an_agent,
        "kill_at_a_call": scenario.kill_at_a_call,
        "kill_everything": kill_everything,
        "kill_a_pusher": pushing.kill_a_pusher,
        "drop_a_session": pushing.drop_a_session,
        "lose_power": pushing.lose_power,
        "step_the_clock": scenario.step_the_clock,
    }
    chosen = [faults[name] for name in sorted(kinds)]
    for _ in range(world.dice.randint(1, 8) if chosen else 0):
        world.more_traffic()
        pause = simulation.steps + world.dice.randint(20, 800)
        simulation.run_until(partial(simulation.has_reached, pause), STEPS_MAX)
        world.dice.choice(chosen)(world)
    scenario.calm(world)
    tarry()
    simulation.run_until(pushing.settled, STEPS_MAX, SELDOM)
    waited_ns = simulation.clock.monotonic_ns() + WAIT_MS * 1_000_000
    simulation.run_until(lambda: simulation.clock.monotonic_ns() >= waited_ns, STEPS_MAX)
    simulation.run_until(pushing.settled, STEPS_MAX, SELDOM)
    world.model.log = pushing.read()
    pushing.check()
    check_all_delivered(world.model, simulation.clock.wall_ms(), WAIT_MS)
    return pushing


# ---------------------------------------------------------------------------------------- canaries


def not_looked_for() -> None:
    """What may have been put before a death is put again."""
    SendBacks._unanswered = lambda self: ()  # type: ignore[method-assign]


def answered_before_put() -> None:
    """The session hears of a copy that is only planned."""
    take = SendBacks._take

    def hasty(self: SendBacks, asked: Asked) -> None:
        take(self, asked)
        self._finish([pending for pending in self._waiting if asked.who in pending.asked])
        self._waiting.clear()

    SendBacks._take = hasty  # type: ignore[method-assign]


PLANTS = {plant.__name__: plant for plant in (not_looked_for, answered_before_put)}
KINDS = frozenset({
    "kill_an_agent", "kill_at_a_call", "kill_everything", "kill_a_pusher", "drop_a_session",
    "lose_power", "step_the_clock",
})  # fmt: skip


def main() -> None:
    """Run many seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:20")
    parser.add_argument("--faults", default=",".join(sorted(KINDS)))
    parser.add_argument("--plant", choices=PLANTS)
    wanted = parser.parse_args()
    if wanted.plant:
        PLANTS[wanted.plant]()
    first, last = map(int, wanted.seeds.split(":"))
    kinds = frozenset(wanted.faults.split(",")) - {"none"}
    tally: Counter[str] = Counter()
    for seed in range(first, last):
        try:
            tally += run(seed, kinds).world.model.tally
        except BaseException as error:
            latest = Simulation.latest
            story = latest.trace[-12:] if latest else []
            print("\n".join([*story, f"seed {seed} fails: {type(error).__name__}: {error}"]))
            plant = f" --plant {wanted.plant}" if wanted.plant else ""
            print(
                f"replay: PYTHONHASHSEED=0 python -m tests.sim.retries --seeds {seed}:{seed + 1}"
                f" --faults {wanted.faults}{plant}"
            )
            sys.exit(1)
    print(f"{last - first} seeds: " + ", ".join(f"{n} {what}" for what, n in sorted(tally.items())))


if __name__ == "__main__":
    main()
