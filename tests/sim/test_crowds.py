"""Runs of `python -m tests.sim.crowds`, of which soak has more, and what they find."""

from __future__ import annotations

import pytest

from tests.sim.conftest import Program
from tests.sim.crowd_plants import PLANTS


def test_sessions_by_the_thousand_leave_nothing_behind(seed: int, program: Program) -> None:
    """Peers, lanes, arrays and descriptors are what they were after some hundred."""
    done = program("tests.sim.crowds", "--seeds", f"{seed}:{seed + 1}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2300 sessions" in done.stdout, done.stdout


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_leak_is_found(plant: str, seed: int, program: Program) -> None:
    """By any seed."""
    done = program("tests.sim.crowds", "--seeds", f"{seed}:{seed + 1}", "--plant", plant)
    assert done.returncode == 1, f"{plant} was not found: {done.stdout}"
    assert "CrowdedError" in done.stdout, done.stdout
