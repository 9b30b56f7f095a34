"""What somebody in front of a terminal sees while a command takes its time."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from shm.codes import ExitCode
from tests.support.brokers import START_S
from tests.support.terminal import Terminal
from tests.support.watchdog import poll_until

_STEP = re.compile(r"info +starting done=(\d+) total=(\d+) what=(\w+)")


def test_a_first_start_shows_which_kernel_is_compiled(tmp_path: Path) -> None:
    """How many are done, of how many; told to stop meanwhile, it ends with its compiler."""
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment.pop("NUMBA_DISABLE_JIT", None)
    command = [sys.executable, "-P", "-m", "gantrymq", "serve", "--home", str(tmp_path / "home")]
    with Terminal() as terminal:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=terminal.slave, env=environment
        )
        try:
            poll_until(lambda: len(_STEP.findall(terminal.read())) >= 2, "two steps", START_S)
            process.send_signal(signal.SIGTERM)
            assert process.wait(START_S) == ExitCode.OK
        finally:
            process.kill()
            process.wait()
        shown = terminal.read()
    steps = [(int(done), int(total), name) for done, total, name in _STEP.findall(shown)]
    assert steps[0][0] < steps[1][0] < steps[1][1] == steps[0][1]
    defined = "".join(path.read_text() for path in Path("shm/kernels").glob("*.py"))
    assert all(f"def {name}(" in defined for _done, _total, name in steps)
    assert "Traceback" not in shown
