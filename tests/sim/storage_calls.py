"""Every storage call of the broker, as the moment of a crash (F2, F5, F6, F24).

`python -m tests.sim.storage_calls kills --seed 1`: before and after each call of every agent and
of the start, everything is killed, or power is cut; then a start, which itself dies at one of its
own calls (`--nested all`: at each), and another one. Both come to the same store.
`... states`: a script of some 200 calls is recorded; at each of them every state that a power cut
may leave, with any of the last three changes lost that were not synced, with each unsynced name
lost, with none of what was not synced, and with the last write torn.
"""

from __future__ import annotations

import argparse
import pickle
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from gantrymq.brokerd import epoch
from gantrymq.brokerd.epoch import Life
from gantrymq.brokerd.metadata import Metadata
from gantrymq.brokerd.recovery import recover
from gantrymq.shm import layout
from gantrymq.shm.board import Board
from gantrymq.shm.storage import read_file
from tests.sim import plants, scenario
from tests.sim.downfalls import STEPS_MAX
from tests.sim.scenario import World
from tests.support.checkindex import check_index
from tests.support.faults import Fault, FaultPlan, KilledError, kill_at
from tests.support.model import End, Model
from tests.support.simdisk import SECTOR_BYTES, Change, Disk, Inode, parent_of
from tests.support.simstorage import SimStorage

MESSAGES = 12
SCRIPT_CALLS = 200
OUTSTANDING = 3

#: Calls of the script, those of them that are lost, and whether the last one is torn.
State = tuple[int, frozenset[int], bool]
Outcome = tuple[int, dict[tuple[str, int], int], dict[str, bytes]]


def small_world(seed: int) -> World:
    """Little traffic that goes through all files: a segment and an index file get full."""
    world = scenario.new_world(seed)
    for producer in world.producers:
        producer.left = MESSAGES
    return world


def start(
    world: World, disk: Disk, board: Board | None, faults: tuple[Fault, ...] = ()
) -> tuple[Outcome, int]:
    """What the supervisor does before agents; what comes out, and how many calls it took."""
    storage = SimStorage(disk, "supervisor", FaultPlan(faults))
    machine = world.machine
    _life, configuration = epoch.begin(storage, machine.configuration)
    found = recover(storage, configuration.settings, board, lambda *_: None)
    metadata = Metadata(storage, configuration.settings, machine.simulation.clock)
    metadata.load()
    epoch.mark_running(storage, Life(1 << 20, machine._boot_id.hex()), found.appended)
    following = {key: numbers[0] for key, numbers in found.queues.items() if numbers[0]}
    log = {name: read_file(storage, f"commitlog/{name}") for name in storage.list("commitlog")}
    return (found.appended, following, log), storage.faults.calls


@dataclass(frozen=True, slots=True)
class Promises:
    """What was promised at one moment, for oracles that change it."""

    pickled: bytes
    durable: int

    @classmethod
    def of(cls, world: World) -> Promises:
        """Those of now."""
        board, durable = board_of(world), world.model.durable
        if board is not None:
            durable = max(durable, board.word(layout.BOARD_DURABLE))
        return cls(pickle.dumps(world.model), durable)

    def model(self) -> Model:
        """One more copy."""
        twin: Model = pickle.loads(self.pickled)
        twin.durable = self.durable
        return twin


@dataclass(frozen=True, slots=True)
class Crash:
    """What is there at one moment: the disk, the board of the life, what was promised."""

    disk: Disk
    board: Board | None
    promises: Promises
    end: End

    def copy(self) -> Disk:
        """The disk, to be tried."""
        return self.disk.clone()


def judge(world: World, crash: Crash, nested: str, number: int) -> int:
    """Start, compare with the promises; die at a call of the start, and start again."""
    disk = crash.copy()
    outcome, calls = start(world, disk, crash.board)
    model = crash.promises.model()
    model.check_store(SimStorage(disk, "oracle"), outcome[0], crash.end)
    check_index(SimStorage(disk, "oracle"), outcome[0], -1, model.tally)
    again, _ = start(world, disk.clone(), None)
    assert again == outcome, "a second start comes to something else"
    every = range(1, calls + 1)
    for call in every if nested == "all" else [1 + number % calls]:
        tried = crash.copy()
        try:
            start(world, tried, crash.board, (kill_at(call),))
            raise AssertionError(f"the start has no call {call}")
        except KilledError:
            pass
        after, _ = start(world, tried, crash.board)
        assert after == outcome, f"killed at its call {call}, the start comes to something else"
    return 2 + 2 * (len(every) if nested == "all" else 1)


def kills(seed: int, nested: str) -> tuple[int, int]:
    """Kill and power cut before and after each call. Returns moments and starts.

    Behind a call and before the next there is often the same. It is killed once; what a power cut
    takes of it is drawn each time.
    """
    world = small_world(seed)
    disk, moments, starts = world.machine.disk, 0, 0
    killed: object = None
    disk.journal = []

    def watch(process: str, kind: str, name: str) -> None:
        nonlocal moments, starts, killed
        disk.watch = lambda *_: None
        moments += 1
        promises, board = Promises.of(world), board_of(world)
        state = len(disk.journal or ()), promises, board and bytes(board.memory)
        ends = (End.KILL, End.POWER) if state != killed else (End.POWER,)
        # All of one moment: while one is judged, whoever is amid a step may go on.
        crashes = [crash_now(world, promises, end, seed + moments) for end in ends]
        for end, crash in zip(ends, crashes, strict=True):
            try:
                starts += judge(world, crash, nested, moments)
            except BaseException as error:
                where = f"moment {moments} ({process}: {kind} {name}), {end.value}"
                raise AssertionError(f"{where}: {error}") from error
        killed = state
        disk.watch = watch

    disk.watch = watch
    world.simulation.run_until(world.settled, STEPS_MAX)
    scenario.stop_cleanly(world)
    return moments, starts


def board_of(world: World) -> Board | None:
    """The life's, or the one before where a start has none yet."""
    return world.machine.board or world.machine._old_board


def crash_now(world: World, promises: Promises, end: End, seed: int) -> Crash:
    """Everything as it is: a copy."""
    board, disk = board_of(world), world.machine.disk.clone()
    if end is End.POWER:
        disk.power_cut(random.Random(seed))
        return Crash(disk, None, promises, end)
    if board is not None:
        board = Board(memoryview(bytearray(board.memory)))
    return Crash(disk, board, promises, end)


# --------------------------------------------------------------------------- states of a script


def outstanding(script: list[Change]) -> list[int]:
    """Numbers of the changes that no later sync has made durable."""
    found: list[int] = []
    for number, call in enumerate(script):
        if call.kind == "sync":
            found = [n for n in found if script[n].inode is not call.inode or script[n].change]
        elif call.kind == "sync_names":
            found = [n for n in found if _directory(script[n]) != call.directory]
        else:
            found.append(number)
    return found


def _directory(call: Change) -> str | None:
    return parent_of(call.change.added or call.change.removed) if call.change else None


def losses(script: list[Change]) -> Iterator[frozenset[int]]:
    """Which changes a power cut behind the script may have lost."""
    unsynced = outstanding(script)
    last = unsynced[-OUTSTANDING:]
    for count in range(len(last) + 1):
        yield from map(frozenset, combinations(last, count))
    yield frozenset(unsynced)
    for number in unsynced:
        if script[number].change is not None:
            yield frozenset([number])


def build(script: list[Change], lost: frozenset[int], torn: bool) -> Disk:
    """The disk that is left; with `torn`, the last write is there in part."""
    disk = Disk(file_bytes_max=1 << 16)
    twins: dict[int, Inode] = {}

    def twin(inode: Inode) -> Inode:
        return twins.setdefault(id(inode), Inode(inode.memory.size))

    for number, call in enumerate(script):
        if number in lost:
            continue
        if call.kind == "write" and call.inode is not None:
            data = np.frombuffer(call.data, np.uint8)
            if torn and number == len(script) - 1:
                data = data[: data.size // 2 // SECTOR_BYTES * SECTOR_BYTES]
            _put(twin(call.inode), data, call.position)
        elif call.kind == "length" and call.inode is not None:
            inode = twin(call.inode)
            inode.memory[call.position :] = 0
            inode.length = call.position
        elif call.change is not None:
            held = twin(call.change.inode) if call.change.inode else None
            disk.names.apply(type(call.change)(call.change.removed, call.change.added, held))
    disk.names = disk.names.without_orphans()
    disk.durable_names = type(disk.names)(dict(disk.names.entries))
    return disk


def _put(inode: Inode, data: np.ndarray, position: int) -> None:
    """Without the account of what is dirty: power has been cut already."""
    inode.memory[position : position + data.size] = data
    inode.length = max(inode.length, position + data.size)


def states(seed: int, share: int = 0, shares: int = 1) -> tuple[int, int]:
    """All states of a script, or a share. Returns its calls and how many states there were."""
    world = small_world(seed)
    disk = world.machine.disk
    script: list[Change] = []
    disk.journal = script
    promises: list[Promises] = []

    def watch(_process: str, _kind: str, _name: str) -> None:
        now = Promises.of(world)
        promises.extend([now] * (len(script) + 1 - len(promises)))
        promises[len(script)] = now

    disk.watch = watch
    while len(script) < SCRIPT_CALLS:
        world.simulation.run_until(
            lambda: len(script) >= SCRIPT_CALLS or world.settled(), STEPS_MAX
        )
        for producer in world.producers:
            producer.send_more(MESSAGES)
    disk.journal = None
    every = {
        state: length
        for length in range(min(len(script), len(promises) - 1), 0, -1)
        for state in _ends(script[:length])
    }
    for number, (state, length) in enumerate(sorted(every.items(), key=lambda item: item[1])):
        if number % shares == share:
            _judge_state(world, script, state, promises[length])
    return len(script), len(every)


def _ends(script: list[Change]) -> Iterator[State]:
    """States behind a script; without its last change it is a shorter one."""
    for lost in losses(script):
        end = len(script)
        while end - 1 in lost:
            end -= 1
        yield end, frozenset(number for number in lost if number < end), False
    if script[-1].kind == "write" and len(script[-1].data) > SECTOR_BYTES:
        yield len(script), frozenset(), True


def _judge_state(world: World, script: list[Change], state: State, promises: Promises) -> None:
    end, lost, torn = state
    disk = build(script[:end], lost, torn)
    try:
        outcome, _ = start(world, disk, None)
        promises.model().check_store(SimStorage(disk, "oracle"), outcome[0], End.POWER)
        check_index(SimStorage(disk, "oracle"), outcome[0], -1, Counter())
        durable = promises.durable
        assert outcome[0] >= durable, f"ends at {outcome[0]}, durable was {durable}"
        if torn or end % 3 == 0:
            assert start(world, disk, None)[0] == outcome, "a second start comes to something else"
    except BaseException as error:
        raise AssertionError(
            f"behind call {end}, without {sorted(lost)}, {torn=}: {error}"
        ) from error


def main() -> None:
    """Run one of the two; print what was tried."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["kills", "states"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plant", choices=plants.PLANTS, help="put a known bug in first")
    parser.add_argument("--share", default="0/1", help="of states: only the i-th of n shares")
    parser.add_argument("--nested", choices=["one", "all"], default="one")
    parser.add_argument("--batch-topic", help="a topic that is of RocketMQ's type BatchCQ")
    wanted = parser.parse_args()
    if wanted.batch_topic:
        scenario.BATCH_TOPICS.add(wanted.batch_topic)
    if wanted.plant:
        plants.PLANTS[wanted.plant]()
    if wanted.what == "kills":
        moments, starts = kills(wanted.seed, wanted.nested)
        print(f"{moments} moments, {starts} starts")
    else:
        share, shares = (int(number) for number in wanted.share.split("/"))
        calls, count = states(wanted.seed, share, shares)
        print(f"{calls} calls, {count} states")


if __name__ == "__main__":
    main()
