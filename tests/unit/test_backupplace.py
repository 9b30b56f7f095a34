"""Where a back-up may lie."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from gantrymq.brokerd import backup as backups
from gantrymq.brokerd import temporaryhome
from gantrymq.brokerd.backup import backup
from gantrymq.brokerd.backupplace import require_free, require_outside
from gantrymq.shm.errors import DiskFull, GantryError, Rejected, StoreBusy
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


@mends("S186")
def test_two_back_ups_to_one_place_do_not_meet(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one neither removes what the first one writes, nor writes into it."""

    def copy(*_: object) -> tuple[int, int, int]:
        (tmp_path / "bk.partial" / "store" / "first").touch()
        with pytest.raises(StoreBusy, match=r"bk\.partial is being written"):
            backup(home, tmp_path / "bk")
        return 0, 0, 0

    monkeypatch.setattr(backups, "_copy", copy)
    backup(home, tmp_path / "bk")
    assert os.listdir(tmp_path / "bk") == ["store"]
    assert os.listdir(tmp_path / "bk" / "store") == ["first"]
    assert not (tmp_path / "bk.partial").exists()


@mends("S186")
@pytest.mark.parametrize("name", ["bk", "bk.partial"])
def test_a_back_up_that_another_one_overtakes_leaves_its_work(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """One that ends, or begins, between the second one's look at the place and its own folder."""

    def overtaken(*_: object) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / temporaryhome.MARKER).write_bytes(b"an unfinished back-up")

    monkeypatch.setattr(temporaryhome, "remove_left", overtaken)
    with pytest.raises(Rejected, match=f"{name} is there"):
        backup(home, tmp_path / "bk")
    assert [path for path in os.listdir(tmp_path) if path.startswith("bk")] == [name]


@mends("S186")
def test_a_removal_that_is_broken_off_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is removed first: the mark is there as long as there is something to know by it."""
    folder, whole = tmp_path / "bk.partial", shutil.rmtree
    removed: list[Path] = []

    def remove(path: Path, *, ignore_errors: bool) -> None:
        if removed:
            raise KeyboardInterrupt
        removed.append(path)
        whole(path, ignore_errors=ignore_errors)

    def fail() -> None:
        with temporaryhome.making(folder, "word"):
            for name in ("a", "b", "c"):
                (folder / name).mkdir()
            raise GantryError("broken off")

    monkeypatch.setattr(shutil, "rmtree", remove)
    with pytest.raises(KeyboardInterrupt):
        fail()
    monkeypatch.undo()
    assert len(os.listdir(folder)) == 3
    temporaryhome.remove_left(folder, "another word")
    assert folder.is_dir()
    temporaryhome.remove_left(folder, "word")
    assert not folder.exists()
