"""Who sent the records of a stretch of log, and which queues they are in, by a reference."""

from __future__ import annotations

import random

import numpy as np

from gantrymq.brokerd.logscan import Piece, queue_offsets, queues_of
from gantrymq.brokerd.producers import Producers, identified
from gantrymq.shm import layout
from gantrymq.shm.codes import Stop
from gantrymq.shm.kernels import scan

TOPICS = ("a", "b", "orders", "orders-of-another-kind", "%RETRY%g", "é")
KINDS = (0, 0, 0, layout.SYS_COMMIT, layout.SYS_TRANSACTION)


def stretch(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, list[dict[str, object]]]:
    """A view with topics and UNIQ_KEYs alone, rows that name them, and what they say."""
    dice = random.Random(seed)
    producers = [dice.randbytes(10) for _ in range(7)]
    data, told = bytearray(64), []
    rows = np.zeros((count, scan.ROW_WORDS), np.int64)
    for number, row in enumerate(rows):
        topic = dice.choice(TOPICS)
        seq = dice.randrange(1 << 48)
        unique = dice.choice(producers).hex().upper() + f"{seq:012X}"
        form = dice.choice(("good", "good", "good", "lower", "derived", "later", "none"))
        unique = unique[:-1] + "g" if form == "lower" else unique
        row[scan.TOPIC_AT], row[scan.TOPIC_SIZE] = len(data), len(topic.encode())
        data += topic.encode()
        row[scan.PROPERTIES_AT] = len(data)
        row[scan.UNIQ_AT] = -1 if form == "none" else len(data) + 9 + 5 * (form == "later")
        data += b"x" * (9 + 5 * (form == "later")) + unique.encode()
        row[scan.PREPARED] = -1 - number if form == "derived" else 0
        row[scan.QUEUE_ID], row[scan.QUEUE_OFFSET] = dice.randrange(3), dice.randrange(1000)
        row[scan.SYS_FLAG], row[scan.STORE_MS] = dice.choice(KINDS), number
        row[scan.AT], row[scan.SIZE] = 100 * number, 100
        told.append({"topic": topic, "unique": unique, "form": form, "row": number})
    return np.frombuffer(bytes(data), np.uint8), rows, told


def test_producers_and_their_seqs_are_those_of_the_unique_keys() -> None:
    """Only records whose first property is a UNIQ_KEY of ours, and which are not derived."""
    for count, seed in ((0, 1), (1, 2), (2000, 3)):
        view, rows, told = stretch(count, seed)
        sent_plain = (rows[:, scan.SYS_FLAG] & layout.SYS_TRANSACTION == 0).tolist()
        good = [
            one
            for one, plain in zip(told, sent_plain, strict=True)
            if plain and one["form"] == "good"
        ]
        sent = identified(view, rows)
        assert sent.rows.tolist() == [one["row"] for one in good]
        names = [sent.names[number].hex().upper() for number in sent.producers.tolist()]
        uniques = [str(one["unique"]) for one in good]
        assert names == [unique[:20] for unique in uniques]
        assert sent.seqs.tolist() == [int(unique[20:], 16) for unique in uniques]
        table = Producers()
        table.learn(view, rows, 0, 1 << 60)
        for name in {unique[:20] for unique in uniques}:
            highest = max(int(unique[20:], 16) for unique in uniques if unique[:20] == name)
            assert table.last_seq(bytes.fromhex(name)) == highest


def test_queues_have_their_first_and_highest_offsets() -> None:
    """SF-42: a prepared half has no place in its queue; its topic is seen all the same."""
    for count, seed in ((0, 4), (1, 5), (2000, 6)):
        view, rows, told = stretch(count, seed)
        expected: dict[tuple[str, int], list[int]] = {}
        for row, one in zip(rows.tolist(), told, strict=True):
            offsets = expected.setdefault((str(one["topic"]), row[scan.QUEUE_ID]), [])
            kind = row[scan.SYS_FLAG] & layout.SYS_TRANSACTION
            if kind in (0, layout.SYS_COMMIT):
                offset = row[scan.QUEUE_OFFSET]
                if offset == 0:  # its topic was made again
                    offsets.clear()
                offsets.append(offset)
        piece = Piece(view, 0, rows, 0, Stop.LIMIT, 0)
        assert queues_of(piece).keys() == expected.keys()
        found = {key: (seen.first, seen.highest) for key, seen in queue_offsets(piece).items()}
        assert found == {
            key: (offsets[0], max(offsets)) for key, offsets in expected.items() if offsets
        }
