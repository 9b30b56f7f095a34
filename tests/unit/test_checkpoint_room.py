"""A flusher without room for its checkpoint goes on, and says so once a second."""

from __future__ import annotations

import errno
import random
from pathlib import Path
from typing import NoReturn

import pytest

from gantrymq.brokerd.checkpoint import CheckpointFile
from tests.support.trials import mends
from tests.support.twins import Machine


@mends("S114")
def test_want_of_room_is_told_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_given: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "no room")

    life, dice = Machine(tmp_path), random.Random(1)
    monkeypatch.setattr(CheckpointFile, "write", full)
    for number in range(30):  # one sync each: three seconds in all
        life.send(dice, number)
        life.settle()
        life.clock.advance(100_000_000)
        life.settle()
    told = [event for _, event, _ in life.tables[1].notes]
    assert 3 <= told.count("no_space_for_checkpoint") <= 4
