"""What somebody in front of a terminal sees while a command takes its time."""

from __future__ import annotations

import re
from pathlib import Path

from gantrymq.shm.codes import ExitCode
from tests.support.manager import FirstStart

_STEP = re.compile(r"info +starting done=(\d+) total=(\d+) what=(\w+)")


def test_a_first_start_shows_which_kernel_is_compiled(first_start: FirstStart) -> None:
    """How many are done, of how many; told to stop meanwhile, it ends with its compiler.

    That it goes on is shown by tests/unit/test_watchdog.py.
    """
    assert first_start.code == ExitCode.OK
    shown = first_start.shown
    steps = [(int(done), int(total), name) for done, total, name in _STEP.findall(shown)]
    defined = "".join(path.read_text() for path in Path("shm/kernels").glob("*.py"))
    assert steps
    for done, total, name in steps:
        assert 0 <= done < total
        assert f"def {name}(" in defined
    assert "Traceback" not in shown
