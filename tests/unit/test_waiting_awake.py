"""Who waits awake does so on a processor that nobody else wants."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from gantrymq.shm.kernels.words import LOST_NS, SPIN_ROUNDS_OWN
from tests.support.awake import KERNELS, ROUNDS, TURNS
from tests.support.tree import ROOT
from tests.support.trials import mends

#: What each returns once the word has changed that it looks at.
SEEN = {"spin": 1, "await_told": -1, "watch": 1}


def printed(**environment: str) -> bytes:
    """What a process of tests/support/awake.py prints."""
    return subprocess.run(
        [sys.executable, "-m", "tests.support.awake"], cwd=ROOT, env=os.environ | environment,
        stdout=subprocess.PIPE, check=True,
    ).stdout  # fmt: skip


@mends("S248")
def test_a_turn_of_another_that_takes_long_ends_the_wait() -> None:
    """After a last look; shorter ones change nothing."""
    found = json.loads(printed(NUMBA_DISABLE_JIT="1"))
    assert len(found) == 2 * len(KERNELS) * len(TURNS)
    for name, took, changes, said, turns in found:
        if changes:
            assert (said, turns) == (SEEN[name], 1), (name, took)
        else:
            all_turns = ROUNDS // SPIN_ROUNDS_OWN
            assert (said, turns) == (0, 1 if took >= LOST_NS else all_turns), (name, took)


@mends("S248")
def test_compiled_kernels_give_up_beside_a_process_that_uses_their_processor() -> None:
    """They wait for more rounds than anybody has time for."""
    assert json.loads(printed()) == dict.fromkeys(KERNELS, 0)
