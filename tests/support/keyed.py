"""Logs whose records have keys of all kinds, for tests of the index."""

from __future__ import annotations

import random
from pathlib import Path

from gantrymq.shm import layout
from gantrymq.shm.record import Record
from tests.support.sealed import segment_of, write_segment

SEGMENT_BYTES = 16 * 1024
TOPICS = ("orders", "päyments", "%RETRY%g", "😀")
WORDS = (
    "a",
    "k1",
    "größe",
    "\U0001f600x",
    "T#paid",
    "polygenelubricants",
    "",
    "  ",
    "order-created",
)
TAGS = ("", "paid", "übergabe", "a b")


def keyed_record(dice: random.Random, number: int, store_ms: int) -> Record:
    """Any mixture of UNIQ_KEY, KEYS, TAGS and others, some of them twice, empty or no property."""
    parts = []
    if dice.random() < 0.8:
        digits = f"{number:032X}" if dice.random() < 0.8 else f"u{number}"
        parts.append(f"UNIQ_KEY\x01{digits}")
    if dice.random() < 0.7:
        words = [dice.choice((*WORDS, f"w{number}")) for _ in range(dice.randrange(6))]
        parts.append("KEYS\x01" + " ".join(words))
    if dice.random() < 0.5:
        parts.append("TAGS\x01" + dice.choice(TAGS))
    if dice.random() < 0.1:
        parts += [
            "KEYS\x01again",
            "UNIQ_KEY\x01later",
            "KEYS",
            "UNIQ_KEY\x01",
            "\x01TAGS",
            "TAGSX\x01y",
        ]
    dice.shuffle(parts)
    text = "".join(f"{part}\x02" for part in parts)
    kinds = [0, 0, 0, layout.SYS_PREPARED, layout.SYS_COMMIT, layout.SYS_ROLLBACK]
    return Record(
        topic=dice.choice(TOPICS),
        body=bytes(dice.randrange(60)),
        properties=text.encode(),
        sys_flag=dice.choice(kinds),
        store_timestamp=store_ms,
    )


def write_keyed_log(store: Path, dice: random.Random, segments: int, most: int = 70) -> int:
    """Write so many segments, the last one unfinished; returns the log's end."""
    number, store_ms, end = 0, 1_700_000_000_000, 0
    for base in range(0, segments * SEGMENT_BYTES, SEGMENT_BYTES):
        records = []
        for _ in range(dice.randrange(most // 2, most)):
            number += 1
            store_ms += dice.choice((0, 0, 1, 999, 5_000))
            records.append(keyed_record(dice, number, store_ms))
        sealed = base + SEGMENT_BYTES < segments * SEGMENT_BYTES
        view, placed = segment_of(records, SEGMENT_BYTES, base, sealed=sealed)
        write_segment(store, base, view)
        end = placed[-1].physical_offset + placed[-1].total_size
    return end
