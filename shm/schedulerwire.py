"""What sessions and the scheduler say to each other: msgpack bodies of REQUEST and NOTICE entries.

A request may be repeated without harm: a message that was recalled is cancelled, whoever asks.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from binascii import Error
from dataclasses import dataclass
from typing import Final

import msgspec

from gantrymq.shm import packed
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.limits import DELIVER_MS_MAX
from gantrymq.shm.packed import decode_packed
from gantrymq.shm.valueranges import Name, Serial, Text


class Recall(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Cancel the message that a handle names (DT-70)."""

    serial: Serial
    topic: Name
    handle: Text


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
#: A refusal: a value of the request is out of its range, or it has ended schedulers.
REFUSED: Final = "REFUSED"

_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS: msgspec.msgpack.Decoder[Recall] = msgspec.msgpack.Decoder(Recall)
_NOTICES: msgspec.msgpack.Decoder[Recalled] = msgspec.msgpack.Decoder(Recalled)


def encode(body: Recall | Recalled) -> bytes:
    """Body of an entry."""
    return _ENCODER.encode(body)


def decode_request(data: bytes) -> Recall:
    """A request. Raises Misfit, msgspec.DecodeError or its ValidationError if it is none."""
    return packed.decode_request(_REQUESTS, data)


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
        require_ours(error)
        raise ValueError(f"{text!r} is no recall handle") from error
    whole = len(words) == 5 and words[0] == "v1" and all(words)
    # A time's range, and one behind it; more digits than it has are not worth to be read.
    is_time = whole and words[3].isdecimal() and len(words[3]) <= len(str(DELIVER_MS_MAX))
    if not is_time or not 1 <= int(words[3]) <= DELIVER_MS_MAX + 1:
        raise ValueError(f"{text!r} is no recall handle")
    return Handle(words[1], words[2], int(words[3]), words[4])
