"""Copies of failed messages: the kernel's are those of the reference, byte for byte."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from gantrymq.shm import layout
from gantrymq.shm.groupwire import DEAD_LETTER, LADDER
from gantrymq.shm.record import Record, encode_record
from gantrymq.shm.soundrecord import sound_record
from gantrymq.workers.groups.membership import Topics
from gantrymq.workers.groups.records import LiveReader
from gantrymq.workers.groups.retrycopy import CopyMaker, Failure, TooLong
from gantrymq.workers.groups.usualcopies import UsualCopies
from gantrymq.workers.outlet import entry_of
from tests.property.test_record_property import HOST
from tests.support.memory_sessions import memory_board
from tests.support.nearnames import NEAR
from tests.support.retry_rig import LEVELS, TOPICS
from tests.support.simclock import SimClock
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage

SEGMENT_BYTES = 1 << 16
KEY = ("orders", 1)
FIRST = 7  # queue offset of the first record
PLAIN = Record(
    topic="orders", body=b"body", properties=b"UNIQ_KEY\x01AB\x02TAGS\x01paid\x02", queue_id=1,
    flag=3, queue_offset=FIRST, physical_offset=0, sys_flag=0, born_timestamp=5,
    born_host=b"\x7f\0\0\x01\0\0\x2a\xf7", store_timestamp=6,
    store_host=b"\x7f\0\0\x02\0\0\x2a\xf8",
    reconsume_times=0, prepared_transaction_offset=0,
)  # fmt: skip
NAMES = st.sampled_from(
    ["TAGS", "UNIQ_KEY", "WAIT", "DELAY", "REAL_TOPIC", "REAL_QID", "RETRY_TOPIC", "k", "WAI",
     "ORIGIN_MESSAGE_ID", "DLQ_REASON", "DLQ_ORIGIN_TOPIC", "TIMER_OUT_MS", ""]
) | st.sampled_from(NEAR)  # fmt: skip
ENTRY = st.builds(lambda key, mark, value: key + mark + value, NAMES, st.sampled_from(["\x01", ""]),
                  st.sampled_from(["", "v", "longer value", "a\x01b", "ü"]))  # fmt: skip
ENTRIES = st.lists(ENTRY, max_size=6).map("\x02".join)
RECORD = st.builds(
    lambda **fields: replace(PLAIN, **fields),
    body=st.binary(max_size=40),
    properties=ENTRIES.map(str.encode) | ENTRIES.map(lambda text: f"{text}\x02".encode()),
    flag=st.integers(-(1 << 31), (1 << 31) - 1),
    sys_flag=st.sampled_from([0, 1, 0x100]),
    born_timestamp=st.integers(0, 1 << 50),
    born_host=HOST,
    store_host=HOST,
    reconsume_times=st.integers(0, 20),
)  # fmt: skip
FAILURE = st.tuples(
    st.sampled_from([LADDER, LADDER, DEAD_LETTER, -5, 1, 2_500, 1_000_000_000]),
    st.sampled_from(["", "ValueError: no\x01good", "x" * 1200]),
    st.integers(0, 3),
)


class Stored:
    """Records of one queue in files, and both ways to make copies of them."""

    def __init__(self, records: list[Record]) -> None:
        board = memory_board(TOPICS, segment_bytes=SEGMENT_BYTES)
        storage, self.data, units = SimStorage(Disk()), [], bytearray(20 * FIRST)
        # The third record is the first of the second segment.
        position, segments = 0, [bytearray(), bytearray()]
        for number, record in enumerate(records):
            position = SEGMENT_BYTES if number == 2 else position
            there = replace(record, queue_offset=FIRST + number, physical_offset=position)
            data = encode_record(there, trailer=True)
            segments[position // SEGMENT_BYTES] += data
            units += layout.CQ_UNIT.pack(physical_offset=position, size=len(data))
            self.data.append((position, data))
            position += len(data)
        board.set_word(layout.BOARD_APPENDED, position)
        for number, segment in enumerate(segments):
            self._write(storage, f"commitlog/{number * SEGMENT_BYTES:020d}", segment)
        self._write(storage, f"consumequeue/orders/1/{0:020d}", units)
        topics = Topics(board)
        topics.refresh()
        given = SimpleNamespace(message_delay_level=LEVELS, timer_precision_ms=1000)
        self.maker = CopyMaker(topics, SimClock(), given)
        self.parking = self.maker.parking("g")
        self._usual = UsualCopies(LiveReader(storage, board), board, topics)

    @staticmethod
    def _write(storage: SimStorage, name: str, data: bytearray) -> None:
        file = storage.create(name)
        file.allocate(max(len(data), SEGMENT_BYTES if name.startswith("commitlog") else 1))
        file.write_at(bytes(data), 0)

    def by_kernel(
        self, failures: list[tuple[int, str, int]], most: int
    ) -> dict[int, tuple[bytes, int, int, int]]:
        failed = [(FIRST + n, delay, why) for n, (delay, why, _died) in enumerate(failures)]
        died = [item[2] for item in failures]
        made = self._usual.make(KEY, failed, died, (most, 1 << 20), self.parking)
        return {item[0] - FIRST: item[1:] for item in made}

    def by_reference(
        self, number: int, failure: tuple[int, str, int], most: int
    ) -> tuple[bytes, int, int, int] | None:
        """None where it says that there is no room."""
        position, data = self.data[number]
        record = sound_record(data, position)
        assert record is not None
        delay, why, died = failure
        attempt = record.reconsume_times + died + 1
        attempt = attempt if attempt <= most else max(record.reconsume_times, most)
        how = Failure("g", attempt, delay, most, why)
        try:
            copy = self.maker.copy(record, how, self.parking)
        except TooLong:
            return None
        return entry_of(copy, 0), position, attempt, int(how.is_dead)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(RECORD, FAILURE), min_size=1, max_size=4), st.integers(1, 8))
def test_the_kernel_makes_the_reference_s_copies(
    items: list[tuple[Record, tuple[int, str, int]]], most: int
) -> None:
    """RD-16 to RD-23: what it makes is the same; the rest it leaves alone."""
    stored = Stored([record for record, _failure in items])
    failures = [failure for _record, failure in items]
    for number, made in stored.by_kernel(failures, most).items():
        assert made == stored.by_reference(number, failures[number], most)


def test_what_is_usual_is_made_by_the_kernel() -> None:
    """First failure, a retry's failure, IPv6, the last attempt, a delay; over two segments."""
    again = b"RETRY_TOPIC\x01orders\x02ORIGIN_MESSAGE_ID\x01AB\x02WAIT\x01false\x02DELAY\x013\x02"
    records = [
        PLAIN,
        replace(PLAIN, properties=again, reconsume_times=1, topic="%RETRY%g"),
        replace(PLAIN, born_host=b"\1" * 20, store_host=b"\2" * 20, body=b"x" * 1000),
        replace(PLAIN, reconsume_times=16),
    ]
    failures = [(LADDER, "no", 0), (LADDER, "no", 0), (2_500, "", 1), (LADDER, "why", 0)]
    stored = Stored(records)
    made = stored.by_kernel(failures, 17)
    assert made == {n: stored.by_reference(n, failures[n], 17) for n in range(4)}


def test_what_is_unusual_is_left_to_the_reference() -> None:
    """A property twice, a dead letter that failed, no room, offsets without a record."""
    records = [
        replace(PLAIN, properties=b"k\x01a\x02k\x01b\x02"),
        replace(PLAIN, properties=b"DLQ_ORIGIN_TOPIC\x01orders\x02"),
        replace(PLAIN, properties=b"k\x01" + b"x" * 32_700 + b"\x02"),
    ]
    assert not Stored(records).by_kernel([(LADDER, "no", 0)] * 5, 17)
