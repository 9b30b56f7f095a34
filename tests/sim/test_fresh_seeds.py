"""One seed of each program of the simulator that no run has had before; the others are fixed.

A failure prints the seed and the command that replays it.
"""

from __future__ import annotations

import pytest

from tests.sim.conftest import Program


@pytest.mark.parametrize(
    "module",
    [
        "tests.sim.seeds",
        "tests.sim.retries",
        "tests.sim.transactions",
        "tests.sim.clients",
        "tests.sim.floods",
        "tests.sim.crowds",
    ],
)
def test_promises_hold_under_a_fresh_seed(module: str, fresh_seed: int, program: Program) -> None:
    done = program(module, "--seeds", f"{fresh_seed}:{fresh_seed + 1}")
    assert done.returncode == 0, f"seed {fresh_seed}:\n{done.stdout}{done.stderr}"
