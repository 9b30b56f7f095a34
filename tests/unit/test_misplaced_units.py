"""Units whose log position is damaged: negative, or below the log's beginning amid what is there.

What retention has taken looks alike, and is passed over; these are named (P13).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.brokerd.queuestarts import first_unit
from gantrymq.clients.assigned import Assigned
from gantrymq.clients.batch import MessageBatch
from gantrymq.clients.fetcher import Fetcher
from gantrymq.clients.logfiles import LogFiles
from gantrymq.clients.message import MessageQueue
from gantrymq.clients.queries.client import Client
from gantrymq.shm import layout
from gantrymq.shm.codes import Role
from gantrymq.shm.controllane import ControlLane, End
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.filter import parse_tags
from gantrymq.shm.kernels import poll
from gantrymq.shm.properties import HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from gantrymq.shm.ranges import EVERYTHING, write_ranges
from gantrymq.shm.record import Record
from gantrymq.shm.storage import PosixStorage
from tests.support.parking import Life, level_message, timer_message
from tests.support.sealed import segment_of, write_segment
from tests.support.simclock import SimClock
from tests.support.transacting import CHECKER, Peer, TxnLife, txn_life
from tests.support.trials import mends
from tests.support.twins import Machine

QUEUE = MessageQueue("orders", 0)
NAME = "00000000000000000000"
UNIT = layout.CQ_UNIT_BYTES
SIGN = 1 << 63
DAMAGED = 5  # the offset whose unit is damaged


def place(folder: Path, offset: int, position: int | None = None, unit: int = UNIT) -> int:
    """Give a unit another log position, or flip its sign; returns what it said."""
    with (folder / NAME).open("r+b") as file:
        file.seek(offset * unit)
        before = int.from_bytes(file.read(8), "big")
        file.seek(offset * unit)
        file.write((before ^ SIGN if position is None else position).to_bytes(8, "big"))
    return before


# ------------------------------------------------------------------------------------- consumers


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made, dice = Machine(tmp_path), random.Random(1)
    for number in range(1, 100):
        made.send(dice, number)
        made.settle()
    assert made.board.queue(0)["max_offset"] > 2 * DAMAGED
    return made


class Consumer:
    """Fetches from the first queue."""

    def __init__(self, machine: Machine, directory: Path) -> None:
        self.assigned = Assigned(0, QUEUE, 1, 0)
        files = LogFiles(str(directory), machine.board)
        self._fetcher = Fetcher(machine.board, files, {"orders": parse_tags("*")})
        lane = ControlLane(machine.session.arena, machine.session.plan.groups, End.CLIENT)
        self._fetcher.attach(machine.session.arena, lane.words, (0, 0))
        self._fetcher.follow([self.assigned])

    def offsets(self) -> list[int]:
        count = self._fetcher.poll(100, poll.HAND_OUT | poll.PASS, restless=False)
        return [int(n) for n in MessageBatch(self._fetcher.columns, count, {}, {}).queue_offsets]

    def require_named(self, offset: int) -> None:
        with pytest.raises(Corrupt, match=f"message {offset} of orders/0") as caught:
            self.offsets()
        assert caught.value.queue_offset == offset
        self.assigned.position = offset + 1  # as `seek` does


@mends("S140")
@pytest.mark.parametrize("offset", [0, DAMAGED])
def test_a_consumer_is_told_of_a_negative_position(
    machine: Machine, tmp_path: Path, offset: int
) -> None:
    place(tmp_path / "consumequeue/orders/0", offset)
    consumer = Consumer(machine, tmp_path)
    if offset:
        assert consumer.offsets() == list(range(offset))
    consumer.require_named(offset)
    end = machine.board.queue(0)["max_offset"]
    assert consumer.offsets() == list(range(offset + 1, end))


@mends("S140")
def test_a_consumer_is_told_of_a_position_below_the_log_amid_what_is_there(
    machine: Machine, tmp_path: Path
) -> None:
    """What retention takes is passed over, also before the queue's beginning has followed."""
    folder = tmp_path / "consumequeue/orders/0"
    low = place(folder, 2, 0)
    place(folder, 2, low)
    machine.board.set_word(layout.BOARD_LOW, low)
    place(folder, DAMAGED, low - 1)
    consumer = Consumer(machine, tmp_path)
    assert consumer.offsets() == list(range(2, DAMAGED))
    consumer.require_named(DAMAGED)
    assert consumer.offsets()[0] == DAMAGED + 1


# --------------------------------------------------------------------------------------- queries

TIMES = [1000 * n for n in range(1, 17)]


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """Home of a stopped store with a message for each of TIMES, the first segment taken."""
    records = [
        Record(topic="orders", body=b"%d" % ms, store_timestamp=ms, queue_offset=offset)
        for offset, ms in enumerate(TIMES)
    ]
    store = tmp_path / "store"
    view, placed = segment_of(records, 1 << 14, sealed=False, base=1 << 14)
    write_segment(store, 1 << 14, view)
    units = b"".join(
        layout.CQ_UNIT.pack(physical_offset=r.physical_offset, size=r.total_size, tags_code=0)
        for r in placed
    )
    folder = store / "consumequeue/orders/0"
    folder.mkdir(parents=True)
    (folder / NAME).write_bytes(units.ljust(20 * UNIT, b"\0"))
    write_ranges(PosixStorage(str(store)), EVERYTHING)
    return tmp_path


@mends("S140")
@pytest.mark.parametrize("position", [None, 17], ids=["negative", "below"])
@pytest.mark.parametrize("damaged", [DAMAGED, 7, 8])
def test_a_search_by_time_names_it_and_finds_the_others(
    stopped: Path, position: int | None, damaged: int
) -> None:
    place(stopped / "store/consumequeue/orders/0", damaged, position)
    client = Client(stopped)
    found = client.query("orders", begin=TIMES[3], end=TIMES[12])
    bodies = [message.body for message in found.page(50)]
    with pytest.raises(Corrupt):
        found.page(50)
    bodies += [message.body for message in found.page(50)]
    assert bodies == [b"%d" % ms for ms in reversed(TIMES[3:13]) if ms != TIMES[damaged]]
    assert found.page(50) == []


@mends("S140")
@pytest.mark.parametrize("position", [None, 17], ids=["negative", "below"])
def test_no_offset_is_found_by_a_damaged_unit(stopped: Path, position: int | None) -> None:
    """A binary search that took it for one that is gone would go past all before it."""
    place(stopped / "store/consumequeue/orders/0", 8, position)
    client = Client(stopped)
    with pytest.raises(Corrupt, match="message 8 of orders/0"):
        client.search_offset(QUEUE, TIMES[2])


@mends("S140")
@pytest.mark.parametrize("position", [None, 17], ids=["negative", "below"])
@pytest.mark.parametrize("key", [None, "k"])
def test_a_search_among_batches_says_what_it_leaves_out(
    tmp_path: Path, position: int | None, key: str | None
) -> None:
    """Older ones are found all the same."""
    records = [
        Record(
            topic="b", body=b"%d" % ms, store_timestamp=ms, properties=b"KEYS\x01k\x02",
            queue_id=number % 2, queue_offset=number // 2,
        )
        for number, ms in enumerate(TIMES)
    ]  # fmt: skip
    view, placed = segment_of(records, 1 << 14, base=1 << 14)
    write_segment(tmp_path / "store", 1 << 14, view)
    for queue in (0, 1):
        folder = tmp_path / "store/batchconsumequeue/b" / str(queue)
        folder.mkdir(parents=True)
        units = [
            layout.BATCH_CQ_UNIT.pack(
                physical_offset=r.physical_offset, size=r.total_size, tags_code=0,
                store_timestamp=r.store_timestamp, base_offset=r.queue_offset, batch_size=1,
                compacted_offset=-1, reserved=0,
            )
            for r in placed[queue::2]
        ]  # fmt: skip
        (folder / NAME).write_bytes(b"".join(units))
    unit = layout.BATCH_CQ_UNIT.size
    place(tmp_path / "store/batchconsumequeue/b/0", 4, position, unit)
    found = Client(tmp_path).query("b", key, index=key is None)
    lost = () if key else (TIMES[8],)
    assert [m.body for m in found] == [b"%d" % ms for ms in reversed(TIMES) if ms not in lost]
    if key is None:
        assert any("unit of a queue of type BatchCQ is damaged" in why for why in found.reasons)
        ((start, end),) = found.unsearched
        assert start <= placed[8].physical_offset < end


# ---------------------------------------------------------------------------------------- agents


@mends("S140")
@pytest.mark.parametrize("position", [None, 17], ids=["negative", "below"])
def test_no_queue_begins_behind_a_damaged_unit(stopped: Path, position: int | None) -> None:
    """Retention would have taken all before it from consumers."""
    folder = stopped / "store/consumequeue/orders/0"
    units, key = range(len(TIMES)), ("orders", 0)
    storage = PosixStorage(str(stopped / "store"))
    low = place(folder, 3, 0)
    place(folder, 3, low)
    for damaged in units[4:]:
        before = place(folder, damaged, position)
        assert first_unit(storage, 20 * UNIT, key, units, low) == 3, damaged
        place(folder, damaged, before)


@mends("S279")
@pytest.mark.parametrize("seed", range(60))
def test_no_queue_begins_behind_damage_of_any_length(tmp_path: Path, seed: int) -> None:
    """Runs of zeroes and of filler units: what is there is met, if only as damage."""
    dice = random.Random(seed)
    per_file, count = dice.choice((7, 100)), dice.randrange(1, 60)
    kinds = [dice.choice(("sound", "zero", "filler")) for _ in range(count)]
    for _ in range(dice.randrange(4)):
        at = dice.randrange(count)
        kinds[at : at + dice.randrange(12)] = [dice.choice(("zero", "filler"))] * 12
    del kinds[count:]
    low = 100 * dice.randrange(count + 1)
    units = [
        {"sound": layout.CQ_UNIT.pack(physical_offset=100 * at, size=50), "zero": bytes(UNIT)}.get(
            kind, layout.CQ_UNIT.pack(size=layout.CQ_FILLER_SIZE)
        )
        for at, kind in enumerate(kinds)
    ]
    folder = tmp_path / "consumequeue/orders/0"
    folder.mkdir(parents=True)
    for base in range(0, count, per_file):
        data = b"".join(units[base : base + per_file]).ljust(per_file * UNIT, b"\0")
        (folder / f"{base * UNIT:020d}").write_bytes(data)
    storage = PosixStorage(str(tmp_path))
    found = first_unit(storage, per_file * UNIT, ("orders", 0), range(count), low)
    there = [at for at, kind in enumerate(kinds) if kind == "sound" and 100 * at >= low]
    gone = [at for at, kind in enumerate(kinds) if kind == "sound" and 100 * at < low]
    assert found <= min(there, default=count), "nothing is passed over that is there"
    assert found > max(gone, default=-1), "what is gone is not there"


@mends("S140")
@pytest.mark.parametrize("topic", [SCHEDULE_TOPIC, TIMER_TOPIC])
def test_the_scheduler_names_what_it_cannot_deliver(tmp_path: Path, topic: str) -> None:
    life = Life(tmp_path, SimClock())
    life.run_for(100)
    scheduler = life.agents.pop(Role.SCHEDULER)
    due = life.clock.wall_ms() + 1000
    life.park(*(level_message(1) if topic == SCHEDULE_TOPIC else timer_message(due),) * 3)
    life.settle()
    position = place(Path(life.storage.root) / f"consumequeue/{topic}/0", 1)
    life.agents[Role.SCHEDULER] = scheduler
    life.run_for(5000)
    assert len(life.delivered()) == 2
    told = [
        fields["position"]
        for _level, event, fields in life.tables[Role.SCHEDULER].notes
        if event in ("parked_record_passed_over", "record_damaged")
    ]
    assert told == [position - SIGN]
    life.stop()


@pytest.fixture
def halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TxnLife]:
    yield from txn_life(tmp_path / "store", monkeypatch)


@mends("S140")
@pytest.mark.parametrize("topic", [HALF_TOPIC, OP_TOPIC])
def test_the_txn_checker_names_what_it_cannot_read(halves: TxnLife, topic: str) -> None:
    half = halves.half("0123456789abcdef" * 2)
    halves.run_for(1000)
    if topic == OP_TOPIC:
        Peer(halves).ended([half], commit=True)
        halves.run_for(1000)
    position = place(Path(halves.storage.root) / f"consumequeue/{topic}/0", 0)
    halves.storage.unlink("gantry/transactions.json")
    halves.kill(CHECKER)
    halves.run_for(1000)
    notes = halves.tables[CHECKER].notes
    told = [fields["position"] for _level, event, fields in notes if event == "record_damaged"]
    assert told == [position - SIGN]
