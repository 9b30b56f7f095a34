"""Hand-over and adoption on small made logs: order of writing, kills, what is refused."""

from __future__ import annotations

import contextlib
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from gantrymq.brokerd import rebuild
from gantrymq.brokerd.config import Settings, load
from gantrymq.brokerd.epoch import begin, settle_sizes
from gantrymq.brokerd.handover import leaving
from gantrymq.brokerd.handover.adoption import import_foreign
from gantrymq.brokerd.handover.coming import Adopted, take_over
from gantrymq.brokerd.handover.leaving import HandedOver, Target, make
from gantrymq.brokerd.verify import verify
from gantrymq.shm import imported
from gantrymq.shm.bitmapnote import read_covered
from gantrymq.shm.bloom import BloomForm
from gantrymq.shm.configfile import read_config, write_config
from gantrymq.shm.errors import Corrupt, Incompatible
from gantrymq.shm.imported import Imported, Settled, Visit, read_imported, write_imported
from gantrymq.shm.properties import SCHEDULE_TOPIC, TIMER_TOPIC
from gantrymq.shm.storage import PosixStorage, read_file, replace_file
from gantrymq.workers.filterfile import FilterEntry, write_filters
from gantrymq.workers.groups.ledger import open_ledger
from gantrymq.workers.scheduler.note import OFFSETS_FILE
from tests.support.faults import FaultPlan, KilledError, kill_at
from tests.support.handed import (
    SEGMENT_BYTES,
    START_MS,
    HandMadeLog,
    level_properties,
    timer_properties,
)
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage
from tests.support.trials import mends

TARGET = Target(START_MS + 120_123, timer_log_bytes=200)
EXPECTED = "expect_consumer_num_use_filter"
SETTINGS = {
    "mapped_file_size_commit_log": SEGMENT_BYTES,
    "mapped_file_size_consume_queue": 20 * 64,
    "max_message_size": 4096,
    "message_index_enable": False,
    "topics_max": 32,
    "board_queues_max": 128,
}


def mixed_log() -> HandMadeLog:
    """Timers and levels, some delivered by us, some by a RocketMQ, which wrote last."""
    log = HandMadeLog(ours=True)
    first = log.timer("A", START_MS + 1000)
    log.add("later", {"UNIQ_KEY": "A"}, origin=first)
    for number in range(5):
        log.timer(f"B{number}", START_MS + 60_000 * number, topic="%RETRY%g" if number else "later")
        log.level(f"C{number}", 2)
    log.ours = False
    log.add("later", level_properties("C0", 2))
    log.add("later", timer_properties("B0", START_MS))
    log.add("%DLQ%g", {"UNIQ_KEY": "D"})
    log.timer("E", START_MS + 5000)
    log.add("later", timer_properties("E", START_MS + 5000))
    return log


def write_config_files(storage: Any) -> None:  # noqa: ANN401 - either storage
    """As a RocketMQ leaves them, backups and counters too."""
    offsets = {"offsetTable": {"later@g": {0: 1}, "gone@g": {0: 7}, "%RETRY%g@g": {0: 99}}}
    for name, content in (
        (
            "topics.json",
            {"topicConfigTable": {"later": {"readQueueNums": 2, "writeQueueNums": 2, "perm": 6}}},
        ),
        ("subscriptionGroup.json", {"subscriptionGroupTable": {"g": {"retryMaxTimes": 3}}}),
        ("consumerOffset.json", offsets),
        ("delayOffset.json", {"offsetTable": {2: 77}}),
    ):
        for _ in range(2):
            write_config(storage, name, content)
    replace_file(storage, "config/consumerFilter.json.bak", b"{}")
    replace_file(storage, "config/timermetrics", b"{}")
    replace_file(storage, "timerwheel", bytes(64))
    replace_file(storage, "timerwheel.12", bytes(64))
    replace_file(storage, "timerlog/" + "0" * 20, bytes(200))
    replace_file(storage, "abort", b"1")


def settings(storage: Any) -> Settings:  # noqa: ANN401 - either storage
    return settle_sizes(storage, load(given=SETTINGS, environment={})).settings


def handed(storage: Any) -> HandedOver:  # noqa: ANN401 - either storage
    done = HandedOver("sim")
    make(storage, settings(storage), TARGET, done, None)
    return done


def files(storage: SimStorage) -> dict[str, bytes]:
    """All files that a RocketMQ reads, without the ledger, which counts what was written."""
    entries = storage.disk.names.entries.items()
    names = [name for name, inode in entries if inode is not None and name != "gantry/ledger"]
    stamped = ("gantry/checkpoint", "gantry/producers", "checkpoint")
    return {name: read_file(storage, name) for name in names if name not in stamped}


@pytest.fixture
def disk() -> Disk:
    """A disk with such a store."""
    storage = SimStorage(Disk(file_bytes_max=64 * 1024))
    storage.make_directory("gantry")
    mixed_log().write(storage)
    write_config_files(storage)
    return storage.disk


def test_what_a_hand_over_writes_and_removes(disk: Disk) -> None:
    """HO-3, HO-11, HO-30, HO-60 to HO-63."""
    storage = SimStorage(disk)
    done = handed(storage)
    assert (done.timers, done.overdue, done.retries, done.dead_letters) == (4, 1, 4, 1)
    assert done.levels == {2: (4, 1)}
    assert read_config(storage, "delayOffset.json")["offsetTable"] == {"2": 1}
    assert read_config(storage, "consumerOffset.json")["offsetTable"] == {
        "%RETRY%g@g": {"0": 0},
        "gone@g": {"0": 7},
        "later@g": {"0": 1, "1": 0},
    }
    topics = read_config(storage, "topics.json")["topicConfigTable"]
    assert {name: entry["topicName"] for name, entry in topics.items()} == {n: n for n in topics}
    groups = read_config(storage, "subscriptionGroup.json")["subscriptionGroupTable"]
    assert groups == {"g": {"groupName": "g", "retryMaxTimes": 3}}
    assert storage.list("timerlog") == ["0" * 20, f"{200:020d}"]
    left = storage.list("config")
    assert [name for name in left if name.endswith((".bak", "metrics"))] == []
    assert "consumerFilter.json" in left  # only its backup was there
    assert {"abort", "timerwheel", "timerwheel.12"}.isdisjoint(storage.list(""))


def test_a_kill_at_any_storage_call_is_made_good_by_the_next_try(disk: Disk) -> None:
    """HO-72, P11. Kills before the first file of a RocketMQ are those of `store rebuild`."""
    ready = SimStorage(disk, "rebuild", FaultPlan())
    rebuild.bring_up_to_date(ready, settings(ready), None)
    before = SimStorage(deepcopy(disk), "rebuild", FaultPlan())
    rebuild.bring_up_to_date(before, settings(before), None)
    whole = SimStorage(deepcopy(disk), "handover", FaultPlan())
    handed(whole)
    for at in range(before.faults.calls + 1, whole.faults.calls + 1):
        tried = SimStorage(deepcopy(disk), "handover", FaultPlan([kill_at(at)]))
        with contextlib.suppress(KilledError):
            handed(tried)
        assert tried.faults.met
        again = SimStorage(tried.disk)
        handed(again)
        assert files(again) == files(whole), tried.faults.met
    assert whole.faults.calls - before.faults.calls > 20


def test_a_second_hand_over_moves_the_time(disk: Disk) -> None:
    """HO-18: it must be run again when the store has stood too long."""
    storage = SimStorage(disk)
    first = handed(storage)
    before = read_file(storage, "config/timercheck")
    later = Target(TARGET.now_ms + 86_400_000, timer_log_bytes=200)
    second = HandedOver("sim")
    make(storage, settings(storage), later, second, None)
    assert second.start_before_ms - first.start_before_ms == 86_400_000
    assert second.overdue == second.timers == 4
    assert read_file(storage, "config/timercheck") != before


def test_nothing_to_do(tmp_path: Path) -> None:
    """An empty store, and one whose queue of timers has only what is done."""
    storage = PosixStorage(str(tmp_path))
    assert handed(storage).timers == 0
    log = HandMadeLog()
    log.timer("A", START_MS)
    log.add("later", timer_properties("A", START_MS))
    other = PosixStorage(str(tmp_path / "other"))
    log.write(other)
    assert handed(other).timers == 0
    assert other.list("timerlog") == []


# ------------------------------------------------------------------------------------- adoption


def adopted(storage: Any, *, dry_run: bool = False) -> Adopted:  # noqa: ANN401 - either storage
    done = Adopted("sim", dry_run)
    take_over(storage, settings(storage), done, None)
    return done


def store(log: HandMadeLog, folder: Path) -> PosixStorage:
    storage = PosixStorage(str(folder))
    log.write(storage)
    return storage


def test_a_start_imports_what_another_broker_has_written_since(tmp_path: Path) -> None:
    """Once for each time that one went on; nothing where all is ours."""
    log = HandMadeLog(ours=True)
    log.timer("A", START_MS)
    end = len(log.data)
    storage = store(log, tmp_path)
    assert import_foreign(storage, SEGMENT_BYTES, 0, end) is None
    assert read_imported(storage) is None
    log.ours = False
    log.add("later", timer_properties("A", START_MS))
    log.write(storage)
    found = import_foreign(storage, SEGMENT_BYTES, 0, len(log.data))
    assert found is not None
    assert found.foreign == 1
    known = read_imported(storage)
    assert known is not None
    assert (known.end, known.first(TIMER_TOPIC, 0)) == (len(log.data), 1)
    log.ours = True
    log.timer("B", START_MS)
    log.write(storage)
    assert import_foreign(storage, SEGMENT_BYTES, 0, len(log.data)) is None
    assert read_imported(storage) == known
    replace_file(storage, imported.FILE, b"{")  # derived: it is made again
    again = import_foreign(storage, SEGMENT_BYTES, 0, len(log.data))
    assert again is not None
    assert known.visit is not None
    assert known.visit.firsts == {("later", 0): 0}
    settled = {(TIMER_TOPIC, 0): Settled(1, 1, b"\0")}
    assert read_imported(storage) == Imported(len(log.data), settled, known.visit)


def test_the_file_says_what_was_put_into_it(tmp_path: Path) -> None:
    storage = PosixStorage(str(tmp_path))
    queues = {("a/b", 0): Settled(3, 9, b"\x05\x01"), (SCHEDULE_TOPIC, 17): Settled(0, 0, b"")}
    visit = Visit(11, 55, {("a/b", 3): 0, ("c", 0): 1 << 40}, {("c", 0): 12})
    for one in (None, visit):
        write_imported(storage, Imported(77, queues, one))
        found = read_imported(storage)
        assert found == Imported(77, queues, one)
    assert found is not None
    assert [found.is_settled("a/b", 0, n) for n in range(13)] == [
        *(True, True, True, True, False, True, False, False, False, False, False, True, False)
    ]
    assert found.first("unknown", 0) == 0
    assert not found.is_settled("unknown", 0, 0)
    assert found.bits("a/b", 0) == (3, 9, b"\x05\x01")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    """Every bit of it counts."""
    storage = PosixStorage(str(tmp_path))
    visit = Visit(11, 55, {("a/b", 3): 0}, {("c", 0): 12})
    write_imported(storage, Imported(77, {("t", 0): Settled(3, 9, b"\x05\x01")}, visit))
    data = bytearray(read_file(storage, imported.FILE))
    for at in range(len(data.rstrip())):
        if data[at] == ord(" "):
            continue
        torn = bytearray(data)
        torn[at] ^= 1
        replace_file(storage, imported.FILE, bytes(torn))
        with pytest.raises(Corrupt):
            read_imported(storage)


def ck(log: HandMadeLog, tag: str = "ck") -> None:
    """A POP checkpoint, or an acknowledgement, whose time has come."""
    log.add("rmq_sys_REVIVE_LOG_c", {"TAGS": tag})


def test_pop_checkpoints_are_refused_by_count(tmp_path: Path) -> None:
    """CQ-80, CQ-82: those in the timer, and those behind the revive service's offset."""
    log = HandMadeLog()
    for number in range(3):
        log.timer(f"K{number}", START_MS + 1000, topic="rmq_sys_REVIVE_LOG_c", TAGS="ck")
    log.timer("ack", START_MS + 1000, topic="rmq_sys_REVIVE_LOG_c", TAGS="ack")
    for _ in range(4):
        ck(log)
    ck(log, "ack")
    storage = store(log, tmp_path)
    offsets = {"rmq_sys_REVIVE_LOG_c@CID_RMQ_SYS_REVIVE_GROUP": {0: 1}}
    write_config(storage, "consumerOffset.json", {"offsetTable": offsets})
    for dry_run in (True, False):
        with pytest.raises(Incompatible, match="hold messages by 5 open checkpoints"):
            adopted(storage, dry_run=dry_run)
    assert not storage.exists("gantry/checkpoint")


def test_settled_pop_state_is_no_reason_to_refuse(tmp_path: Path) -> None:
    log = HandMadeLog()
    ck(log)
    ck(log, "ack")
    storage = store(log, tmp_path)
    offsets = {"rmq_sys_REVIVE_LOG_c@CID_RMQ_SYS_REVIVE_GROUP": {0: 0}}
    write_config(storage, "consumerOffset.json", {"offsetTable": offsets})
    write_config(storage, "consumerOrderInfo.json", {"table": {"t@g": {0: {"o": [5, 1], "cm": 3}}}})
    assert adopted(storage).records == 2


def test_ordered_pop_is_refused(tmp_path: Path) -> None:
    """CQ-92."""
    log = HandMadeLog()
    log.add("t", {})
    storage = store(log, tmp_path)
    state = {"t@g": {0: {"o": [5, 1], "cm": 1}, 1: {"o": [7], "cm": 1}}}
    write_config(storage, "consumerOrderInfo.json", {"table": state})
    with pytest.raises(Incompatible, match="of 1 queues"):
        adopted(storage)


def test_transactions_in_rocksdb_are_refused(tmp_path: Path) -> None:
    log = HandMadeLog()
    log.add("RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", {})
    with pytest.raises(Incompatible, match="1 transactions are kept in RocksDB"):
        adopted(store(log, tmp_path))


def test_what_a_home_without_a_store_says(tmp_path: Path) -> None:
    from gantrymq.brokerd.handover.coming import adopt

    with pytest.raises(Incompatible, match="is no store"):
        leaving.handover(tmp_path, TARGET)
    with pytest.raises(Incompatible, match="no commitlog/"):
        adopt(tmp_path)


def test_json_of_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gantrymq.cli.handover import adopt, handover

    store(mixed_log(), tmp_path / "store")
    adopt(tmp_path / "store", dry_run=True, as_json=True)
    handover(tmp_path, dry_run=True, as_json=True)
    for line in capsys.readouterr().out.splitlines():
        said = json.loads(line)
        assert said["timers"] == 4
        assert said["dry_run"]
    assert said["settings"]["mappedFileSizeCommitLog"] == str(SEGMENT_BYTES)
    assert OFFSETS_FILE not in PosixStorage(str(tmp_path / "store")).list("config")


def test_settings_are_those_of_the_stores_last_life(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bitmaps of another length are made, too; what the command says counts for more."""
    from gantrymq.cli.handover import handover

    storage = store(mixed_log(), tmp_path / "store")
    wanted = {"enable_calc_filter_bit_map": True, "enable_consume_queue_ext": True}
    begin(storage, load(given={**SETTINGS, **wanted, EXPECTED: 8}, environment={}))
    entry = FilterEntry("later", "billing", "a > 5", "sql", 1, 1)
    write_filters(storage, [entry], BloomForm.of(20, 8))
    handover(tmp_path, as_json=True)
    handover(tmp_path, settings=[f"{EXPECTED}=9"], dry_run=True, as_json=True)
    lines = capsys.readouterr().out.splitlines()
    first, second = (json.loads(line)["settings"] for line in lines)
    assert first["expectConsumerNumUseFilter"] == "8"
    assert first["enableCalcFilterBitMap"] == "true"
    assert second["expectConsumerNumUseFilter"] == "9"
    (covered,) = read_covered(storage)
    assert (covered.group, covered.bits) == ("billing", BloomForm.of(20, 8).bits)
    assert covered.start == 0, "made as the last life would have"


LEVELS = "message_delay_level"


def in_a_level_that_went(home: Path) -> PosixStorage:
    """Three messages wait in level 4, of which the store's last start knew nothing."""
    log = HandMadeLog(ours=True)
    for number in range(3):
        log.level(f"C{number}", 4)
    storage = store(log, home / "store")
    for levels in ("1s 5s 10s 60s", "1s 2s"):
        begin(storage, load(given={**SETTINGS, LEVELS: levels}, environment={}))
    return storage


@mends("S138")
@pytest.mark.parametrize("dry_run", [True, False])
def test_what_waits_in_a_level_that_went_is_refused_by_count(tmp_path: Path, dry_run: bool) -> None:
    """HO-10: a RocketMQ with the levels that are told would never deliver it."""
    in_a_level_that_went(tmp_path)
    paths = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in paths}
    with pytest.raises(
        Incompatible, match=r"4 \(3 messages\).*--set message_delay_level"
    ) as caught:
        leaving.handover(tmp_path, TARGET, dry_run=dry_run)
    assert caught.value.setting == LEVELS
    left = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert {path: path.read_bytes() for path in left if path.stat().st_size} == before


@mends("S138", "S139")
def test_a_hand_over_is_told_the_levels(tmp_path: Path) -> None:
    """Units are made by the store's own all the same: what is left verifies."""
    in_a_level_that_went(tmp_path)
    given = {LEVELS: "1s 5s 10s 60s"}
    for dry_run in (True, False):
        done = leaving.handover(tmp_path, TARGET, given=given, dry_run=dry_run)
        assert done.settings["messageDelayLevel"] == given[LEVELS]
        assert done.levels == {4: (3, 0)}
    found = verify(tmp_path / "store")
    assert not [finding for finding in found.findings if SCHEDULE_TOPIC in finding.path], str(found)
    with pytest.raises(Incompatible, match="delay levels 4"):
        leaving.handover(tmp_path, TARGET)


def test_an_adoption_is_told_the_levels(tmp_path: Path) -> None:
    """SF-63: nothing in a RocketMQ's store says them."""
    from gantrymq.cli.handover import adopt

    log = HandMadeLog()
    log.level("C", 3)
    store(log, tmp_path / "store")
    with pytest.raises(Incompatible, match="level"):
        adopt(tmp_path / "store", settings=["message_delay_level=1s 2s"], dry_run=True)
    adopt(tmp_path / "store", dry_run=True)


def test_what_a_group_has_done_ahead_is_told(disk: Disk) -> None:
    """HO-60: an offset for each queue is all that a RocketMQ keeps of a group."""
    storage = SimStorage(disk)
    ledger = open_ledger(storage, 1)
    ledger.commit("g", ("later", 0), 1)
    for done in ((2, 4), (5, 6)):
        ledger.finish("g", ("later", 0), done)
    ledger.sync()
    ledger.close()
    told = handed(storage)
    assert told.done_ahead == 3
    assert "3 messages that groups are done with come again" in str(told)
    assert read_config(storage, "consumerOffset.json")["offsetTable"]["later@g"]["0"] == 1
