"""Which store it is: an id that is made once, and another one behind what a back-up has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gantrymq.brokerd import config, epoch
from gantrymq.brokerd.holders import read_pins
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.jsonsum import with_sum, without_sum
from gantrymq.shm.lineage import COPIED_AT, Lineage, lineage_of
from gantrymq.shm.storage import PosixStorage
from tests.support.trials import mends


def start(store: Path) -> str:
    """The store's id as a broker's life knows it."""
    life, _ = epoch.begin(PosixStorage(str(store)), config.load(None, {}, {}))
    assert lineage_of(PosixStorage(str(store))).store == life.store_id
    return life.store_id


def change(store: Path, **fields: object) -> None:
    path = store / "gantry" / "store.json"
    content = without_sum(json.loads(path.read_text()))
    kept = {name: value for name, value in {**content, **fields}.items() if value is not None}
    path.write_text(with_sum(json.dumps(kept)))


@mends("D1")
def test_a_store_has_one_id_for_life(store_dir: Path, tmp_path: Path) -> None:
    first = start(store_dir)
    assert first
    assert start(store_dir) == first
    assert start(tmp_path / "other") != first


@mends("D1")
def test_a_store_of_an_older_version_gets_one_at_its_next_start(store_dir: Path) -> None:
    start(store_dir)
    change(store_dir, lineage=None)
    assert lineage_of(PosixStorage(str(store_dir))) == Lineage()
    assert start(store_dir) == start(store_dir) != ""


@mends("D1")
def test_each_start_on_a_copy_goes_its_own_way(store_dir: Path) -> None:
    first = start(store_dir)
    ways = []
    for _ in range(2):
        change(store_dir, lineage=[[first, 0]], **{COPIED_AT: 500})
        ways.append(start(store_dir))
        found = lineage_of(PosixStorage(str(store_dir)))
        assert found.branches == ((first, 0), (ways[-1], 500))
        assert found.holds(first, 500)
        assert not found.holds(first, 501), "the copy has no such position of the first"
        assert found.holds(ways[-1], 10_000)
        assert start(store_dir) == ways[-1]
    assert len({first, *ways}) == 3
    assert not found.holds(ways[0], 501)


@mends("D1")
@pytest.mark.parametrize("wrong", ["x", [["a"]], [["a", 7], ["b", 3]], [[1, 2]]])
def test_a_wrong_lineage_is_named(store_dir: Path, wrong: object) -> None:
    start(store_dir)
    change(store_dir, lineage=wrong)
    with pytest.raises(Corrupt, match=r"store\.json.*lineage"):
        start(store_dir)
    with pytest.raises(Corrupt, match=r"store\.json.*what store this is"):
        lineage_of(PosixStorage(str(store_dir)))


@mends("D1")
def test_a_pin_of_another_store_holds_all(store_dir: Path) -> None:
    """Nobody knows what its owner has read of this one; the disk rule goes on behind it."""
    first = start(store_dir)
    pins = store_dir / "gantry" / "pins"
    pins.mkdir()
    (pins / "ours").write_text(json.dumps({"position": 700, "store": first}))
    (pins / "any").write_text(json.dumps({"position": 600}))
    (pins / "theirs").write_text(json.dumps({"position": 800, "store": "0" * 32}))
    found = {pin.name: pin for pin in read_pins(PosixStorage(str(store_dir)))}
    assert {name: pin.position for name, pin in found.items()} == {
        "any": 600, "ours": 700, "theirs": 0
    }  # fmt: skip
    assert "of another store" in found["theirs"].damage
    change(store_dir, lineage=[[first, 0]], **{COPIED_AT: 699})
    start(store_dir)
    assert read_pins(PosixStorage(str(store_dir)))[1].position == 0, "behind what the copy has"
