"""Stores of small files by a real broker, for tests that look at files afterwards."""

from __future__ import annotations

from pathlib import Path

from gantrymq import Broker, Message, Producer

SEGMENT_BYTES = 64 * 1024
QUEUE_FILE_BYTES = 1000
RECORDS = 900


def send(broker: Broker, count: int = RECORDS) -> None:
    """Messages to three topics, all to queue 0, tags and keys among them."""
    with Producer(broker.home) as producer:
        for number in range(count):
            topic = ("orders", "audit", "other")[number % 3]
            body, tag = b"%06d" % number * 40, f"t{number % 5}"
            producer.send_oneway(Message(topic, body, tag=tag, keys=(f"k{number}",), queue_id=0))
        producer.flush()


def small_broker(**more: int) -> Broker:
    """A temporary broker with many files."""
    return Broker.temporary(
        mapped_file_size_commit_log=SEGMENT_BYTES,
        mapped_file_size_consume_queue=QUEUE_FILE_BYTES,
        **more,
    )


def flip(path: Path, position: int, bits: int = 0x10) -> None:
    """Change bits of one byte."""
    data = bytearray(path.read_bytes())
    data[position] ^= bits
    path.write_bytes(data)
