"""An answered commit is in the ledger, whatever was asked of its queues meanwhile (P5)."""

from __future__ import annotations

from functools import partial

from gantrymq.shm import layout
from gantrymq.shm.storage import read_file
from gantrymq.workers.groups.ledger import Ledger
from gantrymq.workers.groups.ledgerentries import NAME, Names
from tests.sim import scenario
from tests.sim.downfalls import STEPS_MAX
from tests.sim.scenario import GROUP, World
from tests.support.simclients import SimConsumer
from tests.support.simstorage import SimStorage
from tests.support.simulation import AgentActor
from tests.support.storedlog import QueueName

QUEUES = sum(queues for queues, _level in scenario.TOPICS.values())


def stored_offsets(world: World) -> dict[QueueName, int]:
    """What would be left if everything was killed now."""
    storage = SimStorage(world.machine.disk, "oracle")
    ledger = Ledger(storage)
    ledger.replay(read_file(storage, NAME), Names())
    return {key: queue.committed for key, queue in ledger.group(GROUP).queues.items()}


def is_ahead(consumer: SimConsumer) -> bool:
    """Whether it has read more of each queue than its words say."""
    session, committed = consumer.session, layout.PROGRESS_COMMITTED
    return (
        session is not None
        and len(consumer.owned) == QUEUES
        and all(
            offset > consumer._word(session, queue, committed)
            for queue, (_lease, offset) in consumer.owned.items()
        )
    )


def lone_consumer() -> tuple[World, SimConsumer]:
    """One member that has all queues, has just read some of each, and stands still."""
    world = scenario.new_world(5)
    world.consumers.pop().die()
    consumer = world.consumers[0]
    for producer in world.producers:
        producer.send_more(60)
    world.simulation.run_until(partial(is_ahead, consumer), STEPS_MAX)
    consumer.stopped = True
    return world, consumer


def revocations(consumer: SimConsumer) -> int:
    assert consumer.session is not None
    at = layout.ARENA_REVOKED
    return int(consumer.session.arena[at : at + 8].view("<u8")[0])


def has_asked_back(consumer: SimConsumer, before: int) -> bool:
    return revocations(consumer) > before


def is_idle(agent: AgentActor) -> bool:
    return agent.idle_cycles > 0


def test_a_queue_asked_back_amid_a_commit_keeps_what_the_commit_said() -> None:
    """Its Released, which also says how far it is, may never be heard."""
    world, consumer = lone_consumer()
    simulation = world.simulation
    before = revocations(consumer)
    world.add_consumer()
    simulation.run_until(partial(has_asked_back, consumer, before), STEPS_MAX)
    groups, session = simulation.actors["groups"], consumer.session
    assert isinstance(groups, AgentActor)
    assert session is not None
    consumer.commit(session, wait=True)
    before_it = stored_offsets(world)
    told = {consumer._name(queue): held[1] for queue, held in consumer.owned.items()}
    assert all(offset > before_it[queue] for queue, offset in told.items())
    while consumer._speak():
        pass
    while consumer._hear(session):
        pass
    groups.idle_cycles = 0
    simulation.run_until(partial(is_idle, groups), STEPS_MAX)
    assert consumer._hear(session)
    answered = {queue: world.model.committed[GROUP, queue] for queue in told}
    assert answered == told
    assert stored_offsets(world) == told
    consumer.stopped = False
    world.more_traffic()
    simulation.run_until(lambda: len(consumer.owned) < QUEUES, STEPS_MAX)
    simulation.run_until(world.settled, STEPS_MAX)
