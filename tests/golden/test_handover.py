"""What waits in stores of a real RocketMQ, and what a hand-over makes of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gantrymq.brokerd.handover.coming import Adopted, adopt
from gantrymq.brokerd.handover.leaving import HandedOver, Target, handover
from gantrymq.brokerd.handover.pending import Pending, read_pending
from gantrymq.brokerd.verify import verify
from gantrymq.shm import layout
from gantrymq.shm.configfile import parse_config
from gantrymq.shm.errors import Incompatible
from gantrymq.shm.imported import read_imported
from gantrymq.shm.properties import HALF_TOPIC, TIMER_TOPIC
from gantrymq.shm.ranges import Ranges
from gantrymq.shm.storage import PosixStorage, read_file
from tests.support.batchqueues import SETS, TOPIC, unit_files
from tests.support.golden import GoldenStore, dump_lines, sent_lines

Golden = Callable[[str], GoldenStore]
TIMER_LOG_BYTES = 2000
LEVELLED = ("delay", "delay-533", "retry", "retry-533")
TIMED = ("timer", "timer-533")
#: Hows of messages whose time had not come when the broker stopped.
STILL_TIMED = ("deliverMs hour", "deliverMs 2 days")


def pending(golden: GoldenStore) -> Pending:
    storage = PosixStorage(str(golden.store))
    return read_pending(storage, golden.segment_bytes, Ranges(), None)


def with_settings(golden: GoldenStore) -> GoldenStore:
    """Settings of ours that say what the RocketMQ's did."""
    theirs = golden.settings
    names = {
        "maxHashSlotNum": "max_hash_slot_num",
        "maxIndexNum": "max_index_num",
        "messageDelayLevel": "message_delay_level",
    }
    lines = [
        f"{ours} = {json.dumps(_value(theirs[k]))}" for k, ours in names.items() if k in theirs
    ]
    (golden.directory / "gantrymq.toml").write_text("\n".join(lines))
    return golden


def _value(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def given(golden: GoldenStore, now_ms: int) -> HandedOver:
    """The outcome of a hand-over."""
    target = Target(now_ms, timer_log_bytes=TIMER_LOG_BYTES)
    return handover(golden.directory, target)


def still_timed(name: str) -> set[str]:
    """UNIQ_KEYs of timers that wait, by what was sent and recalled."""
    sent = sent_lines(name)
    recalled = {line["result"] for line in sent if line["how"] == "recall"}
    return {line["msgId"] for line in sent if line["how"] in STILL_TIMED} - recalled


def timer_units(store: Path) -> list[dict[str, Any]]:
    """Units of a timer log that are no end marks and no zeroes."""
    storage = PosixStorage(str(store))
    found = []
    for name in storage.list("timerlog"):
        data = read_file(storage, f"timerlog/{name}")
        for at in range(0, len(data) - layout.TIMER_LOG_UNIT.size, layout.TIMER_LOG_UNIT.size):
            unit = layout.TIMER_LOG_UNIT.unpack(data, at)
            if unit["size"] == layout.TIMER_LOG_UNIT.size:
                found.append(unit)
    return found


@pytest.mark.parametrize("name", LEVELLED)
def test_levels_go_on_where_the_broker_had_stopped(golden: Golden, name: str) -> None:
    """HO-82 2.: after a clean stop its own delayOffset.json says the same."""
    (said,) = [
        line["text"] for line in dump_lines(name, "config") if line["name"] == "delayOffset.json"
    ]
    found = pending(golden(name))
    levels = {str(queue + 1): parked.next_offset for (_, queue), parked in found.parked.items()}
    assert levels == parse_config(said)["offsetTable"]
    assert not any(parked.out_of_order for parked in found.parked.values())


@pytest.mark.parametrize("name", TIMED)
def test_timers_that_wait(golden: Golden, name: str) -> None:
    """HO-82 1.: those whose time had not come and that nobody recalled."""
    found = pending(golden(name))
    ((_queue, records),) = found.waiting(TIMER_TOPIC)
    by_position = {line["physicalOffset"]: line["uniqKey"] for line in dump_lines(name, "record")}
    assert {by_position[position] for position in records["position"].tolist()} == still_timed(name)
    assert len(records) == len(still_timed(name)) == 18
    assert found.recalls == 3


@pytest.mark.parametrize("name", ["tx", "tx-533"])
def test_transactions_that_are_open(golden: Golden, name: str) -> None:
    how = "transaction UNKNOW, just before the stop"
    sent = {line["keys"] for line in sent_lines(name) if line["how"] == how}
    keys = {
        line["physicalOffset"]: line["properties"].get("KEYS")
        for line in dump_lines(name, "record")
    }
    found = pending(golden(name)).transactions
    assert {keys[position] for position in found.waiting["position"].tolist()} == sent
    assert (len(found.waiting), found.given_up) == (3, 4)


@pytest.mark.parametrize(("name", "first", "op"), [("tx", 50, 3), ("tx-533", 45, 2)])
def test_transactions_go_on_where_the_broker_had_stopped(
    own_copy: Golden, name: str, first: int, op: int
) -> None:
    """HO-40: H is the first that is open, O the first op message that matters from there on.

    5.4.0 has looked once more at its stop (HO-46), and says the same; 5.3.3 lags by one.
    """
    golden = with_settings(own_copy(name))
    done = given(golden, 1_800_000_000_000)
    assert (done.open_halves, done.given_up, done.named, done.delayed_halves) == (3, 4, 0, [])
    text = (golden.store / "config/consumerOffset.json").read_text()
    table = parse_config(text)["offsetTable"]
    assert table["RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS"] == {"0": first}
    assert table["RMQ_SYS_TRANS_OP_HALF_TOPIC@CID_RMQ_SYS_TRANS"] == {"0": op}


@pytest.mark.parametrize("name", ["tx", "tx-533"])
def test_open_transactions_are_adopted(own_copy: Golden, name: str) -> None:
    """HO-41, HO-82: three wait; put-backs, decided ones and those given up are settled."""
    golden = with_settings(own_copy(name))
    done = adopt(golden.store)
    assert (done.open_halves, done.given_up) == (3, 4)
    imported = read_imported(PosixStorage(str(golden.store)))
    assert imported is not None
    halves = [line for line in dump_lines(name, "record") if line["topic"] == HALF_TOPIC]
    left = {
        line["properties"]["KEYS"]: line["queueOffset"]
        for line in halves
        if not imported.is_settled(HALF_TOPIC, 0, line["queueOffset"])
    }
    newest = {line["properties"]["KEYS"]: line["queueOffset"] for line in halves}
    assert left == {key: newest[key] for key in ("pending31", "pending33", "pending35")}
    assert verify(golden.store, golden.settings_file).ok


@pytest.mark.parametrize("name", TIMED)
def test_a_timer_log_says_what_the_brokers_said(own_copy: Golden, name: str) -> None:
    """HO-12 to HO-14: same slots, records and hashes for what waits; then the closing unit."""
    golden = with_settings(own_copy(name))
    (checkpoint,) = dump_lines(name, "timerCheckpoint")
    now_ms = checkpoint["lastReadTimeMs"] + 123
    theirs = {
        line["physicalOffset"]: (
            line["writeTime"] + line["delay"],
            line["recordSize"],
            line["topicHash"],
        )
        for line in dump_lines(name, "timerLog")
        if not line["magic"] & 2  # a stop on the way depends on when it was written
    }
    done = given(golden, now_ms)
    *ours, closing = timer_units(golden.store)
    assert len(ours) == done.timers == 18
    same = {
        unit["physical_offset"]: (
            unit["write_time"] + unit["delay"],
            unit["record_size"],
            unit["topic_hash"],
        )
        for unit in ours
        if not unit["magic"] & 2
    }
    both = same.keys() & theirs.keys()  # others were two days ahead, and a stop on the way
    assert len(both) >= 8
    assert {place: theirs[place] for place in both} == {place: same[place] for place in both}
    last = max(
        line["physicalOffset"]
        for line in dump_lines(name, "record")
        if line["topic"] == TIMER_TOPIC
    )
    assert closing["physical_offset"] == last
    assert closing["write_time"] + closing["delay"] == now_ms - 1123
    storage = PosixStorage(str(golden.store))
    row = layout.TIMER_CHECKPOINT.unpack(read_file(storage, "config/timercheck"))
    assert row["last_timer_queue_offset"] == row["master_timer_queue_offset"] == 54


@pytest.mark.parametrize("name", ["retry", "timer-533", "tx", "crash-torn"])
def test_a_hand_over_leaves_a_whole_store(own_copy: Golden, name: str) -> None:
    """HO-3, HO-72: a dry run says the same and changes nothing; what is left verifies."""
    golden = with_settings(own_copy(name))
    now_ms = 1_800_000_000_000
    before = {path: path.stat().st_mtime_ns for path in golden.store.rglob("*")}
    target = Target(now_ms, timer_log_bytes=TIMER_LOG_BYTES)
    told = handover(golden.directory, target, dry_run=True)
    assert {path: path.stat().st_mtime_ns for path in golden.store.rglob("*")} == before
    done = given(golden, now_ms)
    told.dry_run = False
    assert told == done
    report = verify(golden.store, golden.settings_file)
    assert report.ok, str(report)
    config = {path.name for path in (golden.store / "config").iterdir()}
    assert {"delayOffset.json", "consumerOffset.json", "topics.json", "timercheck"} <= config
    assert not {n for n in config if n.endswith((".bak", "etrics"))}
    assert not {"abort", "timerwheel"} & {path.name for path in golden.store.iterdir()}


def test_groups_keep_their_offsets_and_have_one_for_every_queue(own_copy: Golden) -> None:
    """HO-60, HO-61: also for retry topics; a dead letter is where it was."""
    golden = with_settings(own_copy("retry"))
    (said,) = [
        line["text"]
        for line in dump_lines("retry", "config")
        if line["name"] == "consumerOffset.json"
    ]
    before = parse_config(said)["offsetTable"]
    done = given(golden, 1_800_000_000_000)
    text = (golden.store / "config/consumerOffset.json").read_text()
    after = parse_config(text)["offsetTable"]
    assert {key: after[key] for key in before} == before
    assert set(after["RetryT@CID_half"]) == {"0", "1"}
    assert (done.dead_letters, done.retries) == (5, 3)
    assert done.groups["CID_retry"] == 3


@pytest.mark.parametrize("name", ["delay", "retry-533", "timer"])
def test_an_adopted_store_tells_what_was_settled(own_copy: Golden, name: str) -> None:
    """HO-82: everything that waits is counted; the file names each settled record."""
    golden = with_settings(own_copy(name))
    told, done = adopt(golden.store, dry_run=True), adopt(golden.store)
    told.dry_run = False
    assert told == done
    assert done.records == done.foreign == len(dump_lines(name, "record"))
    found = pending(golden)
    imported = read_imported(PosixStorage(str(golden.store)))
    assert imported is not None
    assert imported.end == found.end
    for (topic, queue), parked in found.parked.items():
        settled = [imported.is_settled(topic, queue, o) for o in parked.records["offset"].tolist()]
        assert settled == parked.settled.tolist()
    assert verify(golden.store, golden.settings_file).ok
    assert not (golden.store / "abort").exists()


def test_what_is_adopted_is_told(own_copy: Golden) -> None:
    golden = with_settings(own_copy("delay"))
    found = adopt(golden.store)
    assert found.levels == {3: 1, 5: 5, 17: 5, 18: 15}
    root, levels = str(golden.store), found.levels
    assert found == Adopted(
        root, end=27342, records=74, foreign=74, levels=levels, topics=found.topics
    )
    assert "delay levels: 26; 3: 1; 5: 5; 17: 5; 18: 15" in str(found)


@pytest.mark.parametrize("name", SETS)
def test_topics_of_type_batchcq_come_and_leave(own_copy: Golden, name: str) -> None:
    """SF-77: with RocketMQ's own units as they were, and no plain queue."""
    golden = with_settings(own_copy(name))
    units = unit_files(golden)
    found = adopt(golden.store)
    assert found.records == found.foreign == len(dump_lines(name, "record"))
    assert verify(golden.store, golden.settings_file).ok
    assert given(golden, 0).settings["mapperFileSizeBatchConsumeQueue"] == "460"
    assert unit_files(golden) == units
    assert not (golden.store / "consumequeue" / TOPIC).exists()
    assert verify(golden.store, golden.settings_file).ok


def test_levels_that_are_not_configured_are_refused(own_copy: Golden) -> None:
    golden = own_copy("delay")
    (golden.directory / "gantrymq.toml").write_text('message_delay_level = "1s 5s 10s"')
    with pytest.raises(Incompatible, match=r"5 \(5 messages\), 17 \(5 messages\), 18 \(15"):
        adopt(golden.store)


def test_timers_in_rocksdb_are_refused(own_copy: Golden) -> None:
    """HO-22: the timer log is empty then."""
    golden = with_settings(own_copy("timer"))
    shutil.rmtree(golden.store / "timerlog")
    (golden.store / "rocksdbstore").mkdir(exist_ok=True)
    (golden.store / "rocksdbstore" / "CURRENT").write_text("MANIFEST-000001\n")
    with pytest.raises(Incompatible, match="18 timers seem to be kept in rocksdbstore/"):
        adopt(golden.store)
