"""A record as commands print it."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gantrymq.clients.stored_body import plain_body
from gantrymq.shm.layout import SYS_COMPRESSED
from gantrymq.shm.messageid import format_host

if TYPE_CHECKING:
    from gantrymq.shm.record import Record

_ROW = 16


def message_of(record: Record) -> dict[str, Any]:
    """What an application sees of it, with the names of `receive --json`."""
    properties = record.property_map()
    return {
        "topic": record.topic,
        "queue": record.queue_id,
        "queue_offset": record.queue_offset,
        "message_id": properties.get("UNIQ_KEY", record.offset_message_id),
        "offset_msg_id": record.offset_message_id,
        "position": record.physical_offset,
        "tag": properties.get("TAGS"),
        "keys": properties.get("KEYS", "").split(),
        "properties": {k: v for k, v in properties.items() if k not in _NOT_THE_USERS},
        "born_timestamp": record.born_timestamp,
        "store_timestamp": record.store_timestamp,
        "born_host": format_host(record.born_host),
        "body": _body(record) if record.sys_flag & SYS_COMPRESSED else record.body,
    }


def _body(record: Record) -> bytes:
    try:
        return plain_body(record.body, record.sys_flag)
    except (ValueError, ModuleNotFoundError):
        return record.body  # as stored: `store inspect` shows sysFlag


def local_time(moment_ms: int) -> str:
    """Unix milliseconds as this machine's time, in a form that options take back.

    What is beyond the calendar stays a number.
    """
    try:
        return datetime.fromtimestamp(moment_ms / 1000).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return str(moment_ms)


_NOT_THE_USERS = ("UNIQ_KEY", "TAGS", "KEYS", "WAIT", "__CRC32#")


def fields_of(record: Record) -> dict[str, Any]:
    """Every field as it is stored; the body by its length (its bytes are below)."""
    return {
        "total_size": record.total_size,
        "magic": f"{record.magic:#010x}",
        "body_crc": f"{record.body_crc:#010x}",
        "queue_id": record.queue_id,
        "flag": record.flag,
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "sys_flag": f"{record.sys_flag:#x}",
        "born_timestamp": record.born_timestamp,
        "born_host": format_host(record.born_host),
        "store_timestamp": record.store_timestamp,
        "store_host": format_host(record.store_host),
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "body_length": len(record.body),
        "topic": record.topic,
        "properties": record.property_map(),
        "offset_msg_id": record.offset_message_id,
    }


def print_fields(fields: dict[str, Any]) -> None:
    """A field a line."""
    width = max(map(len, fields))
    for name, value in fields.items():
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        sys.stdout.write(f"{name.ljust(width)}  {text}\n")


def print_bytes(data: bytes, position: int) -> None:
    """Sixteen bytes a line: log position, hex, and what of it is ASCII."""
    for at in range(0, len(data), _ROW):
        row = data[at : at + _ROW]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        sys.stdout.write(f"{position + at:12}  {row.hex(' ').ljust(3 * _ROW - 1)}  {text}\n")
