"""What `groups` forgets: topics that were deleted, groups that are not wanted any more."""

from __future__ import annotations

import json

import pytest

from gantrymq.shm import layout
from gantrymq.shm.board import Board
from gantrymq.shm.groupwire import (
    ConsumeFrom,
    DeleteGroup,
    GroupDeleted,
    Joined,
    Leave,
    Refused,
    Reset,
)  # fmt: skip
from gantrymq.workers.groups.ledger import Ledger, open_ledger
from gantrymq.workers.groups.offsetfile import Exports, import_offsets, read_offsets
from tests.support.groups_rig import SETTINGS, Rig, only
from tests.support.ledgers import compact
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage
from tests.support.trials import mends
from tests.unit.test_push_groups import rig_with


def delete(board: Board, slot: int) -> None:
    """What the supervisor does to a topic's slot."""
    at = board.topic_at(slot)
    board.set_half(at + layout.TOPIC_PERM, 0)
    board.set_half(at + layout.TOPIC_SYSTEM, layout.DELETED)
    board.count_change(layout.BOARD_TOPIC_CHANGES)


def make_again(board: Board, slot: int) -> None:
    """Under its old name, behind what it had."""
    at = board.topic_at(slot)
    base, count = (
        board.half(at + field) for field in (layout.TOPIC_QUEUE_BASE, layout.TOPIC_QUEUE_COUNT)
    )
    for queue in range(base, base + count):
        words = board.queue(queue)
        board.set_word(board.queue_at(queue) + layout.QUEUE_MIN_OFFSET, words["next_offset"])
    board.set_half(at + layout.TOPIC_PERM, 6)
    board.set_half(at + layout.TOPIC_SYSTEM, 0)
    board.set_half(at + layout.TOPIC_MADE, board.half(at + layout.TOPIC_MADE) + 1)
    board.count_change(layout.BOARD_TOPIC_CHANGES)


def consumed(rig: Rig, offset: int = 500) -> None:
    """A member has been there, and gone."""
    hand = rig.attach()
    hand.join()
    hand.note(q0=(offset, offset))
    rig.settle()
    hand.say(Leave(2))
    hand.die()


def topics_of(ledger: Ledger) -> set[str]:
    return {topic for group in ledger.groups.values() for topic in group.topics()}


@mends("R2")
@pytest.mark.parametrize("successor", [False, True])
def test_what_groups_knew_of_a_deleted_topic_is_forgotten(*, successor: bool) -> None:
    rig = rig_with(2)
    consumed(rig)
    delete(rig.board, 0)
    if successor:
        rig.replace_agent()
    rig.settle()
    assert topics_of(rig.agent.ledger) == set()
    rig.replace_agent()
    assert topics_of(rig.agent.ledger) == set()


@pytest.mark.parametrize("seen", ["deleted", "made again"])
def test_a_topic_made_again_under_its_name_begins_anew(seen: str) -> None:
    rig = rig_with()
    consumed(rig)
    delete(rig.board, 0)
    if seen == "deleted":
        rig.settle()
    make_again(rig.board, 0)
    at = rig.board.queue_at(0)
    for word in (layout.QUEUE_NEXT_OFFSET, layout.QUEUE_MAX_OFFSET):
        rig.board.set_word(at + word, rig.board.word(at + word) + 7)
    hand = rig.attach()
    hand.join(consume_from=ConsumeFrom.LAST_OFFSET)
    assert hand.granted[0].offset == 1007, "where its first member wants to begin"


@mends("S223")
@pytest.mark.parametrize("is_held", [False, True])
def test_a_start_that_is_fixed_behind_a_topic_s_making_stays(*, is_held: bool) -> None:
    """`groups` hears of that, and of who joins, in one cycle; another group may hold queues."""
    rig = rig_with()
    holder, hand = rig.attach(), rig.attach()
    if is_held:
        holder.join("holders")
    delete(rig.board, 0)
    if is_held:
        rig.settle()
    make_again(rig.board, 0)
    at = rig.board.queue_at(0)
    for word in (layout.QUEUE_NEXT_OFFSET, layout.QUEUE_MAX_OFFSET):
        rig.board.set_word(at + word, rig.board.word(at + word) + 7)
    hand.join(consume_from=ConsumeFrom.LAST_OFFSET)
    assert hand.granted[0].offset == 1007, "where its first member wants to begin"


def test_an_offset_of_a_topic_that_is_no_more_passes_over_nothing_of_one_made_since() -> None:
    """The log held nothing of it at a start: another of its name begins at 0."""
    rig = rig_with()
    consumed(rig)
    board = rig.board
    delete(board, 0)
    at = board.topic_at(0) + layout.TOPIC_NAME
    board.memory[at : at + 6] = b"nobody"  # as after a start without it
    rig.replace_agent()
    board.memory[at : at + 6] = b"orders"
    make_again(board, 0)
    for word in (layout.QUEUE_MIN_OFFSET, layout.QUEUE_NEXT_OFFSET, layout.QUEUE_MAX_OFFSET):
        board.set_word(board.queue_at(0) + word, 0)
    board.set_word(board.queue_at(0) + layout.QUEUE_MAX_OFFSET, 3)
    hand = rig.attach()
    hand.join()
    assert hand.granted[0].offset == 0


def test_who_holds_a_queue_of_a_deleted_topic_goes_on_and_nobody_gets_it_after() -> None:
    rig = rig_with(2)
    hand, other = rig.attach(), rig.attach()
    hand.join()
    delete(rig.board, 0)
    other.join("h")
    rig.settle()
    assert other.granted == {}
    hand.note(q0=(600, 600))
    rig.settle()
    assert rig.agent.ledger.group("g").queue(("orders", 0)).committed == 600
    third = rig.attach()
    third.join()
    hand.die()
    rig.clock.advance(6_000_000_000)
    rig.settle()
    third.listen()
    assert third.granted == {}
    assert topics_of(rig.agent.ledger) == set()
    make_again(rig.board, 0)
    rig.settle()
    third.listen()
    assert sorted(third.granted) == [0, 1], "it is a member all the time"
    assert third.granted[0].offset == 1000


def test_a_file_of_ours_brings_nothing_back_that_was_forgotten() -> None:
    """The file is written every few seconds; the ledger knows at once."""
    storage = SimStorage(Disk(), "groups")
    ledger = open_ledger(storage, epoch=1)
    ledger.commit("g", ("gone", 0), 5, session=1)
    ledger.commit("g", ("kept", 0), 5, session=1)
    assert Exports(ledger).write()
    ledger.forget_topics({"gone"})
    ledger.sync()
    again = Ledger(storage)
    again.load()
    import_offsets(again)
    assert topics_of(again) == {"kept"}
    assert Exports(again).write()
    assert set(read_offsets(storage)) == {("kept", "g")}


def test_numbers_of_what_is_forgotten_are_not_kept() -> None:
    """Names that come and go grow neither memory nor, once it is compacted, the file."""
    storage = SimStorage(Disk(), "groups")
    ledger = open_ledger(storage, epoch=1)
    ledger.commit("stays", ("orders", 0), 1, session=1)
    for number in range(100):
        ledger.commit(f"g{number}", (f"t{number}", 0), 5, session=1)
        ledger.commit("stays", (f"t{number}", 0), 5, session=1)
        ledger.forget_topics({f"t{number}"})
        ledger.delete(f"g{number}")
    ledger.commit("later", ("orders", 1), 2, session=1)
    ledger.sync()
    assert len(ledger._entries.groups) + len(ledger._entries.topics) == 3
    again = Ledger(storage)
    again.load()
    assert again.groups == ledger.groups
    assert set(again.groups) == {"stays", "later"}
    compact(ledger)
    assert storage.size_of("gantry/ledger") < 1000
    once_more = Ledger(storage)
    once_more.load()
    assert once_more.groups == ledger.groups


# ---------------------------------------------------------------------------------------- groups


def test_a_group_is_deleted_once_its_members_have_left() -> None:
    rig = rig_with()
    hand, operator = rig.attach(), rig.attach()
    hand.join()
    text = only(operator.say(DeleteGroup(1, "g")), Refused).text
    assert "1 member" in text
    assert "group describe g" in text
    hand.say(Leave(2))
    assert only(operator.say(DeleteGroup(2, "g")), GroupDeleted).known
    assert "g" not in rig.agent.ledger.groups
    rig.replace_agent()
    assert "g" not in rig.agent.ledger.groups
    assert not only(operator.say(DeleteGroup(3, "g")), GroupDeleted).known
    hand.join(consume_from=ConsumeFrom.LAST_OFFSET)
    assert hand.granted[0].offset == 1000, "a group made anew"


def test_a_group_that_is_being_reset_is_not_deleted() -> None:
    rig = rig_with()
    hand, operator = rig.attach(), rig.attach()
    hand.join()
    operator.say(Reset(1, "g", {0: 40}))
    assert "member" in only(operator.say(DeleteGroup(2, "g")), Refused).text
    hand.release(0)
    hand.say(Leave(3))
    assert only(operator.say(DeleteGroup(4, "g")), GroupDeleted).known


def test_groups_that_only_came_and_went_are_bounded() -> None:
    """Ever new names: the oldest of those that never consumed go, and nothing waited for them."""
    rig = rig_with()
    consumed(rig)
    files = []
    for number in range(5 * SETTINGS.groups_max):
        hand = rig.attach()
        hand.join(f"new{number}", consume_from=ConsumeFrom.LAST_OFFSET)
        assert hand.granted, "it has room"
        hand.say(Leave(2))
        hand.die()
        files.append(len(rig.agent.ledger.groups))
    assert max(files) <= SETTINGS.groups_max
    assert "g" in rig.agent.ledger.groups, "it has consumed"
    assert len(rig.agent.membership.groups) <= 1
    dropped = [n["groups"] for n in noted(rig, "groups_dropped")]
    assert sum(map(len, dropped)) >= 4 * SETTINGS.groups_max


def noted(rig: Rig, event: str) -> list[dict[str, list[str]]]:
    return [
        json.loads(json.dumps(fields))
        for _level, name, fields in rig.sessions.notes
        if name == event
    ]


@pytest.mark.parametrize("why", ["consumed", "waits", "member"])
def test_where_no_group_can_go_a_new_one_is_refused(why: str) -> None:
    rig = rig_with()
    for number in range(SETTINGS.groups_max):
        hand = rig.attach()
        begin = ConsumeFrom.FIRST_OFFSET if why == "waits" else ConsumeFrom.LAST_OFFSET
        hand.join(f"g{number}", consume_from=begin)
        if why == "consumed":
            hand.note(q0=(900, 900))
            rig.settle()
        if why != "member":
            hand.say(Leave(2))
    last = rig.attach()
    text = only(last.join("one_more"), Refused).text
    assert "gantrymq group delete" in text
    assert "groups_max" in text
    heard = last.join("g0")
    assert only(heard, Joined), "who is known may come"


def test_a_session_costs_no_more_than_it_uses() -> None:
    """Many end before they have a queue: room for 1024 each was 29 MiB for 300 that had ended."""
    rig = rig_with(3)
    hand = rig.attach()
    peer = rig.agent._peers[hand.number]
    assert peer.slots_seen.nbytes == 0
    hand.join()
    hand.note(q0=(1, 2), q1=(3, 4), q2=(5, 6))
    rig.settle()
    assert 0 < peer.slots_seen.nbytes < 1000
    queues = rig.agent.ledger.group("g").queues.values()
    assert sorted(queue.committed for queue in queues) == [1, 3, 5]
