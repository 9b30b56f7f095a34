"""A table is of one store: another one, or one that went back in time, is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gantrymq.clients.spark.options import ReadOptions
from gantrymq.clients.spark.table.files import TableFiles
from gantrymq.clients.spark.table.job import Ingest, IngestOptions
from gantrymq.clients.spark.table.manifest import MANIFEST, load_manifest
from gantrymq.shm.errors import Incompatible
from gantrymq.shm.jsonsum import with_sum
from gantrymq.shm.lineage import FIELD, FILE
from tests.support.tables import GrowingStore, listed, require_equal
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
