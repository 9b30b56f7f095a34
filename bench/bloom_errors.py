"""How often bits of filters send a group to a record that its filter is not TRUE of (FL-60)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from bench.crew import BenchError, Crew, Phase
from bench.e2e_filter import BITMAPS
from bench.filter_jobs import RARE_EVERY, Crowd, FilterFill, crowd_of
from bench.harness import Bench
from bench.measure import Measurement
from bench.ours import broker
from gantrymq.brokerd.dump.queues import ExtFiles
from gantrymq.clients.home import store_of
from gantrymq.shm import layout
from gantrymq.shm.bitmapnote import Covered, read_covered
from gantrymq.shm.filter import parse_sql
from gantrymq.shm.properties import parse_properties
from gantrymq.shm.storage import PosixStorage, Storage, read_file
from gantrymq.shm.storereader import StoreReader

#: The same groups have other bits in each.
_TOPICS: Final = tuple(f"crowded-{number}" for number in range(8))
_EXPECTED: Final = 32
_PERCENT: Final = 20
_SETTINGS: Final = {
    "expect_consumer_num_use_filter": _EXPECTED,
    "max_error_rate_of_bloom_filter": _PERCENT,
}
_LOOK_S: Final = 0.05


def false_positives(bench: Bench) -> Measurement:
    """Percent of the records that a filter is not TRUE of which have all of its bits.

    As many filters are TRUE of each message as `expect_consumer_num_use_filter` says.
    """
    crowd = crowd_of(_EXPECTED)
    with broker(bench, **BITMAPS, **_SETTINGS) as server:
        home, timeout_s = str(server.home), bench.sizes.timeout_s
        storage = PosixStorage(str(store_of(server.home)))
        with Crew(timeout_s) as crew:
            crew.start("crowd", Crowd, home, crowd, _TOPICS)
            known = _wait_until_known(storage, len(crowd) * len(_TOPICS), timeout_s)
        with Crew(timeout_s) as crew:
            crew.start("producer", FilterFill, home, *_TOPICS)
            crew.run(Phase(RARE_EVERY))
        server.wait_for("queues", timeout_s)
        measured = [_in_vain(storage, topic, known) for topic in _TOPICS]
    values = {"measured": sum(measured) / len(measured), "configured": _PERCENT}
    return Measurement(values=values, count=RARE_EVERY * len(_TOPICS))


def _wait_until_known(storage: Storage, count: int, timeout_s: float) -> list[Covered]:
    deadline = time.monotonic() + timeout_s
    while len(found := read_covered(storage)) < count:
        if time.monotonic() > deadline:
            raise BenchError(f"the reader knows {len(found)} filters of {count}")
        time.sleep(_LOOK_S)
    return found


def _in_vain(storage: Storage, topic: str, known: list[Covered]) -> float:
    filters = [
        (parse_sql(each.expression), sum(1 << position for position in set(each.positions)))
        for each in known
        if each.topic == topic
    ]
    asked = passed = 0
    for properties, bitmap in _records(storage, topic):
        for wanted, own in filters:
            true = wanted.matches(properties) is True
            told = bitmap & own == own
            if true and not told:
                raise BenchError(f"bits deny {properties} to {wanted.text}")
            asked += not true
            passed += told and not true
    return 100 * passed / asked


def _records(storage: Storage, topic: str) -> Iterator[tuple[dict[str, str], int]]:
    """Properties and bitmap of each message."""
    reader = StoreReader(storage)
    for queue_id in storage.list(f"consumequeue/{topic}"):
        extensions = ExtFiles(storage, topic, int(queue_id))
        folder = f"consumequeue/{topic}/{queue_id}"
        for name in storage.list(folder):
            data = read_file(storage, f"{folder}/{name}")
            for at in range(0, len(data), layout.CQ_UNIT_BYTES):
                unit = layout.CQ_UNIT.unpack(data, at)
                extension = extensions.unit(unit["tags_code"]) if unit["size"] else None
                if extension is not None:
                    found = parse_properties(reader.record(unit["physical_offset"]).properties)
                    bits = bytes.fromhex(extension["bitMap"])
                    yield found, int.from_bytes(bits, "little")
