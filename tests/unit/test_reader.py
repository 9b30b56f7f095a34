"""The reader over a log that was damaged while it ran, and topics that are made again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gantrymq.shm import bitmapnote, layout
from gantrymq.shm.codes import Role
from gantrymq.workers.filterfile import FilterEntry, bloom_form, write_filters
from gantrymq.workers.reader.agent import Reader
from tests.sim import scenario
from tests.sim.downfalls import STEPS_MAX
from tests.support import simbits
from tests.support.parking import Life, Parked
from tests.support.simclock import SimClock
from tests.support.simstorage import SYNCS
from tests.support.trials import mends
from tests.support.twins import QUEUES, Machine


def shown(machine: Machine) -> int:
    """Messages that consumers may see."""
    offsets = (machine.board.queue_at(queue) + layout.QUEUE_MAX_OFFSET for queue in range(QUEUES))
    return sum(machine.board.word(at) for at in offsets)


@pytest.mark.parametrize("field", ["total_size", "magic", "physical_offset", "body_length"])
def test_an_unreadable_record_stops_the_reader(tmp_path: Path, seed: int, field: str) -> None:
    """LW-5: it fails once and names the position; nothing from there on is shown."""
    machine, dice = Machine(tmp_path), random.Random(seed)
    for number in range(1, 10):
        machine.send(dice, number)
    writer, _flusher, reader = machine.agents
    writer.do_work(machine.clock.monotonic_ns())
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        first = layout.RECORD.unpack(file.read(layout.RECORD_HEAD_BYTES))["total_size"]
        file.seek(first + layout.RECORD.offset(field))
        file.write(b"\x7f")
    assert not any(reader.do_work(machine.clock.monotonic_ns()) for _ in range(3))
    ((_errno, what),) = machine.tables[2].failures
    assert f"record at {first} " in what
    assert "store verify" in what
    assert machine.board.word(layout.BOARD_DISPATCHED) <= first
    assert machine.board.word(layout.BOARD_APPENDED) > first
    assert shown(machine) <= 1


@mends("H3")
def test_what_waits_for_the_disk_takes_nothing_back_from_a_topic_made_again(
    tmp_path: Path,
) -> None:
    """Its units of level `durable` become durable behind one that was shown at once."""
    life = Life(tmp_path, SimClock(), topics=())
    queue = life.metadata.create("orders", 1, "durable").queue_base
    word = life.board.queue_at(queue) + layout.QUEUE_MAX_OFFSET
    life.run_for(10)
    flusher = life.agents.pop(Role.FLUSHER)
    life.park(*(Parked("orders", 0, {}) for _ in range(10)))
    life.settle()
    assert life.board.word(word) == 0
    life.metadata.delete("orders")
    life.metadata.create("orders", 1, "written")
    life.park(Parked("orders", 0, {}))
    life.settle()
    assert life.board.word(word) == 11
    life.agents[Role.FLUSHER] = flusher
    life.run_for(1_000)
    assert life.board.word(layout.BOARD_DURABLE) == life.board.word(layout.BOARD_APPENDED)
    assert life.board.word(word) == 11
    life.stop()


def synced_by_readers(seed: int) -> set[str]:
    """First folders, or names, of what the reader syncs from a start to a clean stop.

    Not what each agent does before it reads anything: names that another gave become durable.
    The log rolls over segments meanwhile, queues over files, and timers come due.
    """
    world, found = scenario.new_world(seed), set[str]()
    written = set[str]()

    def watch(process: str, kind: str, name: str) -> None:
        if process == Role.READER.name.lower() and (written or kind not in SYNCS):
            (found if kind in SYNCS else written).add(name)

    world.machine.disk.watch = watch
    for producer in world.producers:
        producer.send_more(40)
    world.simulation.run_until(world.settled, STEPS_MAX)
    scenario.wait(world)
    scenario.stop_cleanly(world)
    assert any(name.startswith("consumequeue/") for name in written), "it was watched"
    return {
        name.partition("/")[0] if name.startswith(bitmapnote.DIRECTORY) else name for name in found
    }


def test_it_syncs_nothing() -> None:
    """ADR 0024: that is the housekeeper's, whatever comes and however long nothing does."""
    seed = simbits.EVERY + 1
    assert not synced_by_readers(seed)


def test_it_syncs_bits_that_come_late_and_the_note_of_them_alone() -> None:
    """ADR 0020, ADR 0024: not the queues' own files, nor extensions without such bits."""
    note = {f"{bitmapnote.FILE}.new", bitmapnote.FILE.partition("/")[0]}
    assert synced_by_readers(simbits.EVERY) == {bitmapnote.DIRECTORY, *note}


@mends("S243")
def test_topics_that_come_faster_than_it_reads_them_hold_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time that it has looked at them there is another one: one look shows what was there."""
    life = Life(tmp_path, SimClock())
    life.settle()
    reader = life.agents[Role.READER]
    looks, read = [0], reader._read_topics  # type: ignore[attr-defined]

    def read_and_have_more() -> None:
        read()
        looks[0] += 1
        if looks[0] < 20:
            life.metadata.create(f"new{looks[0]}", 1, "written")

    monkeypatch.setattr(reader, "_read_topics", read_and_have_more)
    life.metadata.create("first", 1, "written")
    life.park(Parked("first", 0, {}))
    life.agents[Role.WRITER].do_work(life.clock.monotonic_ns())
    appended = life.board.word(layout.BOARD_APPENDED)
    reader.do_work(life.clock.monotonic_ns())
    assert looks[0] == 1
    assert life.board.word(layout.BOARD_DISPATCHED) == appended
    life.slots = {topic.name: topic.slot for topic in life.board.topics()}
    life.park(Parked("new1", 0, {}))  # of a topic that came behind that look
    life.settle()
    assert life.board.word(layout.BOARD_DISPATCHED) == life.board.word(layout.BOARD_APPENDED)
    assert looks[0] < 20
    life.stop()


@mends("S252")
def test_records_of_a_topic_that_comes_amid_a_step_get_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FL-65: consumers believe bits that are not set. Its filter is known, of a topic before it."""
    life = Life(tmp_path, SimClock(), dict(simbits.SETTINGS))
    form = bloom_form(life.settings)
    write_filters(life.storage, [FilterEntry("late", "g", "a > 10", "sql", 1, 1)], form)
    life.board.count_change(layout.BOARD_FILTER_CHANGES)
    life.settle()
    reader = life.agents.pop(Role.READER)
    assert isinstance(reader, Reader)
    assert reader._extensions is not None
    refresh = reader._extensions.refresh

    def refresh_and_have_more(position: int, now_ns: int) -> None:
        refresh(position, now_ns)
        if "late" not in life.slots:
            life.metadata.create("late", 1, "written")
            life.slots = {topic.name: topic.slot for topic in life.board.topics()}
            life.park(Parked("late", 0, {"a": "50"}))

    monkeypatch.setattr(reader._extensions, "refresh", refresh_and_have_more)
    reader.do_work(life.clock.monotonic_ns())
    assert life.board.word(layout.BOARD_DISPATCHED) == life.board.word(layout.BOARD_APPENDED)
    (covered,) = bitmapnote.read_covered(life.storage)
    assert covered.start == 0, "it is said to have bits of all records"
    bits = int.from_bytes(simbits.bitmap_of(life.storage, ("late", 0), 0), "little")
    assert all(bits >> position & 1 for position in covered.positions)
    life.agents[Role.READER] = reader
    life.stop()
