"""What a power cut could have left of a real broker at work (P1, P4, P7 to P10, P13, P14)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.powercut.runs import PROFILES, recorded, try_states
from tests.support.trials import mends

#: Of each profile; `make soak` has 500.
STATES = 25


@mends("R5.1", "R5.2", "R7.1")
@pytest.mark.parametrize("profile", PROFILES)
def test_what_was_promised_holds_after_a_power_cut(profile: str, tmp_path: Path, seed: int) -> None:
    """Sends, delays, retries, transactions, retention, ledger compaction and sealing go on.

    So do a second start, recalls, an order, topics that come and go, a back-up and a reset.
    """
    run = recorded(profile, seed, 4.0, tmp_path)
    kinds = {effect.kind for effect in run.recording.effects}
    assert {"write", "sync", "sync_names", "rename", "unlink"} <= kinds
    gone = [e for e in run.recording.effects if e.kind == "rename" and "/expired/" in e.other]
    assert bool(gone) == (profile != "temporary"), "retention; a temporary broker has none"
    states = range(seed, seed + STATES)
    assert try_states(run, states, tmp_path, lambda *_: None) == [], "seed and what is broken"
