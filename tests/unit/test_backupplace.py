"""Where a back-up may lie."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gantrymq.brokerd import backup as backups
from gantrymq.brokerd import temporaryhome
from gantrymq.brokerd.backup import backup
from gantrymq.brokerd.backupplace import require_free, require_outside
from gantrymq.shm.errors import DiskFull, GantryError, Rejected
from gantrymq.shm.held import Descriptor
from tests.support.trials import mends


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose store lies on another disk."""
    for name in ("commitlog", "config", "consumequeue", "gantry"):
        (tmp_path / "disk" / name).mkdir(parents=True)
    (tmp_path / "home" / "run").mkdir(parents=True)
    (tmp_path / "home" / "store").symlink_to(tmp_path / "disk")
    return tmp_path / "home"


@pytest.mark.parametrize(
    "place",
    [
        "home/store/bk", "home/store/commitlog/bk", "home/store/consumequeue/t/7",
        "home/store/config/bk", "home/store/gantry/new/deep", "home/run/bk", "disk/config/bk",
        "link/bk", "home/other/../store/bk", "another/commitlog/bk", "home/store", "home/run",
    ],
)  # fmt: skip
def test_a_back_up_lies_in_no_store_and_no_run_directory(
    home: Path, tmp_path: Path, place: str
) -> None:
    """By whatever way it is named; nothing is written."""
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "commitlog")
    (home / "other").mkdir()
    for name in ("commitlog", "config"):
        (tmp_path / "another" / name).mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(Rejected, match=r"a (directory|place) outside") as refused:
        backup(home, tmp_path / place)
    assert str(tmp_path / place) in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_relative_way_is_followed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path / "disk" / "commitlog")
    with pytest.raises(Rejected, match="the broker's own"):
        require_outside(home, Path("bk"))
    monkeypatch.chdir(tmp_path)
    require_outside(home, Path("bk"))


def test_places_beside_the_store_are_fine(home: Path, tmp_path: Path) -> None:
    require_outside(home, home / "bk")
    require_outside(home, tmp_path / "far" / "bk")
    require_outside(home, home / "store-2")


@pytest.mark.parametrize("place", ["home", "."])
def test_a_back_up_does_not_hold_the_store(tmp_path: Path, place: str) -> None:
    (tmp_path / "home" / "store").mkdir(parents=True)
    with pytest.raises(Rejected, match="name a new directory beside it"):
        require_outside(tmp_path / "home", tmp_path / place)


def test_a_link_that_leads_nowhere_is_there_already(tmp_path: Path) -> None:
    (tmp_path / "bk").symlink_to(tmp_path / "nowhere")
    with pytest.raises(Rejected, match="is there already"):
        require_free(tmp_path / "bk")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.EISDIR, "x"), OSError),
        (OSError(errno.ENOSPC, "x"), DiskFull),
        (GantryError("x"), GantryError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_copy_that_fails_leaves_nothing(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    told: type[BaseException],
) -> None:
    """For whatever reason."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(backups, "_copy", fail)
    with pytest.raises(told):
        backup(home, tmp_path / "bk")
    assert not [name for name in os.listdir(tmp_path) if name.startswith("bk")]


@mends("S19")
def test_a_disk_that_is_full_from_the_beginning_leaves_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even the mark by which a later one would know it."""

    def create(path: Path) -> Descriptor:
        path.touch()
        return Descriptor(os.open, "/dev/full", os.O_WRONLY)

    monkeypatch.setattr(temporaryhome, "create_file", create)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(DiskFull, match="nothing is left of it"):
        backup(home, tmp_path / "bk")
    assert sorted(tmp_path.iterdir()) == before
