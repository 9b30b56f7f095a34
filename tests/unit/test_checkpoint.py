"""RocketMQ's `checkpoint` and ours, as a clean stop leaves them."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

from gantrymq.brokerd.checkpoint import FILE, CheckpointFile, read_checkpoint
from gantrymq.brokerd.queuestarts import save_starts
from gantrymq.brokerd.verify import verify
from gantrymq.clients.home import store_of
from gantrymq.shm import layout
from gantrymq.shm.storage import PosixStorage
from gantrymq.workers.housekeeper.progress import read_progress, save_progress
from tests.support.brokers import ServingBroker
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage
from tests.support.small_stores import RECORDS
from tests.support.stores import read_log
from tests.support.trials import mends


def test_a_clean_stop_leaves_the_times_of_the_last_record(plain_store: Path) -> None:
    """SF-84: 4096 bytes; log and queues hold all up to these times, so RocketMQ redoes little."""
    records = read_log(plain_store)
    assert len(records) == RECORDS
    last = records[-1]
    content = (plain_store / "checkpoint").read_bytes()
    assert len(content) == layout.CHECKPOINT_FILE_BYTES == 4096
    numbers = [int.from_bytes(content[at : at + 8], "big", signed=True) for at in range(0, 40, 8)]
    last_ms = last.record.store_timestamp
    end = last.position + last.record.total_size
    full_ms = json.loads((plain_store / "gantry" / "index.json").read_text())["full_ms"]
    assert 0 < full_ms <= last_ms  # of the last index file that is full (SF-96)
    assert numbers == [last_ms, last_ms, full_ms, end, 0]
    assert not any(content[40:])
    assert not (plain_store / "abort").exists()


def test_a_ledger_without_its_end_is_damage_unless_the_stop_had_no_room(
    plain_store: Path, tmp_path: Path
) -> None:
    """A stop on a full disk says in `gantry/checkpoint` that the closing entry is not there."""
    cut = Path(shutil.copytree(plain_store, tmp_path / "store"))
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


def test_a_start_cuts_what_lies_behind_the_slots(tmp_path: Path) -> None:
    storage = PosixStorage(str(tmp_path))
    storage.make_directory("gantry")
    with closing(CheckpointFile(storage, bytes(16), 1)) as file:
        file.write(10, 20, 10, clean=True)
    path = tmp_path / FILE
    whole = path.read_bytes()
    path.write_bytes(whole + b"x" * 10)
    CheckpointFile(storage, bytes(16), 2).close()
    assert path.read_bytes() == whole


@mends("R7.4")
def test_a_pair_of_torn_slots_leaves_what_was_kept() -> None:
    """The slots that are written in turn are not synced: a power cut may tear both."""
    storage = SimStorage(Disk())
    with closing(CheckpointFile(storage, bytes(16), 7)) as file:
        file.write(100, 1, 50)
        file.keep()
        for durable in range(200, 900, 100):
            file.write(durable, 2, durable)
    tear(storage)
    found = read_checkpoint(storage)
    assert found is not None
    assert (found.durable, found.epoch, found.clean) == (100, 7, False)


@mends("R7.4")
def test_a_file_of_two_slots_gets_a_third() -> None:
    """Stores of before had none; nothing of theirs is lost."""
    storage = SimStorage(Disk())
    with closing(CheckpointFile(storage, bytes(16), 7)) as file:
        file.write(300, 1, 50)
    storage.open(FILE, write=True).truncate(2 * layout.GANTRY_CHECKPOINT_SLOT_BYTES)
    with closing(CheckpointFile(storage, bytes(16), 8)) as file:
        file.keep()
        file.write(400, 1, 50)
        file.write(500, 1, 50)
    tear(storage)
    found = read_checkpoint(storage)
    assert found is not None
    assert found.durable == 300


def tear(storage: SimStorage) -> None:
    """Damage both slots inside a sector."""
    for at in (0, layout.GANTRY_CHECKPOINT_SLOT_BYTES):
        storage.open(FILE, write=True).write_at(bytes(20), at + 30)


def test_a_store_without_a_message_has_its_checkpoint_too(tmp_path: Path) -> None:
    """A clean stop of an empty store leaves RocketMQ's file as RocketMQ does: zeroes (P14)."""
    with ServingBroker(tmp_path) as broker:
        assert broker.wait_until_ready().stop()[0] == 0
    assert not any((store_of(tmp_path) / "checkpoint").read_bytes())
    assert verify(store_of(tmp_path)).findings == []


def test_a_queue_whose_records_have_all_expired_is_no_finding(
    plain_store: Path, tmp_path: Path
) -> None:
    """P14: the log says nothing of it, retention has noted where it goes on."""
    store = Path(shutil.copytree(plain_store, tmp_path / "store"))
    storage = PosixStorage(str(store))
    position, queues = read_progress(storage) or (0, {})
    save_progress(storage, position, queues | {("gone", 0): 7})
    assert [str(one.what) for one in verify(store).findings] == ["wrong number of units in gone@0"]
    save_starts(storage, 0, {("gone", 0): 7})
    assert verify(store).findings == []
