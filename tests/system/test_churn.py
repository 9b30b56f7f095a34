"""Sessions, groups and topics that come and go: what the broker holds does not grow with them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gantrymq.clients.consumer import PullConsumer
from gantrymq.clients.control import look_at
from gantrymq.clients.groupdelete import delete_group
from gantrymq.clients.home import store_of
from gantrymq.clients.producer import Producer
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.session import Session
from gantrymq.shm import layout, wire
from gantrymq.shm.board import NOBODYS
from tests.support.brokers import ServingBroker, command
from tests.support.footprint import Footprint, footprints
from tests.support.interned import settle_interned
from tests.support.push import FIRST, Seen
from tests.support.trials import mends
from tests.support.watchdog import poll_until

#: `make soak ONLY=churn` has thousands.
SESSIONS = int(os.environ.get("GANTRYMQ_TEST_SESSIONS", "400"))
#: Likewise; groups and topics of as many names.
NAMES = int(os.environ.get("GANTRYMQ_TEST_NAMES", "200"))
#: Slots of the board, and groups that are known: far fewer.
TOPICS_MAX, QUEUES_MAX, GROUPS_MAX = 64, 256, 32
#: What the writer knows of a producer that has sent, for a week: bytes (docs/operate.md).
PRODUCER_BYTES = 300
#: What the indexer keeps in memory grows with messages up to these.
SMALL_INDEX = {"max_hash_slot_num": 500, "max_index_num": 1000}
#: What is counted first: until then caches fill.
FIRST_SESSIONS = 100


def come_and_go(home: Path, topic: str, number: int) -> None:
    """A session of one of the kinds that there are, which ends."""
    kind = number % 4
    if kind == 0:
        with Producer(home) as producer:
            producer.send(topic, b"one of many")
    elif kind == 1:
        with PullConsumer("g-" + topic, [topic], home=home, consume_from=FIRST) as consumer:
            consumer.poll(10, timeout=0.0)
    elif kind == 2:
        Session(home, scheduler=True, transactions=True).close()
    else:
        Session(home, groups=True).close()


def settled(broker: ServingBroker) -> dict[str, Footprint]:
    """What each process holds once it does not fall any more: ends are told a little later."""
    settle_interned()
    seen = [footprints(broker)]

    def rests() -> bool:
        words = [layout.BOARD_APPENDED, layout.BOARD_DISPATCHED, layout.BOARD_INDEXED]
        if len({broker.board.word(word) for word in words}) > 1:
            return False
        seen.append(footprints(broker))
        pairs = zip(seen[-2].values(), seen[-1].values(), strict=True)
        return not any(before.exceeds(now) for before, now in pairs)

    poll_until(rests, "the processes have given back what they give back")
    return seen[-1]


@mends("R2")
def test_sessions_that_have_ended_leave_nothing_in_any_process(
    tmp_path: Path, unique_name: str
) -> None:
    with ServingBroker(tmp_path / "home", **SMALL_INDEX) as broker:
        broker.wait_until_ready()
        for number in range(FIRST_SESSIONS):
            come_and_go(broker.home, unique_name, number)
        before = settled(broker)
        for number in range(SESSIONS):
            come_and_go(broker.home, unique_name, number)
        check(before, settled(broker), {"writer": SESSIONS // 4 * PRODUCER_BYTES // 1024})


def check(
    before: dict[str, Footprint], after: dict[str, Footprint], explained: Mapping[str, int]
) -> None:
    """No process holds more, but for so many KiB that are explained."""
    for name, now in after.items():
        print(f"{name}: {before[name]} -> {now}")
    more = [name for name in after if after[name].exceeds(before[name], explained.get(name, 0))]
    assert not more, (before, after)


def make_and_delete(home: Path, name: str) -> None:
    """A topic that sessions open, and a group consumes, without a message."""
    with look_at(home) as look:
        look.request(wire.CreateTopic(name, 3, "written"), wire.TopicOpened)
        with Session(home, secret=os.urandom(10), groups=True) as session:
            session.open_topic(name)
        with PullConsumer("g", [name], home=home, consume_from=FIRST) as consumer:
            consumer.poll(1, timeout=0.0)
        look.request(wire.DeleteTopic(name), wire.Done)


def test_topics_that_come_and_go_share_their_places_on_the_board(
    tmp_path: Path, unique_name: str
) -> None:
    """More of them than the board has slots; no process and no file grows with their number."""
    limits = {"topics_max": TOPICS_MAX, "board_queues_max": QUEUES_MAX}
    with ServingBroker(tmp_path / "home", **limits) as broker:
        broker.wait_until_ready()

        def go_on(first: int, count: int) -> dict[str, Footprint]:
            for number in range(first, first + count):
                poll_until(lambda: has_room(broker), "topics have left")
                make_and_delete(broker.home, f"{unique_name}-{number}")
            poll_until(lambda: not deleted(broker), "all have left")
            return settled(broker)

        before, files = go_on(0, TOPICS_MAX), sizes(broker)
        check(before, go_on(TOPICS_MAX, NAMES), {})
        print(sizes(broker))
        assert not grown(files, sizes(broker))


@mends("R2")
def test_groups_that_come_and_go_leave_nothing(tmp_path: Path, unique_name: str) -> None:
    """Those that consumed are deleted; of those that only came, the broker keeps a few."""
    limits = {"topics_max": TOPICS_MAX, "board_queues_max": QUEUES_MAX, "groups_max": GROUPS_MAX}
    limits["retry_queue_nums"] = 1
    with ServingBroker(tmp_path / "home", **limits) as broker:
        broker.wait_until_ready()
        with Producer(broker.home) as producer:
            producer.send(unique_name, b"for all of them")

        def go_on(first: int, count: int) -> dict[str, Footprint]:
            for number in range(first, first + count):
                poll_until(lambda: has_room(broker), "topics have left")
                join_and_go(broker.home, unique_name, f"{unique_name}-{number}", number)
            poll_until(lambda: not deleted(broker), "all have left")
            return settled(broker)

        before, files = go_on(0, TOPICS_MAX), sizes(broker)
        check(before, go_on(TOPICS_MAX, NAMES), {})
        listed = command("group", "list", "--json", "--home", broker.home).stdout.splitlines()
        assert 0 < len(listed) <= GROUPS_MAX
        print(sizes(broker))
        assert not grown(files, sizes(broker))


def join_and_go(home: Path, topic: str, group: str, number: int) -> None:
    """A member of a new group: it reads all and the group is deleted, or it only comes and goes."""
    if number % 4 == 0:
        with PullConsumer(group, [topic], home=home):
            return
    if number % 4 == 1:
        seen = Seen()
        with PushConsumer(group, {topic: "*"}, seen, home=home, consume_from=FIRST):
            seen.wait_for(1)
    else:
        with PullConsumer(group, [topic], home=home, consume_from=FIRST) as consumer:
            assert len(consumer.poll(1, timeout=60.0)) == 1
            consumer.commit()
    delete_group(home, group)


def has_room(broker: ServingBroker) -> bool:
    return len(deleted(broker)) < TOPICS_MAX // 2


def deleted(broker: ServingBroker) -> list[str]:
    """Topics without permission that have not left the board."""
    found = broker.board.topics()
    return [topic.name for topic in found if not topic.perm and not topic.name.startswith(NOBODYS)]


def sizes(broker: ServingBroker) -> dict[str, int]:
    """Bytes of each small file of the store, and of folders' lists.

    Not of a `.bak`: it is its file as that was at some time before.
    """
    store = store_of(broker.home)
    found = {str(path.relative_to(store)): path for path in store.rglob("*")}
    large = ("commitlog/", "index/", "gantry/spare", "gantry/reserve", "gantry/ledger")
    return {
        name: path.stat().st_size if path.is_file() else 64 * len(os.listdir(path))
        for name, path in found.items()
        if not name.startswith(large) and not name.endswith(".bak")
    }


def grown(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Files that are larger than before."""
    return {
        name: (size, known)
        for name, size in now.items()
        if size > (known := before.get(name, 0)) + 8192
    }


def test_who_has_opened_a_topic_keeps_its_place(tmp_path: Path, unique_name: str) -> None:
    """It was deleted, and others are made and deleted: none of them gets what is sent to it."""
    limits = {"topics_max": TOPICS_MAX, "board_queues_max": QUEUES_MAX}
    with ServingBroker(tmp_path / "home", **limits) as broker:
        broker.wait_until_ready()
        with Producer(broker.home) as producer, look_at(broker.home) as look:
            look.request(wire.CreateTopic(unique_name, 3, "written"), wire.TopicOpened)
            number = producer._link.session.open_topic(unique_name).slot
            look.request(wire.DeleteTopic(unique_name), wire.Done)
            for other in range(2 * TOPICS_MAX):
                poll_until(lambda: has_room(broker), "topics have left")
                make_and_delete(broker.home, f"{unique_name}-{other}")
            poll_until(lambda: deleted(broker) == [unique_name], "all others have left")
            topic = broker.board.topic(number)
            assert topic is not None
            assert topic.name == unique_name
            look.request(wire.CreateTopic(unique_name, 3, "written"), wire.TopicOpened)
            producer.send(unique_name, b"the same place")
            assert broker.board.topic(number).perm  # type: ignore[union-attr]
        with PullConsumer("h", [unique_name], home=broker.home, consume_from=FIRST) as consumer:
            assert bytes(consumer.poll(1, timeout=60.0).bodies[0]) == b"the same place"
