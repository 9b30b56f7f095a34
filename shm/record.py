"""One commit-log record in plain Python: check and parse, encode, and the small codes around it.

Formats are those of store-format.md section 3. This is the reference that kernels are tested
against and what the command line, verification and Spark read with; it must not import numba.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from gantrymq.shm import layout
from gantrymq.shm.messageid import offset_message_id
from gantrymq.shm.properties import SCHEDULE_TOPIC, java_int, parse_properties

if TYPE_CHECKING:
    from typing_extensions import Buffer

_I4: Final = struct.Struct(">i")
#: Of records of both versions (SF-20).
RECORD_MAGICS: Final = (layout.RECORD_MAGIC_V1, layout.RECORD_MAGIC_V2)
_HEAD8: Final = struct.Struct(">iI")  # total size and magic, of records and fillers alike


class Fault(StrEnum):
    """Why bytes are no valid record (SF-87, and what our own ranges add)."""

    SHORT = "too few bytes are left"
    SIZE = "the size reaches beyond the file"
    MAGIC = "unknown magic"
    LENGTH = "a length reaches beyond the record"
    SUM = "the size is not the sum of the lengths"
    BODY_CRC = "the body's CRC differs"
    NO_TRAILER = "the checksum trailer is missing"
    TRAILER_CRC = "the record's CRC differs"
    POSITION = "the stored position is another one"
    DUP_INFO = "DUP_INFO is missing or has not two parts"
    DELAY = "DELAY is no number"


@dataclass(frozen=True, slots=True)
class Check:
    """What `parse_record` verifies beyond structure; named after RocketMQ's settings."""

    body_crc: bool = True  # checkCRCOnRecover
    trailer: bool = False  # forceVerifyPropCRC: then the body's CRC is not looked at (SF-24)
    dup_info: bool = False  # duplicationEnable


RECOVERY: Final = Check()
STRUCTURE: Final = Check(body_crc=False)
OWN: Final = Check(trailer=True)
_TRAILER: Final = layout.TRAILER.codec("key", "separator", "digits", "end")
_BORN_V6_BYTES: Final = layout.HOST_BYTES_V6 - layout.HOST_BYTES_V4
#: Bytes of a record up to its storeTimestamp's end, whatever its hosts are.
STORED_MS_BYTES: Final = layout.RECORD_STORE_MS + _BORN_V6_BYTES + 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record's fields. Encoding computes `total_size`, `magic` and `body_crc` anew.

    Hosts are as stored: 4 or 16 address bytes and the port as i32 (SF-19). Times are Unix ms.
    """

    topic: str
    body: bytes = b""
    properties: bytes = b""
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = bytes(layout.HOST_BYTES_V4)
    store_timestamp: int = 0
    store_host: bytes = bytes(layout.HOST_BYTES_V4)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    total_size: int = 0
    magic: int = 0
    body_crc: int = 0

    @property
    def transaction(self) -> int:
        """Transaction bits of sysFlag: 0, SYS_PREPARED, SYS_COMMIT or SYS_ROLLBACK."""
        return self.sys_flag & layout.SYS_TRANSACTION

    @property
    def offset_message_id(self) -> str:
        """The id that receipts carry (SF-31)."""
        return offset_message_id(self.store_host, self.physical_offset)

    @property
    def origin(self) -> int:
        """Position of the record that the broker made this one of (HO-91); negative: of none."""
        return origin_field(self.prepared_transaction_offset)

    def property_map(self) -> dict[str, str]:
        """Properties as RocketMQ reads them (SF-28)."""
        return parse_properties(self.properties)


def origin_field(position: int) -> int:
    """What preparedTransactionOffset says of a record's origin, and the way back (HO-92)."""
    return -1 - position


@dataclass(frozen=True, slots=True)
class Filler:
    """End of a segment (SF-20); `size` bytes with the 8 that say so."""

    size: int
    magic: int = layout.FILLER_MAGIC


@dataclass(frozen=True, slots=True)
class Invalid:
    """Bytes that are no record: which rule they break and the numbers behind it."""

    fault: Fault
    detail: str


class _Fails(Exception):  # carries a verdict inside this module
    def __init__(self, fault: Fault, detail: str) -> None:
        super().__init__(detail)
        self.verdict = Invalid(fault, detail)


def _head_codec(born_bytes: int, store_bytes: int) -> struct.Struct:
    hosts = {"born_host": f"{born_bytes}s", "store_host": f"{store_bytes}s"}
    return struct.Struct(">" + "".join(hosts.get(f.name, f.code) for f in layout.RECORD.fields))


V6_BITS: Final = layout.SYS_BORN_V6 | layout.SYS_STORE_V6
HEAD_CODECS: Final = {
    bits: _head_codec(
        layout.HOST_BYTES_V6 if bits & layout.SYS_BORN_V6 else layout.HOST_BYTES_V4,
        layout.HOST_BYTES_V6 if bits & layout.SYS_STORE_V6 else layout.HOST_BYTES_V4,
    )
    for bits in (0, layout.SYS_BORN_V6, layout.SYS_STORE_V6, V6_BITS)
}


# ---------------------------------------------------------------------------------------- reading


def parse_record(
    buffer: Buffer, at: int, end: int, check: Check = RECOVERY, position: int | None = None
) -> Record | Filler | Invalid:
    """Check and parse what starts at byte `at`; the file's bytes end at `end` (SF-87).

    With `position` the stored physicalOffset must equal it, which RocketMQ does not ask for.
    """
    view = memoryview(buffer)
    try:
        total = _require_head(view, at, end)
        if _HEAD8.unpack_from(view, at)[1] == layout.FILLER_MAGIC:
            return Filler(total)
        record = _require_structure(view, at, at + total)
        _require_content(view, at, record, check)
        _require_numbers(record, check, position)
    except _Fails as failure:
        return failure.verdict
    return record


def _require_head(view: memoryview, at: int, end: int) -> int:
    left = end - at
    if left <= 4:
        raise _Fails(Fault.SHORT, f"{left} bytes are left")
    total: int = _I4.unpack_from(view, at)[0]
    if total > left:
        raise _Fails(Fault.SIZE, f"size {total}, {left} bytes are left")
    if left < layout.FILLER.size:
        raise _Fails(Fault.SHORT, f"{left} bytes are left")
    magic = _HEAD8.unpack_from(view, at)[1]
    known = (*RECORD_MAGICS, layout.FILLER_MAGIC)
    if magic not in known:
        raise _Fails(Fault.MAGIC, f"magic {magic:#010x}, size {total}")
    if total < layout.FILLER.size:
        raise _Fails(Fault.LENGTH, f"size {total}")
    return total


def _require_structure(view: memoryview, at: int, end: int) -> Record:
    if end - at < layout.RECORD_HEAD_BYTES:
        raise _Fails(Fault.LENGTH, f"size {end - at} is less than a head")
    flags = _I4.unpack_from(view, at + layout.RECORD_SYS_FLAG)[0]
    codec = HEAD_CODECS[flags & V6_BITS]
    if end - at < codec.size:
        raise _Fails(Fault.LENGTH, f"size {end - at} is less than a head with IPv6 hosts")
    head = codec.unpack_from(view, at)
    body, cursor = _take(view, at + codec.size, end, head[-1], "body")
    wide = head[1] == layout.RECORD_MAGIC_V2
    topic, cursor = _take_counted(view, cursor, end, 2 if wide else 1, "topic")
    properties, cursor = _take_counted(view, cursor, end, 2, "properties")
    if cursor != end:
        raise _Fails(Fault.SUM, f"size {end - at}, lengths add up to {cursor - at}")
    return Record(
        total_size=head[0],
        magic=head[1],
        body_crc=head[2],
        queue_id=head[3],
        flag=head[4],
        queue_offset=head[5],
        physical_offset=head[6],
        sys_flag=head[7],
        born_timestamp=head[8],
        born_host=head[9],
        store_timestamp=head[10],
        store_host=head[11],
        reconsume_times=head[12],
        prepared_transaction_offset=head[13],
        body=body,
        topic=topic.decode(errors="replace"),
        properties=properties,
    )


def _take(view: memoryview, at: int, end: int, count: int, what: str) -> tuple[bytes, int]:
    if count < 0 or count > end - at:
        raise _Fails(Fault.LENGTH, f"{what} of {count} bytes, {end - at} are left")
    return bytes(view[at : at + count]), at + count


def _take_counted(view: memoryview, at: int, end: int, width: int, what: str) -> tuple[bytes, int]:
    number, at = _take(view, at, end, width, f"length of {what}")
    return _take(view, at, end, int.from_bytes(number, "big", signed=True), what)  # SF-1: signed


def _require_content(view: memoryview, at: int, record: Record, check: Check) -> None:
    if check.trailer:
        stored = trailer_crc(record.properties)
        if stored is None:
            raise _Fails(Fault.NO_TRAILER, "the properties do not end with __CRC32#")
        found = crc(view[at : at + record.total_size - layout.TRAILER.size])
        if found != stored:
            raise _Fails(Fault.TRAILER_CRC, f"stored {stored:#010x}, found {found:#010x}")
    elif check.body_crc and record.body:
        found = crc(record.body)
        if found != record.body_crc:
            raise _Fails(Fault.BODY_CRC, f"stored {record.body_crc:#010x}, found {found:#010x}")


def _require_numbers(record: Record, check: Check, position: int | None) -> None:
    if position is not None and record.physical_offset != position:
        raise _Fails(Fault.POSITION, f"stored {record.physical_offset}, found at {position}")
    if check.dup_info:
        info = record.property_map().get("DUP_INFO", "")
        if len(info.rstrip("_").split("_")) != 2:
            raise _Fails(Fault.DUP_INFO, f"DUP_INFO {info!r}")
    if record.topic == SCHEDULE_TOPIC:  # SF-63
        delay = record.property_map().get("DELAY")
        if delay is not None and java_int(delay) is None:
            raise _Fails(Fault.DELAY, f"DELAY {delay!r}")


# ---------------------------------------------------------------------------------------- writing


def encode_record(record: Record, *, trailer: bool = False) -> bytes:
    """Bytes of a record; with `trailer` its properties end with the checksum (SF-22, SF-23).

    The IPv6 bits of sysFlag follow the hosts (SF-26). Raises ValueError if a length does not fit.
    """
    topic = record.topic.encode()
    wide = len(record.topic.encode("utf-16-be")) // 2 > 127  # SF-17
    properties = with_room_for_trailer(record.properties) if trailer else record.properties
    flags = (record.sys_flag & ~V6_BITS) | _host_bit(record.born_host, layout.SYS_BORN_V6)
    flags |= _host_bit(record.store_host, layout.SYS_STORE_V6)
    parts = [
        record.body,
        _counted(topic, 2 if wide else 1),
        _counted(properties, 2),
    ]
    total = HEAD_CODECS[flags & V6_BITS].size + sum(map(len, parts))
    head = HEAD_CODECS[flags & V6_BITS].pack(
        total,
        layout.RECORD_MAGIC_V2 if wide else layout.RECORD_MAGIC_V1,
        crc(record.body),
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.physical_offset,
        flags,
        record.born_timestamp,
        record.born_host,
        record.store_timestamp,
        record.store_host,
        record.reconsume_times,
        record.prepared_transaction_offset,
        len(record.body),
    )
    encoded = head + b"".join(parts)
    if trailer:
        covered = encoded[: -layout.TRAILER.size]
        encoded = covered + encode_trailer(crc(covered))
    return encoded


def encode_filler(size: int) -> bytes:
    """The 8 bytes that close a segment with `size` bytes left (SF-20)."""
    return layout.FILLER.pack(size=size, magic=layout.FILLER_MAGIC)


def stored_ms(head: Buffer) -> int:
    """storeTimestamp, Unix ms, of a record whose first STORED_MS_BYTES these are (SF-16)."""
    view = memoryview(head)
    flags = int.from_bytes(view[layout.RECORD_SYS_FLAG :][:4], "big")
    at = layout.RECORD_STORE_MS + (_BORN_V6_BYTES if flags & layout.SYS_BORN_V6 else 0)
    return int.from_bytes(view[at : at + 8], "big", signed=True)


def _host_bit(host: bytes, bit: int) -> int:
    if len(host) not in (layout.HOST_BYTES_V4, layout.HOST_BYTES_V6):
        raise ValueError(f"a host has 8 or 20 bytes, not {len(host)}")
    return bit if len(host) == layout.HOST_BYTES_V6 else 0


def _counted(data: bytes, width: int) -> bytes:
    if len(data) >= 1 << (8 * width - 1):
        raise ValueError(f"{len(data)} bytes do not fit a signed length of {width} bytes")
    return len(data).to_bytes(width, "big") + data


_OLD_TRAILER: Final = re.compile(rb"(?:^|(?<=\x02))" + layout.TRAILER_KEY + rb"\x01[^\x02]*\x02?")


def with_room_for_trailer(properties: bytes) -> bytes:
    """Properties as a record of ours has them, its checksum still 0: an old one goes (SF-22)."""
    kept = _OLD_TRAILER.sub(b"", properties)
    if kept and not kept.endswith(b"\x02"):
        kept += b"\x02"
    return kept + bytes(layout.TRAILER.size)


def crc(data: Buffer) -> int:
    """CRC-32 without its top bit, as RocketMQ stores it (SF-5)."""
    return zlib.crc32(data) & 0x7FFFFFFF


def trailer_crc(properties: bytes) -> int | None:
    """CRC that the trailer at the end of the properties holds, None without one (SF-22)."""
    if len(properties) < layout.TRAILER.size:
        return None
    at = len(properties) - layout.TRAILER.size
    key, separator, digits, end = _TRAILER.unpack_from(properties, at)
    framed = (key, separator, end) == (layout.TRAILER_KEY, 1, 2)
    return int(digits[::-1]) if framed and digits.isdigit() else None


def encode_trailer(value: int) -> bytes:
    """The 20 bytes that hold a CRC, least significant digit first (SF-22)."""
    digits = b"%010d" % value
    return _TRAILER.pack(layout.TRAILER_KEY, 1, digits[::-1], 2)
