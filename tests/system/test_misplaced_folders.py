"""A directory in place of a file of the store: said by name, before any agent works."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gantrymq.brokerd import storefiles
from gantrymq.brokerd.misplaced import find_misplaced
from gantrymq.brokerd.salvage import salvage
from gantrymq.brokerd.verify import verify
from gantrymq.clients.home import store_of
from gantrymq.shm.codes import ExitCode
from gantrymq.shm.storage import PosixStorage
from tests.support.forked import run_forked
from tests.support.trials import mends

IN_GANTRY = sorted(storefiles.KNOWN.union(storefiles.UNDER_WAY) - storefiles.FOLDERS)
IN_CONFIG = sorted({*storefiles.CONFIG_TABLES, *storefiles.OTHER_CONFIG})
FILES = [
    *storefiles.OF_THE_ROOT,
    *(f"config/{name}{suffix}" for name in IN_CONFIG for suffix in ("", ".bak")),
    *map(storefiles.path_of, IN_GANTRY),
    "gantry/store.json.new",
    f"commitlog/{0:020d}",
    f"gantry/segments/{0:020d}",
    "index/20260101000000000",
]


def put_folder(store: Path, path: str) -> None:
    """Stand a directory where a file is, or would be."""
    (store / path).unlink(missing_ok=True)
    (store / path).mkdir(parents=True)


@pytest.fixture
def home(plain_store: Path, tmp_path: Path) -> Path:
    """Of a copy of a stopped store."""
    made = tmp_path / "home"
    made.mkdir(mode=0o700)
    shutil.copytree(plain_store, store_of(made))
    return made


def require_refused(home: Path, path: str, *options: str) -> None:
    done = run_forked(["serve", "--home", str(home), *options])
    assert "Traceback" not in done.stderr
    assert done.returncode == ExitCode.STORE
    assert path in done.stderr
    assert "move the directory away" in " ".join(done.stderr.split())
    assert ("not_started" in done.stderr) == (not options)
    assert "agent_failed" not in done.stderr


@mends("S268")
@pytest.mark.parametrize("path", FILES)
def test_no_broker_starts(path: str, home: Path) -> None:
    put_folder(store_of(home), path)
    require_refused(home, path)
    require_refused(home, path, "--check")
    assert (store_of(home) / path).is_dir()


@mends("S268")
@pytest.mark.parametrize("path", FILES)
def test_a_check_lists_it_and_goes_on(path: str, home: Path) -> None:
    store = store_of(home)
    (store / "mine").touch()
    put_folder(store, path)
    listed = [(one.path, one.what) for one in verify(store).findings]
    assert (path, "a directory in place of a file") in listed
    assert ("mine", "stray file") in listed


@mends("S268")
@pytest.mark.parametrize("path", FILES)
def test_a_salvage_leaves_it_out(path: str, home: Path, tmp_path: Path) -> None:
    put_folder(store_of(home), path)
    target = tmp_path / "salvaged"
    salvage(store_of(home), target)
    assert not (target / path).is_dir()


@mends("S268")
def test_folders_that_are_to_be_there_are_none(varied_store: Path, home: Path) -> None:
    """Nor what nobody knows: RocketMQ has folders of its own in `config/`."""
    store = store_of(home)
    for path in ("config/metadata", "index/lost+found"):
        put_folder(store, path)
    assert find_misplaced(PosixStorage(str(store))) == []
    assert find_misplaced(PosixStorage(str(varied_store))) == []
