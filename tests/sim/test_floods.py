"""Runs of `python -m tests.sim.floods`, of which soak has more, and what they find."""

from __future__ import annotations

import re

import pytest

from tests.sim.conftest import Program
from tests.sim.flood_plants import PLANTS
from tests.support.simflooder import floods
from tests.support.simordinary import WORKS
from tests.support.simtalker import LANE_OF


def test_nobody_is_late_by_what_others_ask(seed: int, program: Program) -> None:
    """Counted in steps of agents, which in some of these seeds stop amid one."""
    done = program("tests.sim.floods", "--seeds", f"{seed}:{seed + 3}")
    assert done.returncode == 0, done.stdout + done.stderr
    reached = set(re.findall(r"[1-9]\d* ([a-z ]+)", done.stdout))
    assert {*WORKS, *(f"{lane} floods" for lane in LANE_OF.values())} <= reached


def test_each_kind_of_flood_delays_nobody(seed: int, program: Program) -> None:
    """Whole steps: a kind takes a quarter of a second."""
    whole = seed // 4 * 4
    done = program("tests.sim.floods", "--seeds", f"{whole}:{whole + 1}", "--faults", KINDS)
    assert done.returncode == 0, done.stdout + done.stderr


KINDS = ",".join(floods())


def test_a_backlog_of_one_delay_holds_no_other_up(program: Program) -> None:
    """Levels and timers have their turn: a recall waited for all that was due of level 1."""
    kind = "writer.PARK.LEVEL.1"
    done = program("tests.sim.floods", "--seeds", "0:1", "--faults", kind)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_unfairness_is_found(plant: str, seed: int, program: Program) -> None:
    """By any seed."""
    for number in range(seed, seed + 1):
        done = program("tests.sim.floods", "--seeds", f"{number}:{number + 1}", "--plant", plant)
        assert done.returncode == 1, f"{plant} was not found: {done.stdout}"
        assert "UnfairError" in done.stdout, done.stdout
