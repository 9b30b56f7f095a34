"""The check that nothing is left behind finds what is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_the_test_that_leaves_something_fails_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "test_leaving.py").write_text(LEAVING)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-c", "pyproject.toml"]
    settings = ["--rootdir", str(ROOT), "--confcutdir", str(tmp_path), str(tmp_path)]
    environment = os.environ | {"GANTRYMQ_TEST_GRACE_S": "0.1"}
    done = subprocess.run(
        command + settings, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "left behind (now removed):\n/dev/shm/gantrymq-test-" in done.stdout
    assert "2 passed, 1 error" in done.stdout
