"""A home on a file system that is mounted read-only: a broker says so, and what only reads reads.

The same store is mounted for writing elsewhere, where a broker may run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gantrymq.brokerd import lock
from gantrymq.brokerd.doctor import examine
from gantrymq.clients.home import store_of
from gantrymq.clients.producer import Producer
from gantrymq.shm.codes import ExitCode
from gantrymq.shm.errors import Rejected, StoreBusy
from gantrymq.shm.readonly import MEND
from gantrymq.shm.storelock import is_held
from tests.support import otherselves
from tests.support.adversary import Victim
from tests.support.brokers import ServingBroker
from tests.support.forked import run_forked
from tests.support.trials import mends


class Forked(ServingBroker):
    """For what comes behind its start."""

    forked = True


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of a broker that was stopped."""
    made = tmp_path_factory.mktemp("written") / "home"
    with Forked(made, profile="small") as broker:
        broker.wait_until_ready()
        with Producer(made) as producer:
            producer.send("t", b"x", durability="durable")
        assert broker.stop()[0] == ExitCode.OK
    return made


@pytest.fixture
def fixed(tmp_path: Path) -> Path:
    """Where a process of the test mounts it."""
    (tmp_path / "fixed").mkdir()
    return tmp_path / "fixed"


@mends("S130")
def test_a_start_names_the_place_and_what_to_do(home: Path, fixed: Path) -> None:
    ran = run_forked(
        ["serve", "--home", str(fixed)], prepare=lambda: otherselves.mount_fixed(home, fixed)
    )
    assert ran.returncode == ExitCode.IO_ERROR, ran
    assert f"'{fixed}/run': {MEND}" in ran.stderr


@mends("S130")
@pytest.mark.parametrize("line", ["verify {}/store", "backup {}-copy --home {}", "dump {}/store"])
def test_what_only_reads_reads(home: Path, fixed: Path, line: str) -> None:
    ran = run_forked(
        ["store", *line.replace("{}", str(fixed)).split()],
        prepare=lambda: otherselves.mount_fixed(home, fixed),
    )
    assert ran.returncode == ExitCode.OK, ran


@mends("S130")
def test_what_writes_names_the_lock_and_what_to_do(home: Path, fixed: Path) -> None:
    ran = run_forked(
        ["store", "rebuild", str(fixed / "store")],
        prepare=lambda: otherselves.mount_fixed(home, fixed),
    )
    assert ran.returncode == ExitCode.IO_ERROR, ran
    assert f"'{fixed}/store/lock': {MEND}" in ran.stderr


@mends("S130")
def test_doctor_sees_the_mount_and_not_the_user(home: Path, fixed: Path) -> None:
    def work() -> None:
        otherselves.mount_fixed(home, fixed)
        wrong = [each for each in examine(fixed, {"JAVA_HOME": "/"}) if each.verdict == "wrong"]
        assert {each.mend for each in wrong if each.check in ("rights", "runtime")} == {MEND}
        (new,) = [each for each in examine(fixed / "new", {}) if each.check == "home"]
        assert new.mend == MEND

    assert Victim(work).end() == 0


@mends("S130")
def test_who_reads_keeps_out_a_broker_that_may_write_elsewhere(home: Path, fixed: Path) -> None:
    def work() -> None:
        otherselves.mount_fixed(home, fixed)
        writable, readable = store_of(home), store_of(fixed)
        held = lock.acquire(readable, 0, to_write=False)
        lock.acquire(readable, 0, to_write=False).close()
        with pytest.raises(StoreBusy):
            lock.acquire(writable, 0)
        held.close()
        held = lock.acquire(writable, 0)
        assert is_held(readable)
        with pytest.raises(StoreBusy):
            lock.acquire(readable, 0, to_write=False)
        held.close()
        assert not is_held(readable)

    assert Victim(work).end() == 0


@mends("S130")
def test_a_store_that_was_never_locked_is_to_be_copied(tmp_path: Path, fixed: Path) -> None:
    (tmp_path / "home" / "store").mkdir(parents=True)

    def work() -> None:
        otherselves.mount_fixed(tmp_path / "home", fixed)
        assert not is_held(store_of(fixed))
        with pytest.raises(Rejected, match="copy the whole directory"):
            lock.acquire(store_of(fixed), 0, to_write=False)

    assert Victim(work).end() == 0
