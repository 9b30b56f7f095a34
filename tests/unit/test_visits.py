"""Groups that go back to what another broker has stored since the ledger was used last."""

from __future__ import annotations

import random

import pytest

from gantrymq.shm.imported import Visit
from gantrymq.workers.groups.ledger import Ledger
from gantrymq.workers.groups.visits import go_back
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage
from tests.support.trials import mends

KEY = ("orders", 0)
GROUP = "keepers"


def ledger_with(committed: int, started: int, done: list[tuple[int, int]]) -> Ledger:
    """A group at work in a log that ended at 1000 when its life began."""
    ledger = Ledger(SimStorage(Disk()))
    ledger.load()
    ledger.limit_positions(1000)
    ledger.grant(GROUP, KEY, 7)
    ledger.commit(GROUP, KEY, committed, session=7)
    ledger.start(GROUP, KEY, started, session=7)
    for one in done:
        ledger.finish(GROUP, KEY, one)
    return ledger


@mends("S277")
@pytest.mark.parametrize("seed", range(200))
def test_a_group_goes_back_to_the_first_message_that_is_new(seed: int) -> None:
    """What is below, and not done with, stays so; what is above is known of nobody."""
    dice = random.Random(seed)
    committed, begun = dice.randrange(60), dice.randrange(40)
    started = committed + begun
    done = [(at, at + 2) for at in range(committed + 1, started - 2, 5) if dice.random() < 0.5]
    ledger = ledger_with(committed, started, done)
    first = dice.randrange(100)
    starts_at = dice.choice((None, 900, 2500))
    visit = Visit(2000, 3000, {KEY: first}, {} if starts_at is None else {KEY: starts_at})
    go_back(ledger, visit)
    queue = ledger.groups[GROUP].queues[KEY]
    anew = starts_at == 2500
    end = 0 if anew else min(first, started)
    assert queue.committed == min(committed, end)
    assert queue.started == end
    whole = [(low, min(high, end)) for low, high in done if low < end]
    assert [one for one in queue.done if one[0] < one[1]] == whole


@mends("S277")
@pytest.mark.parametrize(
    ("known", "starts", "offset"),
    [
        (1000, None, 5), (2000, None, 5), (2500, None, None), (3000, None, None),
        (1000, 2500, 0), (2500, 2500, 0), (2600, 2500, None), (1000, 500, 5),
    ],
)  # fmt: skip
def test_what_was_known_of_the_visit_is_not_new(
    known: int, starts: int | None, offset: int | None
) -> None:
    visit = Visit(2000, 3000, {KEY: 5}, {} if starts is None else {KEY: starts})
    assert visit.offset_since(known, KEY) == offset


@mends("S277")
def test_a_life_that_saw_the_visit_is_believed() -> None:
    """Also by a ledger of before such lives were noted, whose copies are known to the end."""
    for noted in (True, False):
        ledger = ledger_with(50, 50, [])
        if noted:
            ledger.limit_positions(3000)
        else:
            ledger.log_known, ledger.copies_from = 0, 3000
        go_back(ledger, Visit(2000, 3000, {KEY: 5}, {}))
        assert ledger.groups[GROUP].queues[KEY].committed == 50
