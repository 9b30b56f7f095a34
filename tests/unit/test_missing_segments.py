"""Which segments a start misses: those that somebody took, never those that retention did."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from gantrymq.brokerd.missingsegments import find_missing
from gantrymq.brokerd.queuestarts import FILE, save_starts
from gantrymq.shm.codes import ExitCode
from gantrymq.shm.lognames import bases_of, segment_name
from gantrymq.shm.storage import Storage, read_file, replace_file
from tests.support.faults import FaultPlan, KilledError, Moment, kill_at
from tests.support.forked import run_forked
from tests.support.retaining import Rig, written_machine
from tests.support.simmachine import SimMachine
from tests.support.simstorage import SimStorage
from tests.support.small_stores import SEGMENT_BYTES
from tests.support.trials import mends
from tests.system.test_refused_start import begun_with_a_signal

CALLS = ("create", "write", "rename", "unlink", "make_directory", "sync_directory")


@pytest.fixture(scope="module")
def machine() -> SimMachine:
    """Several sealed segments that group `g` has read to the end."""
    return written_machine()


def missing_in(storage: Storage) -> list[int]:
    return find_missing(storage, bases_of(storage)[0])


def take_first(storage: Storage) -> int:
    """Remove the first segment, as somebody may by hand."""
    base = bases_of(storage)[0]
    storage.unlink(segment_name(base))
    return base


@mends("S270")
def test_segments_that_somebody_took(machine: SimMachine) -> None:
    """Whether retention had run before, or not yet."""
    rig = Rig(machine)
    assert missing_in(rig.storage) == []
    taken = [take_first(rig.storage), take_first(rig.storage)]
    assert missing_in(rig.storage) == taken

    rig = Rig(machine)
    second = bases_of(rig.storage)[1]
    sidecar = f"gantry/segments/{0:020d}"
    data = read_file(rig.storage, sidecar)
    assert take_first(rig.storage) == 0
    rig.storage.unlink(sidecar)
    save_starts(rig.storage, second, {})
    replace_file(rig.storage, sidecar, data)
    assert missing_in(rig.storage) == [], "a power cut has brought the sidecar back"
    assert take_first(rig.storage) == second
    assert missing_in(rig.storage) == [second]
    replace_file(rig.storage, FILE, b"{}")
    assert missing_in(rig.storage) == [], "of a damaged note nothing is certain"


@mends("S270")
@pytest.mark.parametrize("lacking", [0, 1, 1 << 15, 1 << 16, 1 << 17])
@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
@pytest.mark.parametrize("power", [False, True])
def test_none_is_missed_after_a_death_amid_retention(
    machine: SimMachine, lacking: int, moment: Moment, power: bool
) -> None:
    """Also where the disk lacks bytes for a note of it, even without sidecars."""
    deaths = 0
    for number in range(1, 80):
        rig = Rig(machine, faults=FaultPlan((kill_at(number, moment, CALLS),)))
        try:
            agent = rig.open()
            rig.disk.capacity = rig.disk.used() - lacking if lacking else rig.disk.capacity
            rig.run(agent)
        except KilledError:
            deaths += 1
        if power:
            rig.disk.power_cut(random.Random(number))
        assert missing_in(SimStorage(rig.disk)) == [], f"death {number}"
    assert deaths > 10


@mends("S270")
def test_a_start_tells_of_them(plain_store: Path, tmp_path: Path) -> None:
    """Not where a RocketMQ was here since: its own retention may have removed them."""
    for visited in (False, True):
        home = tmp_path / str(visited)
        home.mkdir(mode=0o700)
        store = Path(shutil.copytree(plain_store, home / "store"))
        (store / segment_name(0)).unlink()
        if visited:
            (store / "config/consumerOffset.json").write_text('{"offsetTable":{}}')
        done = run_forked(["serve", "--home", str(home)], prepare=begun_with_a_signal)
        assert done.returncode == ExitCode.OK, done.stderr
        assert ('"segments_missing"' in done.stderr) != visited
        if not visited:
            assert f'"first": 0, "count": 1, "low": {SEGMENT_BYTES}' in done.stderr
