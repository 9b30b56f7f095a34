"""Places of deleted topics on the board: who may leave, what is used again, who stays."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gantrymq.brokerd.metadata import Metadata
from gantrymq.brokerd.places import NEW, Place, Places
from gantrymq.shm import layout
from gantrymq.shm.board import TopicSlot
from gantrymq.shm.errors import MessageIllegal, Rejected, TopicNotFound
from tests.support.trials import mends
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


def open_again(metadata: Metadata, name: str) -> TopicSlot:
    return metadata.plan_open_again(name)()


@mends("S75")
def test_who_comes_back_to_a_deleted_topic_has_its_place_for_as_long_as_it_lives(
    store_dir: Path,
) -> None:
    """Where it has left, another one, which is neither a topic nor on the disk as one."""
    board = make_board()
    metadata = open_metadata(store_dir, board)
    old = metadata.create("old", 2, "written")
    assert open_again(metadata, "old") == old
    metadata.delete("old")
    metadata.begin_leaving(())
    assert open_again(metadata, "old").slot == old.slot, "it was about to leave"
    metadata.leave(["old"])
    assert metadata.begin_leaving({old.slot}) == []
    metadata.leave(metadata.begin_leaving(()))
    assert board.topic_named("old") is None
    for _ in range(3):
        hidden = open_again(metadata, "old")
        assert (hidden.slot, hidden.perm, hidden.deleted) == (old.slot, 0, True)
        with pytest.raises(TopicNotFound):
            metadata.open("old", create=False)
        metadata.leave(metadata.begin_leaving(()))
        assert board.topic_named("old") is None
    open_again(metadata, "old")
    assert metadata.create("old", 4, "durable").slot == old.slot
    assert metadata.begin_leaving(()) == []
    assert open_again(open_metadata(store_dir, make_board()), "old").perm == 6


@mends("S75")
def test_nobody_comes_back_to_what_can_be_no_topic(store_dir: Path) -> None:
    metadata = open_metadata(store_dir, make_board())
    for name, refusal in (("no such name", MessageIllegal), ("SELF_TEST_TOPIC", TopicNotFound)):
        with pytest.raises(refusal):
            open_again(metadata, name)
    metadata.create("full", 60, "written")
    with pytest.raises(Rejected, match="board_queues_max"):
        open_again(metadata, "gone")


@mends("S75")
def test_a_place_that_is_kept_takes_none_of_a_topic_that_is_being_made(store_dir: Path) -> None:
    board = make_board()
    metadata = open_metadata(store_dir, board)
    metadata.create("last", 1, "written")
    metadata.delete("last")
    made = metadata.plan_create("last", 3, "written")
    kept = metadata.plan_open_again("gone")
    metadata.commit()
    last, gone = made(), kept()
    assert last.queue_count == 3
    assert gone.queue_base >= last.queue_base + 3


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
