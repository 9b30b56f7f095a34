"""Runs of `python -m tests.sim.retries`, of which soak has more, and what they find."""

from __future__ import annotations

import re

import pytest

from tests.sim.conftest import Program


def test_attempts_end_in_one_dead_letter_whoever_dies(seed: int, program: Program) -> None:
    """P5, P8, P9, P10, P12: three producers and three members, delays, retries, recalls, kills."""
    done = program("tests.sim.retries", "--seeds", f"{seed}:{seed + 4}")
    assert done.returncode == 0, done.stdout + done.stderr
    reached = set(re.findall(r"\d+ ([a-z_ ]+)", done.stdout))
    assert {"dead letters", "copies", "cancelled", "delivered"} <= reached


def test_what_retention_removes_after_a_step_of_the_clock_is_remembered(program: Program) -> None:
    """A copy outlives the segment of what it was made of."""
    done = program("tests.sim.retries", "--seeds", "66404870:66404871")
    assert done.returncode == 0, done.stdout + done.stderr


#: Most seeds that a planted bug is looked for in: one in six or more finds it.
MOST = 40
#: Planted bug -> how many seeds later the suite begins: shortly before one that finds it.
LATER = {"not_looked_for": 13, "answered_before_put": 1}


@pytest.mark.parametrize("plant", LATER)
def test_a_planted_bug_is_found(plant: str, seed: int, program: Program) -> None:
    first = seed + LATER[plant]
    arguments = ("--seeds", f"{first}:{first + MOST}", "--plant", plant)
    done = program("tests.sim.retries", *arguments)
    assert done.returncode == 1, f"{plant} was not found: {done.stdout}"
    assert re.search(r"fails: (BrokenPromise|Stalled)Error", done.stdout), done.stdout
