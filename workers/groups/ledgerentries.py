"""Entries of `gantry/ledger` as bytes: what kinds there are, and where reading stops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import repeat
from typing import Any, Final
from zlib import crc32

from gantrymq.shm import layout
from gantrymq.shm.errors import Corrupt, Incompatible
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.storage import Storage, read_file
from gantrymq.shm.valueranges import NUMBER_MAX, is_small
from gantrymq.workers.groups.progress import QueueKey

NAME: Final = "gantry/ledger"


class Kind(IntEnum):
    """What an entry says; the fields it uses follow."""

    EPOCH = 1  # value: a life of the broker, leases of others are over; offset: last lease
    GROUP = 2  # group: number of the name that follows
    TOPIC = 3  # topic: number of the name that follows
    SUBSCRIBED = 4  # queue_id: the topic's queues when the group first subscribed
    COMMIT = 5  # offset; value: the log's end, if it goes back
    START = 6  # offset: next one not handed out
    #: value: lease; session; offset: digest of its subscription (groupwire.Join). Without a
    #: session it is of leases that are over: `previous` and `since` of Progress.
    GRANT = 7
    END = 8  # value: 1 = the holder died
    ATTEMPTS = 9  # offset: first; value: behind the last; attempt: deliveries begun
    CLAMP = 11  # offset: lowest, value: highest offset that the queue holds
    EXPORTED = 10  # value: CRC-32 of the offsets about to be written to consumerOffset.json
    CLOSED = 12  # value: the life that was stopped cleanly: nothing is missing; offset: as SYNCED
    DONE = 13  # offset: first; value: behind the last of messages that are done with
    SENDING = 14  # offset; attempt: the copy's; value: the log's end before it, -1: it was not put
    FAILED = 15  # offset; attempt: failed deliveries by now
    RESET = 16  # offset: next one to consume, whatever was known of the queue; value: log's end
    #: value: so many bytes of the file were durable before this entry was written; offset: all
    #: copies of failed messages that lie below in the log are noted in them.
    SYNCED = 17
    FORGOTTEN = 18  # topic: it was deleted, and nothing is known of it any more in this group
    DELETED = 19  # group: nothing is known of it any more
    SHORTENED = 20  # value: where the log ends as a life starts, shorter or not: no place behind it


_KINDS: Final = frozenset(Kind)
#: Of kinds that have numbers which are only compared: the others, with which somebody computes.
_COMPUTED: Final[Mapping[int, tuple[str, ...]]] = {
    Kind.EPOCH: ("offset",),
    Kind.CLOSED: ("offset",),
    Kind.EXPORTED: ("offset",),
    Kind.GRANT: ("value",),
}
#: All of an entry but its CRC, which is the last of it.
_HEAD_FIELDS: Final = tuple(item.name for item in layout.LEDGER.fields)[1:-1]
_HEAD: Final = layout.LEDGER.codec("kind", *_HEAD_FIELDS)
_CRC_AT: Final = layout.LEDGER.offset("crc")


@dataclass(slots=True)
class Names:
    """Numbers that entries have given to groups and topics."""

    groups: dict[int, str] = field(default_factory=dict)
    topics: dict[int, str] = field(default_factory=dict)

    def group_of(self, row: Mapping[str, int], at: int) -> str:
        """The group that an entry at a byte is of. Raises Corrupt."""
        return _named(self.groups, "group", row, at)

    def key_of(self, row: Mapping[str, int], at: int) -> QueueKey:
        """The queue, likewise."""
        return _named(self.topics, "topic", row, at), row["queue_id"]


def _named(names: Mapping[int, str], what: str, row: Mapping[str, int], at: int) -> str:
    name = names.get(row[what])
    if name is None:
        raise _impossible(at, f"{what} {row[what]}, which no entry before it names")
    return name


def pack_entry(kind: Kind, name: bytes, **values: int) -> bytes:
    """An entry with its checksum and its name, padded to 8 bytes."""
    entry = bytearray(layout.LEDGER.pack(kind=kind, name_bytes=len(name), **values))
    entry += name + bytes(-len(name) % 8)
    at = layout.LEDGER.offset("crc")
    entry[at : at + 4] = crc32(entry).to_bytes(4, "big")
    return bytes(entry)


def pack_entries(
    kind: Kind, fields: Mapping[str, int], columns: Mapping[str, Sequence[int]]
) -> bytes:
    """Entries without names that differ in `columns` only, each with its checksum."""
    count = len(next(iter(columns.values())))
    values = [columns.get(name, repeat(fields.get(name, 0), count)) for name in _HEAD_FIELDS]
    found = bytearray()
    for row in zip(*values, strict=True):
        head = _HEAD.pack(kind, *row)
        found += head[:_CRC_AT]
        found += crc32(head).to_bytes(4, "big")
    return bytes(found)


@dataclass(slots=True)
class Entries:
    """Entries on their way into one file, and the numbers that it has given to names."""

    groups: dict[str, int] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    next_number: int = 0  # of a group or a topic; none is given twice in one file
    buffer: bytearray = field(default_factory=bytearray)

    def add(self, kind: Kind, **values: int) -> None:
        """An entry of no group, or of one that `values` names by its number."""
        self.buffer += pack_entry(kind, b"", **values)

    def add_of(
        self, kind: Kind, group: str, key: QueueKey, values: Mapping[str, int],
        columns: Mapping[str, Sequence[int]] | None = None,
    ) -> None:  # fmt: skip
        """An entry of a group in a queue, or as many as `columns` have rows."""
        named = {"group": self.name_group(group), "topic": self._name_topic(key[0])}
        named["queue_id"] = key[1]
        if columns is None:
            self.buffer += pack_entry(kind, b"", **named, **values)
        else:
            self.buffer += pack_entries(kind, named | dict(values), columns)

    def delete(self, group: str) -> None:
        """A group is gone, and its number with it."""
        self.add(Kind.DELETED, group=self.name_group(group))
        del self.groups[group]

    def drop_topics(self, names: Set[str]) -> None:
        """Names made again mean others: they get new numbers."""
        for name in names:
            self.topics.pop(name, None)

    def name_group(self, name: str) -> int:
        """The number of a group, which the file knows from now on."""
        return self._name(Kind.GROUP, "group", self.groups, name)

    def _name_topic(self, name: str) -> int:
        return self._name(Kind.TOPIC, "topic", self.topics, name)

    def _name(self, kind: Kind, column: str, numbers: dict[str, int], name: str) -> int:
        number = numbers.get(name)
        if number is None:
            number = numbers[name] = self.next_number
            self.next_number += 1
            self.buffer += pack_entry(kind, name.encode(), **{column: number})
        return number


def read_entries(data: bytes) -> Iterator[tuple[dict[str, Any], str, int]]:
    """Fields, name and end of each entry up to the first bad one. Raises Incompatible, Corrupt."""
    size, crc_at = layout.LEDGER.size, layout.LEDGER.offset("crc")
    at = 0
    while at + size <= len(data):
        row = layout.LEDGER.unpack(data, at)
        end = at + size + (row["name_bytes"] + 7) // 8 * 8
        entry = bytearray(data[at:end])
        entry[crc_at : crc_at + 4] = bytes(4)
        if end > len(data) or crc32(entry) != row["crc"]:
            return
        if row["kind"] not in _KINDS:
            raise Incompatible(
                f"{NAME} has an entry of kind {row['kind']} at byte {at}, which this program does"
                " not know: a newer GantryMQ has written this store; use that one",
                path=NAME,
                position=at,
            )
        _require_possible(row, at)
        yield row, _name_in(data[at + size : at + size + row["name_bytes"]], at), end
        at = end


def _require_possible(row: Mapping[str, int], at: int) -> None:
    """Raise Corrupt for a number, with a right checksum, that whoever computes cannot take."""
    for name in _COMPUTED.get(row["kind"], ("offset", "value")):
        if not -1 <= row[name] <= NUMBER_MAX:
            raise _impossible(at, f"{name} {row[name]}")
    if not is_small(row["queue_id"]):
        raise _impossible(at, f"queue {row['queue_id']}")


def _name_in(raw: bytes, at: int) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        require_ours(error)
        raise _impossible(at, "a name that is no UTF-8") from None


def _impossible(at: int, what: str) -> Corrupt:
    return _damaged(at, f"the entry there has {what}")


def _damaged(at: int, why: str) -> Corrupt:
    return Corrupt(
        f"{NAME} is damaged at byte {at}, {why}: bring the file back from a back-up, or make a new"
        " store of what is sound with `gantrymq store verify --salvage DEST`; the file has not been"
        " changed",
        path=NAME,
        position=at,
    )


def sound_part(data: bytes) -> tuple[int, int]:
    """Where the sound entries end, and how much they call durable. Raises Incompatible, Corrupt."""
    end = durable = 0
    for row, _name, entry_end in read_entries(data):
        at, end = end, entry_end
        durable = max(durable, durable_by(row, at))
    return end, durable


def durable_by(row: Mapping[str, int], at: int) -> int:
    """How many bytes of the file an entry at a byte says to be durable; 0 if it says nothing."""
    if row["kind"] == Kind.SYNCED:
        return row["value"]
    return at if row["kind"] == Kind.CLOSED else 0


def is_torn(data: bytes, end: int) -> bool:
    """Whether what lies behind the sound entries, which end at `end`, may be a torn tail.

    A power cut may leave any part of what was not durable. Entries behind a bad one that say that
    it was durable tell of damage: to cut there would drop what was promised.
    """
    size = layout.LEDGER.size
    for at in range(end + 8, len(data) - size + 1, 8):
        kind = int.from_bytes(data[at : at + 2], "big")
        if kind not in (Kind.SYNCED, Kind.CLOSED):
            continue
        try:
            found = next(read_entries(data[at : at + size]), None)
        except Corrupt as error:
            require_ours(error)
            return False
        if found and durable_by(found[0], at) > end:
            return False
    return True


def judge_tail(data: bytes, end: int, durable: int) -> None:
    """Raise Corrupt if what lies behind the sound entries, which end at `end`, is damage.

    `durable`: how many bytes were, by what they say.
    """
    if durable > end:
        raise _damaged(end, f"where it ends: {durable} bytes of it were durable, an entry says")
    if end < len(data) and not is_torn(data, end):
        raise _damaged(end, "and entries behind it were durable")


def closed_epoch(data: bytes) -> int:
    """The life whose clean stop the last entry tells of (`Ledger.end`); -1: it is another's."""
    rows = [row for row, _name, _end in read_entries(data[-layout.LEDGER.size :])]
    return next((row["value"] for row in rows if row["kind"] == Kind.CLOSED), -1)


def is_closed(storage: Storage, epoch: int) -> bool:
    """Whether the file ends with the entry of a life's clean stop."""
    return closed_epoch(read_file(storage, NAME) if storage.exists(NAME) else b"") == epoch
