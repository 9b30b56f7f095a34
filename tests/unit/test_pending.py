"""What is pending, read off logs that we and a RocketMQ have written in turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantrymq.brokerd.handover.adoption import imported_of
from gantrymq.brokerd.handover.pending import Pending, read_pending
from gantrymq.shm import layout
from gantrymq.shm.properties import SCHEDULE_TOPIC, TIMER_TOPIC
from gantrymq.shm.storage import PosixStorage
from tests.support.handed import (
    SEGMENT_BYTES,
    START_MS,
    HandMadeLog,
    level_properties,
    timer_properties,
)

OUT_MS = START_MS + 60_000


@pytest.fixture
def log() -> HandMadeLog:
    """An empty log; a RocketMQ writes first."""
    return HandMadeLog()


def read(log: HandMadeLog, folder: Path) -> Pending:
    """The pass over it, with checks and without: both see the same."""
    storage = PosixStorage(str(folder))
    ranges = log.write(storage)
    found = read_pending(storage, SEGMENT_BYTES, ranges, len(log.data))
    checked = read_pending(storage, SEGMENT_BYTES, ranges, None)
    assert (found.end, found.records) == (checked.end, checked.records)
    assert waiting(found) == waiting(checked)
    return found


def waiting(found: Pending) -> set[int]:
    """Positions of all records that wait."""
    return {
        position
        for topic in (SCHEDULE_TOPIC, TIMER_TOPIC)
        for _queue, records in found.waiting(topic)
        for position in records["position"].tolist()
    }


def test_copies_of_ours_are_known_by_their_origin(log: HandMadeLog, tmp_path: Path) -> None:
    """Design 3.6: the same UNIQ_KEY says nothing, nor do properties."""
    log.ours = True
    first, second = (log.timer("K", OUT_MS) for _ in range(2))
    third, fourth = (log.level("L", 3) for _ in range(2))
    log.add("later", {"UNIQ_KEY": "K"}, origin=second)
    log.add("later", {"UNIQ_KEY": "L"}, origin=third)
    log.add("later", timer_properties("K", OUT_MS))  # sent by somebody, with what he received
    found = read(log, tmp_path)
    assert waiting(found) == {first, fourth}
    assert found.parked[SCHEDULE_TOPIC, 2].next_offset == 1
    assert found.foreign == 0


def test_recalls_of_ours_end_their_timer_and_nothing_else(log: HandMadeLog, tmp_path: Path) -> None:
    log.ours = True
    target, other = log.timer("K", OUT_MS), log.timer("K", OUT_MS)
    recall = timer_properties("K", OUT_MS, TIMER_DEL_UNIQKEY="later+K")
    log.add(TIMER_TOPIC, recall, origin=target)
    found = read(log, tmp_path)
    assert waiting(found) == {other}
    assert found.recalls == 1


def test_a_parked_record_that_was_appended_again_is_the_one_that_waits(
    log: HandMadeLog, tmp_path: Path
) -> None:
    """LW-73: its copy in the same parking queue has its origin."""
    log.ours = True
    old = log.timer("K", OUT_MS)
    new = log.add(TIMER_TOPIC, timer_properties("K", OUT_MS), origin=old)
    assert waiting(read(log, tmp_path)) == {new}


def test_copies_of_a_rocketmq_are_counted(log: HandMadeLog, tmp_path: Path) -> None:
    """HO-81: the same key parked three times and delivered twice: the newest still waits."""
    _first, _second, third = (log.timer("K", OUT_MS) for _ in range(3))
    elsewhere = [log.timer("K", OUT_MS + 1000), log.timer("K", OUT_MS, topic="other")]
    elsewhere.append(log.timer("K", OUT_MS, queue_id=1))
    for _ in range(2):
        log.add("later", timer_properties("K", OUT_MS, TIMER_DEQUEUE_MS="1"))
    assert waiting(read(log, tmp_path)) == {third, *elsewhere}


def test_a_copy_is_of_what_was_parked_before_it(log: HandMadeLog, tmp_path: Path) -> None:
    """What it is a copy of may have expired; the same key parked afterwards waits."""
    log.add("later", timer_properties("K", OUT_MS))
    parked = log.timer("K", OUT_MS)
    assert waiting(read(log, tmp_path)) == {parked}


def test_a_roll_takes_the_place_of_the_older_record(log: HandMadeLog, tmp_path: Path) -> None:
    """HO-10, DT-53; the record before an expired one may be missing."""
    log.timer("K", OUT_MS)
    log.timer("K", OUT_MS, TIMER_ROLL_TIMES="1")
    last = log.timer("K", OUT_MS, TIMER_ROLL_TIMES="2")
    alone = log.timer("L", OUT_MS, TIMER_ROLL_TIMES="4")
    log.timer("M", OUT_MS)
    log.timer("M", OUT_MS, TIMER_ROLL_TIMES="1")
    log.add("later", timer_properties("M", OUT_MS, TIMER_ROLL_TIMES="1"))
    assert waiting(read(log, tmp_path)) == {last, alone}


@pytest.mark.parametrize("form", ["K", "later+K"])
def test_both_forms_of_a_recall_count(log: HandMadeLog, tmp_path: Path, form: str) -> None:
    """DT-73, DT-76: also of a target that is rolled afterwards, and only at its time."""
    log.timer("K", OUT_MS)
    later = log.timer("K", OUT_MS + 1000)
    log.timer("R", OUT_MS, TIMER_DEL_UNIQKEY=form)
    log.timer("K", OUT_MS, TIMER_ROLL_TIMES="1")
    found = read(log, tmp_path)
    assert waiting(found) == {later}
    assert found.recalls == 1


def test_rounds_of_a_retry_are_told_apart(log: HandMadeLog, tmp_path: Path) -> None:
    """HO-81: a retried message keeps its UNIQ_KEY; a dead letter's leftovers link to nothing."""
    retry = "%RETRY%g"
    log.level("K", 3, topic=retry, rounds=1)
    log.add(retry, level_properties("K", 3, retry), reconsume_times=1)
    second = log.level("K", 3, topic=retry, rounds=2)
    log.add("%DLQ%g", level_properties("K", 3, retry), reconsume_times=2)
    found = read(log, tmp_path)
    assert waiting(found) == {second}
    assert found.parked[SCHEDULE_TOPIC, 2].next_offset == 1


def test_what_we_parked_and_a_rocketmq_delivered(log: HandMadeLog, tmp_path: Path) -> None:
    """And the other way round; what it appended again for us we have delivered by origin."""
    log.ours = True
    log.timer("A", OUT_MS)
    log.level("B", 1)
    left = log.level("C", 1)
    log.timer("D", OUT_MS)
    log.ours = False
    log.add("later", timer_properties("A", OUT_MS))
    log.add("later", level_properties("B", 1))
    theirs = log.timer("E", OUT_MS)
    again = log.timer("D", OUT_MS, TIMER_ROLL_TIMES="1")
    log.ours = True
    log.add("later", {"UNIQ_KEY": "E"}, origin=theirs)
    log.add("later", {"UNIQ_KEY": "D"}, origin=again)
    found = read(log, tmp_path)
    assert waiting(found) == {left}
    assert found.foreign == 4


def test_what_waits_before_something_delivered_is_not_lost(
    log: HandMadeLog, tmp_path: Path
) -> None:
    """`enableScheduleAsyncDeliver` leaves gaps (DT-18): the first that waits counts, and for us
    the others are settled one by one."""
    positions = [log.level(f"K{number}", 1) for number in range(5)]
    for number in (0, 2, 3):
        log.add("later", level_properties(f"K{number}", 1))
    found = read(log, tmp_path)
    parked = found.parked[SCHEDULE_TOPIC, 0]
    assert waiting(found) == {positions[1], positions[4]}
    assert (parked.next_offset, parked.out_of_order) == (1, 2)
    imported = imported_of(found)
    settled = [imported.is_settled(SCHEDULE_TOPIC, 0, offset) for offset in range(7)]
    assert settled == [True, False, True, True, False, False, False]
    assert imported.first(SCHEDULE_TOPIC, 0) == 1


def test_a_body_that_looks_like_a_timer_is_none(log: HandMadeLog, tmp_path: Path) -> None:
    parked = log.timer("K", OUT_MS)
    log.add("later", {"UNIQ_KEY": "K"}, body=b"TIMER_OUT_MS\x01%d\x02" % OUT_MS)
    assert waiting(read(log, tmp_path)) == {parked}


def test_open_halves(log: HandMadeLog, tmp_path: Path) -> None:
    """HO-41, HO-82: decided by an op message, a commit record, or giving up; put back under the
    same key."""
    half, op = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"

    def add(key: str) -> int:
        return log.add(half, {"UNIQ_KEY": key, "REAL_TOPIC": "paid"})

    add("rolled back")
    committed = add("committed")
    add("given up")
    add("open")
    add("put back")
    newest = add("put back")
    log.add(op, {"TAGS": "d"}, body=b"0,")
    log.add("paid", {}, sys_flag=layout.SYS_COMMIT, prepared_transaction_offset=committed)
    log.add("TRANS_CHECK_MAX_TIME_TOPIC", {"UNIQ_KEY": "given up"})
    found = read(log, tmp_path).transactions
    assert found.waiting["offset"].tolist() == [3, 5]
    assert found.waiting["position"][-1] == newest
