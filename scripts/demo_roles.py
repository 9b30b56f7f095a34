"""The demo's own processes: producers of flights, and consumers that note what they got."""

from __future__ import annotations

import os
import sys
from array import array
from pathlib import Path

from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.producer import Producer
from scripts.demo_flights import TOPIC, flights

GROUP = "demo"
POLL = 4000


def produce(home: str, part: int, parts: int) -> int:
    """Send every flight whose number is `part` modulo `parts`; prints how many."""
    sent = 0
    with Producer(home, timeout=60) as producer:
        for flight in flights(part=part, parts=parts):
            keys = (str(flight.number),)
            producer.send_oneway(
                TOPIC, flight.line, tag=flight.carrier, keys=keys, properties=flight.properties
            )
            sent += 1
    print(sent)
    return 0


def consume(home: str, notes: str) -> int:
    """Note numbers of the flights as they come, and after each commit how many are acknowledged.

    Ends when the file `notes`.stop is there and nothing has come for a while.
    """
    folder = Path(notes)
    with (
        (folder.with_suffix(".got")).open("ab", buffering=0) as got,
        (folder.with_suffix(".acked")).open("ab", buffering=0) as acked,
        PullConsumer(
            GROUP, [TOPIC], home=home, consume_from=ConsumeFrom.FIRST_OFFSET, auto_commit=False
        ) as consumer,
    ):
        total = 0
        while True:
            batch = consumer.poll(POLL, timeout=0.5)
            if len(batch):
                numbers = array("q", (int(p["KEYS"]) for p in batch.properties))
                got.write(numbers.tobytes())
                total += len(numbers)
                consumer.commit()
                acked.write(array("q", [total]).tobytes())
            elif folder.with_suffix(".stop").exists():
                return 0


def main(arguments: list[str]) -> int:
    """`produce HOME PART PARTS` or `consume HOME NOTES`."""
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    if arguments[0] == "produce":
        return produce(arguments[1], int(arguments[2]), int(arguments[3]))
    return consume(arguments[1], arguments[2])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
