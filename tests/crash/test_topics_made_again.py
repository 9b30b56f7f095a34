"""A RocketMQ deletes a topic and makes it again while it has our store (CQ-109).

Its queues begin at offset 0 once more: what lies below in the log is of a topic that is gone, and
an offset of a group, or a mark of a dead letter, is not of the new one.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gantrymq.brokerd.backup import backup
from gantrymq.brokerd.handover.coming import adopt
from gantrymq.brokerd.handover.leaving import Target, handover
from gantrymq.brokerd.rebuild import rebuild
from gantrymq.brokerd.salvage import salvage
from gantrymq.brokerd.verify import verify
from gantrymq.clients.home import store_of
from gantrymq.clients.producer import Producer
from gantrymq.shm import imported, layout
from gantrymq.shm.configfile import format_config, read_config
from gantrymq.shm.errors import StoreFailed
from gantrymq.shm.marks import MARKS
from gantrymq.shm.record import Record, encode_record
from gantrymq.shm.storage import PosixStorage
from gantrymq.temporary import Broker
from gantrymq.workers.groups import deadletternote
from gantrymq.workers.groups.deadletternote import Marks
from tests.crash.conftest import SMALL
from tests.crash.test_another_broker import SEGMENT_BYTES, consumed, end_of, stored_in
from tests.crash.test_kill import RECOVERY_MARKS, kill
from tests.support.agents import wait_until_shown
from tests.support.another_broker import AnotherBroker
from tests.support.brokers import command
from tests.support.trials import mends

TOPIC, GROUP = "orders", "keepers"
NOW_MS = 1_800_000_000_000


@dataclass
class RocketMQ:
    """Another broker on a stopped store, which goes on behind our records."""

    store: Path

    def __post_init__(self) -> None:
        self.storage = PosixStorage(str(self.store))
        self.records = stored_in(self.store)
        offsets = Counter({item.queue: item.record.queue_offset + 1 for item in self.records})
        self.other = AnotherBroker(self.storage, SEGMENT_BYTES, end_of(self.records), offsets)

    def make_again(self, topic: str) -> None:
        """Its next record has offset 0; offsets of its groups and files of its queues go."""
        for key in [key for key in self.other.next_offsets if key[0] == topic]:
            del self.other.next_offsets[key]
        shutil.rmtree(self.store / "consumequeue" / topic, ignore_errors=True)
        topics = read_config(self.storage, "topics.json")
        queues = {"readQueueNums": 4, "writeQueueNums": 4}
        topics["topicConfigTable"][topic] = {"topicName": topic, "perm": 6, **queues}
        self.write("topics.json", topics)
        self.save_offsets({})

    def save_offsets(self, offsets: dict[str, dict[int, int]]) -> None:
        """Offsets of one of its groups; it writes none of the other ones of this topic."""
        content = read_config(self.storage, "consumerOffset.json") or {}
        table = content.setdefault("offsetTable", {})
        for name in [name for name in table if name.startswith(f"{TOPIC}@")]:
            del table[name]
        table.update(offsets)
        self.write("consumerOffset.json", content)

    def write(self, name: str, content: Any) -> None:  # noqa: ANN401 - JSON
        """Write a file as it does, without our checksum."""
        (self.store / "config" / name).write_text(format_config(content))
        (self.store / "config" / f"{name}.bak").unlink(missing_ok=True)

    def send(self, topic: str, bodies: list[bytes]) -> None:
        """Store messages in queue 0."""
        like = self.records[0].record
        for body in bodies:
            record = replace(like, topic=topic, body=body, queue_id=0, properties=b"")
            self.other.append(encode_record(plain(record), trailer=False))

    def make_units(self) -> None:
        """Files of the topic's queue 0 as a clean stop of it leaves them."""
        folder, file_bytes = self.store / "consumequeue" / TOPIC / "0", 2000
        folder.mkdir(parents=True)
        units = b"".join(
            layout.CQ_UNIT.pack(physical_offset=position, size=size, tags_code=0)
            for position, size in self.other.places
        )
        for base in range(0, len(units), file_bytes):
            part = units[base : base + file_bytes]
            (folder / f"{base:020d}").write_bytes(part.ljust(file_bytes, b"\0"))


def plain(record: Record) -> Record:
    """A record that no transaction and no copy has made."""
    return replace(record, sys_flag=0, prepared_transaction_offset=0, reconsume_times=0)


def bodies_of(word: str, count: int) -> list[bytes]:
    return [f"{word}{number}".encode() for number in range(count)]


def send(broker: Broker, bodies: list[bytes]) -> list[int]:
    with Producer(home=broker.home) as producer:
        found = [producer.send(TOPIC, body, queue_id=0).queue_offset for body in bodies]
    wait_until_shown(broker.home)
    return found


def read(broker: Broker, group: str, count: int) -> Counter[bytes]:
    """What a group gets of the topic until it has so many; it must not be more."""
    found = consumed(broker.home, [TOPIC], group, count)
    assert found.total() == count, found
    return found


def require_sound(broker: Broker) -> None:
    broker.stop()
    report = verify(store_of(broker.home))
    assert report.ok, str(report)


def made_again(broker: Broker, old: int, new: int, *groups: str) -> RocketMQ:
    """Groups have read so many messages, and then a RocketMQ has made the topic again."""
    send(broker, bodies_of("old", old))
    for group in groups:
        read(broker, group, old)
    broker.stop()
    other = RocketMQ(store_of(broker.home))
    other.make_again(TOPIC)
    other.send(TOPIC, bodies_of("new", new))
    return other


@mends("S277")
@pytest.mark.parametrize("files", ["its own", "none"])
@pytest.mark.parametrize(("before", "since"), [(50, 120), (50, 40), (50, 1), (1, 40)])
def test_a_topic_that_a_rocketmq_has_made_again(
    start_broker: Callable[..., Broker], before: int, since: int, files: str
) -> None:
    """Groups get all of the new one and nothing of the old, whichever of them is longer."""
    broker = start_broker()
    other = made_again(broker, before, since, GROUP)
    if files == "its own":
        other.make_units()
    other.other.leave(killed=False)
    broker.start()
    wanted = Counter(bodies_of("new", since))
    assert read(broker, GROUP, since) == wanted
    assert read(broker, "others", since) == wanted
    assert send(broker, bodies_of("ours", 5)) == list(range(since, since + 5))
    require_sound(broker)
    rebuild(store_of(broker.home))
    broker.start()
    ours = Counter(bodies_of("ours", 5))
    assert read(broker, GROUP, 5) == ours, "it stands where it stood"
    assert read(broker, "third", since + 5) == wanted + ours
    require_sound(broker)


@mends("S277")
def test_its_own_groups_have_got_as_far_as_it_says(start_broker: Callable[..., Broker]) -> None:
    broker = start_broker()
    other = made_again(broker, 50, 40, GROUP, "others")
    other.save_offsets({f"{TOPIC}@{GROUP}": {0: 30}})
    other.other.leave(killed=True)
    broker.start()
    assert read(broker, GROUP, 10) == Counter(bodies_of("new", 40)[30:])
    broker.stop()
    other = RocketMQ(store_of(broker.home))  # we have stored nothing meanwhile
    other.send(TOPIC, bodies_of("later", 5))
    other.save_offsets({})
    other.other.leave(killed=False)
    broker.start()
    assert read(broker, GROUP, 5) == Counter(bodies_of("later", 5))
    assert read(broker, "others", 45) == Counter(bodies_of("new", 40) + bodies_of("later", 5))
    require_sound(broker)


@mends("S277")
def test_it_goes_on_in_a_topic_and_then_makes_it_again(start_broker: Callable[..., Broker]) -> None:
    broker = start_broker()
    send(broker, bodies_of("old", 50))
    read(broker, GROUP, 50)
    broker.stop()
    other = RocketMQ(store_of(broker.home))
    other.send(TOPIC, bodies_of("gone", 30))
    other.make_again(TOPIC)
    other.send(TOPIC, bodies_of("new", 20))
    other.other.leave(killed=False)
    broker.start()
    assert read(broker, GROUP, 20) == Counter(bodies_of("new", 20))
    require_sound(broker)


@mends("S277")
def test_a_hand_over_to_another_rocketmq_starts_from_the_new_topic(
    start_broker: Callable[..., Broker],
) -> None:
    broker = start_broker()
    other = made_again(broker, 50, 40, GROUP)
    other.other.leave(killed=False)
    handover(broker.home, Target(NOW_MS), given=SMALL)
    table = read_config(other.storage, "consumerOffset.json")["offsetTable"]
    assert table[f"{TOPIC}@{GROUP}"]["0"] == 0
    broker.start()
    assert read(broker, GROUP, 40) == Counter(bodies_of("new", 40))
    require_sound(broker)


def purge(broker: Broker, *letters: str) -> None:
    done = command("dlq", "purge", GROUP, *letters, "--home", broker.home)
    assert done.returncode == 0, done.stderr


@mends("S278")
@pytest.mark.parametrize("by", ["start", "adopt"])
def test_marks_of_dead_letters_are_not_of_those_of_a_topic_made_again(
    start_broker: Callable[..., Broker], by: str
) -> None:
    """A letter would be hidden as purged that nobody has seen."""
    broker = start_broker()
    send(broker, bodies_of("old", 5))
    broker.stop()
    store, letters = store_of(broker.home), "%DLQ%" + GROUP
    other = RocketMQ(store)
    other.make_again(letters)
    other.send(letters, bodies_of("letter", 10))
    other.other.leave(killed=False)
    broker.start()
    purge(broker, "--at", "2", "--at", "5")
    broker.stop()
    marked = deadletternote.read_note(other.storage)
    assert marked.groups[GROUP][0] == Marks([], [(2, 3), (5, 6)])
    for lost in ("", imported.FILE):
        (store / lost).unlink() if lost else None
        broker.start()
        broker.stop()
        assert deadletternote.read_note(other.storage) == marked, "a start had seen the visit"
    other = RocketMQ(store)
    other.make_again(letters)
    other.send(letters, bodies_of("new", 10))
    other.other.leave(killed=False)
    if by == "adopt":
        adopt(store, given=SMALL)
    else:
        broker.start()
        broker.stop()
    assert not deadletternote.read_note(other.storage).marked()


@mends("S277")
@pytest.mark.parametrize("by", ["rebuild", "adopt", "salvage", "backup"])
def test_whatever_comes_between_it_and_our_start(
    start_broker: Callable[..., Broker], tmp_path: Path, by: str
) -> None:
    """None of these tells the groups, and all of them bring the queues up to date."""
    broker = start_broker()
    other = made_again(broker, 50, 80, GROUP)
    store = store_of(broker.home)
    other.other.leave(killed=False)
    if by == "rebuild":
        rebuild(store)
    elif by == "adopt":
        adopt(store, given=SMALL)
    elif by == "salvage":
        salvage(store, tmp_path / "copy")
        shutil.rmtree(store)
        shutil.move(tmp_path / "copy", store)
    broker.start()
    if by == "backup":  # of a store that has seen it
        broker.stop()
        backup(broker.home, tmp_path / "copy")
        shutil.rmtree(store)
        shutil.move(store_of(tmp_path / "copy"), store)
        broker.start()
    assert read(broker, GROUP, 80) == Counter(bodies_of("new", 80))
    assert read(broker, "others", 80) == Counter(bodies_of("new", 80))
    require_sound(broker)


@mends("S277")
@pytest.mark.parametrize("name", [*RECOVERY_MARKS, "reader.after_dispatched", "as it is ready"])
def test_a_kill_of_the_start_that_finds_it_changes_nothing(
    start_broker: Callable[..., Broker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    broker = start_broker()
    other = made_again(broker, 50, 40, GROUP)
    other.other.leave(killed=False)
    if name in MARKS:
        monkeypatch.setenv("GANTRYMQ_MARK", name)
    monkeypatch.setenv("GANTRYMQ_MARKS_REACHED", str(tmp_path))
    try:
        broker.start()
    except StoreFailed:
        assert name in RECOVERY_MARKS
    else:
        kill(broker)
    assert (tmp_path / name).exists() == (name in MARKS)
    broker.start()
    assert read(broker, GROUP, 40) == Counter(bodies_of("new", 40))
    assert read(broker, "others", 40) == Counter(bodies_of("new", 40))
    require_sound(broker)


def test_a_start_does_not_wait_for_a_command_that_waits_for_it(
    start_broker: Callable[..., Broker],
) -> None:
    """`dlq resend` holds the lock of the marks while its broker is away."""
    broker = start_broker()
    broker.stop()
    with deadletternote.locked(store_of(broker.home)):
        broker.start()
