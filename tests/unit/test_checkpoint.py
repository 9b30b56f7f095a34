"""RocketMQ's `checkpoint` and ours, as a clean stop leaves them."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from brokerd.checkpoint import CheckpointFile, read_checkpoint
from brokerd.verify import verify
from shm import layout
from shm.storage import PosixStorage
from tests.support.small_stores import RECORDS, send, small_broker
from tests.support.stores import read_log


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped store."""
    store = tmp_path_factory.mktemp("checkpoint") / "store"
    with small_broker() as broker:
        send(broker)
        broker.stop()
        shutil.copytree(broker.home / "store", store)
    return store


def test_a_clean_stop_leaves_the_times_of_the_last_record(store: Path) -> None:
    """SF-84: 4096 bytes; log and queues hold all up to these times, so RocketMQ redoes little."""
    records = read_log(store)
    assert len(records) == RECORDS
    last = records[-1]
    content = (store / "checkpoint").read_bytes()
    assert len(content) == layout.CHECKPOINT_FILE_BYTES == 4096
    numbers = [int.from_bytes(content[at : at + 8], "big", signed=True) for at in range(0, 40, 8)]
    last_ms = last.record.store_timestamp
    end = last.position + last.record.total_size
    full_ms = json.loads((store / "gantry" / "index.json").read_text())["full_ms"]
    assert 0 < full_ms <= last_ms  # of the last index file that is full (SF-96)
    assert numbers == [last_ms, last_ms, full_ms, end, 0]
    assert not any(content[40:])
    assert not (store / "abort").exists()


def test_a_ledger_without_its_end_is_damage_unless_the_stop_had_no_room(
    store: Path, tmp_path: Path
) -> None:
    """A stop on a full disk says in `gantry/checkpoint` that the closing entry is not there."""
    cut = Path(shutil.copytree(store, tmp_path / "store"))
    path = cut / "gantry/ledger"
    path.write_bytes(path.read_bytes()[: -layout.LEDGER.size])
    assert [finding.what for finding in verify(cut).findings] == ["no closing entry"]
    storage = PosixStorage(str(cut))
    last = read_checkpoint(storage)
    assert last is not None
    assert not last.ledger_open
    with closing(CheckpointFile(storage, last.boot_id, last.epoch)) as file:
        for _slot in range(2):
            file.write(last.durable, last.store_ms, last.dispatched, clean=True, ledger_open=True)
    assert verify(cut).findings == []
