"""The scheduler goes on with what another broker has left; `handover.pending` is its oracle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gantrymq.brokerd.handover.adoption import import_foreign
from gantrymq.brokerd.handover.pending import Pending, read_pending
from gantrymq.shm.properties import SCHEDULE_TOPIC, TIMER_TOPIC
from gantrymq.shm.ranges import Ranges, read_ranges, write_ranges
from gantrymq.shm.storage import PosixStorage
from tests.support.golden import GoldenStore
from tests.support.handed import (
    SEGMENT_BYTES,
    START_MS,
    HandMadeLog,
    level_properties,
    timer_properties,
)
from tests.support.parking import Life, origins
from tests.support.simclock import SimClock

Golden = Callable[[str], GoldenStore]
PARKED = (SCHEDULE_TOPIC, TIMER_TOPIC)
THREE_DAYS_MS = 3 * 86_400_000


def waiting(found: Pending) -> set[int]:
    """Positions of all that waits."""
    return {
        position
        for topic in PARKED
        for _queue, records in found.waiting(topic)
        for position in records["position"].tolist()
    }


def look(storage: PosixStorage, segment_bytes: int) -> Pending:
    return read_pending(storage, segment_bytes, read_ranges(storage) or Ranges(), None)


def finish(storage: PosixStorage, sizes: dict[str, object], wall_ms: int) -> None:
    """Import as a start does, then deliver all: what waited has its copy once, nothing else."""
    segment_bytes = int(str(sizes["mapped_file_size_commit_log"]))
    before = look(storage, segment_bytes)
    wanted = waiting(before)
    write_ranges(storage, read_ranges(storage) or Ranges())  # as recovery does
    import_foreign(storage, segment_bytes, before.low, before.end)
    clock = SimClock(wall_ms)
    life = Life(Path(storage.root), clock, sizes, topics=())
    life.run_for(1000)
    new = [record for record in life.records() if record.physical_offset >= before.end]
    assert sorted(origins(new)) == sorted(wanted)
    assert {record.topic for record in new}.isdisjoint(PARKED)
    life.stop()
    assert not waiting(look(storage, segment_bytes))
    again = Life(Path(storage.root), clock, sizes, topics=())
    end = len(again.records())
    again.run_for(1000)
    assert len(again.records()) == end
    again.stop()


@pytest.mark.parametrize("name", ["delay", "timer-533", "retry"])
def test_golden_stores_are_finished(own_copy: Golden, name: str) -> None:
    """Without a look at delayOffset.json or timercheck, which are away."""
    golden = own_copy(name)
    storage = PosixStorage(str(golden.store))
    for left in ("delayOffset.json", "delayOffset.json.bak", "timercheck"):
        storage.unlink(f"config/{left}")
    given = golden.settings
    sizes: dict[str, object] = {
        "mapped_file_size_commit_log": golden.segment_bytes,
        "mapped_file_size_consume_queue": int(given["mappedFileSizeConsumeQueue"]),
    }
    if "messageDelayLevel" in given:
        sizes["message_delay_level"] = given["messageDelayLevel"]
    last_ms = look(storage, golden.segment_bytes).store_ms
    finish(storage, sizes, last_ms + THREE_DAYS_MS)


def test_a_log_of_both_is_finished(tmp_path: Path) -> None:
    """What it delivered out of order, recalled ahead of time, or parked for us and rolled."""
    log = HandMadeLog(ours=True)
    log.timer("A", START_MS + 1000)
    for number in range(4):
        log.level(f"L{number}", 1)
    log.timer("far", START_MS + 9_000_000)
    log.ours = False
    log.timer("far", START_MS + 9_000_000, TIMER_DEL_UNIQKEY="later+far")
    log.timer("B", START_MS + 2000)
    log.timer("B", START_MS + 2000, TIMER_ROLL_TIMES="1")
    log.add("later", timer_properties("A", START_MS + 1000))
    for number in (0, 2):
        log.add("later", level_properties(f"L{number}", 1))
    storage = PosixStorage(str(tmp_path))
    log.write(storage)
    sizes: dict[str, object] = {
        "mapped_file_size_commit_log": SEGMENT_BYTES,
        "mapped_file_size_consume_queue": 20 * 64,
        "max_message_size": 4096,
    }
    finish(storage, sizes, START_MS + THREE_DAYS_MS)
