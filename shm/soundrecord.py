"""A record of ours read quickly, for those who make copies of many."""

from __future__ import annotations

from typing import NamedTuple

from gantrymq.shm import layout
from gantrymq.shm.record import HEAD_CODECS, V6_BITS, Record, crc, encode_trailer


class Sound(NamedTuple):
    """Fields of a record as a copy takes them over; named as `Record` names them."""

    topic: bytes
    body: bytes
    properties: bytes
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int


def sound_record(data: bytes, position: int) -> Sound | None:
    """The record of ours in these bytes, quickly; None where `parse_record` has to look."""
    size = len(data)
    if size < layout.RECORD_HEAD_BYTES:
        return None
    codec = HEAD_CODECS[data[layout.RECORD_SYS_FLAG + 3] & V6_BITS]
    if size < codec.size + 4:
        return None
    (
        total, magic, _crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp,
        born_host, _stored, store_host, reconsume_times, _prepared, body_bytes,
    ) = codec.unpack_from(data)  # fmt: skip
    body_at = codec.size
    topic_at = body_at + body_bytes + 1
    if magic != layout.RECORD_MAGIC_V1 or total != size or not body_at < topic_at < size:
        return None
    properties_at = topic_at + data[topic_at - 1] + 2
    count = int.from_bytes(data[properties_at - 2 : properties_at], "big")
    if physical_offset != position or properties_at + count != size:
        return None
    covered = size - layout.TRAILER.size
    if data[covered:] != encode_trailer(crc(memoryview(data)[:covered])):
        return None
    return Sound(
        data[topic_at : properties_at - 2], data[body_at : topic_at - 1], data[properties_at:],
        queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp, born_host,
        store_host, reconsume_times,
    )  # fmt: skip


def sound_fields(record: Record) -> Sound:
    """The same of a record that `parse_record` has found."""
    values = {name: getattr(record, name) for name in Sound._fields}
    return Sound(**{**values, "topic": record.topic.encode()})
