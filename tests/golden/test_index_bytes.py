"""Index files of the golden sets are what the log alone says they are, byte for byte.

Not determined by the log: the files' names, which are the time at which each was made, and how
far the files of a killed broker got. Their release says whether tags have entries (SF-122).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import islice

import pytest

from gantrymq.shm.errors import Rejected
from tests.support import cq_oracle, index_oracle
from tests.support.golden import CLEAN_SETS, CRASH_SETS, GoldenStore, dump_lines
from tests.support.indexing import Indexing, index_bytes, settings_of, storage_of
from gantrymq.shm.indexnote import Shape
from gantrymq.shm.indexreader import IndexReader

Golden = Callable[[str], GoldenStore]


def log_end(golden: GoldenStore) -> int:
    (summary,) = dump_lines(golden.name, "summary")
    end: int = summary["maxPhyOffset"]
    return end


def version_of(golden: GoldenStore) -> str:
    return "5.3.3" if golden.name.endswith("533") else "5.4.0"


def rebuilt(golden: GoldenStore) -> list[bytes]:
    """What our indexer makes of the log, in place of what was there."""
    settings = settings_of(golden, target_version=version_of(golden))
    indexing = Indexing(storage_of(golden.store), settings, log_end(golden))
    indexing.stop()
    assert not indexing.table.failures
    return index_bytes(golden.store)


def expected(golden: GoldenStore) -> list[bytes]:
    """What the rules alone say."""
    stored = cq_oracle.records(golden.store / "commitlog", log_end(golden))
    slots, entries = (int(golden.settings[name]) for name in ("maxHashSlotNum", "maxIndexNum"))
    tags = version_of(golden) == "5.4.0"
    files = index_oracle.index_files(stored, slots, entries, tags=tags)
    return [file.encode() for file in files]


@pytest.mark.parametrize("name", CLEAN_SETS)
def test_files_are_what_the_log_says(golden: Golden, name: str) -> None:
    """SF-61, SF-78 to SF-80, SF-118, SF-122: header, slots, entries, zeroes behind them."""
    store = golden(name)
    assert expected(store) == index_bytes(store.store)


@pytest.mark.parametrize("name", CLEAN_SETS)
def test_the_indexer_makes_the_same_files(own_copy: Golden, name: str) -> None:
    store = own_copy(name)
    theirs = index_bytes(store.store)
    shutil.rmtree(store.store / "index")
    assert rebuilt(store) == theirs


@pytest.mark.parametrize("name", CLEAN_SETS)
def test_files_of_another_broker_are_made_again(own_copy: Golden, name: str) -> None:
    """It may have lost entries (LW-7): none of its files is trusted."""
    store = own_copy(name)
    theirs = index_bytes(store.store)
    names = {path.name for path in (store.store / "index").iterdir()}
    (store.store / "index" / min(names)).write_bytes(theirs[0][:40].ljust(len(theirs[0]), b"x"))
    assert rebuilt(store) == theirs
    assert names.isdisjoint(path.name for path in (store.store / "index").iterdir())


@pytest.mark.parametrize("name", CLEAN_SETS)
def test_the_reader_finds_what_rocketmq_finds(golden: Golden, name: str) -> None:
    """SF-82: every key that RocketMQ was asked for, its 64 newest at most."""
    store = golden(name)
    slots, entries = (int(store.settings[name]) for name in ("maxHashSlotNum", "maxIndexNum"))
    reader = IndexReader(storage_of(store.store), Shape(slots, entries))
    asked = dump_lines(name, "indexQuery")
    assert asked
    for line in asked:
        found = islice(reader.positions(line["topic"], line["key"]), 64)
        assert list(found) == line["physicalOffsets"], line["key"]
    assert list(reader.positions("NoTopic", "no key")) == []
    with pytest.raises(Rejected, match="max_hash_slot_num"):
        list(IndexReader(storage_of(store.store), Shape(slots + 1, entries)).positions("a", "b"))


@pytest.mark.parametrize("name", CRASH_SETS)
def test_a_killed_broker_s_index_is_completed(own_copy: Golden, name: str) -> None:
    """Its files begin as the log says; made ours, they hold every key of the log."""
    store = own_copy(name)
    before = index_bytes(store.store)
    wanted = expected(store)
    assert before[:-1] == wanted[: len(before) - 1]
    assert (before == wanted) == (name == "crash-torn")
    assert rebuilt(store) == wanted
