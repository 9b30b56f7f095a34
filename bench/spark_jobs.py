"""What clients do where Spark reads: they fill a log; and a plain pass over it without Spark."""

from __future__ import annotations

import time
from itertools import islice

from bench.bodies import make_bodies, unlike_bodies
from bench.crew import Outcome, Phase
from bench.our_jobs import TAG
from bench.ours import TOPIC
from bench.sizes import BODIES
from bench.timer_jobs import SILENT_S, PlainSends
from gantrymq import Producer


class SizedSends(PlainSends):
    """`send_oneway` of bodies of so many bytes, each another, until all is in the log.

    What is read is compared with Parquet, whose dictionaries would flatter it where bodies repeat.
    """

    def __init__(self, home: str, body_bytes: int) -> None:
        super().__init__(home)
        self._body_bytes = body_bytes

    def run(self, phase: Phase) -> Outcome:
        started = time.monotonic_ns()
        for body in islice(unlike_bodies(self._body_bytes), phase.count):
            self._producer.send_oneway(TOPIC, body, tag=TAG)
        self._producer.flush(SILENT_S)
        return Outcome(started, time.monotonic_ns(), phase.count)


class TrickleSends:
    """`send_oneway` of `per_second` messages for some seconds, then all is in the log."""

    def __init__(self, home: str) -> None:
        self._producer = Producer(home=home)
        self._bodies = make_bodies()

    def run(self, phase: Phase) -> Outcome:
        started = time.monotonic_ns()
        for number in range(phase.count):
            due_s = started / 1e9 + number / phase.per_second
            time.sleep(max(due_s - time.monotonic(), 0))
            self._producer.send_oneway(TOPIC, self._bodies[number % BODIES], tag=TAG)
        self._producer.flush()
        return Outcome(started, time.monotonic_ns(), phase.count)

    def close(self) -> None:
        self._producer.close()


class PlainPass:
    """Every so manieth range of a store as record batches of pyarrow, and nothing else."""

    def __init__(self, store: str, columns: str, part: int, parts: int) -> None:
        import pyarrow as pa

        from gantrymq.clients.spark.columns import ARROW_TYPES
        from gantrymq.clients.spark.options import COLUMN_TYPES, ReadOptions
        from gantrymq.clients.spark.planning import plan

        self._options = ReadOptions.parse({"store": store, "columns": columns})
        types = {name: ARROW_TYPES[COLUMN_TYPES[name]] for name in self._options.columns}
        self._schema = pa.schema(list(types.items()))
        self._ranges = plan(self._options)[part::parts]

    def run(self, phase: Phase) -> Outcome:
        from gantrymq.clients.spark.scan import read

        del phase
        started = time.monotonic_ns()
        count = sum(
            batch.num_rows
            for part in self._ranges
            for batch in read(part, self._options, self._schema)
        )
        return Outcome(started, time.monotonic_ns(), count)

    def close(self) -> None:
        """Nothing is open."""
