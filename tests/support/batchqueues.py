"""What a golden set's topic of type BatchCQ holds, and brokers on copies of these sets."""

from __future__ import annotations

import hashlib
from typing import Any

from gantrymq.clients.message import Message
from tests.support.brokers import ServingBroker
from tests.support.golden import GoldenStore, dump_lines
from tests.support.spark_rows import expected_rows

TOPIC = "BcqT"
SETS = ("batch", "batch-533")
Place = tuple[int, int]


def serving(golden: GoldenStore, **settings: object) -> ServingBroker:
    """A broker on a store of a real RocketMQ."""
    return ServingBroker(
        golden.directory,
        board_queues_max=8192,  # RocketMQ's own topics have many
        mapped_file_size_commit_log=golden.segment_bytes,
        mapped_file_size_consume_queue=int(golden.settings["mappedFileSizeConsumeQueue"]),
        **settings,
    )


def messages_of(name: str) -> list[dict[str, Any]]:
    """Messages of the topic in the order of the log, those of inner batches one by one (RD-73)."""
    lines = [line for line in dump_lines(name, "record") if line["topic"] == TOPIC]
    return [row for line in lines for row in expected_rows(name, line)]


def place_of(row: dict[str, Any]) -> Place:
    """Queue and offset."""
    return row["queue_id"], row["queue_offset"]


def told(row: dict[str, Any]) -> tuple[object, ...]:
    """What a consumer is to get of a message."""
    return row["body"], row["tag"], tuple(row["keys"]), row["message_id"]


def got(message: Message) -> tuple[object, ...]:
    """The same of one that it got."""
    body = hashlib.sha256(message.body).hexdigest()
    return body, message.tag, message.keys, message.message_id


def unit_files(golden: GoldenStore) -> dict[str, bytes]:
    """RocketMQ's own queue files of such topics."""
    root = golden.store / "batchconsumequeue"
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}
