"""Runs of producers of transactions that are killed at any point, as are all agents.

Halves, ends that come late, twice or contradict, checks that are answered, or not, or by nobody.
`python -m tests.sim.transactions --seeds 0:20`. Prints the failing seed and exits 1. P7: what is
delivered is what its producer has done, once; P10: each half is decided or given up and listed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gantrymq.shm import layout
from gantrymq.shm.codes import Role
from gantrymq.shm.marks import MARKS
from gantrymq.workers.transactions.indoubt import GIVEN_UP, InDoubt
from tests.sim import scenario
from tests.sim.downfalls import SELDOM, STEPS_MAX, cut_power, kill_everything, stall_the_disk
from tests.sim.rare_faults import ask_for_timers
from tests.sim.scenario import World
from tests.sim.transaction_plants import PLANTS
from tests.support.simoperator import SimOperator
from tests.support.simpace import tarry
from tests.support.simtransactor import GROUP, ORPHANS, SimTransactor
from tests.support.storedlog import Stored, read_log

#: Room in each file: transactions cost the log a multiple of plain messages.
FILE_BYTES_MAX = 128 * 1024
AGENTS = (Role.TXN_CHECKER, Role.TXN_CHECKER, Role.WRITER, Role.READER, Role.FLUSHER)
#: What a decision passes.
NEAR = tuple(sorted(name for name in MARKS if name.startswith(("txn_checker.", "writer."))))


def kill_a_decider(world: World) -> None:
    """Who has to do with decisions, between two steps."""
    world.machine.kill_agent(world.dice.choice(AGENTS))


def kill_near_a_decision(world: World) -> None:
    """Where a decision is between the ring, the log and its answer; perhaps all with it."""
    mark = world.dice.choice(NEAR)
    world.simulation.note(f"plan: die at {mark}")
    world.simulation.kill_at_mark(mark, world.dice.randint(1, 4))
    if world.dice.random() < 0.3:
        ends = [kill_everything, cut_power]
        world.machine.then = partial(world.dice.choice(ends), world)


def cut_power_amid_a_stall(world: World) -> None:
    """Who decides is replaced meanwhile; the power goes once somebody is told, or anyway.

    That is told of what has to be on the disk.
    """
    transactions = world.model.transactions
    transactions.is_told = False
    kill = partial(world.dice.choice([kill_a_decider, kill_near_a_decision]), world)
    stall_the_disk(world, kill, lambda: transactions.is_told)
    cut_power(world)


def lose_power(world: World) -> None:
    """As it comes, or amid a stall of the disk."""
    world.dice.choice([cut_power, cut_power_amid_a_stall])(world)


def kill_a_producer(world: World) -> None:
    """At whatever it is; another of its group may answer for it."""
    if world.producers:
        world.producers.pop(world.dice.randrange(len(world.producers))).die()
    if world.dice.random() < 0.7:
        world.add_producer(world.dice.randint(1, 12))


def wait_for_checks(world: World) -> None:
    """Some seconds in which halves become due, and are given up."""
    simulation = world.simulation
    until_ns = simulation.clock.monotonic_ns() + world.dice.randint(500, 4000) * 1_000_000
    simulation.run_until(lambda: simulation.clock.monotonic_ns() >= until_ns, STEPS_MAX)


def let_halves_wait(world: World) -> None:
    """Old segments are held by halves alone, open or given up: these are appended again."""
    for producer in world.producers:
        assert isinstance(producer, SimTransactor), "this world has no others"
        producer.leaves = True
        producer.send_more(40)
    scenario.let_time_pass(world)


def call_an_operator(world: World) -> None:
    """Who settles some of what is in doubt."""
    world.born += 1
    name = f"operator-{world.born}"
    world.simulation.add(SimOperator(name, world.machine, world.dice.randint(1, 4)))


OFTEN = (kill_a_decider, kill_near_a_decision, kill_a_producer, wait_for_checks)
FAULTS: tuple[Callable[[World], None], ...] = (
    *OFTEN,
    *OFTEN,
    scenario.kill_at_a_call,
    kill_everything,
    lose_power,
    scenario.step_the_clock,
    scenario.break_the_disk,
    scenario.fill_the_disk,
    scenario.drop_a_connection,
    let_halves_wait,
    call_an_operator,
    scenario.let_time_pass,
    ask_for_timers,
    scenario.overfill_the_disk,
    scenario.stop_amid_work,
)


def run(seed: int, faults: tuple[Callable[[World], None], ...] = FAULTS) -> World:
    """One run; raises what the oracle or an agent finds. Returns the world for statistics."""
    world = scenario.new_world(seed, SimTransactor, scenario.machine_of(seed, faults))
    simulation = world.simulation
    world.machine.disk.file_bytes_max = FILE_BYTES_MAX
    scenario.go_through(world, faults)
    for group in (GROUP, ORPHANS):
        world.born += 1
        heir = SimTransactor(f"heir-{world.born}", world.machine, 0, group, begins=False)
        world.producers.append(heir)
        simulation.add(heir)
    tarry()
    ends = Ends(world)
    simulation.run_until(ends.reached, STEPS_MAX, SELDOM)
    for _ in range(2 * world.dice.randint(0, 1)):  # what is read meanwhile hides other faults
        simulation.run_until(ParkedAgain(world).reached, STEPS_MAX, SELDOM)
    simulation.run_until(ends.reached, STEPS_MAX, SELDOM)  # of what came due meanwhile, too
    scenario.start_again(world)
    model, storage = world.model, world.machine.storage_for("oracle")
    doubts = InDoubt(storage, None).read()
    model.transactions.check_all_ended(
        model.log, {doubt.position for doubt in doubts if doubt.state == GIVEN_UP}
    )
    return world


class Ends:
    """When nobody has anything left to send, to decide or to read."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._as_of = (0, -1)  # life and end of the log that was read
        self._left: list[Stored] = []

    def reached(self) -> bool:
        """Whether all halves are named, and all that came of them is consumed."""
        world = self._world
        actors = world.simulation.actors.values()
        if any(isinstance(actor, SimOperator) and not actor.done for actor in actors):
            return False  # what one settles now is committed amid the stop, and read by nobody
        if not world.settled():
            return False
        board = world.machine.board
        assert board is not None, "it is settled"
        as_of = world.machine.lives, board.word(layout.BOARD_APPENDED)
        if as_of != self._as_of:
            self._as_of = as_of
            storage = world.machine.storage_for("oracle")
            log = read_log(storage, as_of[1], board.word(layout.BOARD_LOW), whole=False)
            self._left = world.model.transactions.undecided(log)
        return not self._left


class ParkedAgain:
    """When all that was given up lies behind where the log ended when retention asked for it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen = -1
        self._behind = 0

    def reached(self) -> bool:
        """Whether it does, of those that nobody has settled. A new life is asked anew."""
        board = self._world.machine.board
        if board is None:
            return False
        end = board.word(layout.BOARD_APPENDED)
        if not board.word(layout.BOARD_TIMERS_WANTED) >= self._behind > 0:
            self._behind = end
            board.set_word(layout.BOARD_TIMERS_WANTED, end)
        if end == self._seen:
            return False
        self._seen = end
        storage, known = self._world.machine.storage_for("oracle"), self._world.model.transactions
        log = read_log(storage, end, board.word(layout.BOARD_LOW), whole=False)
        places = known.newest(log)
        left = {half for half in places if half not in known.asked}
        return all(places[half] >= self._behind for half in left)


def main() -> None:
    """Run many seeds."""
    from tests.sim.seeds import run_seeds

    named = {fault.__name__: fault for fault in (*FAULTS, cut_power, cut_power_amid_a_stall)}
    run_seeds("tests.sim.transactions", run, (FAULTS, named), PLANTS)


if __name__ == "__main__":
    main()
