"""Places of deleted topics on the board: who may leave, what is used again, who stays."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gantrymq.brokerd.places import NEW, Place, Places
from gantrymq.shm import layout
from gantrymq.shm.errors import Rejected
from tests.unit.test_metadata import make_board, open_metadata


def test_places_that_are_given_back_never_overlap(seed: int) -> None:
    """Ranges are split and joined; two who have a place never share a queue or a slot."""
    chance, places = random.Random(seed), Places()
    slots = queues = 0
    held: list[tuple[Place, int]] = []
    for _ in range(2000):
        if held and chance.random() < 0.5:
            places.give(*held.pop(chance.randrange(len(held))))
            continue
        count = chance.randint(1, 9)
        place = places.take(count)
        if place.slot < 0:
            place, slots = Place(slots, place.base), slots + 1
        if place.base < 0:
            place, queues = Place(place.slot, queues), queues + count
        held.append((place, count))
        used = [queue for one, n in held for queue in range(one.base, one.base + n)]
        assert len(used) == len(set(used))
        assert len({one.slot for one, _n in held}) == len(held)
    for item in held:
        places.give(*item)
    assert places.take(queues).base == 0, "all of them are one range again"
    assert places.take(1).base == NEW.base


def test_a_place_is_used_again_once_its_topic_has_left(store_dir: Path) -> None:
    board = make_board()
    metadata = open_metadata(store_dir, board)
    old = metadata.create("old", 3, "written")
    metadata.create("kept", 1, "written")
    metadata.delete("old")
    assert metadata.create("other", 3, "written").slot != old.slot, "it has not left yet"
    assert metadata.begin_leaving(()) == ["old"]
    leaving = board.topic_named("old")
    assert leaving is not None
    assert leaving.leaving
    metadata.leave(["old"])
    assert board.topic_named("old") is None
    again = metadata.create("again", 2, "durable")
    assert (again.slot, again.queue_base) == (old.slot, old.queue_base)
    assert metadata.create("more", 1, "written").queue_base == old.queue_base + 2
    assert {topic.name for topic in board.topics() if topic.perm} >= {"kept", "other", "again"}


@pytest.mark.parametrize("how", ["opened", "used", "used late", "created", "wanted"])
def test_who_is_meant_by_somebody_stays(store_dir: Path, how: str) -> None:
    board = make_board()
    metadata = open_metadata(store_dir, board)
    slot = metadata.create("old", 2, "written")
    metadata.delete("old")
    next_at = board.queue_at(slot.queue_base + 1) + layout.QUEUE_NEXT_OFFSET
    if how == "used":
        board.set_word(next_at, 1)
    names = metadata.begin_leaving({slot.slot} if how == "opened" else ())
    assert names == ([] if how in ("opened", "used") else ["old"])
    if how == "used late":
        board.set_word(next_at, 1)
    elif how == "created":
        assert metadata.create("old", 2, "written").slot == slot.slot
    elif how == "wanted":
        metadata.have("old")
    metadata.leave(["old"])
    found = board.topic_named("old")
    assert found is not None
    assert (found.slot, found.leaving) == (slot.slot, False)


def test_what_could_not_be_written_gives_its_place_back(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = make_board()
    metadata = open_metadata(store_dir, board)
    old = metadata.create("old", 2, "written")
    metadata.delete("old")
    metadata.begin_leaving(())
    metadata.leave(["old"])
    with pytest.raises(Rejected):
        metadata.create("too many", 1 << 30, "written")
    assert metadata.create("new", 2, "written").slot == old.slot
