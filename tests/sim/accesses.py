"""Every atomic access of every agent and client, as a place to die at (F1).

Run with NUMBA_DISABLE_JIT=1: `python -m tests.sim.accesses --seed 1`. A first run of a small
machine notes each place in the source where somebody loads, stores or fences, and how often. A
second one forks at each: who gets there for the n-th time is dead before the access. In the fork
the others go on without waiting, and the oracle of the simulator looks at the store.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from gantrymq.clients.assigned import Assigned
from gantrymq.clients.fetcher import Fetcher
from gantrymq.clients.logfiles import LogFiles
from gantrymq.clients.message import MessageQueue
from gantrymq.shm import atomics, layout
from gantrymq.shm.controllane import ControlLane, End
from gantrymq.shm.filter import parse_tags
from gantrymq.shm.jit import JIT_OFF
from gantrymq.shm.kernels import poll, progress, ring, words
from gantrymq.shm.layout import ARENA_DURABLE_WANTED, PROGRESS_AT, PROGRESS_BYTES
from gantrymq.shm.limits import PROGRESS_MAX
from tests.sim import scenario
from tests.sim.downfalls import STEPS_MAX
from tests.sim.scenario import World
from tests.support.faults import KilledError
from tests.support.simmachine import ROLES
from tests.support.simpace import tarry
from tests.support.simtransactor import SimTransactor
from tests.support.tree import ROOT
from tests.support.twins import QUEUES, Machine

AGENTS = {role.name.lower() for role in ROLES}
TRANSACTIONS = 5


@dataclass(frozen=True, order=True, slots=True)
class Place:
    """A line of the source, and what kind of process gets there."""

    who: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.who} {self.file}:{self.line}"


@cache
def place_of(who: str, path: str, line: int) -> Place:
    """The same object each time: it is asked for at every access."""
    return Place(who, Path(path).name, line)


#: Which passing of a place somebody dies at.
Death = tuple[Place, int]


class Watch:
    """Counts accesses by place; lets whoever makes the n-th at one of them die."""

    def __init__(self, world: World, deaths: Collection[Death] = ()) -> None:
        """Each death is met in a fork, which goes on with it: what comes before is the same."""
        self.world = world
        self.passed: Counter[Place] = Counter()
        self.deaths = deaths
        self.died: Death | None = None  # in this process
        self.met: set[Death] = set()  # in forks, which have ended well

    def __call__(self) -> None:
        """The hook of shm.atomics."""
        who = self.world.simulation.current.partition("-")[0]
        if not who or who == self.world.machine.name:
            return
        frame = sys._getframe(3)  # over the twin of the access and its step
        if frame.f_code.co_filename.endswith("words.py") and frame.f_back:
            frame = frame.f_back  # code outside kernels
        place = place_of(who, frame.f_code.co_filename, frame.f_lineno)
        self.passed[place] += 1
        death = place, self.passed[place]
        if self.died is not None or death not in self.deaths:
            return
        if self._is_child():
            self.died = death
            raise KilledError(f"access at {place}")
        self.met.add(death)

    def _is_child(self) -> bool:
        """Fork; the parent waits for its child's end, and goes on if that was a good one."""
        sys.stdout.flush()
        child = os.fork()
        if not child:
            return True
        _, status = os.waitpid(child, 0)
        if status:
            os._exit(1)  # it has said why
        return False


def new_world(seed: int) -> World:
    """A machine with one client of each kind, and one more who stays; producers of transactions."""
    world = scenario.new_world(seed, SimTransactor)
    for producer in world.producers:
        producer.left = TRANSACTIONS
    on_death = world.simulation.on_death

    def died(name: str) -> None:
        on_death(name)
        if name not in AGENTS:
            bury(world, name)

    world.simulation.on_death = died
    for producer in world.producers:
        producer.delays = False  # all there is shall have been read when the run is at rest
    for recaller in world.recallers:
        recaller.die()  # without delays there is nothing to cancel
    world.recallers.clear()
    tarry()
    return world


def bury(world: World, name: str) -> None:
    """What the supervisor hears of a client's death; another takes its part."""
    for clients in (world.producers, world.consumers):
        for client in [c for c in clients if c.name == name]:
            clients.remove(client)  # type: ignore[arg-type] # of the list that it is from
            client.die()
    if name.startswith("producer"):
        world.add_producer(5).delays = False
    else:
        world.add_consumer()


def live(seed: int, deaths: Collection[Death] = ()) -> Watch:
    """One run: traffic, the deaths, rest, a stop, and the oracle's look."""
    # Who waits awake looks as often, however long the processor is another's: both runs are alike.
    words.LOST_NS = sys.maxsize
    world = new_world(seed)
    watch = Watch(world, deaths)
    try:
        _live(watch)
    except BaseException as error:
        if watch.died is None:
            raise
        place, at = watch.died
        print(f"death at {place}, passing {at}: {type(error).__name__}: {error}")
        print(
            f"replay: NUMBA_DISABLE_JIT=1 python -m tests.sim.accesses"
            f" --seed {seed} --place '{place}' --at {at}"
        )
        sys.stdout.flush()
        os._exit(1)
    if watch.died is not None:
        os._exit(0)
    return watch


def _live(watch: Watch) -> None:
    world = watch.world
    atomics.set_hook(watch)
    try:
        world.simulation.run_until(world.settled, STEPS_MAX)
        for producer in world.producers:
            producer.send_more(4)
        world.simulation.run_until(world.settled, STEPS_MAX)
    finally:
        atomics.set_hook(None)
    scenario.start_again(world)


class Countdown:
    """Kills at the n-th access; 0: only notes the places."""

    def __init__(self, at: int = 0) -> None:
        self.at, self.count = at, 0
        self.places: set[tuple[str, int]] = set()

    def __call__(self) -> None:
        """The hook of shm.atomics."""
        frame = sys._getframe(3)
        place = place_of("", frame.f_code.co_filename, frame.f_lineno)
        self.places.add((place.file, place.line))
        self.count += 1
        if self.count == self.at:
            raise KilledError(f"access {self.at} of a consumer")


def poll_and_die(directory: Path, broker: Machine, at: int) -> Countdown:
    """A consumer dies amid its polls: its words never say more than it was handed out and passed.

    `groups` reads them as it always does, and whatever it reads is a position that was true.
    """
    broker.session.arena[PROGRESS_AT : PROGRESS_AT + QUEUES * PROGRESS_BYTES] = 0
    files = LogFiles(str(directory), broker.board)
    fetcher = Fetcher(broker.board, files, {"orders": parse_tags("*")})
    lane = ControlLane(broker.session.arena, broker.session.plan.groups, End.CLIENT)
    fetcher.attach(broker.session.arena, lane.words, (0, 0))
    held = [Assigned(n, MessageQueue("orders", n), n + 1, 0) for n in range(QUEUES)]
    fetcher.follow(held)
    countdown, handed = Countdown(at), [[0] * QUEUES]
    atomics.set_hook(countdown)
    try:
        for queue in held:
            slot = progress.open_slot(
                broker.session.arena, queue.number, queue.lease, queue.number, 0
            )
            queue.words[poll.SLOT] = slot
        for rows in (1, 5, 3):
            fetcher.poll(rows, poll.PASS | poll.HAND_OUT, restless=False)
            handed.append([int(queue.words[poll.DELIVERED]) for queue in held])
            poll.arm(fetcher.state)
            poll.disarm(fetcher.state)
    except KilledError:
        handed.append([int(queue.words[poll.DELIVERED]) for queue in held])
    finally:
        atomics.set_hook(None)
    seen, out = np.zeros((2, PROGRESS_MAX * progress.SLOT_WORDS), np.int64)
    for row in out.reshape(-1, progress.SLOT_WORDS)[
        : progress.changed_slots(broker.session.arena, seen, out)
    ]:
        number = int(row[progress.QUEUE])
        given = [before[number] for before in handed]
        assert row[progress.LEASE] == number + 1
        assert row[progress.COMMITTED] in given[:-1] or not at, (row, given)
        assert row[progress.COMMITTED] <= row[progress.STARTED] <= given[-1], (row, given)
    return countdown


def window_and_die(broker: Machine, at: int) -> Countdown:
    """A push consumer dies amid its words: these call nothing done or begun that is not."""
    arena = broker.session.arena
    arena[PROGRESS_AT : PROGRESS_AT + PROGRESS_BYTES] = 0
    countdown, done, begun = Countdown(at), set[int](), 0
    atomics.set_hook(countdown)
    try:
        slot = progress.open_slot(arena, 0, 1, 0, 0)
        for begun, acknowledged in ((3, (2, 0)), (40, (1, 3, 39)), (41, (40,))):
            progress.begin_messages(arena, slot, begun)
            for offset in acknowledged:
                done.add(offset)
                progress.ack_messages(arena, slot, offset, offset + 1)
        ring.publish(arena, ARENA_DURABLE_WANTED, 0)  # as one that sends, too
    except KilledError:
        pass
    finally:
        atomics.set_hook(None)
    words = layout.PROGRESS.unpack(arena, PROGRESS_AT)
    bits = int.from_bytes(words["acked"], "little")
    assert words["committed"] <= words["started"] <= begun, words
    assert set(range(words["committed"])) <= done
    inside = range(words["committed"], words["started"])
    assert {offset for offset in inside if bits >> offset & 1} <= done
    return countdown


def windows() -> Countdown:
    """A push consumer that dies before each access of its words; the run without a death."""
    with tempfile.TemporaryDirectory() as folder:
        broker = Machine(Path(folder))
        whole = window_and_die(broker, 0)
        for at in range(1, whole.count + 1):
            window_and_die(broker, at)
        for agent in broker.agents:
            agent.close()
    return whole


def polls() -> Countdown:
    """A consumer that dies before each access of its polls; returns the run without a death."""
    dice = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        broker = Machine(Path(folder))
        for number in range(12):
            broker.send(dice, number)
        broker.settle()
        whole = poll_and_die(Path(folder), broker, 0)
        for at in range(1, whole.count + 1):
            poll_and_die(Path(folder), broker, at)
        for agent in broker.agents:
            agent.close()
    return whole


def stores_of_kernels() -> set[tuple[str, int]]:
    """Where the kernels store atomically; those for code outside count at their callers."""
    return {
        (path.name, number)
        for path in sorted((ROOT / "shm" / "kernels").glob("*.py"))
        if path.name != "words.py"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if line.lstrip().startswith("atomics.store_release")
    }


def main() -> None:
    """Run all; print how many places and the stores that nobody got to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--each", type=int, default=1, help="passings of each place to die at")
    parser.add_argument("--share", default="0/1", help="of places: only the i-th of n shares")
    parser.add_argument("--place", help="only this one, as a failure prints it")
    parser.add_argument("--at", type=int, default=0, help="with --place: only this passing")
    wanted = parser.parse_args()
    if not JIT_OFF:
        sys.exit("needs NUMBA_DISABLE_JIT=1")
    passed = live(wanted.seed).passed
    dice, chosen = random.Random(wanted.seed), set[Death]()
    share, shares = (int(number) for number in wanted.share.split("/"))
    for place in sorted(passed)[share::shares]:
        passings = sorted({dice.randint(1, passed[place]) for _ in range(wanted.each)})
        if not wanted.place or wanted.place == str(place):
            chosen |= {(place, at) for at in ([wanted.at] if wanted.at else passings)}
    gc.freeze()  # what there is stays: no fork needs to look at it
    met = live(wanted.seed, chosen).met
    assert met == chosen, f"not met again: {chosen - met}"
    deaths = len(met)
    words, whole = windows(), polls()
    reached = {(place.file, place.line) for place in passed} | words.places | whole.places
    missed = sorted(stores_of_kernels() - reached)
    deaths += words.count + whole.count
    print("not reached: " + " ".join(f"{name}:{line}" for name, line in missed))
    print(f"{deaths} deaths at {len(passed)} places")


if __name__ == "__main__":
    main()
