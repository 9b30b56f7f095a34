"""What `groups` keeps of SQL92 filters: when they begin and end, and how many there may be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shm import layout
from shm.bloom import BloomForm
from shm.groupwire import Join
from tests.support.groups_rig import SETTINGS, Rig
from workers.filterfile import FilterEntry, read_filters
from workers.groups import filters as registry

FORM = BloomForm.of(20, 32)
SECOND_NS = 1_000_000_000


def kept(rig: Rig) -> dict[tuple[str, str], FilterEntry]:
    """What the file says after its next writing."""
    rig.clock.advance(registry.STATE_NS)
    rig.settle()
    return {entry.key: entry for entry in read_filters(rig.agent.ledger.storage, FORM)}


def changes(rig: Rig) -> int:
    return rig.board.half(layout.BOARD_FILTER_CHANGES)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_filter_begins_with_its_first_member_and_dies_with_its_last(rig: Rig) -> None:
    """FL-13: a changed text begins anew, the same one revives, a dead one goes after a day."""
    first, second = rig.attach(), rig.attach()
    first.join("billing", filters=[(0, "sql", "a > 5")])
    second.join("billing", filters=[(0, "sql", "a > 5")])
    ((key, entry),) = kept(rig).items()
    assert (key[1], entry.expression, entry.dialect, entry.dead_ms) == (
        "billing",
        "a > 5",
        "sql",
        0,
    )
    told = changes(rig)
    assert told > 0
    first.die()
    assert kept(rig)[key].dead_ms == 0, "one of two is left"
    second.die()
    dead = kept(rig)[key]
    assert dead.dead_ms > 0
    third = rig.attach()
    third.join("billing", filters=[(0, "sql", "a > 5")])
    assert kept(rig)[key] == replace(entry, version=kept(rig)[key].version)
    assert changes(rig) == told, "the reader has nothing to do for any of this"
    third.join("billing", filters=[(0, "sql", "a > 6")])
    changed = kept(rig)[key]
    assert (changed.expression, changed.born_ms > entry.born_ms) == ("a > 6", True)
    assert changes(rig) == told + 1
    third.die()
    rig.settle()
    rig.clock.advance((registry.KEPT_DEAD_MS + 1) * 1_000_000)
    assert kept(rig) == {}
    assert changes(rig) == told + 2


def test_a_start_takes_the_file_up(rig: Rig) -> None:
    """What it has counts as dead since half a minute; tags and long texts are not kept."""
    hand = rig.attach()
    hand.join("billing", filters=[(0, "sql", "a > 5"), (0, "sql", "b = '" + "x" * 2000 + "'")])
    assert [entry.expression for entry in kept(rig).values()] == ["a > 5"]
    table = registry.FilterTable(rig.agent.ledger.storage, rig.board, rig.clock, SETTINGS)
    assert table.save(registry.STATE_NS, last=True)
    assert [entry.dead_ms for entry in kept(rig).values()] == [0], "nothing was to be written"


def test_thousands_of_filters_cost_one_file_a_second(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bad input: what is kept is bounded, and so is how often it is written."""
    written: list[int] = []

    def count(storage: object, entries: object, form: object) -> None:
        written.append(len(list(entries)))  # type: ignore[call-overload]

    monkeypatch.setattr(registry, "write_filters", count)
    table = registry.FilterTable(rig.agent.ledger.storage, rig.board, rig.clock, SETTINGS)
    topics = {topic.slot: topic for topic in rig.board.topics()}
    slot = min(topics)
    for number in range(registry.FILTERS_MAX + 500):
        table.join(number, Join(1, f"g{number}", [slot], filters=[(slot, "sql", "a > 5")]), topics)
        table.save(number * SECOND_NS // 1000, last=False)
    assert len(written) <= 4
    assert max(written) <= registry.FILTERS_MAX
    table.leave(0)
    table.join(9999, Join(1, "new", [slot], filters=[(slot, "sql", "a > 5")]), topics)
    table.save(100 * SECOND_NS, last=False)
    assert written[-1] == registry.FILTERS_MAX, "a dead one made room"
