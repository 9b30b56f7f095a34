"""Member queues of batches that do not hold what they promise (SF-65, SF-75, RD-70)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gantrymq.brokerd import config
from gantrymq.brokerd.recovered import Recovered
from gantrymq.brokerd.recovery import recover
from gantrymq.brokerd.verify import verify
from gantrymq.shm import layout
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.queuenames import MEMBERS
from gantrymq.shm.record import Record
from gantrymq.shm.storage import PosixStorage
from tests.support.sealed import segment_of, write_segment
from tests.support.trials import mends
from tests.unit.test_inner_queries import batch, member

SEGMENT_BYTES = 1 << 14
TABLE = {"b": {"topicName": "b", "attributes": {"queue.type": "BatchCQ"}}}


def promised(number: int, base: int, body: bytes, count: int) -> Record:
    stored = f"INNER_BASE\x01{base}\x02INNER_NUM\x01{count}\x02".encode()
    return replace(batch(number, body, stored), queue_offset=base)


def single(offset: int) -> Record:
    return Record(topic="b", body=b"one", properties=b"TAGS\x01t\x02", queue_offset=offset)


def started(store: Path, records: list[Record]) -> tuple[Recovered, list[Record]]:
    """What a start makes of a RocketMQ's store with these records in queue 0 of `b`."""
    view, placed = segment_of(records, SEGMENT_BYTES)
    write_segment(store, 0, view)
    (store / "config").mkdir()
    (store / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": TABLE}))
    given = {"mapped_file_size_commit_log": SEGMENT_BYTES, "mapped_file_size_consume_queue": 60}
    settings = config.load(given=given, environment={}).settings
    return recover(PosixStorage(str(store)), settings, None), placed


def places(store: Path) -> list[int]:
    """Log position of each unit of the member queue; -1 of a filler."""
    folder = store / MEMBERS / "b" / "0"
    data = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    units = [layout.CQ_UNIT.unpack(data, at) for at in range(0, len(data), layout.CQ_UNIT_BYTES)]
    filler = layout.CQ_FILLER_SIZE
    return [-1 if u["size"] == filler else u["physical_offset"] for u in units if u["size"]]


def test_what_a_batch_lacks_is_passed_over(store_dir: Path) -> None:
    """INNER_NUM is what the queue goes on by; RocketMQ's units say it, ours have fillers."""
    cut = (member(2) + member(3))[:-1]
    records = [
        promised(0, 0, member(0) + member(1) + cut, 4),
        single(4),
        promised(1, 5, member(4) + member(5), 2),
        promised(2, 7, b"", 1),
        single(8),
    ]
    found, (first, second, third, _none, last) = started(store_dir, records)
    at = [record.physical_offset for record in (first, second, third, last)]
    assert places(store_dir) == [at[0], at[0], at[0], -1, at[1], at[2], at[2], -1, at[3]]
    assert found.queues["b", 0] == (9, 9, 0)
    (path,) = (store_dir / "batchconsumequeue" / "b" / "0").iterdir()
    size = layout.BATCH_CQ_UNIT.size
    units = [layout.BATCH_CQ_UNIT.unpack(path.read_bytes(), n * size) for n in range(4)]
    assert [(u["base_offset"], u["batch_size"]) for u in units] == [(0, 4), (4, 1), (5, 2), (8, 1)]


def test_a_queue_that_jumps_far_is_damage(store_dir: Path) -> None:
    """Fillers for it would fill the disk."""
    with pytest.raises(Corrupt, match="jumps from offset 0 to 1099511627776 at log position"):
        started(store_dir, [single(0), single(1 << 40)])


@mends("S277")
@pytest.mark.parametrize(("before", "since"), [(7, 3), (3, 7), (1, 1)])
def test_a_topic_that_was_made_again_begins_with_its_own_messages(
    store_dir: Path, tmp_path: Path, before: int, since: int
) -> None:
    """RocketMQ's unit files are made anew for it, too, where they are gone."""
    offsets = [*range(before), *range(since)]
    found, placed = started(store_dir, [single(offset) for offset in offsets])
    at = [record.physical_offset for record in placed[before:]]
    assert places(store_dir) == at
    assert found.queues["b", 0] == (since, since, 0)
    assert found.starts == {("b", 0): at[0]}
    (path,) = (store_dir / "batchconsumequeue" / "b" / "0").iterdir()
    size, data = layout.BATCH_CQ_UNIT.size, path.read_bytes()
    units = [layout.BATCH_CQ_UNIT.unpack(data, n * size) for n in range(len(data) // size)]
    sound = [(u["base_offset"], u["physical_offset"]) for u in units if u["size"]]
    assert sound == list(enumerate(at))
    files = Path(tmp_path / "settings")
    files.write_text(f"mappedFileSizeCommitLog={SEGMENT_BYTES}\nmappedFileSizeConsumeQueue=60\n")
    wrong = [
        str(found) for found in verify(store_dir, files).findings if found.path.startswith("batch")
    ]
    assert not wrong
