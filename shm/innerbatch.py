"""Inner batches taken apart: one record of a topic of type BatchCQ is many messages (RD-70)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, overload

from gantrymq.shm.errors import Corrupt
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.layout import SYS_COMPRESSED, SYS_INNER_BATCH
from gantrymq.shm.properties import java_int
from gantrymq.shm.record import HEAD_CODECS, V6_BITS, Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Size, magic, CRC (all three ignored: RD-60), flag, body length.
_MEMBER_HEAD: Final = struct.Struct(">iiiii")
_LENGTH: Final = struct.Struct(">h")


class Member(NamedTuple):
    """A message of an inner batch: offsets into the batch's body."""

    flag: int
    body_at: int
    body_bytes: int
    properties_at: int
    properties_bytes: int


class Part(NamedTuple):
    """A message, and where in the log it begins: its record, or its body amid that of a batch."""

    place: int
    record: Record


@overload
def is_inner_batch(sys_flag: int) -> bool: ...


@overload
def is_inner_batch(sys_flag: NDArray[np.int64]) -> NDArray[np.bool_]: ...


def is_inner_batch(sys_flag: int | NDArray[np.int64]) -> bool | NDArray[np.bool_]:
    """Whether a body is messages, one behind the other; compressed ones are none (RD-61).

    Of a column of flags it tells which are.
    """
    return sys_flag & (SYS_INNER_BATCH | SYS_COMPRESSED) == SYS_INNER_BATCH


def members(body: memoryview) -> Iterator[Member]:
    """The messages of an inner batch, in order. Raises ValueError where lengths do not add up."""
    at = 0
    while at < len(body):
        body_at = at + _MEMBER_HEAD.size
        if body_at > len(body):
            raise ValueError(f"the member at byte {at} is cut short")
        *_ignored, flag, body_bytes = _MEMBER_HEAD.unpack_from(body, at)
        properties_at = body_at + body_bytes + _LENGTH.size
        if body_bytes < 0 or properties_at > len(body):
            raise ValueError(f"the member at byte {at} has a body of {body_bytes} bytes")
        (properties_bytes,) = _LENGTH.unpack_from(body, body_at + body_bytes)
        at_next = properties_at + properties_bytes
        if properties_bytes < 0 or at_next > len(body):
            raise ValueError(f"the member at byte {at} has {properties_bytes} bytes of properties")
        yield Member(flag, body_at, body_bytes, properties_at, properties_bytes)
        at = at_next


def messages_of(record: Record) -> list[Part]:
    """The messages of an inner batch, each as a record of its own.

    It has the batch's place in the log, times and hosts (RD-73). Raises Corrupt if the batch is
    damaged inside.
    """
    body = memoryview(record.body)
    body_at = record.physical_offset + HEAD_CODECS[record.sys_flag & V6_BITS].size
    base, _count = span_of(record)
    found = []
    try:
        for number, member in enumerate(members(body)):
            own = replace(
                record,
                flag=member.flag,
                body=bytes(body[member.body_at :][: member.body_bytes]),
                properties=bytes(body[member.properties_at :][: member.properties_bytes]),
                queue_offset=base + number,
            )
            found.append(Part(body_at + member.body_at, own))
    except ValueError as error:
        require_ours(error)
        raise Corrupt(
            f"the inner batch at log position {record.physical_offset} is damaged: {error}. Its"
            " checksum holds: so it was sent",
            path="commitlog",
            position=record.physical_offset,
        ) from error
    return found


def span_of(record: Record) -> tuple[int, int]:
    """Queue offset of a record's first message, and how many it has (SF-75)."""
    properties = record.property_map()
    base, count = (java_int(properties.get(name, "")) for name in ("INNER_BASE", "INNER_NUM"))
    return (record.queue_offset, 1) if base is None or count is None else (base, count)
