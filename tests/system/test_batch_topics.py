"""A broker on a real RocketMQ's store with a topic of type BatchCQ (SF-75, SF-77, RD-70 to RD-75).

The topic's inner batches are consumed message by message, what we append are single messages, and a
RocketMQ finds the units of all of them, byte for byte as it makes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.brokerd.verify import verify
from gantrymq.cli.query_show import show_offsets
from gantrymq.clients.batch import MessageBatch
from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.control import look_at
from gantrymq.clients.message import Message, MessageQueue
from gantrymq.clients.producer import Producer
from gantrymq.clients.push.consumer import ConsumeResult, MessageModel, PushConsumer
from gantrymq.clients.queries.client import Client
from gantrymq.shm import layout, wire
from gantrymq.shm.configfile import parse_config
from gantrymq.shm.errors import GroupIllegal, Rejected
from tests.support.batchqueues import (
    SETS,
    TOPIC,
    Place,
    got,
    messages_of,
    place_of,
    serving,
    told,
    unit_files,
)
from tests.support.brokers import ServingBroker
from tests.support.golden import GoldenStore, unpack
from tests.support.watchdog import poll_until

UNIT = layout.BATCH_CQ_UNIT
PATIENCE_S = 30.0
UNTOUCHED = {0: 12, 1: 3}


def with_offsets(golden: GoldenStore) -> GoldenStore:
    """A group that has read some of the topic from the RocketMQ."""
    path = golden.store / "config" / "consumerOffset.json"
    content = parse_config(path.read_text())
    content["offsetTable"][f"{TOPIC}@before"] = UNTOUCHED
    path.write_text(json.dumps(content))
    return golden


@pytest.fixture(scope="module", params=SETS)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, GoldenStore, ServingBroker]]:
    """Name of a set, its store, and the broker that serves it."""
    golden = unpack(request.param, tmp_path_factory.mktemp(request.param))
    before = unit_files(golden)
    with serving(with_offsets(golden)) as broker:
        broker.wait_until_ready()
        yield request.param, golden, broker
        assert broker.stop()[0] == 0
    assert unit_files(golden) == before, "nobody has sent anything"
    assert not (golden.store / "consumequeue" / TOPIC).exists(), "SF-77"


def poll(consumer: PullConsumer, count: int) -> dict[Place, tuple[object, ...]]:
    found: dict[Place, tuple[object, ...]] = {}
    while len(found) < count:
        batch: MessageBatch = consumer.poll(timeout=PATIENCE_S)
        assert len(batch), f"{len(found)} of {count} came"
        for number, message in zip(batch.queue_ids.tolist(), batch, strict=True):
            assert message.queue_offset is not None
            found[number, message.queue_offset] = got(message)
    return found


def test_inner_batches_are_consumed_message_by_message(
    running: tuple[str, GoldenStore, ServingBroker], unique_name: str
) -> None:
    """RD-73: offset INNER_BASE + i, its own body, tag, keys and id; a seek amid a batch (RD-74)."""
    name, _golden, broker = running
    wanted = {place_of(row): told(row) for row in messages_of(name)}
    assert len({row["physical_offset"] for row in messages_of(name)}) < len(wanted)
    with PullConsumer(
        unique_name, [TOPIC], home=broker.home, consume_from=ConsumeFrom.FIRST_OFFSET
    ) as consumer:
        assert poll(consumer, len(wanted)) == wanted
        consumer.seek(MessageQueue(TOPIC, 0), 5)
        consumer.pause([MessageQueue(TOPIC, 1)])
        (again,) = consumer.poll(1, timeout=PATIENCE_S)
        assert got(again) == wanted[0, 5], "none of the batch's messages before it comes again"


def test_a_tag_is_each_message_s_own(
    running: tuple[str, GoldenStore, ServingBroker], unique_name: str
) -> None:
    """Batches have no TAGS of their own: a RocketMQ gives none of them to who wants a tag."""
    name, _golden, broker = running
    tags = [row["tag"] for row in messages_of(name) if row["tag"]]
    tag = max(set(tags), key=tags.count)
    wanted = {place_of(row): told(row) for row in messages_of(name) if row["tag"] == tag}
    assert len(wanted) > 1
    with PullConsumer(
        unique_name, {TOPIC: tag}, home=broker.home, consume_from=ConsumeFrom.FIRST_OFFSET
    ) as consumer:
        assert poll(consumer, len(wanted)) == wanted


def test_queries_of_a_running_broker_know_the_topic(
    running: tuple[str, GoldenStore, ServingBroker], capsys: pytest.CaptureFixture[str]
) -> None:
    name, golden, broker = running
    rows = messages_of(name)
    client = Client(broker.home)
    found = [(m.queue_id, m.queue_offset) for m in client.query(TOPIC)]
    assert found == [place_of(row) for row in reversed(rows)]
    ends = {queue: 1 + max(at for q, at in map(place_of, rows) if q == queue) for queue in (0, 1)}
    queues = client.queues(TOPIC)
    assert {queue.queue_id: client.max_offset(queue) for queue in queues} == ends
    assert {client.min_offset(queue) for queue in queues} == {0}
    with pytest.raises(Rejected, match="has queues 0 to 1, not 2"):
        client.max_offset(MessageQueue(TOPIC, 2))
    show_offsets(TOPIC, "1", home=broker.home, as_json=True)
    assert [row["max_offset"] for row in json.loads(capsys.readouterr().out)["queues"]] == [
        ends[0],
        ends[1],
    ]
    report = verify(golden.store)
    assert report.ok, report.findings


def test_a_message_amid_a_batch_is_not_tried_again(
    running: tuple[str, GoldenStore, ServingBroker], unique_name: str
) -> None:
    """A copy of it alone could not be told from the other messages' copies."""
    name, _golden, broker = running
    seen: list[tuple[object, ...]] = []

    def listen(message: Message) -> ConsumeResult:
        seen.append(got(message))
        return ConsumeResult.FAILURE if len(seen) == 1 else ConsumeResult.SUCCESS

    with pytest.raises(GroupIllegal, match="topic BcqT is of queue"):
        PushConsumer(unique_name, [TOPIC], listen, home=broker.home).start()
    assert not seen
    wanted = [told(row) for row in messages_of(name)]
    with PushConsumer(
        unique_name, [TOPIC], listen, home=broker.home, model=MessageModel.BROADCASTING,
        consume_from=ConsumeFrom.FIRST_OFFSET,
    ):  # fmt: skip
        poll_until(lambda: len(seen) == len(wanted), "all have been seen once")
    assert sorted(seen) == sorted(wanted)


def test_such_a_topic_is_a_rocketmq_s_to_delete(
    running: tuple[str, GoldenStore, ServingBroker],
) -> None:
    """Its queues would stay, of a kind that no topic has: then it does not start (SF-77)."""
    home = running[2].home
    with look_at(home) as control, pytest.raises(Rejected, match="let a RocketMQ delete it"):
        control.request(wire.DeleteTopic(TOPIC), wire.Done)


@pytest.mark.parametrize("name", SETS)
def test_single_messages_go_to_such_a_topic_and_a_rocketmq_finds_them(
    name: str, tmp_path: Path, unique_name: str
) -> None:
    """RD-72, through kill, recovery and stop; groups' offsets and the topic stay (HO-60)."""
    golden = with_offsets(unpack(name, tmp_path))
    entry = entry_of(golden)
    theirs = units_of(golden)
    with serving(golden) as broker:
        broker.wait_until_ready()
        wanted = {place_of(row): told(row) for row in messages_of(name)}
        with Producer(broker.home, producer_group=unique_name) as producer:
            sent = [producer.send(TOPIC, b"one", tag="ours", keys=("k",))]
            sent += producer.send_batch([Message(TOPIC, b"two"), Message(TOPIC, b"three")])
            with producer.transaction() as transaction:
                producer.send(TOPIC, b"four", transaction=transaction)
        epoch = broker.board.epoch
        broker.kill_all()
        assert units_of(golden) == theirs, "not while it runs"
        broker.again().wait_until_ready(epoch)
        with Producer(broker.home) as producer:
            sent.append(producer.send(TOPIC, b"five", queue_id=1))
        with PullConsumer(
            unique_name, [TOPIC], home=broker.home, consume_from=ConsumeFrom.FIRST_OFFSET
        ) as consumer:
            found = poll(consumer, len(wanted) + 5)
        assert {place: found[place] for place in wanted} == wanted
        assert {(r.message_queue.queue_id, r.queue_offset) for r in sent} < found.keys() - wanted
        assert broker.stop()[0] == 0
    report = verify(golden.store)
    assert report.ok, report.findings
    client = Client(golden.directory)
    told_of = [(message.queue_id, message.queue_offset) for message in client.query(TOPIC)]
    assert sorted(told_of) == sorted(found)
    assert sum(client.max_offset(queue) for queue in client.queues(TOPIC)) == len(found)
    ours = units_of(golden)
    assert {queue: units[: len(theirs[queue])] for queue, units in ours.items()} == theirs
    assert sum(map(len, ours.values())) == sum(map(len, theirs.values())) + 5 * UNIT.size
    assert not (golden.store / "consumequeue" / TOPIC).exists(), "SF-77"
    assert entry_of(golden) == entry
    offsets = parse_config((golden.store / "config" / "consumerOffset.json").read_text())
    assert offsets["offsetTable"][f"{TOPIC}@before"] == {str(q): n for q, n in UNTOUCHED.items()}


def units_of(golden: GoldenStore) -> dict[str, bytes]:
    """RocketMQ's units by queue, without the zeroes behind them."""
    found: dict[str, bytes] = {}
    for path, data in unit_files(golden).items():
        queue = path.rpartition("/")[0]
        whole = found.get(queue, b"") + data
        while not any(whole[-UNIT.size :]):
            whole = whole[: -UNIT.size]
        found[queue] = whole
    return found


def entry_of(golden: GoldenStore) -> object:
    content = parse_config((golden.store / "config" / "topics.json").read_text())
    return content["topicConfigTable"][TOPIC]
