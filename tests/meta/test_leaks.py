"""The check that nothing is left behind finds what is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gantrymq.clients.home import read_board_file
from gantrymq.shm.board import create_region
from tests.support import leaks
from tests.support.tree import ROOT
from tests.support.watchdog import poll_until

WAITING = "import sys; sys.stdin.read()"


def test_a_region_is_found_and_removed(unique_name: str) -> None:
    before = leaks.take()
    (leaks.SHARED_MEMORY / unique_name).touch()
    left = leaks.left_since(before)
    leaks.clear(left)
    assert left.regions == {unique_name}
    assert not leaks.left_since(before).regions


def test_a_child_is_found_and_killed() -> None:
    before = leaks.take()
    with subprocess.Popen([sys.executable, "-c", WAITING], stdin=subprocess.PIPE) as child:
        poll_until(lambda: leaks.left_since(before).processes, "the child is seen")
        left = leaks.left_since(before)
        leaks.clear(left)
        assert left.processes == {child.pid}
        assert child.wait() == -signal.SIGKILL


STARTS_AN_ORPHAN = f"""
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", "{WAITING}"], stdout=subprocess.DEVNULL).pid)
"""


def test_an_orphan_is_found() -> None:
    before = leaks.take(orphans=True)
    held_open, until_closed = os.pipe()
    try:
        command = [sys.executable, "-c", STARTS_AN_ORPHAN]
        shown = subprocess.run(command, stdin=held_open, stdout=subprocess.PIPE, check=True)
        assert leaks.left_since(before, orphans=True).processes == {int(shown.stdout)}
    finally:
        os.close(until_closed)
        os.close(held_open)
    poll_until(lambda: not leaks.left_since(before, orphans=True).processes, "the orphan has ended")


def test_an_orphan_of_a_forked_program_is_found() -> None:
    """Its variables in /proc are those that pytest was started with."""
    before = leaks.take(orphans=True)
    held_open, until_closed = os.pipe()
    try:
        if not (parent := os.fork()):
            leaks.mark_this_process()
            if not os.fork():
                os.close(until_closed)
                os.read(held_open, 1)
            os._exit(0)
        os.waitpid(parent, 0)
        assert len(leaks.left_since(before, orphans=True).processes) == 1
    finally:
        os.close(until_closed)
        os.close(held_open)
    poll_until(lambda: not leaks.left_since(before, orphans=True).processes, "the orphan has ended")


def test_what_an_older_process_starts_is_not_blamed_on_a_test() -> None:
    program = "import subprocess, sys; input(); subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as fixture:
        assert fixture.stdin
        poll_until(lambda: fixture.pid in leaks.take().processes, "the wider fixture is seen")
        before = leaks.take()
        fixture.stdin.write(b"go\n")
        fixture.stdin.flush()
        poll_until(lambda: len(leaks.descendants(fixture.pid)) == 1, "it has a child")
        assert not leaks.left_since(before).processes


LEAVING = """
import pathlib

def test_leaves_a_region(unique_name):
    pathlib.Path("/dev/shm", unique_name).touch()

def test_leaves_nothing(): ...
"""


def running_suite(folder: Path, text: str, **variables: str) -> subprocess.Popen[str]:
    """Tests of a text, run as a suite of its own with this suite's fixtures."""
    (folder / "test_inner.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-c", "pyproject.toml"]
    settings = ["--rootdir", str(ROOT), "--confcutdir", str(folder), str(folder)]
    environment = os.environ | {"GANTRYMQ_TEST_GRACE_S": "0.1"} | variables
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(command + settings, cwd=ROOT, env=environment, **streams)


def test_the_test_that_leaves_something_fails_and_no_other(tmp_path: Path) -> None:
    with running_suite(tmp_path, LEAVING) as suite:
        out, _err = suite.communicate()
    assert suite.returncode == pytest.ExitCode.TESTS_FAILED, out
    assert "left behind (now removed):\n/dev/shm/gantrymq-test-" in out
    assert "2 passed, 1 error" in out


#: Others begin, live and die while the tests of a run are under way.
BESIDE = """
import os, pathlib, subprocess, sys
from tests.support.watchdog import poll_until

HERE = pathlib.Path(os.environ["BESIDE"])

def test_beside_a_broker_that_is_killed():
    broker = [sys.executable, "-m", "gantrymq.brokerd"]
    command = [*broker, "--home", HERE / "home", "--profile", "small"]
    elsewhere = os.environ | {"GANTRYMQ_TEST_RUN": "another"}
    with subprocess.Popen(command, env=elsewhere, stderr=subprocess.DEVNULL) as broker:
        poll_until((HERE / "home" / "run" / "board").exists, "it has a board", 60)
        broker.kill()

def test_beside_one_that_lives():
    (HERE / "wanted").touch()
    poll_until((HERE / "mapped").exists, "somebody else has mapped a region", 60)

def test_nothing_else(): ...
"""


def test_what_others_have_is_neither_seen_nor_removed(tmp_path: Path, unique_name: str) -> None:
    """A broker that dies beside a run leaves its board, another has a region mapped."""
    mapped = unique_name.removesuffix(leaks.this_run()) + "somebody"
    (tmp_path / "suite").mkdir()
    board = ""
    try:
        with running_suite(tmp_path / "suite", BESIDE, BESIDE=str(tmp_path)) as suite:
            wanted = tmp_path / "wanted"
            poll_until(lambda: wanted.exists() or suite.poll() is not None, "its turn", 120)
            region = create_region(f"/{mapped}", 4096)
            (tmp_path / "mapped").touch()
            out, _err = suite.communicate()
        board = read_board_file(tmp_path / "home")["board"][1:]
        assert "3 passed" in out
        assert suite.returncode == pytest.ExitCode.OK, out
        assert {mapped, board} <= set(os.listdir(leaks.SHARED_MEMORY))
        assert region[0] == 0
    finally:
        for name in filter(None, (mapped, board)):
            (leaks.SHARED_MEMORY / name).unlink(missing_ok=True)
