"""A few runs of `python -m tests.sim.retries`, which has more of them."""

from __future__ import annotations

import pytest

from tests.sim import retries


@pytest.mark.parametrize("seed", [9, 8])
def test_attempts_end_in_one_dead_letter_whoever_dies(seed: int) -> None:
    """P9, P10."""
    tally = retries.run(seed, retries.KINDS).world.model.tally
    assert tally["dead letters"]
