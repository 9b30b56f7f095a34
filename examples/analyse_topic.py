"""A topic as an Arrow table, without a word of Spark.

Shows: `poll` in columns, `to_arrow` (bodies are not copied), `seek` by time, and an analysis of
what was read. Offsets are not committed: the next run reads the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from gantrymq import Broker, ConsumeFrom, Producer, PullConsumer

COUNT = 5_000


def batches(consumer: PullConsumer) -> Iterator[pa.RecordBatch]:
    """All that is there now."""
    while batch := consumer.poll(timeout=1.0):
        yield batch.to_arrow()


with Broker.temporary() as broker:
    with Producer(broker.home) as producer:
        for number in range(COUNT):
            body = json.dumps({"sensor": number % 5, "celsius": 20 + number % 11}).encode()
            producer.send_oneway("measured", body)
        producer.flush()

    first = ConsumeFrom.FIRST_OFFSET
    with PullConsumer(
        "analysis", ["measured"], home=broker.home, consume_from=first, auto_commit=False
    ) as consumer:
        table = pa.Table.from_batches(batches(consumer))
        hour_ago = datetime.now(UTC) - timedelta(hours=1)
        for queue in consumer.assignment():
            consumer.seek(queue, hour_ago)  # the first message stored at that time or later
        again = sum(batch.num_rows for batch in batches(consumer))

bodies = [json.loads(body) for body in table["body"].to_pylist()]
measured = pa.Table.from_pylist(bodies)
per_queue = table.group_by("queue_id").aggregate([([], "count_all")]).sort_by("queue_id")
print(table.num_rows, "messages, and", again, "of the last hour")
print("per queue:", dict(zip(*(column.to_pylist() for column in per_queue.columns), strict=True)))
warmest = measured.group_by("sensor").aggregate([("celsius", "mean")]).sort_by("sensor")
print("mean:", [round(value, 2) for value in warmest["celsius_mean"].to_pylist()])
print("bytes of bodies:", pc.sum(pc.binary_length(table["body"])).as_py())
