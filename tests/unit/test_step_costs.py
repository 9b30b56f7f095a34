"""What one request costs does not grow with what others have in the store: steps are counted."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from gantrymq.shm import groupwire, layout
from gantrymq.shm.board import Board, TopicSlot
from gantrymq.shm.configfile import TableText
from gantrymq.shm.kernels.progress import note_progress, open_slot
from gantrymq.workers.channel import FRAMES_MAX, SocketSessionTable
from gantrymq.workers.groups import agent as groups_agent
from gantrymq.workers.groups import membership
from gantrymq.workers.groups.assignment import assign_average, outcome
from gantrymq.workers.groups.ledger import open_ledger
from gantrymq.workers.groups.ledgerentries import Entries
from gantrymq.workers.groups.offsetfile import Exports, checksum_of, offsets_of, read_offsets
from gantrymq.workers.groups.offsettext import OffsetText
from gantrymq.workers.groups.progress import GroupProgress, Progress, QueueKey, without
from gantrymq.workers.scheduler.timerbuckets import MINUTE_MS, TimerBuckets
from gantrymq.workers.scheduler.timerpool import ENTRY
from tests.support.groups_rig import Hand, Rig, only
from tests.support.memory_sessions import grow_topic, memory_board
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage
from tests.support.trials import mends

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
    inside = rig.agent.membership._plan

    def noted(group: membership.Group) -> Iterator[membership.Move | int]:
        looked.append(group.name)
        return inside(group)

    rig.agent.membership._plan = noted  # type: ignore[method-assign]
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
    progress = rig.agent.ledger.group("g")

    class Counted(dict[QueueKey, Progress]):
        def get(self, key: Any, default: Any = None) -> Any:  # noqa: ANN401
            looks.append(key)
            return super().get(key, default)

    progress.queues = Counted(progress.queues)
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
    buckets.follow(MS + 40 * MINUTE_MS)  # each minute gets a file
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

    def counted(group: GroupProgress, topic: str | None = None) -> bool:
        asked.append(group)
        return works(group, topic)

    monkeypatch.setattr(GroupProgress, "is_at_work", counted)
    monkeypatch.setattr(rig.agent.removal, "_most", 1)
    assert "raise groups_max" in rig.agent.removal.make_room("one too many", now_ns=1)
    assert asked == []


class Steps:
    """What each duty cycle of `groups` does: entries of the ledger, queues that are looked at."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rig, self.count, self.worst = rig, 0, 0
        for owner, name, weight in (
            (
                Entries,
                "add_of",
                lambda *given: len(given[5]["offset"]) if given[5:] and given[5] else 1,
            ),
            (membership.Topics, "key", lambda *_: 1),
            (membership.Topics, "queue", lambda *_: 1),
        ):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name), weight))

    def _counted(self, works: Callable[..., Any], weight: Callable[..., int]) -> Any:  # noqa: ANN401
        def counted(*given: Any) -> Any:  # noqa: ANN401
            self.count += weight(*given)
            return works(*given)

        return counted

    def settle(self, *hands: Hand) -> int:
        """Until nothing is to do; how many steps the dearest cycle had."""
        self.worst = 0
        for _ in range(5000):
            self.count = 0
            done = self.rig.agent.do_work(self.rig.clock.monotonic_ns())
            self.worst = max(self.worst, self.count)
            if not done and not sum(len(hand.listen()) for hand in hands):
                return self.worst
        raise AssertionError("the agent never comes to rest")


class WideRig(Rig):
    """With room for a larger ledger."""

    def open_agent(self) -> groups_agent.Groups:
        self.disk.file_bytes_max = 8 << 20
        return super().open_agent()


#: Of the above in one cycle: some 10 ms, whatever one request names.
STEPS_MAX = 4000
WIDE = 400


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> tuple[Rig, Steps]:
    """A board of many topics; WIDE of them with four queues are 1600 queues."""
    rig = WideRig(None, **{f"m{number}": 4 for number in range(WIDE)})
    return rig, Steps(rig, monkeypatch)


def ask(hand: Hand, request: groupwire.Request) -> None:
    assert hand.lane.put(groupwire.encode(request))


@mends("S7.1")
def test_what_a_wide_member_asks_is_done_in_bounded_steps(wide: tuple[Rig, Steps]) -> None:
    """Join, Commit, another's Join, Reset, Leave and death; others have their turn meanwhile."""
    rig, steps = wide
    topics = list(range(WIDE))
    hands = [rig.attach() for _ in range(3)]
    one, other, small = hands
    ask(one, groupwire.Join(1, "wide", topics))
    ask(small, groupwire.Join(1, "small", [0]))
    rig.agent.do_work(rig.clock.monotonic_ns())
    assert isinstance(small.listen()[-1], groupwire.Joined), "it does not wait for the wide one"
    assert steps.settle(*hands) <= STEPS_MAX
    assert len(one.leases) == 4 * WIDE
    assert one.heard[-1:] == [groupwire.Joined(1)], "once all is granted"
    nothing = dict.fromkeys(one.leases, 0)
    ask(one, groupwire.Commit(2, one.leases, nothing))
    assert steps.settle(*hands) <= STEPS_MAX
    assert one.heard[-1] == groupwire.Committed(2, {})
    ask(other, groupwire.Join(1, "wide", topics))
    assert steps.settle(*hands) <= STEPS_MAX
    assert len(one.revoked) == 2 * WIDE
    ask(other, groupwire.Leave(2))
    assert steps.settle(*hands) <= STEPS_MAX
    rig.sessions.detach(one.number)
    assert steps.settle(other, small) <= STEPS_MAX
    assert rig.agent.ledger.holders() == {small.number}
    ask(small, groupwire.Reset(3, "wide", nothing))
    assert steps.settle(other, small) <= STEPS_MAX
    assert only(small.heard, groupwire.WasReset).after == nothing


@mends("S7.1")
def test_what_is_done_out_of_order_of_many_queues_is_noted_in_bounded_steps(
    wide: tuple[Rig, Steps],
) -> None:
    """Each other message of each queue by words: for a Commit that waits, and at the end."""
    rig, steps = wide
    hand = rig.attach()
    hand.join("wide", topics=tuple(range(WIDE)))
    for number in (7, 8):
        for slot, queue in enumerate(list(hand.leases)[:200]):
            rig.fill(queue, 1000)
            at = open_slot(hand.session.arena, slot, hand.leases[queue], queue, 0)
            note_progress(hand.session.arena, at, 0, 400)
            hand.session.arena[at + layout.PROGRESS_ACKED :][:64] = 0x55 << number % 2
        if number == 7:
            ask(hand, groupwire.Commit(number, hand.leases))
        else:
            rig.sessions.detach(hand.number)
        assert steps.settle(hand) <= STEPS_MAX
        done = rig.agent.ledger.group("wide").queue(("m7", 2)).done
        assert len(done) == 200 if number == 7 else done == []
    assert only(hand.heard, groupwire.Committed) == groupwire.Committed(7, {})
    assert rig.agent.ledger.holders() == set()
    left = rig.agent.ledger.group("wide").queue(("m7", 2))
    assert left.committed == 400, "these and those before are all"


def test_a_request_whose_agent_dies_amid_it_is_heard_again() -> None:
    """It stays in the ring until it is through, over however many cycles that is."""
    rig = WideRig(None, **{f"m{number}": 4 for number in range(WIDE)})
    hand = rig.attach()
    ask(hand, groupwire.Join(1, "wide", list(range(WIDE))))
    for _ in range(3):
        rig.agent.do_work(rig.clock.monotonic_ns())
    assert 0 < len(rig.agent.ledger.group("wide").subscribed) < WIDE
    rig.replace_agent()
    for _ in range(20):
        rig.settle()
        hand.listen()
    assert len(hand.leases) == 4 * WIDE
    assert isinstance(hand.heard[-1], groupwire.Joined)


@mends("S7.2")
def test_a_subscription_of_many_topics_formats_the_list_of_them_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not again for each topic: so it was quadratic."""
    text = OffsetText()
    put: list[str] = []
    works = TableText.put

    def counted(table: TableText, name: str, value: Any) -> None:  # noqa: ANN401
        put.append(name)
        works(table, name, value)

    monkeypatch.setattr(TableText, "put", counted)
    for number in range(100):
        text.put((f"t{number}", "g"), {0: 1})
    while text.settle():
        pass
    assert put.count("g") == 1
    for number in range(99):
        text.remove((f"t{number}", "g"))
    assert json.loads(text.value()["groupTopicMap"])["g"] == ["t99"]
    assert put.count("g") == 2


def test_what_is_asked_of_one_topic_looks_at_its_queues_only() -> None:
    """Whether a group is at work in it, where it begins, and forgetting it."""
    group = GroupProgress({(f"t{number}", 0): Progress(committed=1) for number in range(100)})
    seen: list[QueueKey] = []

    class Noted(dict[QueueKey, Progress]):
        def __getitem__(self, key: QueueKey) -> Progress:
            seen.append(key)
            return super().__getitem__(key)

    group.queues = Noted(group.queues)
    assert not group.is_at_work("t7")
    assert [queue.committed for queue in group.queues_of("t7")] == [1]
    assert group.among({"t7", "t8", "u"}) == {"t7", "t8"}
    group.forget("t7")
    assert set(seen) == {("t7", 0)}
    assert len(group.queues) == len(group.topics()) == 99


def test_average_shares_look_at_each_queue_once() -> None:
    """Not at each member of each topic: of more members than queues the first have one each."""
    members = {number: frozenset(range(50)) for number in range(500)}
    steps = list(assign_average({topic: [topic] for topic in range(50)}, members))
    assert sum(steps) == 100
    assert set(outcome(assign_average({0: [7, 8]}, members)).items()) == {(7, 0), (8, 1)}
