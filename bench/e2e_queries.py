"""The key index: what it costs to make it, and how long a query takes."""

from __future__ import annotations

import os
import random
import time
from array import array
from typing import TYPE_CHECKING

from bench.crew import BenchError, Crew, Phase
from bench.harness import Bench
from bench.measure import Measurement, histogram, percentiles
from bench.ours import TOPIC, Serving, make_topic, scratch, serving
from bench.sizes import ENTRIES_PER_MESSAGE
from bench.store_speed import dispatch_log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gantrymq import Client

_QUEUES = 4


def indexing(bench: Bench) -> Measurement:
    """A reader on a log that nobody has dispatched: `rate` alone, `visible`, `indexed` with keys.

    Records a second until all can be consumed, and until all have their entries in the files.
    """
    with scratch(bench) as directory:
        settings = {"message_index_enable": "false"}
        with serving(directory, settings, bench.sizes.timeout_s) as server:
            _fill(bench, server)
        deadline = time.monotonic() + bench.sizes.timeout_s
        records, alone_s, _ = dispatch_log(server.home, deadline)
        _, visible_s, indexed_s = dispatch_log(server.home, deadline, index=True)
    seconds = {"rate": alone_s, "visible": visible_s, "indexed": indexed_s}
    return Measurement(values={n: records / s for n, s in seconds.items()}, count=records)


def querying(bench: Bench) -> Measurement:
    """Queries by a key that one message has, of a running broker: `warm`, then `cold`.

    Cold: after a stop, nothing of the store in the page cache, and a `Client` of its own for each
    query.
    """
    with scratch(bench) as directory:
        with serving(directory, {}, bench.sizes.timeout_s) as server:
            count = _fill(bench, server)
            server.wait_for("index", bench.sizes.timeout_s)
            values = _warm(bench, server, count)
        values |= _cold(bench, server.home, count)
    return Measurement(values=values, count=bench.sizes.queries)


def _warm(bench: Bench, server: Serving, count: int) -> dict[str, float]:
    from gantrymq import Client

    numbers = _numbers(bench, count)
    with Client(server.home) as client:

        def ask(number: int) -> None:
            _ask(client, number)

        for number in numbers:  # what is read is in memory from here on
            ask(number)
        return _timed(numbers, "warm", ask)


def _cold(bench: Bench, home: Path, count: int) -> dict[str, float]:
    from gantrymq import Client

    def ask(number: int) -> None:
        with Client(home) as client:
            _ask(client, number)

    return _timed(_numbers(bench, count), "cold", ask, before=lambda: _drop_cache(home / "store"))


def _timed(
    numbers: list[int],
    name: str,
    ask: Callable[[int], None],
    before: Callable[[], None] | None = None,
) -> dict[str, float]:
    latencies = array("q")
    for number in numbers:
        if before:
            before()
        started = time.monotonic_ns()
        ask(number)
        latencies.append(time.monotonic_ns() - started)
    found = percentiles(histogram(latencies))
    return {f"{name}_p50_ms": found["p50_us"] / 1000, f"{name}_p99_ms": found["p99_us"] / 1000}


def _ask(client: Client, number: int) -> None:
    found = client.query(TOPIC, f"order-{number}")
    bodies = [message.body for message in found]
    if len(bodies) != 1 or found.reasons:
        raise BenchError(f"query of order-{number}: {len(bodies)} messages; {found.reasons}")


def _numbers(bench: Bench, count: int) -> list[int]:
    """Messages that are asked for, anywhere in the log."""
    return random.Random(count).choices(range(count), k=bench.sizes.queries)


def _fill(bench: Bench, server: Serving) -> int:
    from bench.our_jobs import KeyedSends

    count = bench.sizes.index_entries // ENTRIES_PER_MESSAGE
    make_topic(server, _QUEUES)
    with Crew(bench.sizes.timeout_s) as crew:
        crew.start("producer", KeyedSends, str(server.home))
        crew.run(Phase(count))
    return count


def _drop_cache(store: Path) -> None:
    """Have the kernel forget what it has of the store's files; dirty pages would stay."""
    for folder, _folders, names in os.walk(store):
        for name in names:
            descriptor = os.open(os.path.join(folder, name), os.O_RDONLY)
            try:
                os.fdatasync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
