"""Faults to be asked for by name: each makes likely what others meet now and then only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from gantrymq.brokerd import retention
from gantrymq.shm import layout
from gantrymq.shm.codes import ParkMode, Role
from gantrymq.shm.lognames import bases_of
from gantrymq.workers.scheduler import progress, timerfiling, timers
from tests.sim import scenario
from tests.sim.downfalls import STEPS_MAX, cut_power, kill_everything
from tests.sim.scenario import World
from tests.support.simmachine import ROLES
from tests.support.simstorage import SimStorage
from tests.support.simstranger import SimStranger


def leave_unanswered(world: World) -> None:
    """The writer dies between append and completions: what was sent is sent again."""
    for producer in world.producers:
        producer.send_more(10)
    world.simulation.kill_at_mark("writer.after_appended", world.dice.randint(1, 3))


def die_amid_appends(world: World) -> None:
    """The whole broker dies where its writer appends."""
    for producer in world.producers:
        producer.send_more(20)
    mark = world.dice.choice(["writer.before_append", "writer.after_append"])
    world.simulation.kill_at_mark(mark, world.dice.randint(1, 8))
    world.machine.then = partial(kill_everything, world)


def stall_the_writer(world: World) -> None:
    """It stands still while messages come due, until the whole broker dies."""
    for producer in world.producers:
        producer.waits = [(ParkMode.AFTER, ms) for ms in (100, 150, 200, 300)]
        producer.at_once = 0.5
        producer.send_more(20)
    machine, writer = world.machine, Role.WRITER.name.lower()
    machine._later(60_000_000, partial(world.simulation.remove, writer))
    machine._later(400_000_000, partial(kill_everything, world))


def hold_by_timers(world: World) -> None:
    """Old segments are held by timers alone that wait for years: these are appended again."""
    for producer in world.producers:
        producer.waits = [due for due in producer.waits if due[0] == ParkMode.AT]
        producer.send_more(40)
    scenario.let_time_pass(world)


def ask_for_timers(world: World) -> None:
    """As retention does, whatever else holds these segments."""
    if (board := world.machine.board) is not None:
        base = board.word(layout.BOARD_APPENDED) // board.segment_bytes * board.segment_bytes
        wanted = max(base, board.word(layout.BOARD_TIMERS_WANTED))
        board.set_word(layout.BOARD_TIMERS_WANTED, wanted)


def join_otherwise(world: World) -> None:
    """A member with another subscription tries to join, now and around ends of `groups`."""
    simulation = world.simulation
    world.strangers += 1
    machine, name = world.machine, f"stranger-{world.strangers}"
    simulation.add(SimStranger(name, machine, scenario.GROUP, lambda: world.consumers))
    if world.dice.random() < 0.7:
        machine._later(1_000_000 * world.dice.randint(0, 30), partial(_kill_groups, world))


def _kill_groups(world: World) -> None:
    if world.machine.running:
        world.machine.kill_agent(Role.GROUPS)


def lose_what_came_due(world: World) -> None:
    """Delayed messages are delivered and consumed while the disk stalls, then the power goes.

    What groups know of them may be on the disk. They are overdue at the next start, at which
    `groups` is open last.
    """
    simulation, machine = world.simulation, world.machine
    for producer in world.producers:
        producer.waits = [(ParkMode.AFTER, ms) for ms in (700, 800, 900)]
        producer.at_once = 0.3
        producer.send_more(20)
    stalls_ns = simulation.clock.monotonic_ns() + 600_000_000
    simulation.run_until(lambda: simulation.clock.monotonic_ns() >= stalls_ns, STEPS_MAX)
    simulation.note("the disk stalls")
    simulation.remove(Role.FLUSHER.name.lower())
    lost_ns = stalls_ns + 2_000_000_000
    simulation.run_until(lambda: simulation.clock.monotonic_ns() >= lost_ns, STEPS_MAX)
    cut_power(world)
    machine.open_last = Role.GROUPS


def let_pass(world: World, most_ms: int, is_over: Callable[[], bool] = lambda: False) -> None:
    """So many milliseconds, or until something has happened."""
    clock = world.simulation.clock
    until_ns = clock.monotonic_ns() + most_ms * 1_000_000
    world.simulation.run_until(lambda: is_over() or clock.monotonic_ns() >= until_ns, STEPS_MAX)


def send_delayed(world: World, delays_ms: Sequence[int]) -> None:
    """Most messages are due after one of these times, from now on."""
    for producer in world.producers:
        producer.waits = [(ParkMode.AFTER, ms) for ms in delays_ms]
        producer.at_once = 0.2
        producer.send_more(20)


def wait_for_short_delays(world: World) -> None:
    """Nothing else is going on when they come due: whoever is early is seen to be."""
    send_delayed(world, [3, 5, 10, 20, 40, 60])
    now_ms = world.simulation.clock.wall_ms()
    for producer in world.producers:
        producer.waits += [(ParkMode.AT, now_ms + ms) for ms in range(5, 80, 7)]
    let_pass(world, 150)


def lose_a_recall(world: World) -> None:
    """The writer stands still while recalls are asked for, until the whole broker dies."""
    send_delayed(world, [2_000, 3_000])
    _ask_for_recalls(world)
    let_pass(world, 20)
    world.simulation.note("the writer stands still")
    world.simulation.remove(Role.WRITER.name.lower())
    let_pass(world, 60)
    kill_everything(world)


def replace_who_recalled(world: World) -> None:
    """What it has cancelled, its successor finds in buckets only."""
    send_delayed(world, [700, 900, 1_100])
    _ask_for_recalls(world)
    let_pass(world, 150)
    world.machine.kill_agent(Role.SCHEDULER)
    let_pass(world, 1_200)


def _ask_for_recalls(world: World) -> None:
    """Of many, and in a row."""
    for recaller in world.recallers:
        recaller.left += 20
        recaller.pause_ns = 3_000_000


def count_amid_filing(world: World) -> None:
    """The scheduler counts what it has done whenever it can, and dies.

    Meanwhile timers of many minutes come, and some that are overdue when they are read.
    """
    usual_ns, progress.interval_ns = progress.interval_ns, 1
    timers.FILED_UNITS, timerfiling.BUCKETS_MAX = 3, 1  # type: ignore[misc]
    for _ in range(4):
        now_ms = world.simulation.clock.wall_ms()
        for producer in world.producers:
            producer.waits = [(ParkMode.AT, now_ms + 60_000 * minute) for minute in range(1, 60)]
            producer.waits += [(ParkMode.AT, now_ms + ms) for ms in range(30)]
            producer.at_once = 0
            producer.send_more(40)
        _ask_for_recalls(world)
        world.simulation.kill_at_mark("scheduler.after_note", world.dice.randint(1, 10))
        let_pass(world, 60)
    progress.interval_ns = usual_ns


def skip_days(world: World) -> None:
    """The wall clock jumps on by hours, and files of many timers are split; the scheduler dies."""
    simulation = world.simulation
    now_ms = simulation.clock.wall_ms()
    for producer in world.producers:
        producer.waits = [
            (ParkMode.AT, now_ms + world.dice.randint(0, 1_000 * 6**exponent))
            for exponent in (world.dice.randint(0, 6) for _ in range(60))
        ]
        producer.at_once = 0
        producer.send_more(60)
    _ask_for_recalls(world)
    let_pass(world, 60)
    for _ in range(world.dice.randint(1, 5)):
        by_ms = world.dice.randint(1, 1_000 * 6 ** world.dice.randint(2, 6))
        simulation.note(f"the wall clock is set by {by_ms} ms")
        simulation.clock.step_wall(by_ms)
        let_pass(world, world.dice.randint(1, 40))
        if world.dice.random() < 0.4:
            world.machine.kill_agent(Role.SCHEDULER)


#: By name.
def end_amid_grace(world: World) -> None:
    """A stop, a kill or a power cut while readers have time to leave segments that are to go.

    The segments are there at the next start, and so is what was derived from them.
    """
    machine, simulation = world.machine, world.simulation
    scenario.hold_faults(world)
    retention.PACE.grace = 200_000_000  # of the agent that comes now
    _kill_groups(world)
    scenario.let_time_pass(world)
    last = simulation.steps + 4000
    simulation.run_until(lambda: simulation.has_reached(last) or _are_to_go(world), STEPS_MAX)
    if _are_to_go(world):
        simulation.note(f"segments are to go, the log still begins at {_first_base(world)}")
        machine.model.tally["ends amid grace"] += 1
        pause = simulation.steps + world.dice.randint(0, 400)
        simulation.run_until(partial(simulation.has_reached, pause), STEPS_MAX)
        world.dice.choice([scenario.stop_if_sound, kill_everything, cut_power])(world)


def make_topics_again(world: World) -> None:
    """Topics are deleted and made again, then the power goes, with what was not synced.

    What is left of before is shown to nobody; all that is sent later has to be.
    """
    machine, simulation = world.machine, world.simulation
    scenario.hold_faults(world)
    simulation.run_until(lambda: machine.running, STEPS_MAX)
    metadata = machine.metadata
    assert metadata is not None, "running"
    ends = {name: _words(world, name, layout.QUEUE_NEXT_OFFSET) for name in scenario.TOPICS}
    for name, (queues, level) in scenario.TOPICS.items():
        metadata.delete(name)
        metadata.create(name, queues, level)
    simulation.note(f"topics are made again at {ends}")
    cut_power(world)
    simulation.run_until(lambda: machine.running, STEPS_MAX)
    for name, begins in ends.items():
        left = _words(world, name, layout.QUEUE_RECOVERED_END)
        for queue, (begin, end) in enumerate(zip(begins, left, strict=True)):
            hidden = range(min(begin, end))
            world.model.let_go.update((name, queue, offset) for offset in hidden)
            world.model.tally["queues cut below their begin"] += end < begin
    _start_unread(world)


def stop_a_process(world: World) -> None:
    """An agent stands still amid a step, as by SIGSTOP, while others go on, and one may die."""
    machine, simulation, dice = world.machine, world.simulation, world.dice
    simulation.run_until(lambda: machine.running, STEPS_MAX)
    role = dice.choice(ROLES)
    name, board = machine.process_of(role), machine.board
    last = simulation.steps + 600
    _run(world, lambda: simulation.has_reached(last) or simulation.is_amid(name))
    if machine.board is not board or not simulation.is_amid(name):
        return
    simulation.note(f"{name} is stopped amid a step")
    machine.model.tally["steps held up"] += 1
    with simulation.held(name, lambda: machine.board is board):
        world.more_traffic()
        for most in (1500, 300):
            end = simulation.steps + dice.randint(1, most)
            _run(world, partial(simulation.has_reached, end))
            others = [other for other in ROLES if machine.process_of(other) != name]
            if machine.board is board and others and dice.random() < 0.3:
                machine.kill_agent(dice.choice(others))
    simulation.note(f"{name} goes on" if machine.board is board else f"{name} was killed")


def _run(world: World, goal: Callable[[], bool]) -> None:
    """Until the goal is reached, or the broker has died."""
    board = world.machine.board
    world.simulation.run_until(lambda: goal() or world.machine.board is not board, STEPS_MAX)


def _start_unread(world: World) -> None:
    """One more start, and nobody has read yet what was sent before it."""
    for consumer in world.consumers:
        consumer.die()
    world.consumers.clear()
    world.more_traffic()
    pause = world.simulation.steps + 400
    world.simulation.run_until(partial(world.simulation.has_reached, pause), STEPS_MAX)
    scenario.stop_if_sound(world)
    world.add_consumer()


def _words(world: World, name: str, word: int) -> list[int]:
    board = world.machine.board
    assert board is not None, "running"
    topic = board.topic_named(name)
    assert topic is not None, "made at each start"
    queues = range(topic.queue_base, topic.queue_base + topic.queue_count)
    return [board.word(board.queue_at(queue) + word) for queue in queues]


def _are_to_go(world: World) -> bool:
    board = world.machine.board
    low = board.word(layout.BOARD_LOW) if board is not None else 0
    return low > 0 and low > _first_base(world)


def _first_base(world: World) -> int:
    return bases_of(SimStorage(world.machine.disk, "oracle"))[0]


RARE: tuple[Callable[[World], None], ...] = (
    leave_unanswered, die_amid_appends, stall_the_writer, hold_by_timers, ask_for_timers,
    join_otherwise, lose_what_came_due, wait_for_short_delays, lose_a_recall, replace_who_recalled,
    count_amid_filing, skip_days, end_amid_grace, make_topics_again,
    stop_a_process,
)  # fmt: skip
