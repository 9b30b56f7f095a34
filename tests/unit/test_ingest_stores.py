"""A table is of one store: another one, or one that went back in time, is refused by name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gantrymq.brokerd.holders import read_pins
from gantrymq.clients.spark.options import ReadOptions
from gantrymq.clients.spark.table.files import TableFiles
from gantrymq.clients.spark.table.job import Ingest, IngestOptions, run_here
from gantrymq.clients.spark.table.manifest import MANIFEST, load_manifest
from gantrymq.shm.errors import Incompatible, SettingIllegal
from gantrymq.shm.jsonsum import with_sum
from gantrymq.shm.lineage import FIELD, FILE
from gantrymq.shm.storage import PosixStorage
from tests.support.otherselves import OTHER_UID, is_root
from tests.support.tables import SEGMENT_BYTES, GrowingStore, listed, require_equal
from tests.support.trials import mends

FIRST, SECOND = "a" * 32, "b" * 32


def name_store(store: Path, *branches: tuple[str, int]) -> None:
    """What a broker's start would say of it."""
    content = {"version": 2, "starts": 1, FIELD: branches}
    (store / FILE).parent.mkdir(exist_ok=True)
    (store / FILE).write_text(with_sum(json.dumps(content)))


def ingest(store: Path, out: Path) -> None:
    words = {"store": str(store), "includeActive": "false"}
    with Ingest(IngestOptions(ReadOptions.parse(words), str(out), "t")) as job:
        while job.step() is not None:
            pass


def position_of(out: Path) -> int:
    manifest = load_manifest(TableFiles(str(out)))
    assert manifest is not None
    return manifest.position


@pytest.fixture
def table(store_dir: Path, tmp_path: Path) -> tuple[GrowingStore, Path]:
    """A store of two segments, named, and a table that has both."""
    growing = GrowingStore(store_dir)
    growing.grow()
    growing.grow()
    name_store(store_dir, (FIRST, 0))
    ingest(store_dir, tmp_path / "table")
    return growing, tmp_path / "table"


def made_anew(growing: GrowingStore) -> None:
    shutil.rmtree(growing.root)
    growing.end = 0
    anew = GrowingStore(growing.root, salt=b"anew")
    for _ in range(4):
        anew.grow()


def put_back(growing: GrowingStore) -> None:
    """A copy of when there was one segment, which then went on with other messages."""
    shutil.rmtree(growing.root)
    other = GrowingStore(growing.root)
    other.grow()
    other.salt = b"other"
    for _ in range(4):
        other.grow()


@mends("D1")
@pytest.mark.parametrize("change", [made_anew, put_back])
@pytest.mark.parametrize("named", [(SECOND, 0), (FIRST, 0)], ids=["another-id", "copied-by-hand"])
def test_a_log_with_another_past_is_refused(
    table: tuple[GrowingStore, Path], change: Callable[[GrowingStore], None], named: tuple[str, int]
) -> None:
    """The record before the position decides, also where files were copied with their id."""
    growing, out = table
    change(growing)
    name_store(growing.root, named)
    before = listed(out), position_of(out)
    refusal = f"store {FIRST} up to position {before[1]}.*is store {named[0]}.*another record"
    for _ in range(2):
        with pytest.raises(Incompatible, match=f"{refusal}.*--out"):
            ingest(growing.root, out)
    assert (listed(out), position_of(out)) == before
    assert not (growing.root / "gantry" / "pins").exists(), "nothing is held there for it"
    ingest(growing.root, out.with_name("fresh"))
    require_equal(out.with_name("fresh"), growing.root, includeActive="false")


def open_job(growing: GrowingStore, out: Path) -> Ingest:
    words = {"store": str(growing.root), "includeActive": "false"}
    return Ingest(IngestOptions(ReadOptions.parse(words), str(out), "t"))


@mends("S21")
@pytest.mark.parametrize("change", [made_anew, put_back])
def test_a_job_that_goes_on_looks_at_each_step(
    table: tuple[GrowingStore, Path], change: Callable[[GrowingStore], None]
) -> None:
    """The store is swapped under one that follows it: nothing of the other one is added."""
    growing, out = table
    with open_job(growing, out) as job:
        assert job.step() is None
        before = listed(out), load_manifest(TableFiles(str(out)))
        change(growing)
        name_store(growing.root, (FIRST, 0), (SECOND, SEGMENT_BYTES))
        with pytest.raises(Incompatible, match=f"store {FIRST} up to.*is store {SECOND}"):
            job.step()
        assert (listed(out), load_manifest(TableFiles(str(out)))) == before
    assert not (growing.root / "gantry" / "pins").exists(), "nothing is held there for it"


@mends("S21")
def test_a_job_refuses_a_log_that_has_become_shorter(table: tuple[GrowingStore, Path]) -> None:
    """It does not wait until the other log has reached its position."""
    growing, out = table
    with open_job(growing, out) as job:
        shutil.rmtree(growing.root)
        GrowingStore(growing.root).grow()
        name_store(growing.root, (FIRST, 0), (SECOND, SEGMENT_BYTES))
        with pytest.raises(Incompatible, match=f"store {FIRST} up to.*is store {SECOND}"):
            job.step()


@mends("S21")
def test_a_store_that_is_swapped_while_a_step_reads_it_is_not_committed(
    table: tuple[GrowingStore, Path],
) -> None:
    """What was read may be of either."""
    growing, out = table
    growing.grow()

    def swapped(function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        results = run_here(function, tasks)
        put_back(growing)
        name_store(growing.root, (FIRST, 0), (SECOND, SEGMENT_BYTES))
        return results

    words = {"store": str(growing.root), "includeActive": "false"}
    options = IngestOptions(ReadOptions.parse(words), str(out), "t")
    before = position_of(out)
    with Ingest(options, swapped) as job, pytest.raises(Incompatible, match="another record"):
        job.step()
    assert position_of(out) == before


@mends("S21")
def test_the_pin_of_a_job_follows_the_id_of_its_store(table: tuple[GrowingStore, Path]) -> None:
    """A back-up that has all that was read is put back: the job goes on, and so does its pin."""
    growing, out = table
    with open_job(growing, out) as job:
        pin = growing.root / "gantry" / "pins" / "t"
        assert json.loads(pin.read_bytes())["store"] == FIRST
        pin.unlink()
        name_store(growing.root, (FIRST, 0), (SECOND, position_of(out)))
        assert job.step() is None
        assert json.loads(pin.read_bytes())["store"] == SECOND
        growing.grow()
        assert job.step() is not None
        assert [one.damage for one in read_pins(PosixStorage(str(growing.root)))] == [""]


@mends("S22")
def test_what_root_notes_in_a_store_belongs_to_its_owner(store_dir: Path) -> None:
    """The broker has to read the pins; an ingest by root made them so that it could not.

    Tried with a second uid by root; nobody else has any.
    """
    growing = GrowingStore(store_dir)
    growing.grow()
    name_store(store_dir, (FIRST, 0))
    if is_root():
        os.chown(store_dir / "gantry", OTHER_UID, OTHER_UID)
    ingest(store_dir, store_dir.with_name("table"))
    for path in (store_dir / "gantry/pins", store_dir / "gantry/pins/t"):
        assert path.stat().st_uid == (store_dir / "gantry").stat().st_uid


NOBODYS = ["[" * 5000, "{", "[]", "{}", "\xff"]


@mends("S23")
@pytest.mark.parametrize("content", NOBODYS, ids=lambda text: text[:9])
def test_a_pin_that_says_nobodys_name_is_left_alone(store_dir: Path, content: str) -> None:
    """It may be another table's; it ended in an error of Python's, or was replaced."""
    growing = GrowingStore(store_dir)
    growing.grow()
    name_store(store_dir, (FIRST, 0))
    pin = store_dir / "gantry/pins/t"
    pin.parent.mkdir()
    pin.write_text(content, "latin-1")
    with pytest.raises(SettingIllegal, match=r"pin t of .* does not say of which table.*--name"):
        ingest(store_dir, store_dir.with_name("table"))
    assert pin.read_text("latin-1") == content
    pin.unlink()
    ingest(store_dir, store_dir.with_name("table"))


@mends("D1")
def test_without_a_record_the_ids_decide(table: tuple[GrowingStore, Path]) -> None:
    """Retention has removed what was before the position."""
    growing, out = table
    growing.grow()
    for _ in range(2):
        growing.expire()
    for branches in ([(SECOND, 0)], [(FIRST, 0), (SECOND, position_of(out) - 1)]):
        name_store(growing.root, *branches)
        with pytest.raises(Incompatible, match=f"of store {FIRST} up to.*is store {SECOND}"):
            ingest(growing.root, out)
    name_store(growing.root, (FIRST, 0), (SECOND, position_of(out)))
    ingest(growing.root, out)
    assert position_of(out) == growing.end


@mends("D1")
def test_the_same_log_goes_on_under_another_id(table: tuple[GrowingStore, Path]) -> None:
    """A back-up that has all that was read, or a store whose `store.json` was deleted."""
    growing, out = table
    growing.grow()
    name_store(growing.root, (SECOND, 0))
    ingest(growing.root, out)
    require_equal(out, growing.root, includeActive="false")
    name_store(growing.root, (FIRST, 0))
    ingest(growing.root, out)


@mends("D1")
def test_a_table_of_an_older_version_goes_on(
    table: tuple[GrowingStore, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """It says once that it takes the store for its own, and knows it from then on."""
    growing, out = table
    path = out / MANIFEST
    manifest = load_manifest(TableFiles(str(out)))
    assert manifest is not None
    content = json.loads(path.read_bytes())
    del content["proof"], content["gantryCrc32"]
    path.write_text(with_sum(json.dumps(content)))
    assert load_manifest(TableFiles(str(out))) != manifest
    ingest(growing.root, out)
    assert "does not say of which store" in caplog.text
    assert load_manifest(TableFiles(str(out))).proof == manifest.proof  # type: ignore[union-attr]
    made_anew(growing)
    with pytest.raises(Incompatible, match="another record"):
        ingest(growing.root, out)
