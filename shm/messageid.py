"""Hosts as records store them, and the ids of messages (store-format.md section 3.5).

Pure Python, no numba.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from gantrymq.shm import layout

_I4: Final = struct.Struct(">i")
_I8: Final = struct.Struct(">q")


def encode_host(address: bytes, port: int) -> bytes:
    """Stored form of 4 or 16 address bytes and a port (SF-19)."""
    return address + _I4.pack(port)


def format_host(host: bytes) -> str:
    """`address:port` as Java prints it: IPv6 in eight groups, nothing shortened."""
    address, port = host[:-4], _I4.unpack_from(host, len(host) - 4)[0]
    if address[:12] == b"\0" * 10 + b"\xff\xff":  # Java makes IPv4 of a mapped address
        address = address[12:]
    if len(address) == 4:
        return f"{'.'.join(map(str, address))}:{port}"
    return f"{':'.join(_groups(address))}:{port}"


def _groups(address: bytes) -> Iterable[str]:
    return (f"{group:x}" for group in struct.unpack(">8H", address))


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """Id made of the stored host and position: 32 or 56 hex digits (SF-31)."""
    return (store_host + _I8.pack(physical_offset)).hex().upper()


def parse_offset_message_id(text: str) -> tuple[bytes, int]:
    """Stored host and position of an id (SF-33). Raises ValueError if it is none."""
    data = bytes.fromhex(text)
    host_bytes = layout.HOST_BYTES_V4 if len(text) == 32 else layout.HOST_BYTES_V6
    if len(data) != host_bytes + 8:
        raise ValueError(f"{text!r} is no offset message id")
    return data[:host_bytes], _I8.unpack_from(data, host_bytes)[0]


class UniqueId(NamedTuple):
    """Parts of the id that RocketMQ's clients make (SF-32)."""

    address: bytes  # 4 or 16 bytes
    pid: int  # low 16 bits
    loader_hash: int
    month_ms: int  # since the month began, client's local time
    counter: int

    def __str__(self) -> str:
        tail = struct.pack(
            ">HIIH",
            self.pid & 0xFFFF,
            self.loader_hash & 0xFFFFFFFF,
            self.month_ms & 0xFFFFFFFF,
            self.counter & 0xFFFF,
        )
        return (self.address + tail).hex().upper()

    @classmethod
    def parse(cls, text: str) -> UniqueId:
        """Take an id apart. Raises ValueError if it is none."""
        data = bytes.fromhex(text)
        if len(text) not in (32, 56):
            raise ValueError(f"{text!r} has not 32 or 56 hex digits")
        return cls(data[:-12], *struct.unpack_from(">HIIH", data, len(data) - 12))
