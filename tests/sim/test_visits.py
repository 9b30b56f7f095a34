"""Another broker makes a topic again, and the starts that find it die at any of their calls.

The agents of such a life have their turns in any order, or none: whatever it had done, the next
life has the groups where the first new message is.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest

from gantrymq.brokerd.agents import AgentEnv, build
from gantrymq.brokerd.epoch import Life, mark_running
from gantrymq.brokerd.handover.adoption import import_foreign
from gantrymq.brokerd.metadata import Metadata
from gantrymq.brokerd.recovery import recover
from gantrymq.shm import layout
from gantrymq.shm.board import Board
from gantrymq.shm.codes import Role
from gantrymq.shm.record import Record, encode_record
from gantrymq.shm.segment import open_log
from gantrymq.workers.agent import Bells
from gantrymq.workers.groups.ledger import Ledger
from tests.support.another_broker import AnotherBroker
from tests.support.faults import Fault, FaultPlan, KilledError, kill_at
from tests.support.memory_sessions import MemorySessions
from tests.support.simbell import SimBell
from tests.support.simmachine import SimMachine
from tests.support.simstorage import SimStorage
from tests.support.trials import mends
from tests.unit.test_recovery import stopped_machine

GROUP, KEY = "keepers", ("plain", 0)
ROLES = (Role.READER, Role.GROUPS, Role.HOUSEKEEPER)
#: More than a start and its agents have.
CALLS = 200


@dataclass
class Lives:
    """Starts on one disk, one after the other."""

    machine: SimMachine
    dice: random.Random
    number: int = 0
    board: Board | None = None  # of a life that was killed

    def live(self, roles: tuple[Role, ...], faults: tuple[Fault, ...] = ()) -> Board:
        """Start, and let these agents work in turn. Raises KilledError."""
        machine, self.number = self.machine, self.number + 1
        storage = SimStorage(machine.disk, f"life {self.number}", FaultPlan(faults))
        settings = machine.configuration.settings
        found = recover(storage, settings, self.board)
        segment_bytes = settings.mapped_file_size_commit_log
        import_foreign(storage, segment_bytes, found.low, found.appended)
        clock = machine.simulation.clock
        metadata = Metadata(storage, settings, clock)
        metadata.load()
        metadata.add_parking_topics()
        board = machine._format(1000 + self.number)
        metadata.publish(board, found)
        mark_running(storage, Life(1000 + self.number, board.boot_id.hex()), found.appended)
        self.board = board
        for role in roles:
            bells = Bells.each(SimBell)
            agent = build(role, AgentEnv(storage, clock, board, bells, settings, MemorySessions()))
            while agent.do_work(clock.monotonic_ns()):
                pass
        return board

    def lose_power(self) -> None:
        """The board goes, and what was not synced may."""
        self.machine.disk.power_cut(self.dice)
        self.board = None


def visit(machine: SimMachine, dice: random.Random) -> tuple[int, int]:
    """Make the topic again; how many messages its queue has by then, and had."""
    storage = SimStorage(machine.disk, "another broker")
    log = open_log(storage)
    records = [item for _at, item in log.scan(log.min_position) if isinstance(item, Record)]
    last = max(records, key=lambda record: record.physical_offset)
    offsets = Counter({(r.topic, r.queue_id): r.queue_offset + 1 for r in records})
    before = offsets[KEY]
    segment_bytes = machine.configuration.settings.mapped_file_size_commit_log
    end = last.physical_offset + last.total_size
    other = AnotherBroker(storage, segment_bytes, end, offsets, now_ms=last.store_timestamp)
    like = replace(last, topic=KEY[0], queue_id=KEY[1], sys_flag=0, prepared_transaction_offset=0)
    bare = encode_record(replace(like, body=b"new", properties=b""), trailer=False)
    for _ in range(dice.randrange(3)):  # in the topic that goes
        other.append(bare)
    for key in [key for key in offsets if key[0] == KEY[0]]:
        del other.next_offsets[key]
    since = dice.randrange(1, 2 * before)
    for _ in range(since):
        other.append(bare)
    other.leave(killed=dice.random() < 0.5)
    return since, before


@mends("S277")
@pytest.mark.parametrize("seed", range(120))
def test_groups_stand_at_the_first_message_of_the_new_topic(seed: int) -> None:
    dice = random.Random(seed)
    machine, storage = stopped_machine()
    lives = Lives(machine, dice)
    since, before = visit(machine, dice)
    ledger = Ledger(storage)
    ledger.load()
    ledger.commit(GROUP, KEY, before, session=1)
    ledger.limit_positions(1)
    ledger.end()
    ledger.close()
    for _ in range(dice.randrange(1, 4)):
        roles = tuple(dice.sample(ROLES, dice.randrange(len(ROLES) + 1)))
        with suppress(KilledError):
            lives.live(roles, (kill_at(dice.randrange(1, CALLS)),))
        if dice.random() < 0.3:
            lives.lose_power()
    board = lives.live(ROLES)
    topic = board.topic_named(KEY[0])
    assert topic is not None
    words = board.queue(topic.queue_base + KEY[1])
    assert (words["min_offset"], words["written"], words["recovered_end"]) == (0, since, since)
    known = Ledger(SimStorage(machine.disk, "oracle"))
    known.load()
    assert known.groups[GROUP].queues[KEY].committed == 0
    assert board.word(layout.BOARD_DISPATCHED) == board.word(layout.BOARD_APPENDED)
