"""What agents think that the writer stores, beside what it stores (SF-17, SF-18, SF-20, SF-22)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from gantrymq.shm.codes import Role, Status
from gantrymq.shm.limits import PROPERTIES_BYTES_MAX
from gantrymq.workers.outlet import Copy, Outlet, is_storable
from tests.support.parking import HOST, Life
from tests.support.simclock import SimClock

SEGMENT = 1 << 17
SHORT, LONG = "t", "t" * 127
OLD_TRAILER = b"__CRC32#\x011234567890"
HOST_V6 = bytes(16) + bytes(4)
BORN_V6, STORE_V6 = 1 << 4, 1 << 5

#: Properties of `size` bytes with our trailer, of each kind that a log may hold.
KINDS = {
    "closed": lambda size: b"K\x01" + b"v" * (size - 23) + b"\x02",
    "open": lambda size: b"K\x01" + b"v" * (size - 23),
    "old trailer": lambda size: b"K\x01" + b"v" * (size - 23) + b"\x02" + OLD_TRAILER + b"\x02",
    "old trailer, open": lambda size: b"K\x01" + b"v" * (size - 23) + b"\x02" + OLD_TRAILER,
    "empty entry": lambda size: b"K\x01" + b"v" * (size - 24) + b"\x02\x02" + OLD_TRAILER,
    "trailer first": lambda size: OLD_TRAILER + b"\x02K\x01" + b"v" * (size - 23) + b"\x02",
}


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    sizes: dict[str, object] = {"mapped_file_size_commit_log": SEGMENT, "max_message_size": 1024}
    made = Life(tmp_path / "store", SimClock(), sizes, topics=(SHORT, LONG))
    yield made
    for agent in made.agents.values():
        agent.close()


def require_same(life: Life, outlet: Outlet, copy: Copy, topic: str) -> int:
    """The writer takes what is called storable, and nothing else; its status."""
    says = is_storable(copy, topic, SEGMENT)
    assert outlet.put(copy, "tag")
    life.agents[Role.WRITER].do_work(life.clock.monotonic_ns())
    (outcome,) = outlet.poll()
    assert says == (outcome.status == Status.OK), (topic, len(copy.body), copy.properties[-40:])
    return outcome.status


def outlet_of(life: Life) -> Outlet:
    """The scheduler's, once the writer has it."""
    life.run_for(100)
    outlet = life.agents[Role.SCHEDULER]._outlet  # type: ignore[attr-defined]
    assert isinstance(outlet, Outlet)
    return outlet


@pytest.mark.parametrize("kind", KINDS)
def test_properties_up_to_their_limit(life: Life, kind: str) -> None:
    """With room for the trailer and a last separator; a length is a signed 16-bit number."""
    outlet, slot = outlet_of(life), life.board.topic_named(SHORT)
    assert slot is not None
    for size in range(PROPERTIES_BYTES_MAX - 2, PROPERTIES_BYTES_MAX + 3):
        copy = Copy(slot.slot, 0, b"x", KINDS[kind](size), -1, 0, 0, 0, HOST, HOST, 0)
        status = require_same(life, outlet, copy, SHORT)
        assert (status == Status.OK) == (size <= PROPERTIES_BYTES_MAX)
    stored = [len(record.properties) for record in life.records() if record.topic == SHORT]
    assert stored == [PROPERTIES_BYTES_MAX - 2, PROPERTIES_BYTES_MAX - 1, PROPERTIES_BYTES_MAX]


def test_records_up_to_a_segment(life: Life) -> None:
    """Short and long names, hosts of either length, and a body that leaves just room or not."""
    outlet = outlet_of(life)
    statuses = set()
    for topic, born, store in product((SHORT, LONG), (HOST, HOST_V6), (HOST, HOST_V6)):
        found = life.board.topic_named(topic)
        assert found is not None
        flags = (BORN_V6 if born is HOST_V6 else 0) | (STORE_V6 if store is HOST_V6 else 0)
        fixed = 91 - 16 + len(born) + len(store) + len(topic) + 20
        for body in range(SEGMENT - 8 - fixed - 1, SEGMENT - 8 - fixed + 2):
            copy = Copy(found.slot, 0, bytes(body), b"", -1, 0, flags, 0, born, store, 0)
            statuses.add((body - (SEGMENT - 8 - fixed), require_same(life, outlet, copy, topic)))
    assert statuses == {(-1, Status.OK), (0, Status.OK), (1, Status.ILLEGAL_SIZE)}
