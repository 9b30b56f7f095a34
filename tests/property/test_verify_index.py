"""`store verify` and IndexFiles: any damage is named by file and byte."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from gantrymq.brokerd.verify import Finding, verify
from gantrymq.cli.board import running_board
from gantrymq.clients.home import store_of
from gantrymq.shm import layout
from gantrymq.shm.indexnote import NOTE_FILE, Shape, read_note
from gantrymq.shm.jsonsum import with_sum, without_sum
from gantrymq.shm.storage import PosixStorage
from tests.support.small_stores import INDEX_ENTRIES, INDEX_SLOTS, flip, small_broker
from tests.support.small_stores import send as send_small

SHAPE = Shape(INDEX_SLOTS, INDEX_ENTRIES)
PLANTED = 20


@pytest.fixture
def store(plain_store: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(plain_store, tmp_path / "store")


def files_of(store: Path) -> list[Path]:
    return sorted((store / "index").iterdir())


def findings(store: Path) -> list[Finding]:
    return verify(store).findings


def named(found: list[Finding], path: Path, position: int) -> bool:
    """Whether a finding names the byte, or the field, slot or entry that it lies in."""
    return any(
        finding.path == f"index/{path.name}"
        and finding.position is not None
        and finding.position <= position < finding.position + layout.INDEX_ENTRY_BYTES
        for finding in found
    )


def test_a_stopped_store_is_clean(plain_store: Path) -> None:
    report = verify(plain_store)
    assert report.ok, str(report)
    known = read_note(PosixStorage(str(plain_store)))
    assert known is not None
    assert known[0] == SHAPE
    assert report.index_files == len(files_of(plain_store)) == 4
    assert report.index_entries == 3 * report.records  # UNIQ_KEY, a key, a tag


def test_any_changed_bit_is_named(store: Path, seed: int) -> None:
    """Header, slots, entries, and bytes where none is."""
    dice = random.Random(seed)
    files = files_of(store)
    header = [(dice.choice(files), dice.randrange(at, at + 4)) for at in range(0, 40, 4)]
    others = [(dice.choice(files), dice.randrange(40, SHAPE.file_bytes)) for _ in range(PLANTED)]
    for path, position in header + others:
        bit = 1 << dice.randrange(8)
        flip(path, position, bit)
        assert named(findings(store), path, position), f"bit {bit} of byte {position} of {path}"
        flip(path, position, bit)
    assert not findings(store)


@pytest.mark.parametrize("first", [1, 2, 400])
def test_swapped_entries(store: Path, first: int) -> None:
    """Two whole entries in each other's place."""
    path = files_of(store)[1]
    data = bytearray(path.read_bytes())
    size, at = layout.INDEX_ENTRY_BYTES, SHAPE.entry_at(first)
    data[at : at + 2 * size] = data[at + size : at + 2 * size] + data[at : at + size]
    path.write_bytes(data)
    assert named(findings(store), path, at) or named(findings(store), path, at + size)


def test_missing_and_strange_files(store: Path) -> None:
    files = files_of(store)
    data = files[1].read_bytes()
    files[1].unlink()
    assert any(f.path == f"index/{files[1].name}" and "missing" in f.what for f in findings(store))
    files[1].write_bytes(data[:-1])
    assert any(f.path == f"index/{files[1].name}" and "length" in f.what for f in findings(store))
    files[1].write_bytes(data)
    stray = store / "index" / "20990101000000000"
    stray.write_bytes(data)
    assert [f.path for f in findings(store)] == [f"index/{stray.name}"]


def test_a_file_of_other_records(store: Path) -> None:
    """Sound in itself, but not what the log says."""
    files = files_of(store)
    files[2].write_bytes(files[0].read_bytes())
    assert any(f.path == f"index/{files[2].name}" for f in findings(store))


def test_a_note_that_lies(store: Path) -> None:
    path = store / NOTE_FILE
    good = without_sum(json.loads(path.read_text()))
    for change in ({"position": good["position"] + 10_000}, {"full_ms": 7}):
        path.write_text(with_sum(json.dumps(good | change)))
        assert NOTE_FILE in {f.path for f in findings(store)} <= {NOTE_FILE, "checkpoint"}
    last = max(good["files"])
    row = [*good["files"][last]]
    row[5] -= 1
    path.write_text(with_sum(json.dumps(good | {"files": good["files"] | {last: row}})))
    assert any(f.path == f"index/{last}" for f in findings(store))


def test_a_note_that_is_damaged_or_gone(store: Path) -> None:
    path = store / NOTE_FILE
    flip(path, path.read_bytes().index(b"position") + 12, 1)
    assert NOTE_FILE in {f.path for f in findings(store)}
    assert read_note(PosixStorage(str(store))) is None, "a start makes all anew"
    path.unlink()
    assert NOTE_FILE in {f.path for f in findings(store)}


@pytest.mark.parametrize("change", [-1, 1])
def test_another_time_in_rocketmq_s_checkpoint(store: Path, change: int) -> None:
    """SF-84: that of the last full file. A lower one makes a RocketMQ drop files (SF-96)."""
    path, at = store / "checkpoint", layout.CHECKPOINT.offset("index_msg_timestamp")
    data = bytearray(path.read_bytes())
    told = int.from_bytes(data[at : at + 8], "big")
    assert told, "a file is full"
    data[at : at + 8] = (told + change).to_bytes(8, "big")
    path.write_bytes(data)
    assert [(f.path, f.position) for f in findings(store)] == [("checkpoint", at)]


def test_a_killed_store_is_judged_by_its_note(store: Path) -> None:
    """The next start makes good what lies behind: slots, header and later entries."""
    path = files_of(store)[-1]
    known = read_note(PosixStorage(str(store)))
    assert known is not None
    count = known[1].files[-1][1].count
    (store / "abort").write_text("boot")
    for position in (39, 45, SHAPE.entry_at(count) + 3):
        flip(path, position)
    assert not [f for f in findings(store) if f.path.startswith("index")]
    flip(path, SHAPE.entry_at(count - 1) + 19)
    assert named(findings(store), path, SHAPE.entry_at(count - 1) + 19)


def test_it_can_be_switched_off() -> None:
    with small_broker(message_index_enable=False) as broker:
        send_small(broker, 50)
        assert running_board(broker.home).word(layout.BOARD_INDEXED) == -1
        broker.stop()
        store = store_of(broker.home)
        assert not (store / "index").exists()
        assert not (store / NOTE_FILE).exists()
        report = verify(store)
    assert report.ok, str(report)
    assert report.index_files == 0
