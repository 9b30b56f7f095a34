"""The reader over a log that was damaged while it ran."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from shm import layout
from shm.errors import Corrupt
from tests.support.twins import Machine


@pytest.mark.parametrize("field", ["total_size", "magic", "physical_offset", "body_length"])
def test_an_unreadable_record_stops_the_reader(tmp_path: Path, seed: int, field: str) -> None:
    """LW-5: it names the position; what lies before has its units, nothing behind gets any."""
    machine, dice = Machine(tmp_path), random.Random(seed)
    for number in range(1, 10):
        machine.send(dice, number)
    writer, _flusher, reader = machine.agents
    writer.do_work(machine.clock.monotonic_ns())
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        first = layout.RECORD.unpack(file.read(layout.RECORD_HEAD_BYTES))["total_size"]
        file.seek(first + layout.RECORD.offset(field))
        file.write(b"\x7f")
    with pytest.raises(Corrupt) as caught:
        machine.settle()
        reader.do_work(machine.clock.monotonic_ns())
    assert caught.value.position == first
    assert machine.board.word(layout.BOARD_DISPATCHED) <= first
    assert machine.board.word(layout.BOARD_APPENDED) > first
