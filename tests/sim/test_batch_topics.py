"""A topic of RocketMQ's type BatchCQ in the simulated machine (SF-75, SF-77, RD-72).

Its queues lie elsewhere, no plain one ever comes to be, and each start completes RocketMQ's units.
"""

from __future__ import annotations

from functools import partial

import pytest

from tests.sim.conftest import Program


@pytest.fixture(name="simulate")
def simulate_fixture(program: Program) -> Program:
    """`python -m tests.sim` with some arguments."""
    return partial(program, "tests.sim.seeds")


@pytest.mark.parametrize("topic", ["plain", "safe"])
def test_promises_hold_for_a_topic_of_type_batchcq(
    topic: str, seed: int, simulate: Program
) -> None:
    """P5, P11, P14 under all faults, for both levels."""
    done = simulate("--seeds", f"{seed}:{seed + 4}", "--batch-topic", topic)
    assert done.returncode == 0, done.stdout + done.stderr
