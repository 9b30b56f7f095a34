"""`store verify` on stores of real brokers: a clean one is clean, each planted fault is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gantrymq.brokerd.verify import Finding, verify
from gantrymq.brokerd.verify import config as config_check
from gantrymq.shm import layout
from gantrymq.shm.configfile import read_config, write_config
from gantrymq.shm.jsonsum import with_sum
from gantrymq.shm.record import Record, encode_record, parse_record
from gantrymq.shm.sidecar import Sidecar, parse
from gantrymq.shm.storage import PosixStorage, Storage, read_file, replace_file
from gantrymq.shm.topicfiles import DELETED
from gantrymq.workers.groups import deadletternote
from tests.support.small_stores import (
    QUEUE_FILE_BYTES,
    RECORDS,
    SEGMENT_BYTES,
    flip,
)
from tests.support.trials import mends

FIRST, SECOND = f"commitlog/{0:020d}", f"commitlog/{SEGMENT_BYTES:020d}"
SIDECAR = f"gantry/segments/{SEGMENT_BYTES:020d}"


@pytest.fixture
def store(plain_store: Path, tmp_path: Path) -> Path:
    """A copy to plant faults in."""
    return Path(shutil.copytree(plain_store, tmp_path / "store"))


def put(path: Path, position: int, patch: bytes) -> None:
    """Overwrite bytes."""
    data = bytearray(path.read_bytes())
    data[position : position + len(patch)] = patch
    path.write_bytes(data)


def only(findings: list[Finding], path: str) -> Finding:
    """The one finding about a file."""
    (found,) = [finding for finding in findings if finding.path == path]
    return found


def starts_of(store: Path, segment: str) -> list[int]:
    """Bytes of a segment where its records begin."""
    data, at, starts = (store / segment).read_bytes(), 0, []
    while int.from_bytes(data[at + 4 : at + 8], "big") == layout.RECORD_MAGIC_V1:
        starts.append(at)
        at += int.from_bytes(data[at : at + 4], "big")
    return starts


def queue_file(topic: str, base: int = 0) -> str:
    return f"consumequeue/{topic}/0/{base:020d}"


# --------------------------------------------------------------------------------------- no faults


def test_a_stopped_store_is_clean(plain_store: Path) -> None:
    """All records, units and sidecars are looked at; SF-20, SF-22, SF-61 to SF-65."""
    report = verify(plain_store)
    assert report.ok, str(report)
    assert (report.records, report.units, report.queues) == (RECORDS, RECORDS, 3)
    assert report.state == "stopped"
    assert report.judged_to == report.log_end > 4 * SEGMENT_BYTES
    assert report.sidecars == report.segments - 1 >= 4


def test_verifying_changes_nothing(store: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    verify(store)
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before


def test_progress_reaches_the_end(plain_store: Path) -> None:
    calls: list[tuple[int, int, str]] = []
    report = verify(plain_store, progress=lambda *call: calls.append(call))
    total = report.segments * SEGMENT_BYTES
    assert [done for done, _, _ in calls] == list(range(SEGMENT_BYTES, total + 1, SEGMENT_BYTES))
    assert {(of, what) for _, of, what in calls} == {(total, "checking the log")}


# ------------------------------------------------------------------------------------ faults, log


@pytest.mark.parametrize("place", [9, 21, 30, 60, 84, 120, -30, -5])
def test_a_bit_of_a_record(store: Path, place: int) -> None:
    """Head, body, properties or trailer: found at the record; those behind are still checked."""
    starts = starts_of(store, SECOND)
    flip(store / SECOND, starts[7] + place if place > 0 else starts[8] + place)
    report = verify(store)
    found = [finding for finding in report.findings if finding.path == SECOND]
    assert [finding.position for finding in found if "block" not in finding.what] == [starts[7]]
    assert f"next at {SEGMENT_BYTES + starts[8]}" in str(found[0])
    assert report.records == RECORDS - 1
    assert len(report.findings) == len(found) == 2, "besides the record the MiB block differs"


@pytest.mark.parametrize("place", [0, 2, 5])
def test_a_bit_of_a_length_or_magic(store: Path, place: int) -> None:
    """The walk finds its way again behind a record whose length can't be believed."""
    starts = starts_of(store, SECOND)
    flip(store / SECOND, starts[7] + place, 0x01)
    report = verify(store)
    assert report.records == RECORDS - 1
    assert starts[7] in {finding.position for finding in report.findings}


def test_zeroed_records_amid_a_segment(store: Path) -> None:
    starts = starts_of(store, SECOND)
    put(store / SECOND, starts[3], bytes(starts[9] - starts[3]))
    report = verify(store)
    assert report.records == RECORDS - 6
    places = {finding.position for finding in report.findings if finding.path == SECOND}
    assert places == {starts[3], 0}, "the range, and the MiB block"


def test_a_filler_that_lies(store: Path) -> None:
    """SF-20: the size says how many bytes are left."""
    data = (store / FIRST).read_bytes()
    filler = data.rindex(layout.FILLER_MAGIC.to_bytes(4, "big")) - 4
    flip(store / FIRST, filler + 3, 0x01)
    found = [finding for finding in verify(store).findings if finding.path == FIRST]
    assert filler in {finding.position for finding in found}


def test_bytes_behind_a_filler(store: Path) -> None:
    data = (store / FIRST).read_bytes()
    filler = data.rindex(layout.FILLER_MAGIC.to_bytes(4, "big")) - 4
    assert filler + 20 < SEGMENT_BYTES
    put(store / FIRST, filler + 19, b"\x01")
    found = [finding for finding in verify(store).findings if finding.path == FIRST]
    assert (filler + 19, "bytes behind a filler") in {(f.position, f.what) for f in found}


def test_bytes_behind_the_logs_end(store: Path) -> None:
    report = verify(store)
    base = report.log_end // SEGMENT_BYTES * SEGMENT_BYTES
    place = report.log_end - base + 100
    put(store / f"commitlog/{base:020d}", place, b"garbage")
    found = only(verify(store).findings, f"commitlog/{base:020d}")
    assert (found.position, found.what) == (place, "bytes behind the log's end")


def rewrite(store: Path, segment: str, at: int, **changes: int) -> None:
    """Put a record with other numbers and a true trailer in another's place."""
    data = (store / segment).read_bytes()
    record = parse_record(data, at, len(data))
    assert isinstance(record, Record)
    changed = replace(record, **{name: getattr(record, name) + by for name, by in changes.items()})
    put(store / segment, at, encode_record(changed, trailer=True))


def test_a_time_that_goes_back(store: Path) -> None:
    """LW-3; the record's own trailer is true, so only the order tells."""
    at = starts_of(store, SECOND)[5]
    rewrite(store, SECOND, at, store_timestamp=-60_000)
    found = [f for f in verify(store).findings if f.what == "storeTimestamp goes back"]
    assert [(finding.path, finding.position) for finding in found] == [(SECOND, at)]


def test_a_queue_offset_that_jumps(store: Path) -> None:
    """SF-42: dense per queue; the trailer is true."""
    at = starts_of(store, SECOND)[5]
    rewrite(store, SECOND, at, queue_offset=1)
    found = [f for f in verify(store).findings if f.what.startswith("wrong queue offset in ")]
    assert (found[0].path, found[0].position) == (SECOND, at)
    assert int(found[0].found) == int(found[0].expected) + 1


def test_a_record_at_another_place(store: Path) -> None:
    """LW-2: a sound record, but of another position."""
    at = starts_of(store, SECOND)[5]
    rewrite(store, SECOND, at, physical_offset=8)
    found = next(f for f in verify(store).findings if f.path == SECOND)
    assert (found.position, found.what) == (at, "no record: the stored position is another one")


def test_a_missing_segment(store: Path) -> None:
    """SF-9: named, and its records' units are not told one by one."""
    (store / SECOND).unlink()
    report = verify(store)
    assert ("missing segment", SECOND) in {(f.what, f.path) for f in report.findings}
    assert not [f for f in report.findings if f.path.startswith("consumequeue/")]


def test_a_segment_of_another_length(store: Path) -> None:
    path = store / SECOND
    path.write_bytes(path.read_bytes()[:-100])
    found = [f for f in verify(store).findings if f.what == "wrong length"]
    assert [(f.path, f.found) for f in found] == [(SECOND, f"{SEGMENT_BYTES - 100} bytes")]


# --------------------------------------------------------------------------------- faults, queues


def test_swapped_units(store: Path) -> None:
    """Both are sound units of the same queue, at each other's place (SF-64)."""
    path = store / queue_file("orders")
    data = path.read_bytes()
    put(path, 100, data[140:160])
    put(path, 140, data[100:120])
    report = verify(store)
    assert [(f.path, f.position, f.what) for f in report.findings] == [
        (queue_file("orders"), 100, "wrong unit"),
        (queue_file("orders"), 140, "wrong unit"),
    ]
    assert report.findings[0].found == report.findings[1].expected


@pytest.mark.parametrize("place", [3, 10, 19])
def test_a_bit_of_a_unit(store: Path, place: int) -> None:
    """Position, size or tagsCode."""
    flip(store / queue_file("audit", QUEUE_FILE_BYTES), 200 + place, 0x02)
    found = only(verify(store).findings, queue_file("audit", QUEUE_FILE_BYTES))
    assert (found.position, found.what) == (200, "wrong unit")


def test_a_missing_unit(store: Path) -> None:
    put(store / queue_file("other"), 400, bytes(20))
    found = only(verify(store).findings, queue_file("other"))
    assert (found.position, found.what, found.found) == (400, "missing unit", "zeroes")


def test_an_extra_unit(store: Path) -> None:
    """Behind the last record's unit all is zero."""
    per_file = QUEUE_FILE_BYTES // 20
    base = RECORDS // 3 // per_file * QUEUE_FILE_BYTES
    name = queue_file("orders", base)
    unit = layout.CQ_UNIT.pack(physical_offset=7, size=100, tags_code=5)
    path = store / name
    if not path.exists():
        path.write_bytes(bytes(QUEUE_FILE_BYTES))
    put(path, RECORDS // 3 % per_file * 20 + 40, unit)
    found = only(verify(store).findings, name)
    assert (found.position, found.what) == (
        RECORDS // 3 % per_file * 20 + 40,
        "unit without a record",
    )
    assert found.found == "position 7 size 100 tags 5"


def test_a_queue_of_no_record(store: Path) -> None:
    path = store / "consumequeue/orders/3" / f"{0:020d}"
    path.parent.mkdir()
    path.write_bytes(layout.CQ_UNIT.pack(physical_offset=0, size=100) + bytes(980))
    found = only(verify(store).findings, f"consumequeue/orders/3/{0:020d}")
    assert (found.position, found.what) == (0, "unit without a record")


def test_a_missing_queue_file(store: Path) -> None:
    (store / queue_file("orders", QUEUE_FILE_BYTES)).unlink()
    found = only(verify(store).findings, queue_file("orders", QUEUE_FILE_BYTES))
    assert found.what == "missing file"


# ------------------------------------------------------------------------------ faults, other files


def test_a_bit_of_a_sidecar(store: Path) -> None:
    flip(store / SIDECAR, 300)
    found = only(verify(store).findings, SIDECAR)
    assert found.what == "damaged sidecar"
    assert found.found.startswith("its CRC differs; delete it")


def test_a_sidecar_of_another_segment(store: Path) -> None:
    """Sound in itself, but not what this segment holds."""
    shutil.copy(store / f"gantry/segments/{0:020d}", store / SIDECAR)
    wrong = {f.what for f in verify(store).findings if f.path == SIDECAR}
    assert "wrong base" in wrong
    assert "wrong end" in wrong


def change_position(sidecar: Sidecar) -> Sidecar:
    """Record 3 starts elsewhere."""
    positions = sidecar.positions.copy()
    positions[3] += 1
    return replace(sidecar, positions=positions)


def change_topic(sidecar: Sidecar) -> Sidecar:
    """Record 3 is of another topic."""
    numbers = sidecar.topic_numbers.copy()
    numbers[3] = numbers[4]
    return replace(sidecar, topic_numbers=numbers)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (change_position, "wrong position of a record"),
        (change_topic, "wrong topic of a record"),
        (lambda old: replace(old, first_ms=old.first_ms + 1), "wrong first_ms"),
    ],
)
def test_a_sidecar_that_lies(store: Path, change: Callable[[Sidecar], Sidecar], what: str) -> None:
    """Its own CRC is true; the segment says otherwise."""
    path = store / SIDECAR
    path.write_bytes(change(parse(path.read_bytes())).encode())
    assert only(verify(store).findings, SIDECAR).what == what


def test_a_missing_sidecar_is_named(store: Path) -> None:
    """It is derived, and the next start makes it again."""
    (store / SIDECAR).unlink()
    (found,) = verify(store).findings
    assert (found.path, found.what) == (SIDECAR, "missing file")


@mends("S232")
@pytest.mark.parametrize(
    "name",
    [
        "commitlog/notes.txt",
        f"commitlog/{12345:020d}",
        f"{'consumequeue/orders/0'}/core",
        "consumequeue/orders/x",
        "gantry/left.over",
        "gantry/spare",
        f"gantry/segments/{SEGMENT_BYTES * 1000:020d}",
        "README",
        "consumequeue_ext/notes",
        "consumequeue_ext/orders/notes",
        "consumequeue_ext/orders/0/notes",
    ],
)
def test_a_stray_file(store: Path, name: str) -> None:
    """SF-11: RocketMQ refuses to start over one in its folders."""
    (store / name).parent.mkdir(parents=True, exist_ok=True)
    (store / name).write_bytes(b"stray")
    report = verify(store)
    assert only(report.findings, name).what == "stray file"
    assert len(report.findings) == 1


@mends("S202")
def test_what_a_killed_command_was_writing_is_no_stray(store: Path) -> None:
    """The next `dlq purge` replaces it, a start leaves it: another one may be writing it."""
    (store / f"{deadletternote.FILE}.new").write_bytes(b"{")
    assert verify(store).findings == []


@mends("S201")
def test_a_topic_that_is_made_again_amid_the_check_is_not_missing(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the looks at the topics and at those that are deleted it is in neither."""
    storage = PosixStorage(str(store))
    topics = read_config(storage, "topics.json")
    table = topics["topicConfigTable"]
    others = {name: topic for name, topic in table.items() if name != "orders"}
    write_config(storage, "topics.json", {**topics, "topicConfigTable": others})
    replace_file(storage, DELETED, with_sum(json.dumps({"orders": 4})).encode())
    looks: list[str] = []

    def read(source: Storage, name: str) -> bytes:
        if name == DELETED and not looks:
            looks.append(name)
            write_config(storage, "topics.json", topics)
            replace_file(storage, DELETED, with_sum("{}").encode())
        return read_file(source, name)

    monkeypatch.setattr(config_check, "read_file", read)
    assert verify(store).findings == []
    assert looks


def damage_progress(store: Path) -> int | None:
    path = store / "gantry/queues.json"
    content: dict[str, Any] = json.loads(path.read_text())
    content["queues"]["orders@0"] += 1
    path.write_text(json.dumps(content))
    return 0


def damage_producers(store: Path) -> int | None:
    flip(store / "gantry/producers", layout.PRODUCERS_HEAD.size + 3)
    return layout.PRODUCERS_HEAD.offset("crc")


def damage_slot(store: Path) -> int | None:
    flip(store / "gantry/checkpoint", layout.GANTRY_CHECKPOINT_SLOT_BYTES + 40)
    return layout.GANTRY_CHECKPOINT_SLOT_BYTES


def damage_topics(store: Path) -> int | None:
    path = store / "config/topics.json"
    path.write_text(path.read_text()[:50])
    return 50


def damage_ledger(store: Path) -> int | None:
    path = store / "gantry/ledger"
    data = path.read_bytes()
    path.write_bytes(data + bytes(10))
    return len(data)


def damage_times(store: Path) -> int | None:
    put(store / "checkpoint", 0, (1 << 50).to_bytes(8, "big"))
    return 0


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("gantry/queues.json", damage_progress),
        ("gantry/producers", damage_producers),
        ("gantry/checkpoint", damage_slot),
        ("config/topics.json", damage_topics),
        ("gantry/ledger", damage_ledger),
        ("checkpoint", damage_times),
    ],
)
def test_a_damaged_small_file(store: Path, name: str, damage: Callable[[Path], int | None]) -> None:
    place = damage(store)
    found = [finding for finding in verify(store).findings if finding.path == name]
    assert place in {finding.position for finding in found}


@mends("S235")
def test_a_topic_s_entry_that_no_topic_has_is_a_finding_among_others(store: Path) -> None:
    path = store / "config/topics.json"
    content = json.loads(path.read_text())
    content["topicConfigTable"]["orders"]["perm"] = "6"
    path.write_text(json.dumps(content))
    (store / SIDECAR).unlink()
    found = {finding.path: finding.what for finding in verify(store).findings}
    assert found[SIDECAR] == "missing file"
    assert "config/topics.json" in found


# ------------------------------------------------------------------------------------------- words

#: Of texts that Python makes itself.
_OF_PYTHON = ("Error(", "codec", "Expecting", "Unterminated", "has no attribute", "Extra data")


@mends("S269")
@pytest.mark.parametrize("patch", ["no UTF-8", "torn", "another object", "a list"])
def test_what_is_wrong_in_a_json_file_is_said_in_plain_words(patch: str, store: Path) -> None:
    paths = sorted(path for path in store.rglob("*.json*") if path.is_file())
    assert len(paths) > 6
    for path in paths:
        whole = path.read_bytes()
        path.write_bytes({
            "no UTF-8": whole.replace(b'"', b'"\xff', 1), "torn": whole[: len(whole) // 2],
            "another object": b'{"a":1}', "a list": b"[]",
        }[patch])  # fmt: skip
        name = str(path.relative_to(store))
        said = [str(one) for one in verify(store).findings]
        assert any(one.startswith(name) for one in said) or name.endswith(".bak"), name
        assert not [one for one in said if any(word in one for word in _OF_PYTHON)]
        path.write_bytes(whole)
