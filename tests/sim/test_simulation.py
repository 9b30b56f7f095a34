"""The whole machine under seeded schedules and faults; canaries show that bugs are found.

In subprocesses, because a run replays exactly only with a fixed PYTHONHASHSEED.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.tree import ROOT


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.sim", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_promises_hold_without_faults(seed: int) -> None:
    done = simulate("--seeds", f"{seed}:{seed + 5}", "--faults", "none")
    assert done.returncode == 0, done.stdout + done.stderr


def test_promises_hold_under_all_faults(seed: int) -> None:
    """P1 to P6, P10 to P14 as far as this part goes; `make soak` gives fresh seeds."""
    done = simulate("--seeds", f"{seed}:{seed + 40}")
    assert done.returncode == 0, done.stdout + done.stderr


#: Planted bug -> seeds (from 0) within which it must be found.
WITHIN = {
    "ack_before_append": 100,
    "recovery_without_zeroing": 100,
    "durable_before_sync": 20,
    "leased_twice": 20,
    "appended_again": 150,
    "visible_before_durable": 20,
    "told_before_written": 20,
}


@pytest.mark.parametrize("plant", WITHIN)
def test_a_planted_bug_is_found(plant: str) -> None:
    done = simulate("--seeds", f"0:{WITHIN[plant]}", "--plant", plant)
    assert done.returncode == 1, f"{plant} was not found: {done.stdout}{done.stderr}"
    verdict, replay = done.stdout.splitlines()[-2:]
    assert "BrokenPromiseError" in verdict or "Corrupt" in verdict, done.stdout
    again = simulate(*replay.removeprefix("replay: python -m tests.sim ").split())
    assert again.stdout == done.stdout, "the printed command replays the failure"
