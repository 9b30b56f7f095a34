"""The real client code under seeded schedules and faults; canaries: bugs in it are found."""

from __future__ import annotations

import re

import pytest

from tests.sim.conftest import Program

MODULE = "tests.sim.clients"
#: Consumers of most runs: as clients.USUAL.
USUAL = "usual"


def test_promises_hold_without_faults(program: Program) -> None:
    """Nothing comes twice then, and no thread sleeps over a completion that another has taken."""
    done = program(MODULE, "--seeds", "7:9", "--faults", "none")
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_comes_twice_where_another_member_comes(program: Program) -> None:
    """Queues go from those who are busy to the newcomer with all that they were done with."""
    done = program(MODULE, "--seeds", "0:2", "--faults", "let_another_come")
    assert done.returncode == 0, done.stdout + done.stderr


def test_promises_hold_under_all_faults(program: Program) -> None:
    """P1 to P6, P8, P10 to P12, as applications see them."""
    done = program(MODULE, "--seeds", "100:103")
    assert done.returncode == 0, done.stdout + done.stderr
    reached = set(re.findall(r"\d+ ([A-Za-z_ ]+)", done.stdout))
    assert {"receipts", "flushed", "batches", "delivered", "handed out", "payments"} <= reached, (
        done.stdout
    )


def test_the_wall_clock_ends_no_session_and_brings_nothing_early(program: Program) -> None:
    """P8, LW-12; segments become old by it, too."""
    done = program(MODULE, "--seeds", "3000:3002", "--faults", "set_the_clock")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_replays_exactly(program: Program) -> None:
    first, again = (program(MODULE, "--seeds", "7:8").stdout for _ in range(2))
    assert "digest" in first, first
    assert first == again


#: Planted bug -> the first seed that is tried, faults and consumers of runs, what is said of it.
#: Not among them: level_of_another_unheard, which none of 300 seeds has found since a thread whose
#: ring another has taken looks again.
FOUND = {
    "numbered_anew": (19, "kill_the_broker", USUAL, "StalledError|P6|P5"),
    "committed_when_polled": (26, "kill_an_application", USUAL, "StalledError|P10"),
    "acknowledged_when_taken": (0, "kill_an_application", USUAL, "StalledError|P10"),
    "interest_forgotten": (0, "kill_the_broker", USUAL, "LostWakeupError"),
    "settled_twice": (0, "crowd_a_producer", USUAL, "P6"),
    "order_forgotten": (0, "none", "ordered", "P5"),
    "failed_passed_over": (0, "none", "ordered", "P5"),
    "filter_forgotten": (0, "none", "sifters", "FL-4"),
    "first_tag_alone": (1, "none", "sifters", "StalledError|P10"),
}
SEEDS = 50


@pytest.mark.parametrize("plant", FOUND)
def test_a_planted_bug_is_found(plant: str, program: Program) -> None:
    first, faults, consumers, verdict = FOUND[plant]
    seeds = f"{first}:{first + SEEDS}"
    width = ("--faults", faults, "--consumers", consumers)
    done = program(MODULE, "--seeds", seeds, *width, "--plant", plant)
    assert done.returncode == 1, f"{plant} was not found: {done.stdout}{done.stderr}"
    assert re.search(verdict, done.stdout.splitlines()[-2]), done.stdout
