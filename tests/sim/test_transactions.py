"""Runs of `python -m tests.sim.transactions`, of which soak has more, and what they find."""

from __future__ import annotations

import re

import pytest

from tests.sim.conftest import Program


def test_what_is_done_is_delivered_once_whoever_dies(seed: int, program: Program) -> None:
    """P7, P10: halves, ends and checks amid all faults."""
    done = program("tests.sim.transactions", "--seeds", f"{seed}:{seed + 3}")
    assert done.returncode == 0, done.stdout + done.stderr
    reached = set(re.findall(r"[1-9]\d* ([A-Za-z_ ]+)", done.stdout))
    assert {"END committed", "END rolled_back", "checks heard", "commit copies"} <= reached


#: Planted bug -> the first seed that is tried, how many may be, and the faults of these runs.
WITHIN = {
    "ended_before_stored": (1, 10, "kill_near_a_decision"),
    "told_of_the_next": (10, 10, "none"),
    "op_records_unread": (0, 10, "kill_a_decider"),
    "carried_out_again": (0, 10, "none"),
    "told_what_was_read": (30, 20, "cut_power_amid_a_stall"),
    "counted_unheard": (10, 20, "wait_for_checks"),
    "open_halves_removed": (0, 10, "let_time_pass"),
    "given_up_unlisted": (10, 10, "wait_for_checks"),
    "parked_again_once": (0, 40, "wait_for_checks"),
}


@pytest.mark.parametrize("plant", WITHIN)
def test_a_planted_bug_is_found(plant: str, program: Program) -> None:
    first, count, faults = WITHIN[plant]
    done = program(
        "tests.sim.transactions",
        *("--seeds", f"{first}:{first + count}", "--faults", faults, "--plant", plant),
    )
    assert done.returncode == 1, f"{plant} was not found: {done.stdout}"
    assert re.search(r"fails: (BrokenPromise|Stalled)Error", done.stdout), done.stdout
