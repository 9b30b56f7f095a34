"""Queries of a real RocketMQ's stores: its own broker's answers, but for keys that only share a hash.

SF-78 to SF-82, CQ-60, CQ-61, CQ-62.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gantrymq.clients.message import MessageQueue
from gantrymq.clients.queries.client import Client
from gantrymq.shm.errors import Rejected, TopicNotFound
from gantrymq.shm.indexnote import Shape
from tests.support.golden import GoldenStore, dump_lines

Golden = Callable[[str], GoldenStore]


def client_of(store: GoldenStore) -> Client:
    slots, entries = (int(store.settings[name]) for name in ("maxHashSlotNum", "maxIndexNum"))
    return Client(store.directory, index_shape=Shape(slots, entries))


def positions(client: Client, topic: str, **wanted: Any) -> list[int]:
    return [message.position for message in client.query(topic, **wanted)]


@pytest.mark.parametrize("name", ["plain", "odd", "retry-533", "crash"])
def test_answers_are_the_brokers_without_strangers(golden: Golden, name: str) -> None:
    """What its index gives for a key, newest first, as far as the records have that key."""
    records = {line["physicalOffset"]: line for line in dump_lines(name, "record")}
    client = client_of(golden(name))
    asked = dump_lines(name, "indexQuery")
    step = max(1, len(asked) // 30)
    special = [line for line in asked if not line["key"].isascii()][:8]
    for line in [*asked[::step], *special]:
        topic, key = line["topic"], line["key"]
        theirs = [at for at in line["physicalOffsets"] if records[at]["topic"] == topic]
        names = [records[at]["properties"] for at in theirs]
        by_key = [
            at for at, has in zip(theirs, names, strict=True) if key in has.get("KEYS", "").split(" ")
        ]
        by_id = [at for at, has in zip(theirs, names, strict=True) if has.get("UNIQ_KEY") == key]
        assert positions(client, topic, key=key)[:64] == list(dict.fromkeys(by_key))
        assert positions(client, topic, message_id=key) == list(dict.fromkeys(by_id))


@pytest.mark.parametrize("name", ["plain-533", "crash"])
def test_the_log_alone_gives_the_same(golden: Golden, name: str) -> None:
    """Also where a killed broker's index is behind its log."""
    client = client_of(golden(name))
    lines = dump_lines(name, "record")
    keys = {(r["topic"], word) for r in lines for word in r["properties"].get("KEYS", "").split()}
    for topic, key in sorted(keys)[:: max(1, len(keys) // 20)]:
        by_index, by_log = (client.query(topic, key, index=index) for index in (True, False))
        found = [message.position for message in by_index]
        assert found == [message.position for message in by_log]
        assert found, key
        assert by_log.reasons == ()
        assert by_index.reasons == (
            "the index is another broker's, which may have lost keys in a crash",
        )


def test_messages_are_found_by_every_id(golden: Golden) -> None:
    client = client_of(golden("odd"))
    for line in dump_lines("odd", "record")[::11]:
        found = client.get(line["offsetMsgId"])
        assert (found.position, found.offset_msg_id) == (line["physicalOffset"], line["offsetMsgId"])
        assert client.get(str(line["physicalOffset"])) == found
        if line["uniqKey"]:
            newest = client.get(line["uniqKey"], line["topic"])
            assert newest.message_id == line["uniqKey"]
    with pytest.raises(Rejected, match="no message has the id"):
        client.get("00000000000000000000000000000000")
    with pytest.raises(TopicNotFound, match="no topic nobody"):
        client.query("nobody")


@pytest.mark.parametrize("name", ["plain", "filter"])
def test_queues_are_listed_and_searched_by_time(golden: Golden, name: str) -> None:
    """CQ-62, CQ-64: every message of a topic in its times; offsets by time in its queues."""
    client = client_of(golden(name))
    records = {line["physicalOffset"]: line for line in dump_lines(name, "record")}
    units: dict[tuple[str, int], list[int]] = {}
    for unit in dump_lines(name, "cq"):
        units.setdefault((unit["topic"], unit["queueId"]), []).append(unit["physicalOffset"])
    for line in dump_lines(name, "queue"):
        if line["type"] != "SimpleCQ":
            continue
        queue = MessageQueue(line["topic"], line["queueId"])
        places = units[queue.topic, queue.queue_id]
        assert client.min_offset(queue) == line["minOffset"]
        assert client.max_offset(queue) == line["maxOffset"]
        times = [records[at]["storeTimestamp"] for at in places]
        for time_ms in times[::19]:
            first = line["minOffset"] + next(n for n, ms in enumerate(times) if ms >= time_ms)
            assert client.search_offset(queue, time_ms) == first
            last = line["minOffset"] + max(n for n, ms in enumerate(times) if ms <= time_ms)
            assert client.search_offset(queue, time_ms, "upper") == last
    topic = max(units, key=lambda queue: len(units[queue]))[0]
    of_topic = sorted((at for queue in units if queue[0] == topic for at in units[queue]), reverse=True)
    assert positions(client, topic) == of_topic
    begin, end = (records[of_topic[n]]["storeTimestamp"] for n in (-3, 3))
    inside = [at for at in of_topic if begin <= records[at]["storeTimestamp"] <= end]
    assert positions(client, topic, begin=begin, end=end) == inside
    assert positions(client, topic, before=of_topic[5], limit=4) == of_topic[6:10]
