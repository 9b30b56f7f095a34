"""What sessions and the txn-checker say to each other: msgpack bodies of a lane's messages.

A request may be repeated without harm: the first decision of a transaction stands, and who asks
again is told what it was. A checker that was replaced has forgotten all requests and who enlisted.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gantrymq.shm import packed
from gantrymq.shm.packed import decode_packed
from gantrymq.shm.valueranges import Name, Position, Serial, Text, Word

#: Halves of one END; more do not fit into a message of the lane.
HALVES_MAX: Final = 256


class Enlist(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """This session's producer group: it answers checks of the group's transactions."""

    serial: Serial
    group: Name


class End(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Commit or roll back: halves are (position, half queue offset) as their receipts have them."""

    serial: Serial
    group: Name
    tx: Word  # 32 hex digits, GANTRY_TX without the number; empty: whatever the half says
    commit: bool
    halves: list[tuple[Position, Position]]
    from_check: bool = False
    #: Its session waits for no other END, and looks at the word by which the writer tells.
    alone: bool = False


class Unknown(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """The answer to a check of a producer that does not know yet; it is asked again."""

    serial: Serial
    group: Name
    position: Position


class Settle(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """An operator's decision of the half at a log position: commit, rollback or recheck."""

    serial: Serial
    position: Position
    action: Word
    who: Text


class Enlisted(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Checks may come from now on."""

    serial: int


class Ended(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """What the transaction is now, durably where a topic asks for it.

    With `error` set nothing was stored for this request; `outcome` is then what is known.
    """

    serial: int
    outcome: str  # COMMITTED, ROLLED_BACK, GIVEN_UP or empty
    error: str = ""  # one of the names below
    text: str = ""


class Check(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """What became of this transaction? The half is read from the log."""

    position: int
    size: int  # of its record
    queue_offset: int
    tx: str


class Settled(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """What became of a Settle: outcome COMMITTED, ROLLED_BACK or CHECKED_AGAIN, or an error."""

    serial: int
    outcome: str
    error: str = ""
    text: str = ""


COMMITTED: Final = "committed"
ROLLED_BACK: Final = "rolled_back"
GIVEN_UP: Final = "given_up"
CHECKED_AGAIN: Final = "checked_again"

COMMIT: Final = "commit"
ROLLBACK: Final = "rollback"
RECHECK: Final = "recheck"
#: What becomes of a half by an operator's action.
OUTCOMES: Final = {COMMIT: COMMITTED, ROLLBACK: ROLLED_BACK, RECHECK: CHECKED_AGAIN}

# Errors of Ended and Settled.
NOT_A_HALF: Final = "NotAHalf"  # no half message of this transaction lies there
FOREIGN_GROUP: Final = "ForeignGroup"  # another producer group's
UNKNOWN: Final = "Unknown"  # the log begins behind it
DECIDED: Final = "TransactionDecided"  # otherwise, before: `outcome` says how
UNSTORABLE: Final = "Unstorable"  # the writer refused the message; the half stays open
DISK_FULL: Final = "DiskFull"  # nothing could be stored; the half stays open
#: A value of the request is out of its range, or it has ended txn-checkers; the half stays open.
REFUSED: Final = "Refused"

AnyRequest = Enlist | End | Unknown | Settle
AnyNotice = Enlisted | Ended | Check | Settled

_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS: msgspec.msgpack.Decoder[AnyRequest] = msgspec.msgpack.Decoder(AnyRequest)
_NOTICES: msgspec.msgpack.Decoder[AnyNotice] = msgspec.msgpack.Decoder(AnyNotice)


def encode(body: AnyRequest | AnyNotice) -> bytes:
    """Body of an entry."""
    return _ENCODER.encode(body)


def decode_request(data: bytes) -> AnyRequest:
    """A request. Raises Misfit, msgspec.DecodeError or its ValidationError if it is none."""
    return packed.decode_request(_REQUESTS, data)


def decode_notice(data: bytes) -> AnyNotice:
    """A notice. Raises msgspec.DecodeError or its ValidationError if it is none."""
    return decode_packed(_NOTICES, data)
