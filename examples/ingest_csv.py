"""A CSV file into a topic, a batch of rows at a time: `python examples/ingest_csv.py FILE.csv`.

Shows: `send_batch_async`, each batch stored as a whole or not at all, a few of them on their way
at once; `flush`; what an error of one batch says. Without a file it makes one of its own.
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from pathlib import Path

from gantrymq import Broker, Producer, SendReceipt

ROWS_PER_BATCH = 500
BATCHES_UNDER_WAY = 8


def bodies(path: Path) -> Iterator[bytes]:
    """Each row as a JSON object."""
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield json.dumps(row).encode()


def ingest(producer: Producer, topic: str, path: Path) -> int:
    """Send every row; returns how many the broker has. Raises what a batch was refused with."""
    rows = bodies(path)
    under_way: deque[Future[Sequence[SendReceipt]]] = deque()
    stored = 0
    while batch := list(islice(rows, ROWS_PER_BATCH)):
        under_way.append(producer.send_batch_async(topic, batch, tag="csv"))
        if len(under_way) == BATCHES_UNDER_WAY:
            stored += len(under_way.popleft().result(timeout=30))
    return stored + sum(len(future.result(timeout=30)) for future in under_way)


with tempfile.TemporaryDirectory() as folder, Broker.temporary() as broker:
    if len(sys.argv) > 1:
        path = Path(sys.argv[1])
    else:
        path = Path(folder) / "sensors.csv"
        lines = (f"{n},{n % 7},{20 + n % 10}\n" for n in range(12_345))
        path.write_text("number,sensor,celsius\n" + "".join(lines), encoding="utf-8")
    with Producer(broker.home, durability="durable") as producer:
        print(ingest(producer, "rows", path), "rows are on the disk")
