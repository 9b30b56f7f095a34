"""Files and folders of one's own: no links, no other users, nothing that others may write."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gantrymq.brokerd import config, lock
from gantrymq.brokerd.broker import make_directories
from gantrymq.brokerd.startable import require_settings
from gantrymq.clients.filelock import try_lock
from gantrymq.clients.home import run_of, store_of
from gantrymq.shm import ownfiles
from gantrymq.shm.errors import NotPermitted, SettingIllegal
from gantrymq.shm.storage import PosixStorage, require_inside
from tests.support.otherselves import OTHER_UID, is_root
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage
from tests.support.trials import mends

SETTINGS = config.load(None, None, {}).settings


@mends("S162")
def test_a_pipe_in_a_files_place_holds_nobody_up(tmp_path: Path) -> None:
    """Whoever opens it: there is nothing to read, and no file of a user's own that it could be."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert ownfiles.read_bytes(pipe) == b""
    with pytest.raises(OSError, match="no file but a pipe") as refused:
        ownfiles.read_given(pipe)
    assert refused.value.filename == str(pipe)
    (tmp_path / config.FILE_NAME).symlink_to(pipe)
    with pytest.raises(SettingIllegal, match="no file but a pipe"):
        config.load(tmp_path, None, {})


def test_a_file_that_the_user_keeps_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("sessions_max = 7\n")
    (tmp_path / config.FILE_NAME).symlink_to(tmp_path / "kept")
    assert config.load(tmp_path, None, {}).settings.sessions_max == 7
    with pytest.raises(IsADirectoryError):
        ownfiles.read_given(tmp_path)


@pytest.fixture
def somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process take itself for another user, who is not root."""
    monkeypatch.setattr(ownfiles, "user", lambda: os.geteuid() + 1)


GivenAway = Callable[[Path], None]


@pytest.fixture
def given_away(monkeypatch: pytest.MonkeyPatch) -> GivenAway:
    """Return what gives a file to another user; who is not root becomes another one himself."""

    def give(path: Path) -> None:
        if is_root():
            os.chown(path, OTHER_UID, -1, follow_symlinks=False)
        else:
            monkeypatch.setattr(ownfiles, "user", lambda: os.geteuid() + 1)

    return give


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# ------------------------------------------------------------------------------------------- homes


def test_a_home_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    home = tmp_path / "a" / "home"
    make_directories(home)
    make_directories(home)
    assert [mode_of(path) for path in (home, store_of(home), run_of(home))] == [0o700] * 3


@mends("R6.1")
def test_a_home_of_another_user_is_refused(tmp_path: Path, somebody_else: None) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with pytest.raises(NotPermitted, match=r"belongs to user .* run it as that user"):
        make_directories(home)
    assert not run_of(home).exists()


def test_settings_of_another_user_are_refused(tmp_path: Path, given_away: GivenAway) -> None:
    home = tmp_path / "home"
    make_directories(home)
    (home / "gantrymq.toml").write_text("")
    make_directories(home)
    require_settings(home, SETTINGS)
    given_away(home / "gantrymq.toml")
    with pytest.raises(NotPermitted, match=r"belongs to user"):
        require_settings(home, SETTINGS)


@mends("S233")
@pytest.mark.parametrize("mode", [0o664, 0o606])
def test_settings_that_others_can_write_are_refused(tmp_path: Path, mode: int) -> None:
    home = tmp_path / "home"
    make_directories(home)
    given = home / "gantrymq.toml"
    given.write_text("")
    given.chmod(mode)
    require_settings(home, SETTINGS)
    home.chmod(0o755)
    with pytest.raises(NotPermitted, match=f"`chmod go-w {given}`"):
        require_settings(home, SETTINGS)
    given.rename(tmp_path / "kept")
    given.symlink_to(tmp_path / "kept")
    home.chmod(0o700)
    tmp_path.chmod(0o755)
    with pytest.raises(NotPermitted, match=f"`chmod go-w {given}`"):
        require_settings(home, SETTINGS)
    given.chmod(0o644)
    require_settings(home, SETTINGS)


@mends("R6.3")
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
def test_a_home_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(mode)
    with pytest.raises(NotPermitted, match=f"`chmod 700 {home}`"):
        make_directories(home)
    assert list(home.iterdir()) == []
    home.chmod(0o755)
    make_directories(home)


def test_links_on_the_way_to_a_home_are_fine_if_they_are_own(
    tmp_path: Path, given_away: GivenAway
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "other").symlink_to("disk")
    (tmp_path / "link").symlink_to(tmp_path / "other" / ".." / "other")
    home = tmp_path / "link" / "home"
    make_directories(home)
    assert (tmp_path / "disk" / "home" / "run").is_dir()
    given_away(tmp_path / "other")
    with pytest.raises(NotPermitted, match=r"is a link that user \d+ has made|belongs to user"):
        make_directories(home)


def test_a_store_may_be_a_link_and_run_may_not(tmp_path: Path) -> None:
    home, disk = tmp_path / "home", tmp_path / "disk"
    home.mkdir()
    disk.mkdir()
    store_of(home).symlink_to(disk)
    make_directories(home)
    run_of(home).rmdir()
    run_of(home).symlink_to(disk)
    with pytest.raises(PermissionError, match="symbolic link"):
        make_directories(home)


def test_a_store_of_another_user_is_locked_by_nobody_who_would_write(
    store_dir: Path, somebody_else: None
) -> None:
    with pytest.raises(NotPermitted, match="belongs to user"):
        lock.acquire(store_dir, 0.0)
    assert list(store_dir.iterdir()) == []
    lock.acquire(store_dir, 0.0, to_write=False).close()


# ------------------------------------------------------------------------------ becoming private


def test_all_of_a_tree_becomes_private(tmp_path: Path) -> None:
    folder = tmp_path / "store" / "a" / "b"
    folder.mkdir(parents=True)
    (folder / "file").touch()
    for path in (tmp_path / "store", folder.parent, folder, folder / "file"):
        path.chmod(0o777)
    assert not ownfiles.is_private(tmp_path / "store")
    ownfiles.make_all_private(tmp_path / "store")
    assert ownfiles.is_private(tmp_path / "store")
    assert [mode_of(path) for path in (folder.parent, folder, folder / "file")] == [
        0o700, 0o700, 0o600,
    ]  # fmt: skip


def test_a_tree_with_a_link_or_of_others_does_not_count_as_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, outside = tmp_path / "store", tmp_path / "outside"
    root.mkdir()
    outside.mkdir(mode=0o755)
    (root / "link").symlink_to(outside)
    with pytest.raises(PermissionError, match="symbolic link"):
        ownfiles.make_all_private(root)
    assert not ownfiles.is_private(root), "the next start looks again"
    assert mode_of(outside) == 0o755
    (root / "link").unlink()
    (root / "file").touch()
    with monkeypatch.context() as patch:
        patch.setattr(ownfiles, "user", lambda: os.geteuid() + 1)
        with pytest.raises(NotPermitted, match=r"file belongs to user"):
            ownfiles.make_all_private(root)
    assert not ownfiles.is_private(root)


# ------------------------------------------------------------------------------------------- files

WRITERS: dict[str, Callable[[Path], object]] = {
    "open_file": lambda path: ownfiles.open_file(path, os.O_RDWR | os.O_CREAT),
    "create_file": ownfiles.create_file,
    "appending": lambda path: ownfiles.appending(path).__enter__(),
    "make_private": ownfiles.make_private,
    "try_lock": try_lock,
    "storage.open": lambda path: PosixStorage(str(path.parent)).open(path.name, write=True),
    "storage.create": lambda path: PosixStorage(str(path.parent)).create(path.name),
    "storage.size_of": lambda path: PosixStorage(str(path.parent)).size_of(path.name),
    "read_trusted": ownfiles.read_trusted,
    "require_trusted": ownfiles.require_trusted,
}


@pytest.mark.parametrize("dangling", [False, True])
@pytest.mark.parametrize("name", WRITERS)
def test_no_link_is_followed(tmp_path: Path, name: str, dangling: bool) -> None:
    victim = tmp_path / "victim"
    if not dangling:
        victim.write_text("kept")
    (tmp_path / "link").symlink_to(victim)
    with pytest.raises(PermissionError, match=r"symbolic link.*remove it"):
        WRITERS[name](tmp_path / "link")
    assert victim.read_text() == "kept" if not dangling else not victim.exists()


def test_a_file_that_is_replaced_replaces_links(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    for name in ("file", "file.new"):
        (tmp_path / name).symlink_to(victim)
    ownfiles.replace_whole(tmp_path / "file", b"new", mode=0o644)
    assert (tmp_path / "file").read_text() == "new"
    assert not (tmp_path / "file").is_symlink()
    assert mode_of(tmp_path / "file") == 0o644
    assert sorted(os.listdir(tmp_path)) == ["file", "victim"]
    assert victim.read_text() == "kept"


def test_what_others_may_write_is_not_trusted(tmp_path: Path, somebody_else: None) -> None:
    path = tmp_path / "code"
    path.write_bytes(b"code")
    with pytest.raises(PermissionError, match="another user"):
        ownfiles.read_trusted(path)


def test_what_only_this_user_writes_is_trusted(tmp_path: Path) -> None:
    path = tmp_path / "code"
    path.write_bytes(b"code")
    path.chmod(0o644)
    assert ownfiles.read_trusted(path) == b"code"
    path.chmod(0o664)
    with pytest.raises(PermissionError, match="others may write"):
        ownfiles.read_trusted(path)


# ------------------------------------------------------------------------------ names in a store

CALLS: dict[str, Callable[[PosixStorage | SimStorage, str], object]] = {
    "open": lambda storage, name: storage.open(name),
    "open to write": lambda storage, name: storage.open(name, write=True),
    "create": lambda storage, name: storage.create(name),
    "exists": lambda storage, name: storage.exists(name),
    "size_of": lambda storage, name: storage.size_of(name),
    "list": lambda storage, name: storage.list(name),
    "is_directory": lambda storage, name: storage.is_directory(name),
    "make_directory": lambda storage, name: storage.make_directory(name),
    "rename from": lambda storage, name: storage.rename(name, "there/new"),
    "rename to": lambda storage, name: storage.rename("there/file", name),
    "unlink": lambda storage, name: storage.unlink(name),
    "sync_directory": lambda storage, name: storage.sync_directory(name),
}
OUTWARDS = ("../file", "there/../../file", "there/..", "..", "/file", "there/\0file")


@mends("H5")
@pytest.mark.parametrize("call", CALLS)
def test_no_name_leads_out_of_a_store(tmp_path: Path, call: str) -> None:
    (tmp_path / "file").write_text("outside")
    storages: list[PosixStorage | SimStorage] = [
        PosixStorage(str(tmp_path / "store")), SimStorage(Disk()),
    ]  # fmt: skip
    for storage in storages:
        storage.create("there/file").close()
        for name in OUTWARDS:
            with pytest.raises(PermissionError, match="leads out of the store"):
                CALLS[call](storage, name)
        assert storage.exists("there/file")
    assert sorted(os.listdir(tmp_path)) == ["file", "store"]
    for name in ("there/a..b", "...", "there/..x", ""):
        require_inside(name)


@pytest.mark.parametrize("call", CALLS)
def test_no_folder_of_a_store_is_a_link(tmp_path: Path, call: str) -> None:
    root, outside = tmp_path / "store", tmp_path / "outside"
    storage = PosixStorage(str(root))
    storage.create("there/file").close()
    outside.mkdir()
    (outside / "file").write_text("kept")
    (root / "link").symlink_to(outside)
    name = "link" if call in ("list", "sync_directory", "make_directory") else "link/file"
    with pytest.raises(PermissionError, match="symbolic link"):
        CALLS[call](storage, name)
    assert (outside / "file").read_text() == "kept"
    assert os.listdir(outside) == ["file"]


# ------------------------------------------------------------------------------------------- names


@mends("S130")
def test_errors_of_a_descriptor_name_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own texts have a number in its place, or nothing."""
    for read in (ownfiles.read_bytes, ownfiles.read_trusted):
        with pytest.raises(IsADirectoryError) as refused:
            read(tmp_path)
        assert refused.value.filename == str(tmp_path)

    def fail(_descriptor: int, *_mode: int) -> None:
        raise OSError(errno.EIO, "an error by a number")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="an error") as refused_sync:
        ownfiles.replace_whole(tmp_path / "file", b"", sync=True)
    assert refused_sync.value.filename == str(tmp_path / "file.new")
    monkeypatch.setattr(os, "fchmod", fail)
    with pytest.raises(OSError, match="an error") as refused_mode:
        ownfiles.make_private(tmp_path / "folder")
    assert refused_mode.value.filename == str(tmp_path / "folder")
