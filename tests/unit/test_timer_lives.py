"""Schedulers that come one after another, amid clocks that are set: each timer comes, and once."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from gantrymq.shm.codes import Role
from gantrymq.workers.scheduler.waiting import WaitingMessages
from tests.support.parking import Life, after_message, at_message, origins
from tests.support.simclock import SimClock
from tests.support.trials import mends

SEEDS = int(os.environ.get("GANTRYMQ_TEST_TIMER_LIVES", "5"))
FIRST = int(os.environ.get("GANTRYMQ_TEST_SEED", "0"))
ROUNDS = 16
LONGEST_MS = 60_000
STEPS_MS = (-40_000, -3_000, -20, 20, 3_000, 40_000)


def listed(life: Life) -> list[int]:
    """Positions of what waits, as a command shows them."""
    found = WaitingMessages(life.storage, life.board, 1000, life.clock).read()
    return sorted(found["position"].tolist())


@mends("S109", "S110", "S197")
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_each_timer_comes_once_whatever_each_life_thinks_of_its_time(
    tmp_path: Path, seed: int
) -> None:
    """One files a delay, and dies before it notes so; the next files it for another time.

    Or one has seen a later time than the next, and delivered by it. What waits is listed, whoever
    has filed it.
    """
    dice, clock = random.Random(seed), SimClock()
    life, parked, boot = Life(tmp_path, clock), list[int](), bytes(16)
    for _ in range(ROUNDS):
        waits = [dice.randrange(1_000, LONGEST_MS) for _ in range(4)]
        delays = [after_message(life, ms) for ms in waits[:3]]
        parked += life.park(*delays, at_message(clock.wall_ms() + waits[3]))
        for _ in range(3):
            life.run_for(dice.choice((1, 50, 400, 1_500, 9_000)))
            assert listed(life) == sorted({*parked}.difference(origins(life.delivered())))
            if dice.random() < 0.4:
                clock.step_wall(dice.choice(STEPS_MS))
            if dice.random() < 0.6:
                life.kill(Role.SCHEDULER)
            elif dice.random() < 0.2:
                boot = dice.choice((boot, dice.randbytes(16)))
                life = Life(tmp_path, clock, boot=boot)
    for _ in range(30):
        if len(life.delivered()) >= len(parked):
            break
        life.run_for(LONGEST_MS // 2)
    life.kill(Role.SCHEDULER)
    life.run_for(LONGEST_MS)
    assert sorted(origins(life.delivered())) == sorted(parked)
    life.stop()


@mends("S182")
def test_what_was_delivered_before_a_boot_that_knows_an_earlier_time(tmp_path: Path) -> None:
    """Its bucket's time has not come again when the next note is written, and a life begins."""
    clock = SimClock()
    life = Life(tmp_path, clock)
    parked = life.park(after_message(life, 9_000))
    clock.step_wall(40_000)
    life.run_for(8_000)  # the first note is of its first second, the next comes behind the delivery
    while not life.delivered():
        life.run_for(1)
    clock.step_wall(-3_000)
    life = Life(tmp_path, clock, boot=bytes(15) + b"1")
    life.park(after_message(life, 60_000))  # there is something to note
    life.run_for(1_500)
    life.kill(Role.SCHEDULER)
    life.run_for(5_000)
    assert origins(life.delivered()) == parked
    life.stop()
