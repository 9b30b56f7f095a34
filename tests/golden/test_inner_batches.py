"""Queries of a real RocketMQ's topic of type BatchCQ: an inner batch is its messages.

RD-60, RD-70 to RD-73, SF-75, SF-82.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from gantrymq.clients.message import MessageQueue
from gantrymq.clients.queries.client import Client
from gantrymq.clients.queries.found import FoundMessage
from gantrymq.cli.query_show import show_found
from gantrymq.shm.errors import Rejected
from gantrymq.shm.indexnote import Shape
from tests.support.golden import GoldenStore, dump_lines
from tests.support.spark_rows import expected_rows

Golden = Callable[[str], GoldenStore]

TOPIC = "BcqT"
SETS = ("batch", "batch-533")
#: What brokers and clients keep among the properties for themselves.
THEIRS = ("UNIQ_KEY", "TAGS", "KEYS", "WAIT", "MSG_REGION", "CLUSTER", "TRACE_ON")


def client_of(store: GoldenStore) -> Client:
    slots, entries = (int(store.settings[name]) for name in ("maxHashSlotNum", "maxIndexNum"))
    return Client(store.directory, index_shape=Shape(slots, entries))


def sent(name: str) -> list[dict[str, Any]]:
    """The topic's messages as the dump and what was sent tell them, the newest first."""
    found = []
    for line in dump_lines(name, "record"):
        if line["topic"] == TOPIC:
            place = {"born": line["bornTimestamp"], "offset_msg_id": line["offsetMsgId"]}
            batch = {"batch_id": line["uniqKey"], "stored": line["storeTimestamp"]}
            found += [{**row, **place, **batch} for row in expected_rows(name, line)]
    return found[::-1]


def as_sent(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "topic": row["topic"],
        "body": row["body"],
        "tag": row["tag"],
        "keys": tuple(row["keys"]),
        "properties": {k: v for k, v in row["properties"].items() if k not in THEIRS},
        "queue_id": row["queue_id"],
        "queue_offset": row["queue_offset"],
        "message_id": row["message_id"],
        "position": row["physical_offset"],
        "offset_msg_id": row["offset_msg_id"],
        "born_timestamp": row["born"],
        "store_timestamp": row["stored"],
        "born_host": row["born_host"],
    }


def shown(message: FoundMessage) -> dict[str, Any]:
    told = {name: getattr(message, name) for name in FoundMessage.__struct_fields__}
    told["body"] = hashlib.sha256(message.body).hexdigest()
    return told


def assert_same(found: list[FoundMessage], wanted: list[dict[str, Any]]) -> None:
    assert wanted
    expected = [as_sent(row) for row in wanted]
    names = expected[0].keys()
    assert [
        {n: m for n, m in shown(message).items() if n in names} for message in found
    ] == expected


@pytest.mark.parametrize("name", SETS)
def test_a_topic_s_batches_are_listed_as_their_messages(golden: Golden, name: str) -> None:
    """Each with its own body, tag, keys and properties, offset INNER_BASE + i (RD-73)."""
    client, rows = client_of(golden(name)), sent(name)
    assert len({row["physical_offset"] for row in rows}) < len(rows)
    assert_same(list(client.query(TOPIC)), rows)
    begin, end = rows[-10]["stored"], rows[9]["stored"]
    inside = [row for row in rows if begin <= row["stored"] <= end]
    assert_same(list(client.query(TOPIC, begin=begin, end=end)), inside)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("index", [True, False])
def test_messages_in_batches_are_found_by_their_own_keys(
    golden: Golden, name: str, index: bool
) -> None:
    """The index has the batch's id only (RD-70, SF-82); that names all of its messages."""
    client, rows = client_of(golden(name)), sent(name)
    keys = sorted({key for row in rows for key in row["keys"]})
    for key in keys[::3]:
        wanted = [row for row in rows if key in row["keys"]]
        assert_same(list(client.query(TOPIC, key, index=index)), wanted)
    for row in rows[::5]:
        found = client.query(TOPIC, message_id=row["message_id"], index=index)
        assert_same(list(found), [row])
        of_batch = [other for other in rows if other["batch_id"] == row["batch_id"]]
        found = client.query(TOPIC, message_id=row["batch_id"], index=index)
        assert_same(list(found), of_batch)
    assert not list(client.query(TOPIC, "nobody", index=index))


@pytest.mark.parametrize("name", SETS)
def test_batches_that_were_not_looked_through_are_told(golden: Golden, name: str) -> None:
    """What the index has comes all the same."""
    client, rows = client_of(golden(name)), sent(name)
    key = most_frequent_key(rows)
    found = client.query(TOPIC, key, scan_bytes=1)
    positions = {message.position for message in found}
    missing = {row["physical_offset"] for row in rows if key in row["keys"]} - positions
    single = {row["physical_offset"] for row in rows if row["message_id"] == row["batch_id"]}
    assert positions & single
    assert missing
    ((start, end),) = found.unsearched
    assert all(start <= position < end for position in missing)
    assert "no index has the keys of messages in batches" in found.reasons


def most_frequent_key(rows: list[dict[str, Any]]) -> str:
    ((key, _count),) = Counter(key for row in rows for key in row["keys"]).most_common(1)
    return str(key)


@pytest.mark.parametrize("name", SETS)
def test_pages_go_on_amid_a_batch(golden: Golden, name: str) -> None:
    """None is lost or doubled, whatever the size of a page; a position skips its whole batch."""
    client, rows = client_of(golden(name)), sent(name)
    key = most_frequent_key(rows)
    with_key = [row for row in rows if key in row["keys"]]
    for size in (1, 3, 7):
        assert_same(in_pages(client, size), rows)
    assert len(with_key) > 2
    assert_same(in_pages(client, 1, key), with_key)
    behind = [row for row in rows if row["physical_offset"] < rows[2]["physical_offset"]]
    assert_same(list(client.query(TOPIC, before=rows[2]["physical_offset"])), behind)


def in_pages(client: Client, size: int, key: str | None = None) -> list[FoundMessage]:
    """Each page by a query of its own."""
    messages: list[FoundMessage] = []
    before = None
    while True:
        found = client.query(TOPIC, key, before=before)
        page = found.page(size)
        messages += page
        if not page:
            return messages
        assert found.before != before
        before = found.before


@pytest.mark.parametrize("name", SETS)
def test_get_takes_a_message_out_of_its_batch(golden: Golden, name: str) -> None:
    """By its own id; what names the batch (its id, its place) gives its first message."""
    client, rows = client_of(golden(name)), sent(name)
    for number, row in enumerate(rows):
        found = client.get(row["message_id"], TOPIC if number % 2 else None)
        assert_same([found], [row])
    for row in rows[::4]:
        first = [r for r in rows if r["physical_offset"] == row["physical_offset"]][-1]
        for text in (row["offset_msg_id"], str(row["physical_offset"]), row["batch_id"]):
            assert_same([client.get(text)], [first])
    with pytest.raises(Rejected, match="no message has the id"):
        client.get("0" * 32)


def test_the_command_s_pages_go_on_amid_a_batch(
    golden: Golden, capsys: pytest.CaptureFixture[str]
) -> None:
    home, rows = golden("batch").directory, sent("batch")
    lines: list[dict[str, Any]] = []
    while not lines or len(lines) < len(rows):
        before = lines[-1]["before"] if lines else None
        show_found(TOPIC, home=home, as_json=True, limit=4, before=before)
        lines += [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["message_id"] for line in lines] == [row["message_id"] for row in rows]
    assert [line["queue_offset"] for line in lines] == [row["queue_offset"] for row in rows]
    show_found(TOPIC, home=home, as_json=False, limit=4)
    assert f"4 messages, more with --before {lines[3]['before']}\n" in capsys.readouterr().out


@pytest.mark.parametrize("name", SETS)
def test_offsets_of_such_a_topic_are_told_of_a_stopped_rocketmq_s_store(
    golden: Golden, name: str
) -> None:
    """SF-75, CQ-62: the messages of a batch have its time."""
    client, rows = client_of(golden(name)), sent(name)
    queues = client.queues(TOPIC)
    assert [queue.queue_id for queue in queues] == [0, 1]
    for queue in queues:
        mine = [row for row in reversed(rows) if row["queue_id"] == queue.queue_id]
        assert client.min_offset(queue) == mine[0]["queue_offset"] == 0
        assert client.max_offset(queue) == mine[-1]["queue_offset"] + 1 == len(mine)
        times = sorted({row["stored"] for row in mine})
        for time_ms in (times[0] - 1, *times, times[-1] + 1):
            lower = next((row["queue_offset"] for row in mine if row["stored"] >= time_ms), len(mine))
            upper = max((row["queue_offset"] for row in mine if row["stored"] <= time_ms), default=0)
            assert client.search_offset(queue, time_ms) == lower
            assert client.search_offset(queue, time_ms, "upper") == upper
    with pytest.raises(Rejected, match="has queues 0 to 1, not 2"):
        client.max_offset(MessageQueue(TOPIC, 2))
