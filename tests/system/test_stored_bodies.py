"""A broker on a store of a real RocketMQ: bodies that its clients compressed."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from gantrymq.clients.batch import MessageBatch
from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.message import Message
from gantrymq.clients.producer import Producer
from gantrymq.shm.errors import Corrupt
from tests.support.brokers import ServingBroker
from tests.support.golden import GoldenStore, dump_lines, unpack

if TYPE_CHECKING:
    from typing_extensions import Buffer

PATIENCE_S = 30.0
TOPIC = "Odd"
#: Where a record has its body's CRC, and its body with IPv4 hosts.
BODY_CRC, BODY = 8, 88
Line = dict[str, Any]
Place = tuple[int, int]


def sha(body: Buffer) -> str:
    return hashlib.sha256(body).hexdigest()


def visible() -> dict[Place, Line]:
    """Records of the topic by queue and offset: half messages and rollbacks are in no queue."""
    lines = [line for line in dump_lines("odd", "record") if line["topic"] == TOPIC]
    kept = [line for line in lines if line["sysFlag"] & 0xC in (0, 8)]
    return {(line["queueId"], line["queueOffset"]): line for line in kept}


def serving(golden: GoldenStore) -> ServingBroker:
    return ServingBroker(
        golden.directory,
        board_queues_max=8192,  # RocketMQ's own topics have many
        mapped_file_size_commit_log=golden.segment_bytes,
        mapped_file_size_consume_queue=int(golden.settings["mappedFileSizeConsumeQueue"]),
    )


def poll_all(consumer: PullConsumer, count: int) -> list[MessageBatch]:
    batches: list[MessageBatch] = []
    while sum(map(len, batches)) < count:
        batches.append(consumer.poll(timeout=PATIENCE_S))
        assert len(batches[-1])
    return batches


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingBroker]:
    """On a copy of `odd` in which one compressed body is none any more; its checksum is true."""
    golden = unpack("odd", tmp_path_factory.mktemp("odd"))
    position = DAMAGED["physicalOffset"]
    path = golden.store / "commitlog" / f"{position // golden.segment_bytes:020d}"
    data = bytearray(path.read_bytes())
    data[position + BODY + 3] ^= 0xFF
    body = data[position + BODY : position + BODY + DAMAGED["bodyLength"]]
    struct.pack_into(">I", data, position + BODY_CRC, zlib.crc32(body) & 0x7FFFFFFF)
    path.write_bytes(data)
    with serving(golden) as running:
        yield running.wait_until_ready()
        assert running.stop()[0] == 0


EXPECTED = visible()
#: An LZ4 one with others behind it in its queue.
DAMAGED = next(line for line in EXPECTED.values() if line["sysFlag"] == 0x101)
DAMAGED_AT = (DAMAGED["queueId"], DAMAGED["queueOffset"])
WHOLE = {place: line for place, line in EXPECTED.items() if place != DAMAGED_AT}


def expected_sha(place: Place) -> str:
    line = EXPECTED[place]
    return str(line.get("plainBodySha256", line["bodySha256"]))


def require_names_it(error: Corrupt) -> None:
    queue, offset = DAMAGED_AT
    assert (error.queue.queue_id, error.queue_offset) == (queue, offset)
    assert error.position == DAMAGED["physicalOffset"]
    assert f"message {offset} of {TOPIC}/{queue}" in str(error)
    assert "no LZ4 data" in str(error)


def test_columns_show_bodies_as_they_were_sent(broker: ServingBroker, unique_name: str) -> None:
    with PullConsumer(
        unique_name, [TOPIC], home=broker.home, consume_from=ConsumeFrom.FIRST_OFFSET
    ) as consumer:
        batches = poll_all(consumer, len(EXPECTED))
    found: dict[Place, str] = {}
    damaged = []
    for batch in batches:
        places = list(zip(batch.queue_ids.tolist(), batch.queue_offsets.tolist(), strict=True))
        bodies = batch.bodies
        assert len(bodies) == len(batch)
        for row, place in enumerate(places):
            stored = EXPECTED[place]["bodySha256"]
            assert place == DAMAGED_AT or sha(batch.raw_bodies[row]) == stored
            try:
                found[place] = sha(bodies[row])
            except Corrupt as error:
                require_names_it(error)
                damaged.append(place)
        arrow = batch.to_arrow()["body"].to_pylist()
        for place, body in zip(places, arrow, strict=True):
            assert (body is None) if place == DAMAGED_AT else sha(body) == expected_sha(place)
    assert damaged == [DAMAGED_AT]
    assert found == {place: expected_sha(place) for place in WHOLE}


def test_an_iterator_goes_on_behind_a_damaged_body(broker: ServingBroker, unique_name: str) -> None:
    with PullConsumer(
        unique_name, [TOPIC], home=broker.home, consume_from=ConsumeFrom.FIRST_OFFSET
    ) as consumer:
        batches = poll_all(consumer, len(EXPECTED))
    for face in (iter, lambda batch: iter(batch.bodies)):
        made, refused = 0, []
        for batch in batches:
            items = face(batch)
            while True:
                try:
                    next(items)
                except Corrupt as error:
                    refused.append(error)
                except StopIteration:
                    break
                else:
                    made += 1
        assert made == len(WHOLE)
        (named,) = refused
        require_names_it(named)


def test_a_loop_names_a_damaged_body_and_the_next_goes_on(
    broker: ServingBroker, unique_name: str
) -> None:
    found: dict[Place, Message] = {}
    refused: list[Corrupt] = []
    with PullConsumer(
        unique_name, [TOPIC], home=broker.home, consume_from=ConsumeFrom.FIRST_OFFSET
    ) as consumer:
        while len(found) < len(WHOLE):
            try:
                for message in consumer:
                    assert message.queue_id is not None
                    assert message.queue_offset is not None
                    place = (message.queue_id, message.queue_offset)
                    assert place not in found
                    found[place] = message
                    if len(found) == len(WHOLE):
                        break
            except Corrupt as error:
                refused.append(error)
    assert {place: sha(message.body) for place, message in found.items()} == {
        place: expected_sha(place) for place in WHOLE
    }
    assert len(refused) <= 1, "zero if its queue came last"
    for named in refused:
        require_names_it(named)


def test_our_messages_stand_beside_them(broker: ServingBroker, unique_name: str) -> None:
    """What we append to such a topic is not compressed, and comes with those that are."""
    compressed = next(line for line in WHOLE.values() if line["sysFlag"] == 0x301)
    queue = compressed["queueId"]
    with (
        PullConsumer(unique_name, [TOPIC], home=broker.home) as consumer,
        Producer(broker.home) as producer,
    ):
        receipt = producer.send(TOPIC, b"ours" * 2000, queue_id=queue)
        (ours,) = consumer.poll(timeout=PATIENCE_S)
        assert (ours.queue_offset, ours.body) == (receipt.queue_offset, b"ours" * 2000)
        consumer.seek(receipt.message_queue, compressed["queueOffset"])
        theirs = consumer.poll(1, timeout=PATIENCE_S)
        assert sha(theirs[0].body) == compressed["plainBodySha256"]
        consumer.seek(receipt.message_queue, "end")
