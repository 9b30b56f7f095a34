"""What the broker made of other records is found behind a position, whatever lies between."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gantrymq.shm import layout
from gantrymq.shm.lognames import segment_name
from gantrymq.shm.record import Record, encode_record
from gantrymq.workers.groups.records import LiveReader
from tests.support.memory_sessions import memory_board
from tests.support.retry_rig import TOPICS
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage

SEGMENT_BYTES = 1 << 16
SEGMENTS = 3
PLAIN = Record(
    topic="orders", body=b"body", properties=b"UNIQ_KEY\x01AB\x02", queue_id=1,
    flag=3, queue_offset=0, physical_offset=0, sys_flag=0, born_timestamp=5,
    born_host=b"\x7f\0\0\x01\0\0\x2a\xf7", store_timestamp=6,
    store_host=b"\x7f\0\0\x02\0\0\x2a\xf8",
    reconsume_times=0, prepared_transaction_offset=0,
)  # fmt: skip


class Log:
    """Records of three segments, the last of which is not full; of some the origin is known."""

    def __init__(self, seed: int = 1) -> None:
        self.board = memory_board(TOPICS, segment_bytes=SEGMENT_BYTES)
        self.storage = SimStorage(Disk())
        self.data = [bytearray() for _ in range(SEGMENTS)]
        self.places: list[tuple[int, int]] = []  # position and size
        self.copies: list[int] = []
        dice = random.Random(seed)
        for number, segment in enumerate(self.data):
            self._fill(segment, number * SEGMENT_BYTES, dice, is_last=number == SEGMENTS - 1)

    def _fill(self, segment: bytearray, base: int, dice: random.Random, *, is_last: bool) -> None:
        room = SEGMENT_BYTES // 2 if is_last else SEGMENT_BYTES - 1024
        while len(segment) < room:
            position = base + len(segment)
            is_copy = dice.random() < 0.2
            record = replace(
                PLAIN, body=dice.randbytes(dice.randrange(300)), physical_offset=position,
                prepared_transaction_offset=-1 - dice.randrange(9) if is_copy else 0,
            )  # fmt: skip
            data = encode_record(record, trailer=True)
            self.places.append((position, len(data)))
            if is_copy:
                self.copies.append(position)
            segment += data
        self.board.set_word(layout.BOARD_APPENDED, base + len(segment))
        if not is_last:
            left = SEGMENT_BYTES - len(segment)
            segment += layout.FILLER.pack(size=left, magic=layout.FILLER_MAGIC).ljust(left, b"\0")

    def found(self, start: int = 0) -> list[int]:
        for number, segment in enumerate(self.data):
            name = segment_name(number * SEGMENT_BYTES)
            with_rest = bytes(segment).ljust(SEGMENT_BYTES, b"\0")
            if not self.storage.exists(name):
                self.storage.create(name).write_at(with_rest, 0)
        reader = LiveReader(self.storage, self.board)
        return [record.physical_offset for record in reader.derived(start)]


def test_all_are_found_in_order() -> None:
    log = Log()
    assert len(log.copies) > 50
    assert log.found() == log.copies


@pytest.mark.parametrize("part", [3, 2])
def test_nothing_before_the_start_is_found(part: int) -> None:
    log = Log()
    start = log.places[len(log.places) // part][0]
    assert log.found(start) == [one for one in log.copies if one >= start]


def test_a_record_that_says_another_place_hides_no_other_one() -> None:
    log = Log()
    position, _size = next(place for place in log.places if place[0] > log.copies[3])
    log.data[0][position + layout.RECORD.offset("physical_offset") + 7] ^= 1
    assert log.found() == [one for one in log.copies if one != position]


def test_what_has_no_length_hides_its_segment_alone() -> None:
    log = Log()
    position = log.copies[5]
    log.data[0][position : position + 4] = bytes(4)
    assert log.found() == log.copies[:5] + [one for one in log.copies if one >= SEGMENT_BYTES]


def test_a_segment_that_was_removed_hides_no_other_one() -> None:
    log = Log()
    log.found()
    log.storage.unlink(segment_name(SEGMENT_BYTES))
    reader = LiveReader(log.storage, log.board)
    found = [record.physical_offset for record in reader.derived(0)]
    assert found == [one for one in log.copies if one // SEGMENT_BYTES != 1]
