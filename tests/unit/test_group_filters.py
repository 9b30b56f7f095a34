"""What `groups` keeps of SQL92 filters: when they begin and end, and how many there may be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gantrymq.shm import layout
from gantrymq.shm.bitmapnote import read_covered
from gantrymq.shm.bloom import BloomForm
from gantrymq.shm.groupwire import Join
from gantrymq.workers.filterfile import FilterEntry, read_filters, write_filters
from gantrymq.workers.groups import filters as registry
from gantrymq.workers.reader import filters as reading
from tests.support.groups_rig import SETTINGS, Rig

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


def test_many_texts_are_compiled_in_portions(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad input: a step of the reader compiles so much; what waits counts from where it is met."""
    monkeypatch.setattr(reading, "CHARACTERS_AT_START", 30)
    monkeypatch.setattr(reading, "CHARACTERS", 20)
    texts = ["a = 1 OR b = 2", "a =", "a IN ('x', 'y')", "a > 5 AND b < 7", "b > 1000 OR c = 2"]
    entries = [FilterEntry("t", f"g{n}", text, "sql", 1 + n, 1) for n, text in enumerate(texts)]
    storage = rig.agent.ledger.storage
    write_filters(storage, entries, FORM)
    found = reading.Filters(storage, rig.board, SETTINGS)
    assert found.refresh(100)
    assert found.refresh(200)
    assert not found.refresh(300), "all is bound"
    starts = {item.group: item.start for item in read_covered(storage)}
    assert starts == {"g0": 100, "g2": 100, "g3": 200, "g4": 200}
    again = reading.Filters(storage, rig.board, SETTINGS)
    assert again.refresh(400)
    assert again.refresh(500)
    starts = {item.group: item.start for item in read_covered(storage)}
    assert starts == {"g0": 100, "g2": 100, "g3": 500, "g4": 500}, "nobody made its bits meanwhile"


def test_the_oldest_of_too_many_filters_get_bits(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad input: the reader judges a bounded number for each record; the others have no bits."""
    per_topic = reading.PER_TOPIC * SETTINGS.expect_consumer_num_use_filter
    crowd = [FilterEntry("t", f"g{n}", f"a = {n}", "sql", 1 + n, 1) for n in range(per_topic + 9)]
    others = [FilterEntry(f"t{n}", "g", "a = 1", "sql", 5000 - n, 1) for n in range(50)]
    monkeypatch.setattr(reading, "FILTERS_MAX", len(crowd) + 20)
    storage = rig.agent.ledger.storage
    write_filters(storage, crowd + others, FORM)
    found = reading.Filters(storage, rig.board, SETTINGS)
    assert found.refresh(77)
    groups = {key[1] for key in found.bound if key[0] == "t"}
    assert groups == {entry.group for entry in crowd[:per_topic]}
    oldest = {entry.topic for entry in others[-20:]}
    assert {key[0] for key in found.bound} == {"t", *oldest}
    assert {item.start for item in read_covered(storage)} == {77}
    assert found.lists.keys() == {"t", *oldest}
