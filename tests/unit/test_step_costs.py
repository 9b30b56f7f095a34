"""What one request costs does not grow with what others have in the store: steps are counted."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from gantrymq.shm import groupwire
from gantrymq.shm.board import Board, TopicSlot
from gantrymq.workers.channel import FRAMES_MAX, SocketSessionTable
from gantrymq.workers.groups import agent as groups_agent
from gantrymq.workers.groups import membership
from gantrymq.workers.groups.ledger import open_ledger
from gantrymq.workers.groups.offsetfile import Exports, checksum_of, offsets_of, read_offsets
from gantrymq.workers.groups.offsettext import OffsetText
from gantrymq.workers.groups.progress import GroupProgress, Progress, without
from gantrymq.workers.scheduler.timerbuckets import MINUTE_MS, TimerBuckets
from gantrymq.workers.scheduler.timerpool import ENTRY
from tests.support.groups_rig import Rig, only
from tests.support.memory_sessions import grow_topic, memory_board
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage

#: Fewer than the rig allows.
GROUPS = 6
MS = 1_700_000_000_000


class Scanned(dict[str, GroupProgress]):
    """A ledger's groups; how often somebody has gone through all of them."""

    scans = 0

    def __iter__(self) -> Iterator[str]:
        self.scans += 1
        return super().__iter__()

    def items(self) -> Any:  # noqa: ANN401
        self.scans += 1
        return super().items()

    def values(self) -> Any:  # noqa: ANN401
        self.scans += 1
        return super().values()


def test_a_session_that_comes_and_goes_costs_no_look_at_the_ledger() -> None:
    """Join, leave and end, amid many groups: what a session holds is known by session."""
    rig = Rig()
    for number in range(GROUPS):
        rig.agent.ledger.commit(f"old{number}", ("orders", 0), 1)
    rig.settle()
    ledger = rig.agent.ledger
    ledger.groups = scanned = Scanned(ledger.groups)
    hand = rig.attach()
    hand.join("g")
    hand.join("g")
    assert sorted(hand.leases) == [0, 1, 2, 3]
    hand.say(groupwire.Leave(3))
    hand.join("g")
    hand.die()
    assert ledger.holders() == set()
    assert scanned.scans == 0


def test_leases_are_known_by_session_after_any_changes() -> None:
    """Grants, ends, new lives and successors: what a walk through the ledger would find."""
    dice = random.Random(7)
    rig = Rig()
    ledger = rig.agent.ledger
    for turn in range(600):
        group, key, session = f"g{dice.randrange(5)}", ("orders", dice.randrange(4)), turn % 7
        act: Callable[[], object] = dice.choice(
            (
                lambda g=group, k=key, s=session: ledger.grant(g, k, s),
                lambda g=group, k=key: ledger.end_lease(g, k, failed=False),
                lambda g=group, k=key: ledger.reset(g, k, 5),
            )
        )
        act()
        if turn % 200 == 199:
            ledger.begin_epoch(turn)
            assert ledger.holders() == set()
        held = {
            (name, key): queue.lease
            for name, progress in ledger.groups.items()
            for key, queue in progress.queues.items()
            if queue.lease
        }
        assert ledger.holders() == {lease.session for lease in held.values()}
        for one in ledger.holders():
            found = {(name, key): lease for name, key, lease in ledger.leases_of(one)}
            assert found == {at: lease for at, lease in held.items() if lease.session == one}


def test_topics_that_did_not_change_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a session joins, or somebody asks for one by its name."""
    rig = Rig(None, **{f"t{number}": 2 for number in range(12)})
    reads: list[int] = []
    read = Board.topic

    def counted(board: Board, slot: int) -> TopicSlot | None:
        reads.append(slot)
        return read(board, slot)

    monkeypatch.setattr(Board, "topic", counted)
    hand = rig.attach()
    for _ in range(5):
        hand.join("g", topics=tuple(range(12)))
    assert rig.board.topic_named("t11") is not None
    assert reads == []
    grow_topic(rig.board, 5, 3)
    hand.join("g", topics=tuple(range(12)))
    assert reads == [5]
    assert len(hand.leases) == 25


def test_a_topic_that_grows_concerns_its_subscribers_only() -> None:
    """Also where a Join of the same cycle has looked at the topics before."""
    rig = Rig(a=1, b=1)
    one, other, third = rig.attach(), rig.attach(), rig.attach()
    one.join("one", topics=(0,))
    other.join("other", topics=(1,))
    third.join("third", topics=(1,))
    looked: list[str] = []
    inside = rig.agent.membership._moves_of

    def noted(group: membership.Group) -> Iterator[membership.Move]:
        looked.append(group.name)
        return inside(group)

    rig.agent.membership._moves_of = noted  # type: ignore[method-assign]
    grow_topic(rig.board, 0, 4)
    other.join("other", topics=(1,))
    assert looked == ["other", "one"]
    one.listen()
    assert len(one.leases) == 4


def test_groups_are_balanced_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cycle has a budget of queues; who has joined hears of it once all is granted."""
    monkeypatch.setattr(groups_agent, "CYCLE_QUEUES", 5)
    rig = Rig()
    hands = [rig.attach() for _ in range(8)]
    for number, hand in enumerate(hands):
        hand.lane.put(groupwire.encode(groupwire.Join(1, f"g{number}", [0])))
    balanced = []
    for _ in range(100):
        before = rig.agent.ledger.last_lease
        if not rig.agent.do_work(rig.clock.monotonic_ns()):
            break
        balanced.append(rig.agent.ledger.last_lease - before)
    assert max(balanced) <= 4
    for hand in hands:
        heard = hand.listen()
        assert [type(notice) for notice in heard] == [groupwire.Granted] * 4 + [groupwire.Joined]


def test_a_reset_that_waits_looks_at_one_queue() -> None:
    """Of thousands that it names: those that were free stay so."""
    rig = Rig(orders=16)
    hand, operator = rig.attach(), rig.attach()
    hand.join()
    operator.say(groupwire.Reset(1, "g", dict.fromkeys(range(16), 0), patience_ms=3_600_000))
    looks: list[object] = []
    queue = GroupProgress.queue
    progress = rig.agent.ledger.group("g")

    class Counted(GroupProgress):
        __slots__ = ()

        def queue(self, key: Any) -> Progress:  # noqa: ANN401
            looks.append(key)
            return queue(self, key)

    rig.agent.ledger.groups["g"] = Counted(progress.queues, progress.subscribed)
    for _ in range(50):
        rig.agent.resets.work(rig.clock.monotonic_ns())
    assert len(looks) == 50
    hand.listen()
    hand.release_revoked()
    assert only(operator.listen(), groupwire.WasReset).serial == 1


def test_ranges_without_holes_are_found_beside_them() -> None:
    """As a walk through all holes finds them."""
    dice = random.Random(3)
    for _ in range(300):
        edges = sorted(dice.sample(range(200), 2 * dice.randrange(20)))
        holes = list(zip(edges[::2], edges[1::2], strict=True))
        edges = sorted(dice.sample(range(200), 2 * dice.randrange(6)))
        ranges = list(zip(edges[::2], edges[1::2], strict=True))
        gone = {at for low, high in holes for at in range(low, high)}
        left = {at for low, high in ranges for at in range(low, high)} - gone
        found = list(without(ranges, holes))
        assert {at for low, high in found for at in range(low, high)} == left
        assert all(low < high for low, high in found)


def test_what_is_done_out_of_order_is_noted_as_far_as_a_bound() -> None:
    """Each other message of a long queue: what is beyond is delivered again, nothing is lost."""
    rig = Rig(orders=1)
    rig.fill(0, 100_000)
    hand = rig.attach()
    hand.join()
    hand.start(q0=100_000)
    for first in range(0, 40_000, 4_000):
        done = [(at, at + 1) for at in range(first + 1, first + 4_000, 2)]
        hand.say(groupwire.Commit(7, hand.leases, done={0: done}))
    progress = rig.agent.ledger.group("g").queue(("orders", 0))
    assert membership.DONE_MAX <= len(progress.done) <= membership.DONE_MAX + 2_000
    hand.commit(q0=50_000)
    assert progress.done == []


def test_news_of_sessions_are_heard_some_at_a_time() -> None:
    """A flood of sessions does not keep an agent from its work."""

    class Endless(SocketSessionTable):
        taken = 0

        def _take_one(self) -> bool:
            self.taken += 1
            return True

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        table = Endless(theirs)
        for cycle in range(1, 4):
            assert table.pump(cycle, heard=None) == FRAMES_MAX, "and there is no rest between"
            assert table.taken == cycle * FRAMES_MAX


def bucket(minute: int, *positions: int) -> Any:  # noqa: ANN401
    found = np.zeros(len(positions), ENTRY)
    found["ms"], found["position"], found["size"] = minute * MINUTE_MS + 5, positions, 100
    return found


def test_a_record_is_looked_for_in_all_buckets_step_by_step() -> None:
    """Each step reads a bounded number of entries and of files."""
    buckets = TimerBuckets(SimStorage(Disk()))
    minute = MS // MINUTE_MS
    for number in range(40):
        buckets.append(bucket(minute + number, *range(1000 * number, 1000 * number + 100)))
    reads: list[int] = []
    inside = buckets._read

    def counted(name: str, at: int, end: int) -> Any:  # noqa: ANN401
        reads.append((end - at) // ENTRY.itemsize)
        return inside(name, at, end)

    buckets._read = counted  # type: ignore[method-assign]
    search = buckets.seek(39_050, 2_500)
    steps, hit = 0, None
    while hit is None:
        before = len(reads)
        try:
            next(search)
        except StopIteration as end:
            hit = end.value
        steps += 1
        assert sum(reads[before:]) <= 2_500
        assert len(reads) - before <= 3
    assert hit["position"].tolist() == [39_050]
    assert steps >= 40 // 3
    buckets.close()


def test_boards_know_their_topics_anew_when_they_change() -> None:
    board = memory_board({"a": 1, "b": 2})
    assert [topic.name for topic in board.topics()] == ["a", "b"]
    first = board.topic_named("a")
    grow_topic(board, 1, 3)
    assert [topic.queue_count for topic in board.topics()] == [1, 3]
    assert board.topic_named("a") is first
    assert board.topic_named("c") is None


def test_a_step_of_the_offsets_file_looks_at_some_queues_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of them took 1.6 s with as many groups as there may be, and everybody waited."""
    storage = SimStorage(Disk(), "groups")
    ledger = open_ledger(storage, epoch=1)
    for number in range(50):
        for queue in range(3):
            ledger.commit(f"g{number}", ("orders", queue), 1 + number, session=1)
    exports = Exports(ledger)
    put: list[tuple[str, str]] = []
    works = OffsetText.put

    def counted(text: OffsetText, key: tuple[str, str], queues: dict[int, int]) -> None:
        put.append(key)
        works(text, key, queues)

    monkeypatch.setattr(OffsetText, "put", counted)
    steps = 0
    while exports.step(queues_max=8) is None:
        steps += 1
        assert len(put) <= 2 * steps
        assert not storage.exists("config/consumerOffset.json"), "it is written whole, in the end"
    assert read_offsets(storage) == offsets_of(ledger.groups)


def test_what_changes_between_steps_is_in_the_file_in_the_end() -> None:
    """Groups that come, go on, and are deleted while a file is being made, of the last one, too."""
    dice = random.Random(5)
    storage = SimStorage(Disk(), "groups")
    ledger = open_ledger(storage, epoch=1)
    exports = Exports(ledger)
    for turn in range(400):
        name = f"g{dice.randrange(12)}"
        if dice.random() < 0.2 and name in ledger.groups:
            ledger.delete(name)
        else:
            ledger.commit(name, (f"t{dice.randrange(3)}", dice.randrange(3)), turn, session=1)
        exports.step(queues_max=dice.randrange(1, 12))
        if turn % 40 == 39:
            assert exports.write()
            said = read_offsets(storage)
            assert said == offsets_of(ledger.groups)
            assert checksum_of(said) == ledger.exports[-1]


def test_groups_that_have_consumed_cost_nearly_nothing_where_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who joins as one too many has all groups looked at, once a second."""
    rig = Rig()
    ledger = rig.agent.ledger
    for number in range(GROUPS):
        ledger.commit(f"old{number}", ("orders", 0), 0, session=1)
    asked: list[GroupProgress] = []
    works = GroupProgress.is_at_work

    def counted(group: GroupProgress, topic: str = "") -> bool:
        asked.append(group)
        return works(group, topic)

    monkeypatch.setattr(GroupProgress, "is_at_work", counted)
    monkeypatch.setattr(rig.agent.removal, "_most", 1)
    assert "raise groups_max" in rig.agent.removal.make_room("one too many", now_ns=1)
    assert asked == []
