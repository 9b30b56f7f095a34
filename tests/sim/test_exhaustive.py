"""Deaths at every access and at every storage call, and every state that a power cut leaves.

Each in a process of its own, or a fork: accesses need the JIT off, and a run replays exactly only
with a fixed PYTHONHASHSEED. docs/faults.md says which fault is which; `make soak` runs more.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.sim.conftest import Program
from tests.support.tree import ROOT

#: Of the states of a script, this run tries one share of so many, by its seed; soak tries all.
SHARES = 10
#: Likewise of the places to die at, by a fresh seed.
DEATH_SHARES = 8


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONHASHSEED": "0", "NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_whoever_dies_at_any_access_holds_nobody_up(fresh_seed: int) -> None:
    """F1, P12: places where an agent or client loads, stores or fences; every one is reached.

    A share of them is died at. One seed, for not every seed's machine gets everywhere; soak draws
    others.
    """
    share = f"{fresh_seed % DEATH_SHARES}/{DEATH_SHARES}"
    done = run("tests.sim.accesses", "--seed", "16", "--share", share)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, missed, total = done.stdout.splitlines()
    assert missed == "not reached: ", missed
    assert int(total.split()[0]) > 150, total


def test_a_kill_or_power_cut_at_any_storage_call(seed: int, program: Program) -> None:
    """F2, F24: before and after each, and again amid the start that follows (P1, P2, P5, P11).

    Every other seed has a topic of RocketMQ's type BatchCQ.
    """
    batch = ("--batch-topic", "plain") if seed % 2 else ()
    done = program("tests.sim.storage_calls", "kills", "--seed", str(seed % 1000), *batch)
    assert done.returncode == 0, done.stdout + done.stderr
    moments, starts = map(int, re.findall(r"\d+", done.stdout))
    assert moments > 200, done.stdout
    assert 4 * moments < starts <= 8 * moments


def test_every_state_that_a_power_cut_may_leave(seed: int, program: Program) -> None:
    """F5, F6: lost, reordered and torn writes, and names whose directory was not synced."""
    share = f"{seed % SHARES}/{SHARES}"
    done = program("tests.sim.storage_calls", "states", "--seed", "1", "--share", share)
    assert done.returncode == 0, done.stdout + done.stderr
    calls, states = map(int, re.findall(r"\d+", done.stdout))
    assert calls >= 200
    assert states > 5 * calls


@pytest.mark.parametrize("what", ["kills", "states"])
@pytest.mark.parametrize("plant", ["recovery_without_zeroing", "durable_before_sync"])
def test_a_planted_bug_is_found_by_exhaustion(what: str, plant: str, program: Program) -> None:
    done = program("tests.sim.storage_calls", what, "--plant", plant)
    assert done.returncode == 1, f"{plant} was not found: {done.stdout}"
    assert "AssertionError" in done.stderr
