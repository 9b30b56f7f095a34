"""Runs of the real client code: producers, consumers that pull and that are pushed to, and faults.

Every application is a process of several threads that calls the public API; between any two
statements of the client code other threads, agents and faults may come. `python -m
tests.sim.clients --seeds 0:20`. Each seed runs in a fork of its own, so that it replays exactly:
the digest that is printed is that of all that applications did and got. Prints the failing seed and
exits 1.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import logging
import os
import pickle
import random
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

from gantrymq.shm import jit, layout
from gantrymq.shm.codes import Role
from gantrymq.workers.groups import reports
from gantrymq.workers.transactions.indoubt import GIVEN_UP, InDoubt
from tests.sim.client_plants import PLANTS
from tests.sim.kills import kill_an_agent, kill_at_a_mark
from tests.sim.plants import put_over
from tests.support import realclients, simwidth
from tests.support.faults import Moment, fail_at, kill_at
from tests.support.model import End
from tests.support.simapps import Application, Listener, Reader, Sender
from tests.support.simbooks import Books
from tests.support.simdisk import ROOM_FOR_ALL
from tests.support.simdoor import DoorMachine
from tests.support.simmachine import ROLES
from tests.support.simordered import ORDERED, OrderedListener, Orders
from tests.support.simpace import tarry
from tests.support.simpayer import Payer
from tests.support.simsifters import SIFTED, SiftingListener, SiftingReader
from tests.support.simstamps import sieves_for
from tests.support.simulation import AgentActor, Simulation
from tests.support.storedlog import require

TOPICS = {"plain": (2, "written"), "safe": (1, "durable")}
PULLED, PUSHED = "pulled", "pushed"
#: Which consumers runs have: by the seed, or those of most runs; else one of UNUSUAL.
ANY, USUAL = "any", "usual"
STEPS_MAX = 40_000
HOUR_MS = 3_600_000
FILE_BYTES_MAX = 256 * 1024
#: Between two statements of client code others come in so often, by the seed.
SHARES = (0.0, 0.003, 0.03)
SHARE_IN_CROWDS = 0.1
#: Queues whose words `groups` takes in one step: few, or as many as there are.
ROWS = (1, 2, 128)
#: A step that never ends ends its run.
HUNG_S = 120
#: After all is calm: longer than all delays.
WAIT_MS = 1_500


@dataclass(slots=True)
class Kinds:
    """Which consumers a run has."""

    make_reader: Callable[[str], Application]
    make_listener: Callable[[str], Application]
    groups: tuple[str, ...]


@dataclass(slots=True)
class Clients:
    """What a run works on."""

    simulation: Simulation
    books: Books
    machine: DoorMachine
    world: realclients.World
    senders: list[Sender | Payer] = field(default_factory=list)
    readers: list[Application] = field(default_factory=list)
    born: int = 0
    #: What consumes in this run, and the groups of all that: who pulls, and who is pushed to.
    kinds: Kinds = field(init=False)

    def __post_init__(self) -> None:
        """As most runs have it."""
        self.kinds = Kinds(
            lambda name: Reader(name, self.machine, self.books, PULLED),
            lambda name: Listener(name, self.machine, self.books, PUSHED),
            (PULLED, PUSHED),
        )

    @property
    def dice(self) -> random.Random:
        """The run's dice."""
        return self.simulation.dice

    def _name(self, kind: str) -> str:
        self.born += 1
        return f"{kind}-{self.born}"

    def add_sender(self, count: int, *, is_crowd: bool = False) -> None:
        """A process that sends, by one thread or two, or by a crowd of them."""
        name = self._name("sender")
        self.senders.append(Sender(name, self.machine, self.books, count, is_crowd=is_crowd))

    def add_payer(self, count: int) -> None:
        """A process with transactions."""
        self.senders.append(Payer(self._name("payer"), self.machine, self.books, count))

    def add_reader(self) -> None:
        """A process with a consumer that pulls."""
        self.readers.append(self.kinds.make_reader(self._name("reader")))

    def add_listener(self) -> None:
        """A process with a consumer that is pushed to."""
        self.readers.append(self.kinds.make_listener(self._name("listener")))

    @property
    def applications(self) -> list[Application]:
        """All."""
        return [*self.senders, *self.readers]

    def settled(self) -> bool:
        """All sent, told of, visible and processed."""
        board = self.machine.board
        if board is None or not all(sender.done for sender in self.senders):
            return False
        if board.word(layout.BOARD_DISPATCHED) < board.word(layout.BOARD_APPENDED):
            return False
        for topic in board.topics():
            if topic.name in TOPICS:
                for queue in range(topic.queue_base, topic.queue_base + topic.queue_count):
                    row = board.queue(queue)
                    if row["max_offset"] < row["next_offset"]:
                        return False
        storage = self.machine.storage_for("oracle")
        return self.books.all_processed(self.kinds.groups, set(TOPICS), storage, board)


def have_ordered(clients: Clients) -> None:
    """A group of ordered push consumers."""
    machine, books = clients.machine, clients.books
    orders = Orders(machine, books)
    clients.kinds.make_listener = lambda name: OrderedListener(name, machine, books, orders)
    clients.kinds.groups = (PULLED, ORDERED)


def have_sifters(clients: Clients) -> None:
    """A group that wants some messages only: all its members pull, or all are pushed to."""
    machine, books = clients.machine, clients.books
    dice = simwidth.dice_of(clients.simulation.seed, "sieves")
    sieves = sieves_for(list(TOPICS), dice)
    books.wants[SIFTED] = lambda topic, stamp: sieves[topic].lets_through(stamp)
    if dice.random() < 0.5:
        clients.kinds.make_reader = lambda name: SiftingReader(name, machine, books, sieves)
        clients.kinds.groups = (SIFTED, PUSHED)
    else:
        clients.kinds.make_listener = lambda name: SiftingListener(name, machine, books, sieves)
        clients.kinds.groups = (PULLED, SIFTED)


#: What consumes in place of the usual: one of them, by the seed.
UNUSUAL: dict[str, Callable[[Clients], None]] = {
    "ordered": have_ordered,
    "sifters": have_sifters,
}


def new_run(seed: int, home: Path, kind: str) -> Clients:
    """A machine that is about to start, and its applications."""
    safe = frozenset(name for name in TOPICS if TOPICS[name][1] == "durable")
    simulation, books = Simulation(seed), Books(safe)
    machine = DoorMachine(simulation, books, TOPICS, home)
    machine.disk.file_bytes_max = FILE_BYTES_MAX
    put_over(reports, "ROWS_MAX", simwidth.dice_of(seed, "rows").choice(ROWS))
    world = realclients.World(seed, machine.storage_for, SHARES[seed // 4 % len(SHARES)])
    realclients.enter(world)
    clients = Clients(simulation, books, machine, world)
    if kind:
        books.stamps = True
        UNUSUAL[kind](clients)
        simulation.note(f"with {kind}")
    for _ in range(simulation.dice.randint(1, 2)):
        clients.add_sender(simulation.dice.randint(5, 30))
    if simulation.dice.random() < 0.5:
        clients.add_payer(simulation.dice.randint(2, 6))
    for _ in range(simulation.dice.randint(1, 2)):
        clients.add_reader()
        clients.add_listener()
    return clients


def kind_of(seed: int, wanted: str) -> str:
    """Which unusual consumers a run has, as wanted or by its seed; none in two of five."""
    if wanted != ANY:
        return "" if wanted == USUAL else wanted
    dice = simwidth.dice_of(seed, "consumers")
    return "" if dice.random() < 0.4 else dice.choice(list(UNUSUAL))


# ----------------------------------------------------------------------------------------- faults


def kill_at_a_call(clients: Clients) -> None:
    """Before, within or after an agent's change of the store."""
    role = clients.dice.choice(ROLES)
    fault = kill_at(clients.dice.randint(1, 12), clients.dice.choice(list(Moment)))
    storage = clients.machine.stores.get(role.name.lower())
    if storage is not None:
        storage.faults.faults = (fault,)
    clients.simulation.note(f"plan: {role.name} dies at a call")


def kill_the_broker(clients: Clients) -> None:
    """SIGKILL of all of it, perhaps again while it recovers; applications live on."""
    if clients.dice.random() < 0.3:
        fault = kill_at(clients.dice.randint(1, 25), clients.dice.choice(list(Moment)))
        clients.machine.plans.supervisor = (fault,)
    clients.machine.kill_broker(End.KILL)


def cut_power(clients: Clients) -> None:
    """The machine goes down with all applications, and others come."""
    left = sum(max(0, sender.left) for sender in clients.senders)
    for application in clients.applications:
        application.die()
    clients.senders.clear()
    clients.readers.clear()
    clients.machine.kill_broker(End.POWER)
    clients.add_sender(left)
    clients.add_payer(2)
    clients.add_reader()
    clients.add_listener()


def kill_an_application(clients: Clients) -> None:
    """SIGKILL; another of its kind comes."""
    kind = clients.dice.choice(["sender", "reader", "listener"])
    if kind == "sender" and clients.senders:
        dead = clients.senders.pop(clients.dice.randrange(len(clients.senders)))
        clients.simulation.note(f"kill {dead.name}")
        dead.die()
        (clients.add_payer if isinstance(dead, Payer) else clients.add_sender)(
            max(0, dead.left) + 5
        )
        return
    of_kind = [r for r in clients.readers if r.name.startswith(kind)]
    if of_kind:
        gone = clients.dice.choice(of_kind)
        clients.simulation.note(f"kill {gone.name}")
        clients.readers.remove(gone)
        gone.die()
    clients.dice.choice([clients.add_reader, clients.add_listener])()


def stop_an_application(clients: Clients) -> None:
    """A clean end, while others go on."""
    if len(clients.readers) > 2:
        gone = clients.readers.pop(clients.dice.randrange(len(clients.readers)))
        clients.simulation.note(f"{gone.name} is to stop")
        gone.stopping = True


def let_another_come(clients: Clients) -> None:
    """A process more that consumes: queues go to it from others, which are busy."""
    for sender in clients.senders:
        sender.send_more(clients.dice.randint(10, 40))
    pause = clients.simulation.steps + clients.dice.randint(50, 1000)
    clients.simulation.run_until(partial(clients.simulation.has_reached, pause), STEPS_MAX)
    clients.dice.choice([clients.add_reader, clients.add_listener])()
    clients.simulation.note(f"{clients.readers[-1].name} comes")


def drop_a_connection(clients: Clients) -> None:
    """A socket ends, nobody knows why."""
    machine = clients.machine
    if machine.door is not None and machine.sessions:
        number = clients.dice.choice(sorted(machine.sessions))
        clients.simulation.note(f"the connection of session {number} ends")
        machine.door.drop(number)


def fill_the_disk(clients: Clients) -> None:
    """No room for another segment."""
    clients.simulation.note("no room for segments")
    clients.machine.disk.allocate_max = 0
    clients.machine.model.transactions.was_full = True
    for sender in clients.senders:
        sender.send_more(10)


def break_the_disk(clients: Clients) -> None:
    """A write or sync of an agent fails; the broker ends and starts again."""
    role = clients.dice.choice([Role.WRITER, Role.FLUSHER, Role.READER, Role.GROUPS])
    storage = clients.machine.stores.get(role.name.lower())
    if storage is not None:
        kind = clients.dice.choice(["write", "sync"])
        storage.faults.faults = (fail_at(clients.dice.randint(1, 5), 5, (kind,)),)
        clients.simulation.note(f"plan: {role.name} meets EIO at a {kind}")


def set_the_clock(clients: Clients) -> None:
    """The wall clock is set by up to a day, or so that old segments may go.

    Not by less than a timeline takes for a step: a delay may then be early by a part of a ms.
    """
    day_ms = 24 * HOUR_MS
    by_ms = clients.dice.choice([clients.dice.randint(-day_ms, day_ms), 2 * HOUR_MS])
    clients.simulation.note(f"the wall clock is set by {by_ms} ms")
    clients.simulation.clock.step_wall(by_ms)


def crowd_a_producer(clients: Clients) -> None:
    """Many threads wait for one producer, and between two statements others come often."""
    clients.simulation.note("a crowd comes")
    clients.add_sender(8, is_crowd=True)
    clients.world.share = SHARE_IN_CROWDS


FAULTS: tuple[Callable[[Clients], None], ...] = (
    kill_an_agent, kill_an_agent, kill_at_a_mark, kill_at_a_call, kill_the_broker, kill_the_broker,
    cut_power, kill_an_application, stop_an_application, drop_a_connection, fill_the_disk,
    break_the_disk, set_the_clock,
)  # fmt: skip
#: What is no fault: queues go from member to member in good order, and nothing comes twice.
MOVES = (let_another_come,)
#: A crowd takes long, and is for those who name it.
NAMED = {fault.__name__: fault for fault in (*FAULTS, let_another_come, crowd_a_producer)}


# ------------------------------------------------------------------------------------------- a run


@dataclass(frozen=True, slots=True)
class Wanted:
    """What runs are to have: kinds of faults, a planted bug, and which consumers."""

    faults: tuple[Callable[[Clients], None], ...]
    plant: str = ""
    consumers: str = ANY


def run(seed: int, wanted: Wanted, home: Path) -> Clients:
    """One run; raises what the oracle, an agent or an application finds."""
    clients = new_run(seed, home, kind_of(seed, wanted.consumers))
    simulation = clients.simulation
    faults = simwidth.kinds_of(seed, wanted.faults)
    for _ in range(clients.dice.randint(1, 6) if faults else 0):
        for sender in clients.senders:
            sender.send_more(clients.dice.randint(0, 12))
        pause = simulation.steps + clients.dice.randint(50, 2500)
        simulation.run_until(partial(simulation.has_reached, pause), STEPS_MAX)
        if clients.dice.random() < 0.5:
            _make_room(clients)
        clients.dice.choice(faults)(clients)
    _calm(clients)
    simulation.run_until(clients.settled, STEPS_MAX)
    tarry()
    waited_ns = simulation.clock.monotonic_ns() + WAIT_MS * 1_000_000
    simulation.run_until(lambda: simulation.clock.monotonic_ns() >= waited_ns, STEPS_MAX)
    simulation.run_until(clients.settled, STEPS_MAX)
    if set(faults) == {set_the_clock}:
        _check_nobody_left(clients)
    board = clients.machine.board
    assert board is not None, "it is running"
    low = board.word(layout.BOARD_LOW)
    end = board.word(layout.BOARD_APPENDED)  # what producers hand over as they close finds nobody
    groups = clients.kinds.groups
    is_sound = set(faults) <= set(MOVES)
    # Before the end: who leaves may be granted a queue as it does, and is not believed then.
    refused = board.process(Role.GROUPS)["refused"]
    require(not (is_sound and refused), "P5", f"`groups` has refused {refused} in good order")
    _end(clients)
    for group in groups:
        clients.books.check_all_processed(group, set(TOPICS), low, end)
    storage = clients.machine.storage_for("oracle")
    doubts = InDoubt(storage, None).read()
    given_up = {doubt.position for doubt in doubts if doubt.state == GIVEN_UP}
    clients.books.transactions.check_all_ended(clients.books.log, given_up)
    for group in groups if is_sound else ():
        clients.books.check_once(group)
    return clients


def _check_nobody_left(clients: Clients) -> None:
    """No session has ended by the wall clock (LW-12)."""
    over = [what for what in clients.books.tally if what.endswith(("BrokerGone", "Evicted"))]
    over = [what for what in over if not what.startswith("not attached")]
    whole = clients.machine.lives == 1 and not clients.books.tally["cut off"]
    require(whole and not over, "LW-12", f"sessions end by the clock: {over}")


def _make_room(clients: Clients) -> None:
    clients.machine.disk.allocate_max = ROOM_FOR_ALL


def _calm(clients: Clients) -> None:
    """No more faults, and somebody who consumes."""
    clients.simulation.note("calm")
    clients.simulation.kill_at_mark("", 1)
    clients.machine.then = None
    _make_room(clients)
    clients.machine.plans.agents.clear()
    clients.machine.plans.supervisor = ()
    for storage in clients.machine.stores.values():
        storage.faults.faults = ()
    clients.add_payer(0)
    clients.add_reader()
    clients.add_listener()


def _end(clients: Clients) -> None:
    """All applications stop, the broker is killed, and what it has left is looked at."""
    for application in clients.applications:
        application.stopping = True
    ended = [application for application in clients.applications if not application.has_ended]
    clients.simulation.note(f"{len(ended)} applications are to stop")
    clients.simulation.run_until(lambda: all(a.has_ended for a in ended), STEPS_MAX)
    for role in ROLES:
        actor = clients.simulation.actors.get(role.name.lower())
        assert actor is None or isinstance(actor, AgentActor), role
    clients.machine.kill_broker(End.KILL)
    clients.simulation.run_until(lambda: clients.machine.running, STEPS_MAX)


# ------------------------------------------------------------------------------------- many runs


@dataclass(frozen=True)
class Verdict:
    """What a fork says of its run."""

    error: str
    digest: str
    story: list[str]
    tally: Counter[str]
    steps: int = 0


def run_apart(seed: int, wanted: Wanted) -> Verdict:
    """A run in a child, which begins as this process is."""
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryFile() as told:
        child = os.fork()
        if not child:
            _be_child(seed, wanted, Path(home), told)
        _, status = os.waitpid(child, 0)
        told.seek(0)
        data = told.read()
    if not data:
        return Verdict(f"the run ended with {status}", "", [], Counter())
    verdict = pickle.loads(data)
    assert isinstance(verdict, Verdict), "what a child writes"
    return verdict


def _be_child(seed: int, wanted: Wanted, home: Path, told: IO[bytes]) -> None:
    faulthandler.dump_traceback_later(HUNG_S, exit=True)
    logging.disable()  # clients tell of every fault
    gc.disable()  # what it takes apart would depend on what there was before
    while os.dup(0) < 63:  # descriptors have the same numbers in every run
        pass
    error = ""
    digest, tally = "", Counter[str]()
    try:
        if wanted.plant:
            PLANTS[wanted.plant]()
        clients = run(seed, wanted, home)
        digest, tally = clients.books.digest, clients.books.tally
    except BaseException as caught:
        traceback.print_exc()
        error = f"{type(caught).__name__}: {caught}"
    latest = Simulation.latest
    verdict = Verdict(
        error, digest, latest.trace if latest else [], tally, latest.steps if latest else 0
    )
    told.write(pickle.dumps(verdict))
    told.flush()
    sys.stderr.flush()
    os._exit(0)


def main() -> None:
    """Run many seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:20")
    parser.add_argument("--faults", default="all", help=f"all, none, or of {','.join(NAMED)}")
    parser.add_argument("--consumers", choices=(ANY, USUAL, *UNUSUAL), default=ANY)
    parser.add_argument("--plant", choices=PLANTS, default="")
    parser.add_argument("--story", action="store_true")
    given = parser.parse_args()
    chosen = {"all": FAULTS, "none": ()}.get(given.faults)
    if chosen is None:
        chosen = tuple(NAMED[name] for name in given.faults.split(","))
    wanted = Wanted(chosen, given.plant, given.consumers)
    first, last = map(int, given.seeds.split(":"))
    jit.warm()
    realclients.modules()
    tally: Counter[str] = Counter()
    for seed in range(first, last):
        verdict = run_apart(seed, wanted)
        tally += verdict.tally
        if verdict.error or given.story:
            print("\n".join(verdict.story if given.story else verdict.story[-40:]))
        if verdict.error:
            print(f"seed {seed} fails: {verdict.error}")
            again = f"--seeds {seed}:{seed + 1} --faults {given.faults}"
            again += f" --consumers {given.consumers}" if given.consumers != ANY else ""
            again += f" --plant {given.plant}" if given.plant else ""
            print(f"replay: PYTHONHASHSEED=0 python -m tests.sim.clients {again}")
            sys.exit(1)
        print(f"seed {seed} holds, digest {verdict.digest}, {verdict.steps} steps")
    print("reached: " + ", ".join(f"{count} {what}" for what, count in sorted(tally.items())))


if __name__ == "__main__":
    main()
