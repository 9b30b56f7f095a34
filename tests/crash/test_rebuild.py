"""`store rebuild`: what is derived, made again of the log (P14)."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import shutil
from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest

from gantrymq.brokerd import rebuild as rebuilding
from gantrymq.brokerd.config import Configuration, load
from gantrymq.brokerd.epoch import settle_sizes
from gantrymq.brokerd.lock import acquire
from gantrymq.brokerd.rebuild import DERIVED, Rebuilt, make_again, rebuild
from gantrymq.brokerd.verify import verify
from gantrymq.shm import layout
from gantrymq.shm.errors import Corrupt, Incompatible, StoreBusy, StoreFailed
from gantrymq.shm.indexnote import NOTE_FILE
from gantrymq.shm.storage import read_file
from tests.sim import scenario
from tests.sim.downfalls import STEPS_MAX
from tests.support.faults import Fault, FaultPlan, KilledError, kill_at
from tests.support.simdisk import Disk
from tests.support.simmachine import SETTINGS
from tests.support.simstorage import SimStorage
from tests.support.small_stores import write_settings
from tests.support.trials import mends


@pytest.fixture
def store(varied_store: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    write_settings(tmp_path)
    return Path(shutil.copytree(varied_store, tmp_path / "store"))


LEFT_OUT = ("producers", "checkpoint", "schedule.json", "transactions.json")


def contents(root: Path) -> dict[str, bytes]:
    """All files but four: the table of producers has no order, the checkpoint counts writes.

    Notes of scheduler and txn-checker are made by their next start. Index files by number, for
    their names are times of their making.
    """
    return _numbered(
        {
            str(path.relative_to(root)): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file() and path.name not in LEFT_OUT
        }
    )


def _numbered(files: dict[str, bytes]) -> dict[str, bytes]:
    """Index files by number and without the note that names them."""
    index = sorted(name for name in files if name.startswith("index/"))
    rest = files.keys() - {*index, NOTE_FILE}
    numbered = {f"index/{number}": files[name] for number, name in enumerate(index)}
    return {name: files[name] for name in rest} | numbered


def producers(data: bytes) -> dict[bytes, int]:
    """Last seq of each producer in `gantry/producers`."""
    places = range(layout.PRODUCERS_HEAD.size, len(data), layout.PRODUCER.size)
    rows = (layout.PRODUCER.unpack(data, at) for at in places)
    return {row["producer"]: row["last_seq"] for row in rows}


def test_everything_comes_back_as_it_was(store: Path) -> None:
    """Also what was damaged; twice gives the same; log, ledger and config/ are not touched."""
    before, known = contents(store), producers((store / "gantry/producers").read_bytes())
    truth = ("commitlog/", "config/", "gantry/ledger", "gantry/ranges.json", "gantry/store.json")
    times = {n: (store / n).stat().st_mtime_ns for n in before if n.startswith(truth[1:])}
    (store / "consumequeue/orders/0" / f"{0:020d}").write_bytes(bytes(1000))
    (store / "consumequeue/orders/0" / f"{1000:020d}").unlink()
    (store / "gantry/segments" / f"{0:020d}").write_bytes(b"noise")
    (store / "gantry/producers").write_bytes(b"noise")
    min((store / "index").iterdir()).write_bytes(b"noise")
    max((store / "index").iterdir()).unlink()
    for _ in range(2):
        done = rebuild(store)
        assert contents(store) == before
        assert producers((store / "gantry/producers").read_bytes()) == known
        assert verify(store).ok, str(verify(store))
    assert {n: (store / n).stat().st_mtime_ns for n in times} == times
    assert len(done.deleted) == sum(
        name.startswith(("consumequeue/", "gantry/segments/", "gantry/queues", "index/"))
        for name in before
    ) + len(["gantry/producers", "gantry/index.json"])
    assert done.index_files > 2


@mends("S239")
@pytest.mark.parametrize("field", ["total_size", "queue_id", "queue_offset", "store_timestamp"])
def test_a_damaged_record_is_named_before_anything_goes(store: Path, field: str) -> None:
    """A unit at the queue offset that it names would be the last of millions."""
    segment = min((store / "commitlog").iterdir())
    data = bytearray(segment.read_bytes())
    at = int.from_bytes(data[:4], "big")  # the second record
    data[at + layout.RECORD.offset(field) + 2] ^= 1
    segment.write_bytes(data)
    before = contents(store)
    with pytest.raises(Corrupt, match=rf"damaged at byte {at} .*store verify.*nothing has been"):
        rebuild(store)
    assert contents(store) == before


def test_a_dry_run_only_tells(store: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    done = rebuild(store, dry_run=True)
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before
    assert done.deleted[0] == "gantry/queues.json"
    assert f"{len(done.deleted)} files would be made again" in str(done)


def test_a_held_store_is_refused(store: Path) -> None:
    held = acquire(store, 0.0)
    before = contents(store)
    with pytest.raises(StoreBusy):
        rebuild(store)
    held.close()
    assert contents(store) == before


@pytest.mark.parametrize(
    ("lost", "why"), [(None, "not stopped cleanly"), ("gantry/store.json", "another broker's")]
)
def test_other_stores_are_refused(store: Path, lost: str | None, why: str) -> None:
    if lost:
        (store / lost).unlink()
    else:
        (store / "abort").write_text("boot")
    before = contents(store)
    with pytest.raises(Incompatible, match=why):
        rebuild(store)
    assert contents(store) == before


@pytest.fixture(scope="module")
def disk() -> Disk:
    """That of a machine that was stopped, whose log has a segment that is full."""
    world = scenario.new_world(15)
    for producer in world.producers:
        producer.send_more(9)
    world.simulation.run_until(world.settled, STEPS_MAX)
    scenario.stop_cleanly(world)
    assert len(SimStorage(world.machine.disk).list("commitlog")) > 1
    return world.machine.disk


def test_a_kill_at_any_storage_call_is_made_good_by_the_next_try(disk: Disk) -> None:
    """P11, P14: the next rebuild comes to the same files."""
    wanted = _rebuilt(SimStorage(deepcopy(disk)))
    assert wanted
    assert "index/1" in wanted
    for at in itertools.count(1):
        tried = SimStorage(deepcopy(disk), "rebuild", FaultPlan([kill_at(at)]))
        with contextlib.suppress(KilledError):
            _rebuilt(tried)
        assert _rebuilt(SimStorage(tried.disk)) == wanted, at
        if not tried.faults.met:
            break
    assert at > 20


@mends("S203")
def test_a_disk_that_is_full_for_a_moment_is_told(disk: Disk) -> None:
    """Whatever finds no room then: nothing is left out of what ends as a success."""
    wanted = _rebuilt(SimStorage(deepcopy(disk)))
    failed = 0
    for at in itertools.count(1):
        full = FaultPlan([Fault(at, error=errno.ENOSPC, kinds=("create", "write"))])
        tried = SimStorage(deepcopy(disk), "rebuild", full)
        try:
            made = _rebuilt(tried)
        except (OSError, StoreFailed):
            failed += 1
            made = _rebuilt(SimStorage(tried.disk))
        assert made == wanted, full.met
        if not full.met:
            break
    assert failed > 10


@mends("S203")
def test_a_file_that_sealing_cannot_read_is_told(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be read the next time: a broker would try again, a rebuild ends."""

    def refuse(*_any: object) -> None:
        raise OSError(errno.EIO, "cannot be read")

    monkeypatch.setattr("gantrymq.workers.housekeeper.sealing.SidecarWriter", refuse)
    with pytest.raises(StoreFailed, match="cannot be read"):
        _rebuilt(SimStorage(deepcopy(disk)))


@cache
def _configuration() -> Configuration:
    return load(given=SETTINGS, environment={})


def _rebuilt(storage: SimStorage) -> dict[str, bytes]:
    settings = settle_sizes(storage, _configuration()).settings
    done = Rebuilt("sim", deleted=list(rebuilding.derived_files(storage)))
    make_again(storage, settings, done)
    names = [name for name, inode in storage.disk.names.entries.items() if inode is not None]
    found = {
        name: read_file(storage, name)
        for name in names
        if name.startswith((*DERIVED, "commitlog/", "config/"))
    }
    return _numbered(found)


def test_json_names_what_was_done(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gantrymq.cli.store_rebuild import rebuild as command

    command(store, dry_run=False, as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert said["queues"] == 5
    assert said["sidecars"] == len(list((store / "gantry/segments").iterdir()))
