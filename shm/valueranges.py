"""The range of every number and text that a peer sends, or that a file of ours says: one table.

The structs of shm/groupwire.py, schedulerwire.py, transactionwire.py and the clients' frames of
wire.py are made of these types, so that a decoder checks each value once and before anybody
computes with it: what lies outside is refused to whoever asked (shm/packed.py). Numbers of files,
ours and RocketMQ's, are judged by the functions below or by the types. Words of arenas and
rings are judged by the kernels that read them; shm/layout.py says what they mean.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from msgspec import Meta

from gantrymq.shm import limits
from gantrymq.shm.errors import shown

_ID: Final = re.compile(r"0|[1-9][0-9]{0,9}")
#: Half of what 64 bits hold: sums of two such numbers do so, too.
NUMBER_MAX: Final = 1 << 62
WORD_MAX: Final = (1 << 63) - 1
INT_MAX: Final = (1 << 31) - 1

#: Number of a request, chosen by whoever asks; it is compared and given back.
Serial = Annotated[int, Meta(ge=0, le=WORD_MAX)]
SessionNumber = Annotated[int, Meta(ge=0, le=WORD_MAX)]
#: What identifies something and is only compared.
Digest = Annotated[int, Meta(ge=0, le=WORD_MAX)]
#: Of the board's tables.
TopicNumber = Annotated[int, Meta(ge=0, le=INT_MAX)]
QueueNumber = Annotated[int, Meta(ge=0, le=INT_MAX)]
Lease = Annotated[int, Meta(ge=0, le=WORD_MAX)]
#: Queue offsets, and one for "none".
Offset = Annotated[int, Meta(ge=-1, le=NUMBER_MAX)]
Position = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
#: Of rows, files, bytes and generations.
Count = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
#: Deliveries, as RocketMQ counts them; those of one message end at DELIVERIES_MAX.
Deliveries = Annotated[int, Meta(ge=-1, le=INT_MAX)]
DelayMs = Annotated[int, Meta(ge=-1, le=limits.RETRY_AFTER_MAX_MS)]
PatienceMs = Annotated[int, Meta(ge=0, le=INT_MAX)]
ConsumeFromCode = Annotated[int, Meta(ge=0, le=2)]
Pid = Annotated[int, Meta(ge=0, le=INT_MAX)]
RingBytes = Annotated[int, Meta(ge=0, le=limits.WRITER_UP_BYTES_MAX)]
QueueCount = Annotated[int, Meta(ge=-INT_MAX, le=INT_MAX)]  # refused by name where it is too large

#: Names are judged by their own rules as well, which say more; no rule has to look at longer ones.
Name = Annotated[str, Meta(max_length=4 * limits.RETRY_TOPIC_BYTES_MAX)]
Word = Annotated[str, Meta(max_length=64)]
Text = Annotated[str, Meta(max_length=4096)]
ProducerSecret = Annotated[bytes, Meta(max_length=64)]


def is_offset(value: object) -> bool:
    """Whether a file's value is a queue offset or a log position."""
    return type(value) is int and 0 <= value <= NUMBER_MAX


def offset_of(value: object) -> int:
    """The same as a number. Raises ValueError for any other value."""
    if not is_offset(value):
        raise ValueError(f"{shown(value)} is no offset or position")
    assert isinstance(value, int), "it is one"
    return value


def is_small(value: object) -> bool:
    """Whether a file's value is a queue's id, a level, a size or a count."""
    return type(value) is int and 0 <= value <= INT_MAX


def id_of(key: str) -> int:
    """The queue's id, or the level, that is a key of a map. Raises ValueError for another text."""
    if not _ID.fullmatch(key) or not is_small(int(key)):
        raise ValueError(f"{shown(key)} is no queue")
    return int(key)


def is_store_ms(value: object) -> bool:
    """Whether a file's value may be a record's storeTimestamp: any that a host's clock has said."""
    return type(value) is int and -WORD_MAX - 1 <= value <= WORD_MAX


def store_ms_of(value: object) -> int:
    """The same as a number. Raises ValueError for any other value."""
    if not is_store_ms(value):
        raise ValueError(f"{shown(value)} is no time of a record")
    assert isinstance(value, int), "it is one"
    return value


def is_time_ms(value: object) -> bool:
    """Whether a file's value is a time or a difference of times in ms, as far as a year 9999."""
    return type(value) is int and abs(value) <= limits.DELIVER_MS_MAX


def is_storable(value: Any) -> bool:  # noqa: ANN401 - JSON
    """Whether each number in a value of JSON is one that we write: whole, and not too large."""
    left = [value]  # not by recursion: a file may be nested as deeply as it likes
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list):
            left += one
        elif isinstance(one, float) or (
            isinstance(one, int) and not -NUMBER_MAX <= one <= NUMBER_MAX
        ):
            return False
    return True
