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
    """Counted in steps of agents; by two kinds of flood on each lane."""
    done = program("tests.sim.floods", "--seeds", f"{seed}:{seed + 1}")
    assert done.returncode == 0, done.stdout + done.stderr
    reached = set(re.findall(r"[1-9]\d* ([a-z ]+)", done.stdout))
    assert {*WORKS, *(f"{lane} floods" for lane in LANE_OF.values())} <= reached


def test_each_kind_of_flood_delays_nobody(seed: int, program: Program) -> None:
    """Of all kinds every other one: they take a quarter of a second each. Soak has them all."""
    whole = seed // 4 * 4  # no agent stops amid a step
    kinds = ",".join(list(floods())[seed % 2 :: 2])
    done = program("tests.sim.floods", "--seeds", f"{whole}:{whole + 1}", "--faults", kinds)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("failed", "kinds"), [(0, "writer.PARK.LEVEL.1"), (152, "all")])
def test_a_backlog_of_one_delay_holds_no_other_up(
    failed: int, kinds: str, program: Program
) -> None:
    """Levels and timers have their turn: a recall waited for all that was due of level 1.

    In the second seed who found the ring full had lost its turn.
    """
    seeds = f"{failed}:{failed + 1}"
    done = program("tests.sim.floods", "--seeds", seeds, "--faults", kinds)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_unfairness_is_found(plant: str, seed: int, program: Program) -> None:
    """By one seed of three in which no agent stops amid a step: one that never ends is not judged.

    In one of a dozen, what the floods ask leaves the works that are judged alone.
    """
    whole, said = seed // 2 * 2, []
    for each in (whole, whole + 2, whole + 4):
        done = program("tests.sim.floods", "--seeds", f"{each}:{each + 1}", "--plant", plant)
        said.append(done.stdout)
        if done.returncode:
            break
    assert done.returncode == 1, f"{plant} was not found: {said}"
    assert "UnfairError" in done.stdout, done.stdout
