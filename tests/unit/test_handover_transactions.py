"""Transactions in a store that is handed over, or that comes: open, decided, half finished."""

from __future__ import annotations

import contextlib
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gantrymq.brokerd import epoch
from gantrymq.brokerd.config import Settings, load
from gantrymq.brokerd.epoch import settle_sizes
from gantrymq.brokerd.handover.coming import Adopted, take_over
from gantrymq.brokerd.handover.leaving import HandedOver, Target, look, make
from gantrymq.shm import layout
from gantrymq.shm.configfile import read_config
from gantrymq.shm.imported import read_imported
from gantrymq.shm.properties import GIVEN_UP_TOPIC, HALF_TOPIC, NOTES_TOPIC, OP_TOPIC
from gantrymq.shm.record import Record
from gantrymq.shm.storage import PosixStorage, replace_file
from gantrymq.shm.storereader import StoreReader
from tests.support.faults import FaultPlan, KilledError, kill_at
from tests.support.handed import SEGMENT_BYTES, START_MS, HandMadeLog
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage
from tests.support.trials import mends

TARGET = Target(START_MS + 120_123, timer_log_bytes=200)
SETTINGS = {
    "mapped_file_size_commit_log": SEGMENT_BYTES,
    "mapped_file_size_consume_queue": 20 * 64,
    "max_message_size": 4096,
    "message_index_enable": False,
    "topics_max": 32,
    "board_queues_max": 128,
}


class Log(HandMadeLog):
    """With records of transactions."""

    def half(self, key: str, **more: Any) -> int:  # noqa: ANN401 - of Record, and properties
        origin, flag = more.pop("origin", None), more.pop("flag", 0)
        properties = {"UNIQ_KEY": key, "PGROUP": "pay", "TRAN_MSG": "true", **more}
        properties |= {"REAL_TOPIC": "paid", "REAL_QID": "3"}
        return self.add(HALF_TOPIC, properties, origin=origin, flag=flag)

    def commit(self, half: int) -> None:
        fields = {"sys_flag": layout.SYS_COMMIT, "prepared_transaction_offset": half}
        self.add("paid", {}, queue_id=3, **fields)

    def op(self, *offsets: int) -> None:
        body = "".join(f"{offset}," for offset in offsets).encode()
        self.add(OP_TOPIC, {"TAGS": "d", "WAIT": "true"}, body=body)


def settings(storage: Any) -> Settings:  # noqa: ANN401 - either storage
    return settle_sizes(storage, load(given=SETTINGS, environment={})).settings


def handed(storage: Any, *, dry_run: bool = False) -> HandedOver:  # noqa: ANN401 - either storage
    done = HandedOver("sim", dry_run)
    (look if dry_run else make)(storage, settings(storage), TARGET, done, None)
    return done


def stored(storage: Any, log: HandMadeLog) -> list[Record]:  # noqa: ANN401 - either storage
    """Records behind the log that was made."""
    reader, at, found = StoreReader(storage), len(log.data), []
    while isinstance(item := reader.place(at).item, Record):
        found.append(item)
        at += item.total_size
    return found


def offsets(storage: Any) -> tuple[int, int]:  # noqa: ANN401 - either storage
    """H and O."""
    table = read_config(storage, "consumerOffset.json")["offsetTable"]
    topics = [f"{topic}@CID_RMQ_SYS_TRANS" for topic in (HALF_TOPIC, OP_TOPIC)]
    half, op = (int(table[topic]["0"]) if topic in table else 0 for topic in topics)
    return half, op


def in_doubt() -> Log:
    """Ours, killed: rolled back 0, open 1, decided without op record 2, 3; half a commit 4, 5."""
    log = Log(ours=True)
    log.half("rolled back")
    log.half("open")
    committed = log.half("committed")
    given_up = log.half("given up")
    first = log.half("one of two", GANTRY_TX="ab12,1")
    log.half("two of two", GANTRY_TX="ab12,2", CHECK_IMMUNITY_TIME_IN_SECONDS="9", flag=77)
    log.op(0)
    log.commit(committed)
    log.add(GIVEN_UP_TOPIC, {"UNIQ_KEY": "given up"}, origin=given_up)
    log.commit(first)
    return log


def test_what_was_parked_again_is_counted_once_without_its_half(tmp_path: Path) -> None:
    """Retention has removed the halves and the first copies; an operator has settled one of them.

    A RocketMQ's own first copy has no origin.
    """
    storage, log = PosixStorage(str(tmp_path)), Log(ours=True)
    foreign = log.add(GIVEN_UP_TOPIC, {"UNIQ_KEY": "of a RocketMQ"})
    log.add(GIVEN_UP_TOPIC, {"UNIQ_KEY": "of a RocketMQ"}, origin=foreign)
    for half in (1 << 40, 1 << 41):
        for _ in range(2):
            log.add(GIVEN_UP_TOPIC, {"UNIQ_KEY": f"key {half}"}, origin=half)
    note = msgspec.msgpack.encode(["settled", 1 << 41, "rollback", "ops@host", START_MS])
    log.add(NOTES_TOPIC, {}, body=note)
    log.write(storage)
    assert handed(storage, dry_run=True).given_up == 2


def test_an_operators_commit_of_one_half_leaves_its_siblings_open(tmp_path: Path) -> None:
    """Its op record names it alone."""
    storage, log = PosixStorage(str(tmp_path)), Log(ours=True)
    first = log.half("one of two", GANTRY_TX="ab12,1")
    log.half("two of two", GANTRY_TX="ab12,2")
    log.commit(first)
    log.op(0)
    log.write(storage)
    done = handed(storage)
    assert (done.open_halves, done.finished) == (1, 0)


@mends("S319")
@pytest.mark.parametrize("sparse", [False, True])
def test_what_is_decided_gets_its_op_record(tmp_path: Path, sparse: bool) -> None:
    """HO-45, TX-21, TX-15, TX-46: and the rest of a committed transaction its message.

    `sparse`: in a log without blocks behind its end, as a RocketMQ and a back-up leave it.
    """
    storage, log = PosixStorage(str(tmp_path)), in_doubt()
    log.write(storage)
    if sparse:
        leave_out_blocks(tmp_path)
    told, done = handed(storage, dry_run=True), handed(storage)
    assert (told.open_halves, told.finished, told.named) == (2, 1, 4)
    assert (done.open_halves, done.given_up, done.finished, done.named) == (1, 1, 1, 4)
    copy, op = stored(storage, log)
    assert (copy.topic, copy.queue_id, copy.queue_offset) == ("paid", 3, 2)
    assert (copy.transaction, copy.flag) == (layout.SYS_COMMIT, 77)
    half = StoreReader(storage).record(copy.prepared_transaction_offset)
    assert half.property_map()["UNIQ_KEY"] == "two of two"
    kept = {name: text for name, text in copy.property_map().items() if name != "__CRC32#"}
    assert kept == {"UNIQ_KEY": "two of two", "PGROUP": "pay", "TRAN_MSG": "true"}
    assert (op.topic, op.sys_flag, op.body) == (OP_TOPIC, 0, b"2,3,4,5,")
    assert op.property_map().keys() == {"TAGS", "WAIT", "__CRC32#"}
    assert (storage.exists("abort"), offsets(storage)) == (False, (1, 1))


def leave_out_blocks(root: Path) -> None:
    """Of what follows the last record."""
    segment = max((root / "commitlog").iterdir())
    data = segment.read_bytes()
    segment.write_bytes(data.rstrip(b"\0"))
    with segment.open("r+b") as file:
        file.truncate(len(data))


def test_a_second_hand_over_has_nothing_to_finish(tmp_path: Path) -> None:
    storage, log = PosixStorage(str(tmp_path)), in_doubt()
    log.write(storage)
    first, second = handed(storage), handed(storage)
    assert (second.finished, second.named, second.end) == (0, 0, first.end)
    assert len(stored(storage, log)) == 2


def test_a_kill_at_any_storage_call_is_made_good_by_the_next_try() -> None:
    """HO-72: what was appended is found, or cut off and appended once more."""
    disk = SimStorage(Disk(file_bytes_max=64 * 1024)).disk
    storage, log = SimStorage(disk), in_doubt()
    storage.make_directory("gantry")
    log.write(storage)
    sizes = {name: SETTINGS[name] for name in epoch.SIZES}  # as a broker of ours has made it
    replace_file(storage, epoch.STORE_FILE, json.dumps(sizes).encode())
    whole = SimStorage(deepcopy(disk), "handover", FaultPlan())
    handed(whole)
    for at in range(1, whole.faults.calls + 1, 9):
        tried = SimStorage(deepcopy(disk), "handover", FaultPlan([kill_at(at)]))
        with contextlib.suppress(KilledError):
            handed(tried)
        again = SimStorage(tried.disk)
        handed(again)
        assert [r.body for r in stored(again, log)] == [r.body for r in stored(whole, log)]
        assert offsets(again) == (1, 1)


def test_a_delayed_half_is_told(tmp_path: Path) -> None:
    """LW-47: a RocketMQ would deliver it at its commit; and none is finished by us here."""
    storage, log = PosixStorage(str(tmp_path)), Log(ours=True)
    first = log.half("KEY1", GANTRY_TX="ab12,1")
    log.half("KEY2", GANTRY_TX="ab12,2", GANTRY_TX_DELAY="level:3")
    log.half("KEY3", GANTRY_TX_DELAY="after:5000")
    log.commit(first)
    log.op(0)
    log.write(storage)
    done = handed(storage)
    assert done.delayed_halves == ["KEY2", "KEY3"]
    assert (done.open_halves, done.finished, done.named, offsets(storage)) == (2, 0, 0, (1, 1))
    assert "2 open half messages have a delay" in str(done)
    assert "KEY2, KEY3" in str(done)


def test_op_records_that_do_not_matter_any_more(tmp_path: Path) -> None:
    """HO-40: O is the first op record that names an offset from H on; H the end if none waits."""
    storage, log = PosixStorage(str(tmp_path)), Log(ours=True)
    for number in range(4):
        log.half(f"K{number}")
    log.op(0)
    log.op(1)
    log.op(3)
    log.write(storage)
    handed(storage)
    assert offsets(storage) == (2, 2)
    log.op(2)
    other = PosixStorage(str(tmp_path / "decided"))
    log.write(other)
    handed(other)
    assert offsets(other) == (4, 4)


def test_more_settled_halves_than_one_op_record_holds(tmp_path: Path) -> None:
    """TX-23: bodies of about 4096 characters; a segment that is full is followed by the next."""
    storage, log = PosixStorage(str(tmp_path)), Log(ours=True)
    log.half("open")
    while len(log.data) < SEGMENT_BYTES - 1000:
        position = log.half(f"K{len(log.data)}")
        log.add("paid", {}, sys_flag=layout.SYS_COMMIT, prepared_transaction_offset=position)
    log.write(storage)
    count = log.offsets[HALF_TOPIC, 0] - 1
    done = handed(storage)
    assert (done.named, done.open_halves) == (count, 1)
    assert handed(storage).named == 0


@pytest.mark.parametrize("by", ["retention", "an operator"])
def test_a_half_that_was_appended_again_is_open(tmp_path: Path, by: str) -> None:
    """Its old record is named by an op record, or given up; the new one waits (HO-41)."""
    storage, log = PosixStorage(str(tmp_path)), Log(ours=True)
    old = log.half("K")
    if by == "an operator":
        log.add(GIVEN_UP_TOPIC, {"UNIQ_KEY": "K"}, origin=old)
        log.op(0)
    log.half("K", origin=old)
    log.op(0)
    log.write(storage)
    done = handed(storage)
    assert (done.open_halves, done.given_up, offsets(storage)[0]) == (1, 0, 1)


def test_a_crash_between_the_new_record_and_its_op_record(tmp_path: Path) -> None:
    """The old one is an alias already: it lies below H."""
    storage, log = PosixStorage(str(tmp_path)), Log(ours=True)
    old = log.half("K")
    log.half("other")
    log.half("K", origin=old)
    log.write(storage)
    done = handed(storage)
    assert (done.open_halves, done.named, offsets(storage)) == (2, 0, (1, 0))


def test_put_back_halves_of_another_broker_are_settled(tmp_path: Path) -> None:
    """HO-41, HO-82: the newest waits, all others are told to the checker as settled."""
    storage, log = PosixStorage(str(tmp_path)), Log()
    for key in ("A", "B", "A", "C", "A"):
        log.half(key)
    log.commit(log.half("D"))
    log.half("B")
    log.op(3)
    log.write(storage)
    done = Adopted("sim")
    take_over(storage, settings(storage), done, None)
    assert (done.open_halves, done.given_up) == (2, 0)
    imported = read_imported(storage)
    assert imported is not None
    settled = [imported.is_settled(HALF_TOPIC, 0, offset) for offset in range(7)]
    assert settled == [True, True, True, True, False, True, False]
    assert imported.first(HALF_TOPIC, 0) == 4


def test_old_put_backs_behind_the_first_open_half_are_named(tmp_path: Path) -> None:
    """HO-41: a RocketMQ would check each by itself and commit it again."""
    storage, log = PosixStorage(str(tmp_path)), Log()
    for key in ("open", "A", "A", "B", "A"):
        log.half(key)
    log.write(storage)
    done = handed(storage)
    assert (done.open_halves, done.named) == (3, 2)
    assert [r.body for r in stored(storage, log)] == [b"1,2,"]
    assert offsets(storage) == (0, 0)
    assert (handed(storage).open_halves, handed(storage).named) == (3, 0)


def test_what_was_checked_anew_and_given_up_then_is_counted(tmp_path: Path) -> None:
    storage, log = PosixStorage(str(tmp_path)), Log(ours=True)
    half = log.half("given up")
    note = msgspec.msgpack.encode(["settled", half, "recheck", "ops@host", START_MS])
    log.add(NOTES_TOPIC, {}, body=note)
    log.add(GIVEN_UP_TOPIC, {"UNIQ_KEY": "given up"}, origin=half)
    log.op(0)
    log.write(storage)
    assert handed(storage).given_up == 1
