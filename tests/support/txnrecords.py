"""What a record of the log says of transactions, for the oracle (TX-3, TX-15, TX-21)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import msgspec

from gantrymq.shm import layout
from gantrymq.shm.properties import GANTRY_TX, GIVEN_UP_TOPIC, HALF_TOPIC, NOTES_TOPIC, OP_TOPIC
from gantrymq.shm.record import Record
from tests.support.parked import destination_of


class Kind(Enum):
    """Of a record."""

    HALF = "half"
    COMMIT = "commit copy"
    OP = "op record"
    GIVEN_UP = "given up"
    NOTE = "note"


_KINDS = {
    HALF_TOPIC: Kind.HALF,
    OP_TOPIC: Kind.OP,
    GIVEN_UP_TOPIC: Kind.GIVEN_UP,
    NOTES_TOPIC: Kind.NOTE,
}


@dataclass(frozen=True, slots=True)
class Doubted:
    """See the module."""

    kind: Kind
    half: int = -1  # of a commit copy: the position of its half
    tx: str = ""
    group: str = ""
    real: tuple[str, int] = ("", 0)  # of a half: where it goes to if it is committed
    named: tuple[int, ...] = ()  # by an op record: half queue offsets
    #: By a note: half queue offset -> how often it was checked.
    checks: dict[int, int] = field(default_factory=dict)

    @property
    def is_half(self) -> bool:
        """Whether it is a half message."""
        return self.kind is Kind.HALF


def doubted(record: Record, properties: dict[str, str]) -> Doubted | None:
    """None: it has to do with no transaction."""
    kind = _KINDS.get(record.topic)
    if kind is Kind.OP:
        words = record.body.decode().split(",")
        return Doubted(kind, named=tuple(int(word) for word in words if word))
    if kind is Kind.NOTE:
        what, content, *_ = msgspec.msgpack.decode(record.body)
        return Doubted(kind, checks=content if what == "checked" else {})
    tx, group = properties.get(GANTRY_TX, "").partition(",")[0], properties.get("PGROUP", "")
    if kind is not None:
        return Doubted(kind, -1, tx, group, destination_of(properties) or ("", 0))
    prepared = record.prepared_transaction_offset
    committed = record.sys_flag & layout.SYS_TRANSACTION == layout.SYS_COMMIT
    if not committed:
        return None
    return Doubted(Kind.COMMIT, prepared, tx, group)
