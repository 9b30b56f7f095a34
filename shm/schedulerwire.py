"""What sessions and the scheduler say to each other: msgpack bodies of REQUEST and NOTICE entries.

A request may be repeated without harm: a message that was recalled is cancelled, whoever asks.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from binascii import Error
from dataclasses import dataclass
from typing import Final

import msgspec

from shm.packed import decode_packed


class Recall(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Cancel the message that a handle names (DT-70)."""

    serial: int
    topic: str
    handle: str


class Recalled(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What became of it: cancelled, already_delivered or unknown_handle; or why it was refused."""

    serial: int
    outcome: str
    refusal: str = ""


CANCELLED: Final = "cancelled"
ALREADY_DELIVERED: Final = "already_delivered"
UNKNOWN_HANDLE: Final = "unknown_handle"
#: A refusal: the key index, which alone can tell, does not go up to what there was when asked.
INDEX_BEHIND: Final = "INDEX_BEHIND"

_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS: msgspec.msgpack.Decoder[Recall] = msgspec.msgpack.Decoder(Recall)
_NOTICES: msgspec.msgpack.Decoder[Recalled] = msgspec.msgpack.Decoder(Recalled)


def encode(body: Recall | Recalled) -> bytes:
    """Body of an entry."""
    return _ENCODER.encode(body)


def decode_request(data: bytes) -> Recall:
    """A request. Raises msgspec.DecodeError or its ValidationError if it is none."""
    return decode_packed(_REQUESTS, data)


def decode_notice(data: bytes) -> Recalled:
    """A notice. Raises msgspec.DecodeError or its ValidationError if it is none."""
    return decode_packed(_NOTICES, data)


@dataclass(frozen=True, slots=True)
class Handle:
    """The parts of a recall handle: `due_ms` is TIMER_OUT_MS + 1."""

    topic: str
    broker: str
    due_ms: int
    unique: str


def parse_handle(text: str) -> Handle:
    """A recall handle's parts (DT-70). Raises ValueError for what is none."""
    try:
        words = urlsafe_b64decode(text.encode("ascii")).decode("utf-8").split(" ")
    except (Error, UnicodeError) as error:
        raise ValueError(f"{text!r} is no recall handle") from error
    whole = len(words) == 5 and words[0] == "v1" and all(words)
    if not whole or not words[3].isdecimal() or len(words[3]) > 18:
        raise ValueError(f"{text!r} is no recall handle")
    return Handle(words[1], words[2], int(words[3]), words[4])
