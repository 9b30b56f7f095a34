"""Ring kernels and control lanes under many schedules, and with the client dying at each access.

In a subprocess, since the explorer needs the JIT off. Canaries show that bugs are found.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.tree import ROOT

#: Seeds within which each planted bug must be found; the first that finds it is far below.
CANARY_SEEDS = 100


def litmus(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.sim.litmus", program, *arguments]
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("program", ["lane", "messages", "progress"])
def test_every_schedule_keeps_order_and_wakes_all(program: str, seed: int) -> None:
    done = litmus(program, "--seeds", f"{seed}:{seed + 80}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "80 schedules\n"


@pytest.mark.parametrize("program", ["lane", "messages", "progress"])
def test_a_client_that_dies_at_any_access_leaves_whole_entries(program: str, seed: int) -> None:
    done = litmus(program, "--kill", "--seeds", f"{seed}:{seed + 2}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) > 2 * 30


@pytest.mark.parametrize(
    ("program", "plant"),
    [
        ("lane", "no_fence"),
        ("lane", "no_second_look"),
        ("lane", "tail_before_body"),
        ("messages", "no_fence"),
        ("messages", "no_second_look"),
        ("progress", "started_before_bits"),
        ("progress", "bits_before_started"),
    ],
)
def test_a_planted_bug_is_found(program: str, plant: str) -> None:
    done = litmus(program, "--seeds", f"0:{CANARY_SEEDS}", "--plant", plant)
    assert done.returncode == 1
    replay = done.stdout.splitlines()[-1].removeprefix("replay: NUMBA_DISABLE_JIT=1 ").split()
    again = litmus(program, *replay[replay.index("--seeds") :])
    assert again.stdout == done.stdout, "the printed seed replays"
