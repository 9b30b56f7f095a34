"""One run of a whole machine from one seed: producers, consumers, all agents, and faults.

A run: traffic with faults in between, then calm until everything is answered and consumed, then a
clean stop and one more start. The oracle looks at the store after each start.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from gantrymq.brokerd import epoch
from gantrymq.brokerd.batchunits import complete_of_board
from gantrymq.shm import layout
from gantrymq.shm.codes import Role
from gantrymq.workers.failure import has_failed
from gantrymq.workers.host import Host
from tests.sim.downfalls import SELDOM, STEPS_MAX, cut_power, kill_everything, lose_power
from tests.sim.kills import kill_an_agent, kill_at_a_mark
from tests.support import simpoison, simwidth
from tests.support.delivering import check_all_delivered
from tests.support.faults import Fault, Moment, fail_at, kill_at
from tests.support.model import End, Model
from tests.support.simbatches import check_batch_units, write_topics
from tests.support.simclients import SimConsumer
from tests.support.simdisk import DISK_BYTES, ROOM_FOR_ALL
from tests.support.simhost import SimHostMachine
from tests.support.simmachine import ROLES, SimMachine
from tests.support.simpace import file_few, tarry
from tests.support.simproducer import SimProducer
from tests.support.simrecaller import SimRecaller
from tests.support.simstorage import OPENS
from tests.support.simulation import AgentActor, Simulation
from tests.support.simvandal import SimVandal

GROUP = "g"
TOPICS = {"plain": (2, "written"), "safe": (1, "durable")}
#: Of TOPICS those that a RocketMQ has made with `queue.type=BatchCQ`.
BATCH_TOPICS: set[str] = set()
#: Messages that a client cancels before each fault.
RECALLS = 5
#: What an overfull disk has left at least: a start needs some room.
OTHERS_LEAVE_BYTES = 32 * 1024
#: After all is calm: longer than the shorter delays.
WAIT_MS = 10_500


def member(name: str, machine: SimMachine) -> SimConsumer:
    """A consumer of the group."""
    return SimConsumer(name, machine, GROUP)


@dataclass(slots=True)
class World:
    """What a scenario works on."""

    simulation: Simulation
    model: Model
    machine: SimMachine
    producers: list[SimProducer]
    consumers: list[SimConsumer]
    vandals: list[SimVandal] = field(default_factory=list)
    recallers: list[SimRecaller] = field(default_factory=list)
    born: int = 0
    strangers: int = 0
    produces: Callable[[str, SimMachine, int], SimProducer] = SimProducer
    consumes: Callable[[str, SimMachine], SimConsumer] = member

    @property
    def dice(self) -> random.Random:
        """The run's dice."""
        return self.simulation.dice

    def add_producer(self, count: int) -> SimProducer:
        """A fresh producer process."""
        self.born += 1
        producer = self.produces(f"producer-{self.born}", self.machine, count)
        self.producers.append(producer)
        self.simulation.add(producer)
        return producer

    def add_consumer(self) -> SimConsumer:
        """A fresh member of the group."""
        self.born += 1
        consumer = self.consumes(f"consumer-{self.born}", self.machine)
        self.consumers.append(consumer)
        self.simulation.add(consumer)
        return consumer

    def add_vandal(self) -> None:
        """A client that breaks the rules."""
        self.born += 1
        vandal = SimVandal(f"vandal-{self.born}", self.machine)
        self.vandals.append(vandal)
        self.simulation.add(vandal)

    def add_recaller(self, count: int = RECALLS) -> None:
        """A client that cancels what the producers have sent."""
        self.born += 1
        recaller = SimRecaller(f"recaller-{self.born}", self.machine, count)
        self.recallers.append(recaller)
        self.simulation.add(recaller)

    def kill_clients(self) -> None:
        """What a power cut does to them."""
        for client in [*self.producers, *self.consumers, *self.vandals, *self.recallers]:
            client.die()
        self.recallers.clear()
        self.producers.clear()
        self.consumers.clear()
        self.vandals.clear()

    def more_traffic(self) -> None:
        """A fault in an idle machine shows little: each producer has something to send."""
        for producer in self.producers:
            producer.send_more(self.dice.randint(0, 25))
        for recaller in self.recallers:
            recaller.left += RECALLS

    def settled(self) -> bool:
        """All sent, answered, dispatched, visible and consumed."""
        board = self.machine.board
        clients: list[SimProducer | SimRecaller] = [*self.producers, *self.recallers]
        if board is None or not all(client.done for client in clients):
            return False
        if board.word(layout.BOARD_DISPATCHED) < board.word(layout.BOARD_APPENDED):
            return False
        if any(table.unheard for table in self.machine.tables.values()):
            return False  # a dead producer's ring is emptied when its end is heard of
        for topic in board.topics():
            if topic.name not in TOPICS:
                continue
            for queue_id in range(topic.queue_count):
                at = board.queue_at(topic.queue_base + queue_id)
                count = board.word(at + layout.QUEUE_NEXT_OFFSET)
                name = (topic.name, queue_id)
                read, let_go = self.model.consumed[GROUP, name], self.model.let_go
                if any(o not in read and (*name, o) not in let_go for o in range(count)):
                    return False
        return True


def new_world(
    seed: int, produces: type[SimProducer] = SimProducer, kind: type[SimMachine] = SimMachine
) -> World:
    """A machine that is about to start, with two producers and two consumers."""
    safe = frozenset(name for name in TOPICS if TOPICS[name][1] == "durable")
    simulation, model = Simulation(seed), Model(safe)
    machine = kind(simulation, model, TOPICS)
    file_few(simwidth.dice_of(seed, "timers"))
    if BATCH_TOPICS:
        write_topics(machine.disk, {name: TOPICS[name] for name in BATCH_TOPICS})
    world = World(simulation, model, machine, [], [])
    world.produces = produces
    for _ in range(2):
        world.add_producer(simulation.dice.randint(5, 40))
        world.add_consumer()
    world.add_recaller()
    return world


def machine_of(seed: int, faults: tuple[Callable[[World], None], ...]) -> type[SimMachine]:
    """One process an agent, or, in one of four seeds, one for all.

    Not where only faults of single agents are asked for.
    """
    shared = stop_amid_work in faults and simwidth.dice_of(seed, "processes").random() < 1 / 4
    return SimHostMachine if shared else SimMachine


# ----------------------------------------------------------------------------------------- faults


def kill_at_a_call(world: World) -> None:
    """Before, within or after an agent's change of the store, and its successor's."""
    role = world.dice.choice(ROLES)
    for victim in (role, role):
        fault = kill_at(world.dice.randint(1, 12), world.dice.choice(list(Moment)))
        storage = world.machine.stores.get(victim.name.lower())
        if storage is not None:
            storage.faults.faults = (fault,)
        world.machine.plans.agents[victim] = (fault,)
    world.simulation.note(f"plan: {role.name} dies at a call")


def change_members(world: World) -> None:
    """A consumer dies or joins, a producer dies or comes."""
    clients: list[Callable[[], object]] = [world.add_consumer]
    if len(world.consumers) > 1:
        clients.append(lambda: world.consumers.pop(0).die())
    clients.append(lambda: world.add_producer(5))
    if len(world.producers) > 1:
        clients.append(lambda: world.producers.pop(0).die())
    world.dice.choice(clients)()


def step_the_clock(world: World) -> None:
    """The wall clock is set by up to a day, or by about as much as delays are long."""
    most_ms = world.dice.choice([86_400_000, 3_000])
    by_ms = world.dice.randint(-most_ms, most_ms)
    world.simulation.note(f"the wall clock is set by {by_ms} ms")
    world.simulation.clock.step_wall(by_ms)


def break_the_disk(world: World) -> None:
    """A write or sync of an agent fails; the broker ends and starts again."""
    role = world.dice.choice(
        [Role.WRITER, Role.FLUSHER, Role.READER, Role.GROUPS, Role.HOUSEKEEPER]
    )
    storage = world.machine.stores.get(role.name.lower())
    if storage is not None:
        kind = world.dice.choice(["write", "sync"])
        once = world.dice.random() < 0.5
        fault = fail_at(world.dice.randint(1, 5), errno.EIO, (kind,), persistent=not once)
        storage.faults.faults = (fault,)
        world.simulation.note(f"plan: {role.name} meets EIO at a {kind}")


def run_out_of_descriptors(world: World) -> None:
    """An agent can open nothing for a while: it ends, others take its place, and no store fails."""
    role = world.dice.choice(ROLES).name.lower()
    storage = world.machine.stores.get(role)
    if storage is None:
        return
    fault = fail_at(world.dice.randint(1, 3), errno.EMFILE, OPENS, persistent=True)
    storage.faults.faults = (*storage.faults.faults, fault)
    world.simulation.note(f"plan: {role} has no descriptors left")


def die_together_at_a_mark(world: World) -> None:
    """Whoever dies next, at a mark as a rule, takes the whole broker or machine along."""
    kill_at_a_mark(world)
    world.machine.then = partial(world.dice.choice([kill_everything, cut_power]), world)


def fill_the_disk(world: World) -> None:
    """No room for another segment; small files still fit. Sends are refused until there is."""
    world.simulation.note("no room for segments")
    world.model.transactions.was_full = True
    world.machine.disk.allocate_max = 0
    for producer in world.producers:
        producer.send_more(20)


def fill_the_disk_of_groups(world: World) -> None:
    """No room for the ledger: nobody is told of what is not in it."""
    world.simulation.note("no room for the ledger")
    storage = world.machine.stores.get("groups")
    if storage is not None:
        moment = world.dice.choice([Moment.BEFORE, Moment.MIDDLE])
        full = Fault(1, moment, errno.ENOSPC, ("write",), persistent=True, under="gantry/ledger")
        storage.faults.faults = (full,)


def make_room(world: World) -> None:
    """The disk is no longer full."""
    world.machine.disk.allocate_max = ROOM_FOR_ALL
    world.machine.disk.capacity = DISK_BYTES
    for consumer in world.consumers:
        consumer.stopped = False
    for storage in world.machine.stores.values():
        others = [fault for fault in storage.faults.faults if fault.error != errno.ENOSPC]
        storage.faults.faults = tuple(others)


def overfill_the_disk(world: World) -> None:
    """Others fill the disk: segments go unread, and it is told whose; above that sends fail.

    Consumers die or stand still meanwhile: whoever comes later, or goes on, finds a gap.
    """
    disk, model = world.machine.disk, world.model
    model.may_force = model.transactions.was_full = True
    used = disk.used()
    disk.capacity = max(used * 100 // world.dice.choice([86, 88, 91]), used + OTHERS_LEAVE_BYTES)
    world.simulation.note(f"{used} of {disk.capacity} bytes of the disk are in use")
    while world.consumers and world.dice.random() < 0.4:
        world.consumers.pop().die()
    for consumer in world.consumers:
        consumer.stopped = True
    for producer in world.producers:
        producer.send_more(20)


def let_time_pass(world: World) -> None:
    """Segments that everybody has read are old enough to go."""
    world.simulation.note("the wall clock is set by two hours")
    world.simulation.clock.step_wall(2 * 3_600_000)


def unleash_a_vandal(world: World) -> None:
    """A client that writes garbage: it alone is cut off."""
    world.add_vandal()


def drop_a_connection(world: World) -> None:
    """A producer's socket ends, and it attaches again: the same writer goes on with it."""
    machine = world.machine
    attached = [p.session.session for p in world.producers if p.session is not None]
    if attached:
        machine.simulation.note("a connection ends")
        machine.end_session(world.dice.choice(attached))


def poison_a_request(world: World) -> None:
    """What a client asks next ends its agent, and each that comes after it."""
    simpoison.install()
    role = world.dice.choice(list(simpoison.LANES))
    lane, sessions = simpoison.LANES[role], world.machine.sessions.values()
    asking = [s.session for s, client in sessions if getattr(client, lane)]
    if asking:
        session = world.dice.choice(asking)
        world.simulation.note(f"plan: {role.name} dies of what session {session} asks")
        world.machine.poisons.put(role, session)


def stop_amid_work(world: World) -> None:
    """A clean stop while clients send and read, then a start."""
    machine, simulation = world.machine, world.simulation
    hold_faults(world)
    simulation.run_until(lambda: machine.running, STEPS_MAX)
    world.more_traffic()
    pause = simulation.steps + world.dice.randint(20, 400)
    simulation.run_until(partial(simulation.has_reached, pause), STEPS_MAX)
    stop_if_sound(world)


def stop_if_sound(world: World) -> None:
    """A clean stop, then a start, unless the broker is starting or has failed."""
    machine = world.machine
    if machine.running and machine.board is not None and not has_failed(machine.board):
        finish(world)
        machine.kill_broker(End.STOP)


FAULTS: tuple[Callable[[World], None], ...] = (
    kill_an_agent, kill_at_a_mark, kill_at_a_call, kill_everything, lose_power, change_members,
    step_the_clock, break_the_disk, die_together_at_a_mark, fill_the_disk, unleash_a_vandal,
    run_out_of_descriptors,
    drop_a_connection, fill_the_disk_of_groups, let_time_pass, overfill_the_disk,
    poison_a_request, stop_amid_work,
)  # fmt: skip


# ------------------------------------------------------------------------------------------- a run


def run(seed: int, faults: tuple[Callable[[World], None], ...] = FAULTS) -> World:
    """One run; raises what the oracle or an agent finds. Returns the world for statistics."""
    world = new_world(seed, kind=machine_of(seed, faults))
    simulation = world.simulation
    go_through(world, faults)
    simulation.run_until(world.settled, STEPS_MAX, SELDOM)
    wait(world)
    wall_ms = simulation.clock.wall_ms()
    start_again(world)
    check_all_delivered(world.model, wall_ms, WAIT_MS)
    return world


def go_through(world: World, faults: tuple[Callable[[World], None], ...]) -> None:
    """Traffic with faults in between, then calm."""
    simulation = world.simulation
    faults = simwidth.kinds_of(simulation.seed, faults)
    for _ in range(world.dice.randint(0, 6) if faults else 0):
        world.more_traffic()
        pause = simulation.steps + world.dice.randint(20, 800)
        simulation.run_until(partial(simulation.has_reached, pause), STEPS_MAX)
        if world.dice.random() < 0.5:
            make_room(world)
        world.dice.choice(faults)(world)
    calm(world)


def start_again(world: World) -> None:
    """A clean stop and a start, after which all that came before it has been consumed."""
    board = world.machine.board
    assert board is not None, "it is running"
    end = board.word(layout.BOARD_APPENDED)  # what comes due amid the stop finds nobody
    stop_cleanly(world)
    world.machine.ended_by = End.STOP
    world.machine.start()
    world.simulation.run_until(lambda: world.machine.running, STEPS_MAX)
    world.model.check_all_consumed(GROUP, set(TOPICS), end)


def wait(world: World) -> None:
    """Until the shorter delays are over, and what they brought is consumed."""
    simulation = world.simulation
    waited_ns = simulation.clock.monotonic_ns() + WAIT_MS * 1_000_000
    tarry()
    simulation.run_until(lambda: simulation.clock.monotonic_ns() >= waited_ns, STEPS_MAX)
    simulation.run_until(world.settled, STEPS_MAX, SELDOM)


def _has_finished(machine: SimMachine, name: str, told: list[AgentActor]) -> bool:
    """Whether a process is done; it is told to stop, and so is who comes if it dies amid that."""
    actor = machine.simulation.actors.get(name)
    if actor is None:
        return False
    assert isinstance(actor, AgentActor), name
    if actor not in told:
        told.append(actor)
        machine.tell_to_stop(name)
        actor.idle_cycles = 0
    return _has_come_to_rest(actor)


def _has_come_to_rest(actor: AgentActor) -> bool:
    if isinstance(actor.agent, Host):
        return actor.agent.finished
    actor.bell.ring()  # it does not sleep over it
    return actor.is_at_rest


def hold_faults(world: World) -> None:
    """None of those that are planned comes."""
    world.simulation.kill_at_mark("", 1)
    world.machine.then = None
    make_room(world)
    world.machine.plans.agents.clear()
    world.machine.plans.supervisor = ()
    for storage in world.machine.stores.values():
        storage.faults.faults = ()


def calm(world: World) -> None:
    """No more faults, and somebody who consumes."""
    world.simulation.note("calm")
    hold_faults(world)
    if not world.consumers:
        world.add_consumer()


def stop_cleanly(world: World) -> None:
    """Without clients."""
    world.kill_clients()
    finish(world)


def finish(world: World) -> None:
    """As the supervisor does it: each agent in turn finishes what was accepted."""
    machine, simulation = world.machine, world.simulation
    for name in machine.processes():
        told: list[AgentActor] = []
        simulation.run_until(partial(_has_finished, machine, name, told), STEPS_MAX)
        simulation.remove(name)
        told[-1].agent.close()
    assert machine.board is not None, "it was running"
    end = machine.board.word(layout.BOARD_DURABLE)
    complete_of_board(machine.stores["supervisor"], machine.board)
    check_batch_units(machine.stores["supervisor"], machine.model.log, end)
    epoch.mark_stopped(machine.stores["supervisor"], end)
    simulation.note("stopped")
