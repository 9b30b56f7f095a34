"""What a note of the scheduler counts as done, and what was put meanwhile (P9)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gantrymq.shm.codes import Role
from gantrymq.workers.scheduler import progress
from gantrymq.workers.scheduler.agent import Scheduler
from tests.support.parking import Life, after_message, origins
from tests.support.simclock import SimClock

S = 1000  # milliseconds


def test_nothing_is_counted_behind_one_that_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others were put meanwhile: who goes by a note that counts less would put them again."""
    monkeypatch.setattr(progress, "interval_ns", 100_000_000)
    life = Life(tmp_path / "store", SimClock())
    life.run_for(2 * S)
    held, later = life.park(after_message(life, 300)), life.park(after_message(life, 400))
    life.run_for(100)
    agent = life.agents[Role.SCHEDULER]
    assert isinstance(agent, Scheduler)
    agent._timers.hold(held[0])
    life.run_for(3 * S)
    assert origins(life.delivered()) == later
    life.park(after_message(life, 3600 * S))  # this is news for the note
    life.run_for(3 * S)
    note = json.loads((tmp_path / "store/gantry/schedule.json").read_text())
    assert note["scanned"] <= life.delivered()[0].physical_offset
    life.kill(Role.SCHEDULER)
    life.run_for(3 * S)
    assert sorted(origins(life.delivered())) == sorted([*held, *later])
