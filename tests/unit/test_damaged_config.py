"""Small files that are damaged: a start that goes on without them tells of it, or `verify`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gantrymq.brokerd.queuestarts import FILE as STARTS_FILE
from gantrymq.brokerd.queuestarts import save_starts
from gantrymq.brokerd.verify import verify
from gantrymq.shm.codes import ExitCode
from gantrymq.shm.configfile import what_is_wrong
from gantrymq.shm.storage import PosixStorage
from tests.support.forked import run_forked
from tests.support.trials import mends
from tests.system.test_refused_start import begun_with_a_signal

NAME = "topics.json"


def changed(data: bytes) -> bytes:
    """The same with another number somewhere."""
    at = data.index(b'"perm":6')
    return data[: at + 7] + b"4" + data[at + 8 :]


@mends("S281")
@pytest.mark.parametrize(
    ("damage", "found", "used"),
    [
        (lambda data: data[: len(data) // 2], "no JSON", "config/topics.json.bak"),
        (lambda _data: b"", "no JSON", "config/topics.json.bak"),
        (lambda _data: None, "no file", "config/topics.json.bak"),
        (changed, "a file that was changed since it was written", "config/topics.json"),
        (lambda data: data, "", ""),
    ],
    ids=["half", "empty", "gone", "another byte", "whole"],
)
def test_a_start_tells_what_it_goes_on_with(
    plain_store: Path, tmp_path: Path, damage: object, found: str, used: str
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    store = Path(shutil.copytree(plain_store, home / "store"))
    file = store / "config" / NAME
    data = file.read_bytes()
    (store / "config" / f"{NAME}.bak").write_bytes(data)
    left = damage(data)  # type: ignore[operator]
    file.unlink()
    if left is not None:
        file.write_bytes(left)
    wanted = {"found": found, "used": used} if found else None
    assert what_is_wrong(PosixStorage(str(store)), NAME) == wanted
    done = run_forked(["serve", "--home", str(home)], prepare=begun_with_a_signal)
    assert done.returncode == ExitCode.OK, done.stderr
    assert (f'"config_damaged", "path": "config/{NAME}"' in done.stderr) == bool(found)
    assert what_is_wrong(PosixStorage(str(store)), NAME) in (None, wanted if left else None)


@mends("S283")
def test_verify_names_a_damaged_note_of_where_queues_begin(
    plain_store: Path, tmp_path: Path
) -> None:
    """Not the files that are right by it."""
    store = Path(shutil.copytree(plain_store, tmp_path / "store"))
    save_starts(PosixStorage(str(store)), 0, {})
    assert verify(store).ok
    file = store / STARTS_FILE
    data = file.read_bytes()
    for at in range(len(data)):
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert [found.path for found in verify(store).findings] == [STARTS_FILE], at
    for left in (b"", data[: len(data) // 2], b"[]"):
        file.write_bytes(left)
        assert [found.path for found in verify(store).findings] == [STARTS_FILE], left
