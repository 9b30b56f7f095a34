"""A run of `python -m tests.sim.retries`, which has more of them, and what it finds."""

from __future__ import annotations

import pytest

from tests.sim import retries
from tests.support.simulation import StalledError
from tests.support.storedlog import BrokenPromiseError
from workers.sendbacks import SendBacks

#: Longer than the good runs of these seeds.
STEPS = 30_000


def test_attempts_end_in_one_dead_letter_whoever_dies() -> None:
    """P9, P10."""
    tally = retries.run(9, retries.KINDS).world.model.tally
    assert tally["dead letters"]


@pytest.mark.parametrize(
    ("name", "method", "seed"),
    [("not_looked_for", "_unanswered", 0), ("answered_before_put", "_take", 2)],
)
def test_a_planted_bug_is_found(
    name: str, method: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "STEPS_MAX", STEPS)
    monkeypatch.setattr(SendBacks, method, getattr(SendBacks, method))  # restored afterwards
    retries.PLANTS[name]()
    with pytest.raises((BrokenPromiseError, StalledError)):
        retries.run(seed, retries.KINDS)
