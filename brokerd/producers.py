"""Which seq of which producer is in the log: what makes re-submission append nothing twice.

Derived from UNIQ_KEYs. A snapshot in `gantry/producers` covers the log up to a position; the rest
is scanned. Forgotten are producers beyond the newest 100,000 or silent for seven days.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gantrymq.brokerd.logscan import census_index
from gantrymq.brokerd.unanswered import Unanswered
from gantrymq.shm import layout
from gantrymq.shm.kernels import census, frames
from gantrymq.shm.kernels.scan import (
    AT,
    PROPERTIES_AT,
    PROPERTIES_SIZE,
    QUEUE_ID,
    QUEUE_OFFSET,
    SIZE,
    STORE_MS,
    TOPIC_AT,
    TOPIC_SIZE,
)
from gantrymq.shm.properties import HALF_TOPIC, java_int, parse_properties
from gantrymq.shm.storage import Storage, read_file, replace_file
from gantrymq.shm.valueranges import is_offset, is_store_ms

FILE = "gantry/producers"
PRODUCERS_MAX = 100_000
KEPT_MS = 7 * 86_400_000
#: What stands for a client's address (ADR 0005).
BORN_HOST = bytes([127, 0, 0, 1]) + bytes(4)


@dataclass(slots=True)
class Producers:
    """Last seq in the log (or refused) per producer, and records that may still be asked for."""

    position: int = 0
    last: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # id -> (seq, store ms)
    unanswered: Unanswered = field(default_factory=Unanswered)

    def last_seq(self, producer: bytes) -> int:
        """Last seq of a producer in the log, 0 if it is unknown."""
        return self.last.get(producer, (0, 0))[0]

    def note(self, producer: bytes, seq: int, store_ms: int) -> None:
        """Remember what a session has appended, or was told is refused."""
        if producer:
            self.last[producer] = (seq, store_ms)

    def learn(
        self, view: NDArray[np.uint8], rows: NDArray[np.int64], base: int, keep_from: int,
        only: bytes = b"",
    ) -> None:  # fmt: skip
        """Take in scanned records (rows of scan.ROW_WORDS) of a view that starts at log `base`.

        From `keep_from` on, positions are kept as well. `only`: of this producer alone.
        """
        sent = identified(view, rows)
        where = (view, base, keep_from)
        order = np.argsort(sent.producers, kind="stable")
        ends = np.cumsum(np.bincount(sent.producers, minlength=len(sent.names))).tolist()
        for name, first, end in zip(sent.names, [0, *ends], ends, strict=False):
            if not only or name == only:
                chosen = order[first:end]
                places = sent.rows[chosen]
                self._learn_one(name, (rows, places), sent.seqs[chosen], where)

    def _learn_one(
        self,
        producer: bytes,
        records: tuple[NDArray[np.int64], NDArray[np.int64]],
        seqs: NDArray[np.int64],
        where: tuple[NDArray[np.uint8], int, int],
    ) -> None:
        """`records`: rows of a view, and the indexes of this producer's; `where`: as in `learn`."""
        rows, places = records
        view, base, keep_from = where
        kept = rows[places, AT] + base >= keep_from
        before = max(self.last_seq(producer), int(seqs[~kept].max(initial=0)))
        newest = int(np.argmax(seqs))
        if int(seqs[newest]) > self.last_seq(producer):
            self.last[producer] = (int(seqs[newest]), int(rows[places[newest], STORE_MS]))
        if kept.any():
            rows, seqs = rows[places[kept]], seqs[kept]
            position = rows[:, AT] + base
            table = np.empty((len(rows), frames.STORED_WORDS), np.int64)
            table[:, frames.STORED_SEQ] = seqs
            table[:, frames.STORED_QUEUE] = _queues(view, rows)
            table[:, frames.STORED_OFFSET] = rows[:, QUEUE_OFFSET]
            table[:, frames.STORED_POSITION] = position
            table[:, frames.STORED_END] = position + rows[:, SIZE]
            table[:, frames.STORED_MS] = rows[:, STORE_MS]
            self.unanswered.keep(producer, before + 1, table.reshape(-1))

    def save(self, storage: Storage, position: int, now_ms: int) -> None:
        """Write the snapshot that covers the log up to `position`."""
        rows = [item for item in self.last.items() if item[1][1] >= now_ms - KEPT_MS]
        rows.sort(key=lambda item: item[1][1])
        rows = rows[-PRODUCERS_MAX:]
        self.last = dict(rows)
        body = b"".join(
            layout.PRODUCER.pack(producer=name, last_seq=seq, store_ms=ms)
            for name, (seq, ms) in rows
        )
        head = {"magic": layout.PRODUCERS_MAGIC, "position": position, "count": len(rows)}
        crc = zlib.crc32(layout.PRODUCERS_HEAD.pack(**head) + body)
        replace_file(storage, FILE, layout.PRODUCERS_HEAD.pack(**head, crc=crc) + body)
        self.position = position


def has_our_host(view: NDArray[np.uint8], rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether producers of ours sent these records: their bornHost has no port."""
    places = rows[:, AT][:, None] + layout.RECORD_BORN_HOST + np.arange(layout.HOST_BYTES_V4)
    return np.asarray((view[places] == np.frombuffer(BORN_HOST, np.uint8)).all(axis=1), np.bool_)


@dataclass(frozen=True, slots=True)
class Sent:
    """Which of some rows (scan.ROW_WORDS) a producer sent, its number in `names`, the seq."""

    rows: NDArray[np.int64]  # indexes
    producers: NDArray[np.int64]
    seqs: NDArray[np.int64]
    names: list[bytes]


def identified(view: NDArray[np.uint8], rows: NDArray[np.int64]) -> Sent:
    """Records that a producer sent, but for those that the broker derived from one."""
    count = len(rows)
    found = np.empty(count * census.SENT_WORDS, np.int64)
    ids = np.empty(count * census.ID_WORDS, np.int64)
    index = census_index(count)
    sent = census.find_sent(view, np.ascontiguousarray(rows).reshape(-1), found, ids, index)
    table = found[: sent * census.SENT_WORDS].reshape(sent, census.SENT_WORDS)
    numbers = ids[: int(index[-1]) * census.ID_WORDS].reshape(-1, census.ID_WORDS)
    names = [bytes.fromhex(f"{high:015X}{low:05X}") for high, low in numbers.tolist()]
    columns = (census.SENT_ROW, census.SENT_PRODUCER, census.SENT_SEQ)
    chosen, producers, seqs = (table[:, column] for column in columns)
    return Sent(chosen, producers, seqs, names)


def _queues(view: NDArray[np.uint8], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Queue ids that completions tell: a half's is that of the real topic (TX-4)."""
    queues = rows[:, QUEUE_ID].copy()
    for number in np.flatnonzero(rows[:, TOPIC_SIZE] == len(HALF_TOPIC)):
        at, start, size = rows[number, [TOPIC_AT, PROPERTIES_AT, PROPERTIES_SIZE]]
        if view[at : at + len(HALF_TOPIC)].tobytes() == HALF_TOPIC.encode():
            properties = parse_properties(view[start : start + size].tobytes())
            queues[number] = java_int(properties.get("REAL_QID", "")) or 0
    return queues


def load_producers(storage: Storage) -> Producers:
    """The snapshot, or an empty table at position 0 if there is none or it is damaged."""
    try:
        data = read_file(storage, FILE)
    except FileNotFoundError:
        return Producers()
    size = layout.PRODUCERS_HEAD.size
    if len(data) < size:
        return Producers()
    head = layout.PRODUCERS_HEAD.unpack(data)
    bare = layout.PRODUCERS_HEAD.pack(**{**head, "crc": 0})
    whole = len(data) == size + head["count"] * layout.PRODUCER.size
    if not whole or head["magic"] != layout.PRODUCERS_MAGIC:
        return Producers()
    if zlib.crc32(bare + data[size:]) != head["crc"] or not is_offset(head["position"]):
        return Producers()
    table = Producers(position=head["position"])
    for at in range(size, len(data), layout.PRODUCER.size):
        row = layout.PRODUCER.unpack(data, at)
        if not is_offset(row["last_seq"]) or not is_store_ms(row["store_ms"]):
            return Producers()
        table.last[row["producer"]] = (row["last_seq"], row["store_ms"])
    return table
