"""Stores that RocketMQ left in the middle of delays and timers: finished here, each message once.

RocketMQ's copies have no origin: a message is known by its topic and UNIQ_KEY.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from gantrymq.shm.properties import SCHEDULE_TOPIC, TIMER_TOPIC, parse_delay_levels
from gantrymq.shm.record import Record
from gantrymq.shm.storage import PosixStorage
from tests.support.golden import GoldenStore
from tests.support.parking import Life, origins, records_of
from tests.support.simclock import SimClock

Golden = Callable[[str], GoldenStore]
Key = tuple[str, str]
RECALL = "TIMER_DEL_UNIQKEY"
PARKED = (SCHEDULE_TOPIC, TIMER_TOPIC)


def life_of(golden: GoldenStore, clock: SimClock) -> Life:
    given = golden.settings
    sizes: dict[str, object] = {
        "mapped_file_size_commit_log": int(given["mappedFileSizeCommitLog"]),
        "mapped_file_size_consume_queue": int(given["mappedFileSizeConsumeQueue"]),
    }
    if "messageDelayLevel" in given:
        sizes["message_delay_level"] = given["messageDelayLevel"]
    return Life(golden.store, clock, sizes, topics=())


def due_of(record: Record, delays: tuple[int, ...]) -> int:
    """When a parked record is due, in the sender's words (DT-12, DT-30)."""
    named = record.property_map()
    if record.topic == SCHEDULE_TOPIC:
        return record.store_timestamp + delays[min(int(named["DELAY"]), len(delays)) - 1]
    rounded = int(named["TIMER_OUT_MS"])
    exact = int(named.get("TIMER_DELIVER_MS", "0"))
    for name, unit in (("TIMER_DELAY_MS", 1), ("TIMER_DELAY_SEC", 1000)):
        if name in named:
            exact = record.store_timestamp + unit * int(named[name])
    return exact if rounded < exact <= rounded + 1000 else rounded + 1


def key_of(record: Record) -> Key:
    named = record.property_map()
    real = named["REAL_TOPIC"] if record.topic in PARKED else record.topic
    return real, named.get("UNIQ_KEY", "")


def is_rolled(record: Record) -> bool:
    """Whether a RocketMQ has parked it again: it is counted by the record before (DT-53)."""
    return "TIMER_ROLL_TIMES" in record.property_map()


def recalled(records: list[Record]) -> set[Key]:
    """Messages that a recall names, in either form (DT-73, DT-76)."""
    found = set()
    for record in records:
        named = record.property_map()
        if RECALL in named and record.topic == TIMER_TOPIC:
            found.add((named["REAL_TOPIC"], named[RECALL].rpartition("+")[2]))
    return found


@pytest.mark.parametrize("name", ["delay", "delay-533", "timer", "timer-533", "retry", "retry-533"])
def test_what_is_pending_is_delivered_once(own_copy: Golden, name: str) -> None:
    """DT-13, DT-17, DT-59, SF-114: nothing again, nothing early, in order of time."""
    golden = own_copy(name)
    clock = SimClock(0)
    segment_bytes = int(golden.settings["mappedFileSizeCommitLog"])
    before = list(records_of(PosixStorage(str(golden.store)), segment_bytes))
    clock.step_wall(before[-1].store_timestamp + 100)
    life = life_of(golden, clock)
    delays = parse_delay_levels(life.settings.message_delay_level)
    parked = {r.physical_offset: r for r in before if r.topic in PARKED}
    wanted = {p: due_of(r, delays) for p, r in parked.items() if RECALL not in r.property_map()}
    for due in sorted(set(wanted.values())):
        if due - 5 > clock.wall_ms():
            clock.advance((due - 5 - clock.wall_ms()) * 1_000_000)
        life.run_for(20)
    life.run_for(2_000)
    after = life.records()[len(before) :]
    copies = [record for record in after if record.prepared_transaction_offset < 0]
    assert copies == [record for record in after if record.topic not in PARKED]
    assert all(copy.store_timestamp >= wanted[at] for copy, at in zip(copies, origins(copies)))
    delivered = Counter(key_of(r) for r in [*before, *after] if r.topic not in PARKED)
    expected = Counter(key_of(r) for at, r in parked.items() if at in wanted and not is_rolled(r))
    gone = recalled(before)
    kept = {key: count for key, count in expected.items() if key not in gone}
    assert {key: delivered[key] for key in kept} == kept
    assert not any(delivered[key] for key in gone)
    assert copies, "the set has something pending"
    life.stop()
