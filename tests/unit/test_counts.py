"""What of delays the board shows: how many wait, how many were delivered, how late."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantrymq.shm import layout
from gantrymq.shm.codes import Role
from gantrymq.shm.limits import LATENESS_MS
from tests.support.parking import Life, at_message, level_message
from tests.support.simclock import SimClock
from tests.unit.test_recalls import Asker, handle_of

MINUTE_MS = 60_000


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path, SimClock())


def pending(life: Life) -> tuple[int, int]:
    """Records of levels, and timers, that wait; agents have looked by then."""
    life.run_for(1_100)
    word = life.board.word
    return word(layout.BOARD_PENDING_LEVELS), word(layout.BOARD_PENDING_TIMERS)


def late_counts(life: Life) -> list[int]:
    at = layout.BOARD_LATE_COUNTS
    return [life.board.word(at + 8 * number) for number in range(len(LATENESS_MS) + 1)]


def test_what_waits_is_counted(life: Life) -> None:
    """By level and time; what is delivered, recalled or put back is not counted twice."""
    now, minute = life.clock.wall_ms(), MINUTE_MS
    gone = at_message(now + 7 * minute, key="AB" * 16)
    life.park(level_message(4), level_message(4), level_message(18))
    life.park(*(at_message(now + wait) for wait in (9_000, minute, 7 * minute, 2_000 * minute)))
    life.park(gone, at_message(now - 5_000))
    assert pending(life) == (3, 5), "what was due at once is delivered"
    assert life.board.word(layout.BOARD_DELIVERED) == 1
    assert sum(late_counts(life)) == 0, "its time had passed when it came"
    assert Asker(life).recall(handle_of(gone)) == "cancelled"
    assert pending(life) == (3, 4)
    life.run_for(10_000)
    assert pending(life) == (3, 3)
    life.run_for(8 * minute)
    assert pending(life) == (1, 1), "the level of 30 s is over"
    life.stop()


def test_lateness_is_counted(life: Life) -> None:
    """On time, and as late as a scheduler was away; counts go on with its successor."""
    now = life.clock.wall_ms()
    life.park(level_message(1), level_message(1))
    life.park(*(at_message(now + 2_000 + wait) for wait in (0, 500, 30_000)))
    life.run_for(5_000)
    on_time = late_counts(life)
    assert sum(on_time[:2]) == sum(on_time) == 4, "within two milliseconds"
    assert life.board.word(layout.BOARD_LATE_MAX_MS) <= 2
    life.agents.pop(Role.SCHEDULER)
    life.clock.advance(40_000_000_000)
    life.start(Role.SCHEDULER)
    life.run_for(2_000)
    late = [now - before for now, before in zip(late_counts(life), on_time, strict=True)]
    assert [LATENESS_MS[number] for number, count in enumerate(late) if count] == [60_000]
    assert 12_000 < life.board.word(layout.BOARD_LATE_MAX_MS) < 16_000
    total = life.board.word(layout.BOARD_LATE_SUM_MS)
    assert 0 <= total - life.board.word(layout.BOARD_LATE_MAX_MS) <= 8
    assert life.board.word(layout.BOARD_DELIVERED) == 5
    life.stop()


def test_a_refused_copy_is_late_once_it_is_in(life: Life) -> None:
    """A full disk makes late, and counts each message once."""
    now = life.clock.wall_ms()
    life.park(*(at_message(now + 2_000) for _ in range(3)))
    life.run_for(1_000)
    life.board.set_half(layout.BOARD_DISK_FULL, 1)
    life.run_for(3_000)
    assert life.board.word(layout.BOARD_DELIVERED) - sum(late_counts(life)) == 0
    life.board.set_half(layout.BOARD_DISK_FULL, 0)
    life.run_for(1_000)
    assert sum(late_counts(life)) == 3
    assert life.board.word(layout.BOARD_LATE_MAX_MS) >= 2_000
    life.stop()


def test_after_a_restart_recalled_timers_do_not_count(tmp_path: Path) -> None:
    """Nor is anything counted twice by the split."""
    clock, minute = SimClock(), MINUTE_MS
    life = Life(tmp_path, clock)
    now = clock.wall_ms()
    gone = at_message(now + 5 * minute, key="CD" * 16)
    life.park(gone, *(at_message(now + wait * minute) for wait in (5, 600)))
    life.settle()
    assert Asker(life).recall(handle_of(gone)) == "cancelled"
    assert pending(life) == (0, 2)
    life.stop()
    life = Life(tmp_path, clock)
    assert pending(life) == (0, 2), "the recall and what it names are entries of a file"
    life.run_for(6 * minute)
    assert pending(life) == (0, 1)
    life.stop()
