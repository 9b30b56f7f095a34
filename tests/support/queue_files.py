"""A segment and a ConsumeQueue file in memory, made of chosen records."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import layout
from gantrymq.shm.properties import encode_properties, parse_properties, tags_code
from gantrymq.shm.record import Record, encode_record

SEGMENT_BYTES = 1 << 16


@dataclass(frozen=True)
class QueueFiles:
    """What a consumer maps, and what it should read there."""

    log: NDArray[np.uint8]
    units: NDArray[np.uint8]
    records: list[Record]
    log_base: int


def random_record(dice: random.Random, queue_offset: int) -> Record:
    """Make a record with anything that the format allows: empty parts, IPv6 hosts, long topics."""
    wide_born, wide_store = dice.random() < 0.2, dice.random() < 0.2
    tag = dice.choice(["", "paid", "refunded", "Aa", "BB", "längs"])
    properties = {"UNIQ_KEY": f"{dice.getrandbits(128):032X}", "TAGS": tag, "n": str(queue_offset)}
    flags = layout.SYS_BORN_V6 * wide_born | layout.SYS_STORE_V6 * wide_store
    return Record(
        topic=dice.choice(["orders", "%RETRY%" + "g" * 130]),
        body=dice.randbytes(dice.choice([0, 1, 7, 100, 1000])),
        properties=encode_properties({k: v for k, v in properties.items() if v}),
        queue_id=3,
        flag=dice.randrange(-(1 << 31), 1 << 31),
        queue_offset=queue_offset,
        sys_flag=flags,
        born_timestamp=dice.getrandbits(40),
        born_host=dice.randbytes(20 if wide_born else 8),
        store_timestamp=dice.getrandbits(40),
        store_host=dice.randbytes(20 if wide_store else 8),
        reconsume_times=dice.randrange(5),
    )


def lay_out(
    records: list[Record], *, trailers: bool = True, log_base: int = 0, first_unit: int = 0
) -> QueueFiles:
    """Put records into a segment that starts at `log_base`, and their units into a queue file."""
    log = np.zeros(SEGMENT_BYTES, np.uint8)
    units = np.zeros(layout.CQ_UNIT_BYTES * (first_unit + len(records)), np.uint8)
    at = 0
    placed = []
    for index, given in enumerate(records):
        record = replace(given, physical_offset=log_base + at)
        data = encode_record(record, trailer=trailers)
        log[at : at + len(data)] = np.frombuffer(data, np.uint8)
        code = tags_code(record.topic, parse_properties(record.properties), 0, ())
        unit = layout.CQ_UNIT.pack(physical_offset=log_base + at, size=len(data), tags_code=code)
        unit_at = (first_unit + index) * layout.CQ_UNIT_BYTES
        units[unit_at : unit_at + layout.CQ_UNIT_BYTES] = np.frombuffer(unit, np.uint8)
        placed.append(record)
        at += len(data)
    log.flags.writeable = False
    units.flags.writeable = False
    return QueueFiles(log, units, placed, log_base)
