"""Another broker goes on with our store, then we do again: nothing of either is lost (ADR 0009).

Its records have no trailer, or a stale one. Both stops are tried clean and by SIGKILL.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gantrymq.brokerd.backup import backup
from gantrymq.brokerd.verify import verify
from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.home import store_of
from gantrymq.clients.message import MessageQueue
from gantrymq.shm import imported
from gantrymq.shm.codes import ExitCode
from gantrymq.shm.configfile import read_config, write_config
from gantrymq.shm.errors import Rejected
from gantrymq.shm.ranges import OPEN, read_ranges
from gantrymq.shm.record import RECOVERY, Record
from gantrymq.shm.segment import open_log
from gantrymq.shm.storage import PosixStorage
from gantrymq.temporary import Broker
from tests.crash.conftest import SMALL
from tests.crash.test_kill import kill
from tests.support.agents import wait_until_shown
from tests.support.another_broker import AnotherBroker, body_of, golden_records, topic_of
from tests.support.brokers import ServingBroker
from tests.support.loads import DURABLE, WRITTEN, Load
from tests.support.small_stores import flip
from tests.support.stores import Stored
from tests.support.trials import mends
from tests.support.watchdog import PATIENCE_S, poll_until

SEGMENT_BYTES = int(str(SMALL["mapped_file_size_commit_log"]))
GROUP = "keepers"
STALE = 12


def stored_in(store: Path) -> list[Stored]:
    """Every record of a store, by the rules of another broker's: bodies' sums."""
    log = open_log(PosixStorage(str(store)))
    found = []
    for position, item in log.scan(log.min_position, check=RECOVERY):
        if isinstance(item, Record):
            assert item.physical_offset == position
            found.append(Stored(position, item, item.property_map().get("UNIQ_KEY", "")))
    return found


def end_of(records: list[Stored]) -> int:
    return records[-1].position + records[-1].record.total_size


@dataclass
class GoneOn:
    """What the other broker has added."""

    bodies: list[bytes]
    start: int
    end: int
    places: list[tuple[int, int]]


def go_on(store: Path, folder: Path, *, killed: bool) -> GoneOn:
    """Append as RocketMQ would: records of its own, and copies of ours with stale trailers."""
    storage = PosixStorage(str(store))
    before = stored_in(store)
    offsets = Counter({item.queue: 0 for item in before})
    for item in before:
        offsets[item.queue] = item.record.queue_offset + 1
    other = AnotherBroker(storage, SEGMENT_BYTES, end_of(before), offsets)
    start = other.end
    ours = [raw(store, item) for item in before if item.record.topic == WRITTEN][:STALE]
    added = golden_records(folder / "golden", 80) + ours
    for record in added:
        other.append(record)
    write_topics(storage, {topic_of(record) for record in added})
    other.leave(killed=killed)
    return GoneOn([body_of(record) for record in added], start, other.end, other.places)


def raw(store: Path, item: Stored) -> bytes:
    base = item.position // SEGMENT_BYTES * SEGMENT_BYTES
    data = (store / "commitlog" / f"{base:020d}").read_bytes()
    return data[item.position - base : item.position - base + item.record.total_size]


def write_topics(storage: PosixStorage, names: set[str]) -> None:
    content = read_config(storage, "topics.json")
    for name in names - content["topicConfigTable"].keys():
        queues = {"readQueueNums": 4, "writeQueueNums": 4}
        content["topicConfigTable"][name] = {"topicName": name, "perm": 6, **queues}
    write_config(storage, "topics.json", content)


def consumed(home: Path, topics: list[str], group: str, count: int) -> Counter[bytes]:
    """Bodies that a group reads from where it stands; it must be so many."""
    found: Counter[bytes] = Counter()
    with PullConsumer(group, topics, home=home, consume_from=ConsumeFrom.FIRST_OFFSET) as consumer:

        def read() -> bool:
            found.update(bytes(message.body) for message in consumer.poll(timeout=0.1))
            return found.total() >= count

        poll_until(read, f"{count} messages of {topics} for {group}")
        consumer.commit()
    return found


@pytest.mark.parametrize("we_are_killed", [False, True])
@pytest.mark.parametrize("it_is_killed", [False, True])
def test_another_broker_goes_on_and_then_we_do(
    start_broker: Callable[..., Broker], tmp_path: Path, we_are_killed: bool, it_is_killed: bool
) -> None:
    """SF-22, SF-24, SF-117: all is visible, sends go on, what is sent again is stored once."""
    broker = start_broker()
    store = store_of(broker.home)
    with Load(broker.home, "both") as load:
        for _ in range(5):
            load.round()
        load.finish()
        wait_until_shown(broker.home)
        if we_are_killed:
            kill(broker)
        else:
            broker.stop()
        added = go_on(store, tmp_path, killed=it_is_killed)
        broker.start()
        for _ in range(3):
            load.round()
        load.finish()
    topics = [WRITTEN, DURABLE, "PlainA", "PlainB"]
    wanted = Counter([*load.bodies, *added.bodies])
    assert consumed(broker.home, topics, GROUP, wanted.total()) == wanted
    broker.stop()
    records = stored_in(store)
    ranges = read_ranges(PosixStorage(str(store)))
    assert ranges is not None
    assert ranges.spans == ((0, added.start), (added.end, end_of(records)))
    ours = [item for item in records if ranges.contains(item.position)]
    load.require_kept(ours)
    report = verify(store)
    assert report.ok, str(report)
    assert report.records == len(records)


def test_a_producer_sends_again_what_the_other_broker_has_copied(
    start_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    """Messages in flight at our kill are stored once, though copies bear their UNIQ_KEYs."""
    broker = start_broker()
    with Load(broker.home, "again") as load:
        for _ in range(3):
            load.round()
        load.finish()
        futures = [load.producer.send_async(WRITTEN, load.body()) for _ in range(200)]
        kill(broker)
        added = go_on(store_of(broker.home), tmp_path, killed=False)
        broker.start()
        receipts = [future.result(PATIENCE_S) for future in futures]
        load.finish()
    assert len({receipt.message_id for receipt in receipts}) == len(receipts)
    broker.stop()
    records = stored_in(store_of(broker.home))
    theirs = {position for position, _ in added.places}
    load.require_kept([item for item in records if item.position not in theirs])


def test_offsets_of_the_other_broker_are_taken_over(
    start_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    """HO-60: it was the last to hear its consumers, so its file goes before our ledger."""
    broker = start_broker()
    queue = MessageQueue(WRITTEN, 0)
    with Load(broker.home, "offsets") as load:
        load.round()
        load.finish()
        for _ in range(20):
            load.producer.send(WRITTEN, load.body(), queue_id=0)
    with PullConsumer(GROUP, [WRITTEN], home=broker.home) as consumer:
        poll_until(lambda: queue in consumer.assignment(), "the queue is ours")
        consumer.seek(queue, 5)
        consumer.commit()
    wait_until_shown(broker.home)
    broker.stop()
    store = store_of(broker.home)
    storage = PosixStorage(str(store))
    content = read_config(storage, "consumerOffset.json")
    key = f"{WRITTEN}@{GROUP}"
    offsets = {int(number): offset for number, offset in content["offsetTable"][key].items()}
    assert offsets[0] == 5
    content["offsetTable"] = {key: {**offsets, 0: 17}, f"PlainA@{GROUP}": {1: 3}}
    write_config(storage, "consumerOffset.json", content)
    go_on(store, tmp_path, killed=False)
    broker.start()
    with PullConsumer(GROUP, [WRITTEN, "PlainA"], home=broker.home) as consumer:
        both = {queue: 17, MessageQueue("PlainA", 1): 3}
        poll_until(lambda: both.keys() <= set(consumer.assignment()), "the queues are ours")
        assert {place: consumer.position(place) for place in both} == both
    broker.stop()
    table = read_config(storage, "consumerOffset.json")["offsetTable"]
    assert table[key]["0"] == 17
    assert table[f"PlainA@{GROUP}"]["1"] == 3


def test_verify_finds_flipped_bits_on_both_sides(
    start_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    """P13: any bit in what we wrote, elsewhere the bodies'; after another life of ours as well."""
    broker = start_broker()
    with Load(broker.home, "bits") as load:
        load.round()
        load.finish()
        wait_until_shown(broker.home)
        broker.stop()
        store = store_of(broker.home)
        added = go_on(store, tmp_path, killed=False)
        _require_only_units_missing(store)
        broker.start()
        load.round()
        load.finish()
        wait_until_shown(broker.home)
        broker.stop()
    places = {
        "our flag": stored_in(store)[3].position + 16,
        "our later time": stored_in(store)[-1].position + 40,
        "its body": added.places[2][0] + 90,
        "a body under a stale trailer": added.places[-2][0] + 90,
    }
    assert read_ranges(PosixStorage(str(store))) is not None
    for what, position in places.items():
        base = position // SEGMENT_BYTES * SEGMENT_BYTES
        path = store / "commitlog" / f"{base:020d}"
        flip(path, position - base, 1)
        report = verify(store)
        assert any(f.path == f"commitlog/{base:020d}" for f in report.findings), what
        flip(path, position - base, 1)
    assert verify(store).ok


@mends("S17")
def test_a_backup_of_what_the_other_broker_has_gone_on_with_waits_for_a_start(
    start_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    """It has left no file of its own: only the log tells that our clean stop was not the last."""
    broker = start_broker()
    with Load(broker.home, "both") as load:
        load.round()
        load.finish()
        wait_until_shown(broker.home)
    broker.stop()
    whole = backup(broker.home, tmp_path / "before")
    added = go_on(store_of(broker.home), tmp_path, killed=False)
    assert added.start == whole.durable
    with pytest.raises(Rejected, match=f"another broker has gone on .* behind {added.start}"):
        backup(broker.home, tmp_path / "copy")
    assert not list(tmp_path.glob("copy*"))
    broker.start()
    broker.stop()
    assert backup(broker.home, tmp_path / "copy").durable >= added.end
    copy = store_of(tmp_path / "copy")
    assert (copy / imported.FILE).read_bytes() == (
        store_of(broker.home) / imported.FILE
    ).read_bytes()
    with ServingBroker(copy.parent, **SMALL) as again:
        again.wait_until_ready()
        wait_until_shown(copy.parent)
        assert again.stop()[0] == ExitCode.OK
    report = verify(copy)
    assert report.ok, str(report)


def _require_only_units_missing(store: Path) -> None:
    """Log and small files hold as the other broker left them; its queues were not made here."""
    report = verify(store)
    wrong = [str(found) for found in report.findings if not found.path.startswith("consumequeue/")]
    assert not wrong
    assert report.log_end == end_of(stored_in(store))


def test_a_running_broker_has_an_open_range(start_broker: Callable[..., Broker]) -> None:
    broker = start_broker()
    storage = PosixStorage(str(store_of(broker.home)))
    for _ in range(2):
        ranges = read_ranges(storage)
        assert ranges is not None
        assert ranges.spans == ((0, OPEN),)
        kill(broker)
        broker.start()
