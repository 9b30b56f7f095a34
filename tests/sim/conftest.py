"""One process for all runs of the simulator's programs: tests.sim.forks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.sim.__main__ import SETTINGS
from tests.support.tree import ROOT

#: A program of tests/sim and its arguments -> exit code, output, errors.
Program = Callable[..., subprocess.CompletedProcess[str]]


class Forks:
    """The process."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.sim.forks"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | SETTINGS, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout

    def run(self, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        wanted = {"module": module, "arguments": arguments}
        print(json.dumps(wanted), file=self._in, flush=True)
        line = self._out.readline()
        assert line, "tests.sim.forks has died"
        told = json.loads(line)
        return subprocess.CompletedProcess(
            [module, *arguments], told["code"], told["out"], told["err"]
        )

    def close(self) -> None:
        """End it."""
        self._in.close()
        self._process.wait()
        self._out.close()


@pytest.fixture(scope="session", name="program")
def program_fixture() -> Iterator[Program]:
    """Run a program of tests/sim in a fork: `program("tests.sim.seeds", "--seeds", "0:5")`."""
    forks = Forks()
    yield forks.run
    forks.close()
