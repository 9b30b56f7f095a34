"""Compiling machine code: names that need none compile nothing, others say so, `warm` does it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.trials import mends

#: Each public name in a fork of its own, where loading machine code ends it.
PROGRAM = """
import os, sys
import gantrymq
from gantrymq.shm import jit

def refuse(*_):
    os._exit(7)

jit._load = refuse
for name in gantrymq.__all__:
    pid = os.fork()
    if pid == 0:
        getattr(gantrymq, name)
        os._exit(0)
    print(name, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
MACHINE_CODE = {"MessageBatch", "Producer", "PullConsumer", "PushConsumer", "Transaction"}


@mends("A6")
def test_names_that_need_no_machine_code_compile_none() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    codes = dict(line.split() for line in done.stdout.splitlines())
    assert {name for name, code in codes.items() if code == "7"} == MACHINE_CODE
    assert set(codes.values()) == {"0", "7"}


def test_a_broker_loads_no_machine_code_before_it_says_so() -> None:
    """Else a first start compiles without progress, and systemd ends it."""
    program = (
        "import gantrymq.shm.jit as jit; jit._load = None;"
        " import gantrymq.brokerd.__main__, gantrymq.brokerd.serve, gantrymq.cli.serve"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@contextmanager
def first_import(cache: Path) -> Iterator[subprocess.Popen[str]]:
    """A program without compiled kernels, broken off as by a user."""
    with subprocess.Popen(
        [sys.executable, "-c", "from gantrymq import Producer"],
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGINT)
            process.communicate()


@mends("A6")
def test_a_first_import_says_at_once_that_it_compiles(tmp_path: Path) -> None:
    """One line, though stderr is no terminal; it names the command that does it beforehand."""
    with first_import(tmp_path / "cache") as process:
        assert process.stderr is not None
        line = process.stderr.readline()
    assert "compiled for this processor, once" in line
    assert "about a minute" in line
    assert "`gantrymq warm`" in line


@mends("A6")
def test_a_cache_that_cannot_be_written_is_told_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with first_import(tmp_path / "file" / "cache") as process:
        assert process.stderr is not None
        lines = process.stderr.readline(), process.stderr.readline()
    assert "is not writable" in lines[1]
    assert "set XDG_CACHE_HOME" in lines[1]


@mends("A6")
@pytest.mark.parametrize("as_json", [False, True])
def test_warm_compiles_beforehand(as_json: bool) -> None:
    """What is compiled is not compiled again; a cold one is tests/system/test_terminal.py's."""
    done = subprocess.run(
        [sys.executable, "-m", "gantrymq", "warm", *["--json"] * as_json],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    if as_json:
        told = json.loads(done.stdout)
        assert told["kernels"] == 0
        assert Path(told["cache"], "kernels").exists()
    else:
        assert done.stdout.startswith("compiled before: ")
