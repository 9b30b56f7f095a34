"""How long the supervisor waits before it starts an agent again, and when it gives up."""

from __future__ import annotations

from itertools import pairwise

from gantrymq.brokerd.children import (
    BACKOFF_FIRST_NS,
    BACKOFF_MAX_NS,
    QUICK_DEATHS_MAX,
    QUICK_NS,
    Backoff,
)


def test_quick_deaths_wait_longer_each_time_until_it_gives_up() -> None:
    backoff = Backoff()
    waits = [backoff.after_death(0) for _ in range(QUICK_DEATHS_MAX)]
    assert waits.pop() is None
    numbers = [wait for wait in waits if wait is not None]
    assert len(numbers) == len(waits)
    assert numbers[0] == BACKOFF_FIRST_NS
    assert all(after == min(2 * before, BACKOFF_MAX_NS) for before, after in pairwise(numbers))


def test_who_lived_for_a_while_is_started_at_once_again() -> None:
    backoff = Backoff()
    for _ in range(QUICK_DEATHS_MAX - 1):
        assert backoff.after_death(0) is not None
    assert backoff.after_death(QUICK_NS) == BACKOFF_FIRST_NS
    assert backoff.after_death(0) == 2 * BACKOFF_FIRST_NS
