"""What `groups` does for members that finish messages in any order, or one after the other."""

from __future__ import annotations

import errno
import random

import msgspec
import pytest

from gantrymq.shm import groupwire, wire
from gantrymq.shm.groupwire import Counted, Failed, Refused
from gantrymq.shm.kernels import progress
from gantrymq.workers.groups.agent import DISK_RETRY_NS
from gantrymq.workers.groups.ledger import Ledger, open_ledger
from gantrymq.workers.groups.progress import Progress, ranges_of, without
from gantrymq.workers.groups.reports import LOOK_NS
from tests.support.faults import Fault, KilledError, Moment, kill_at
from tests.support.groups_rig import Hand, Rig, only
from tests.support.ledgers import compact
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage
from tests.support.trials import mends

MINUTE_NS = 60_000_000_000


def rig_with(queues: int = 1, messages: int = 1000) -> Rig:
    rig = Rig(orders=queues)
    for queue in range(queues):
        rig.fill(queue, messages)
    return rig


class Push:
    """A member's words of queue 0, as a push consumer keeps them."""

    def __init__(self, hand: Hand) -> None:
        self.arena = hand.session.arena
        offset = hand.granted[0].offset
        self.at = progress.open_slot(self.arena, 0, hand.leases[0], 0, offset)

    def begin(self, end: int) -> int:
        return int(progress.begin_messages(self.arena, self.at, end))

    def ack(self, *offsets: int) -> None:
        for offset in offsets:
            progress.ack_messages(self.arena, self.at, offset, offset + 1)


def known(rig: Rig) -> Progress:
    return rig.agent.ledger.group("g").queue(("orders", 0))


# ------------------------------------------------------------------------------- done out of order


def test_only_what_was_started_and_not_done_comes_again_and_counts() -> None:
    rig = rig_with()
    first = rig.attach()
    first.join()
    words = Push(first)
    assert words.begin(10) == 10
    words.ack(0, 1, 4, 5, 8)
    first.die()
    second = rig.attach()
    second.join()
    granted = second.granted[0]
    assert granted.offset == 2
    assert granted.done == [(4, 6), (8, 9)]
    assert granted.attempts == [(2, 4, 1), (6, 8, 1), (9, 10, 1)]


def test_done_survives_groups_and_everybody() -> None:
    rig = rig_with()
    hand = rig.attach()
    hand.join()
    words = Push(hand)
    words.begin(10)
    words.ack(3)
    rig.replace_agent()
    assert known(rig).started == 10
    rig.clock.advance(LOOK_NS)
    rig.settle()
    assert known(rig).done == [(3, 4)]
    words.ack(5)  # after the last look: lost with the arena
    rig.restart_broker()
    other = rig.attach()
    other.join()
    assert other.granted[0].done == [(3, 4)]
    assert other.granted[0].attempts == [(0, 3, 1), (4, 10, 1)]


def test_a_member_that_dies_while_groups_is_down_loses_nothing() -> None:
    """P9, P5: its words are kept until a `groups` has put their end into the ledger."""
    rig = rig_with()
    hand = rig.attach()
    hand.join()
    words = Push(hand)
    words.begin(3)
    words.ack(1)
    hand.die_unheard()
    rig.replace_agent()
    other = rig.attach()
    other.join()
    assert other.granted[0].attempts == [(0, 1, 1), (2, 3, 1)]
    assert other.granted[0].done == [(1, 2)]


@pytest.mark.parametrize("moment", list(Moment))
def test_groups_dies_in_the_write_of_a_members_end(moment: Moment) -> None:
    rig = rig_with()
    hand = rig.attach()
    hand.join()
    words = Push(hand)
    words.begin(3)
    storage = rig.agent.ledger.storage
    assert isinstance(storage, SimStorage)
    storage.faults.faults = (kill_at(1, moment, ("write",)),)
    with pytest.raises(KilledError):
        hand.die()
    rig.replace_agent()
    assert known(rig).attempts == [(0, 3, 1)], "it counts once"
    rig.replace_agent()
    assert not rig.unsettled
    assert known(rig).attempts == [(0, 3, 1)]


def test_an_end_is_settled_once_it_is_in_the_ledger() -> None:
    rig = rig_with()
    hands = [rig.attach(), rig.attach()]
    hands[0].join()
    words = Push(hands[0])
    words.begin(3)
    storage = rig.agent.ledger.storage
    assert isinstance(storage, SimStorage)
    full = Fault(1, Moment.BEFORE, errno.ENOSPC, ("write",), persistent=True)
    storage.faults.faults = (full,)
    for hand in hands:
        hand.die_unheard()
        rig.agent.do_work(rig.clock.monotonic_ns())
    assert wire.SESSIONS_SETTLED not in [event for _, event, _ in rig.sessions.notes]
    storage.faults.faults = ()
    rig.clock.advance(DISK_RETRY_NS)
    rig.settle()
    said = [fields for _, event, fields in rig.sessions.notes if event == wire.SESSIONS_SETTLED]
    assert said == [{"sessions": [hand.number for hand in hands]}]


def test_a_window_is_512_messages_and_moves_with_what_is_done() -> None:
    rig = rig_with()
    hand = rig.attach()
    hand.join()
    words = Push(hand)
    assert words.begin(1000) == 512
    words.ack(*range(1, 512))
    assert words.begin(1000) == 512, "the first one is in the way"
    words.ack(0)
    assert words.begin(1000) == 1000
    words.ack(999)
    hand.die()
    assert (known(rig).committed, known(rig).done) == (512, [(999, 1000)])


def test_a_member_that_leaves_in_order_counts_no_attempts() -> None:
    rig = rig_with()
    hand = rig.attach()
    hand.join()
    words = Push(hand)
    words.begin(5)
    words.ack(0, 3)
    only(hand.say(groupwire.Leave(3)), groupwire.Left)
    assert (known(rig).committed, known(rig).done, known(rig).attempts) == (1, [(3, 4)], [])


def test_done_of_queues_without_words_is_told_in_requests() -> None:
    rig = rig_with()
    hand = rig.attach()
    hand.join()
    hand.start(q0=9)
    hand.say(groupwire.Commit(0, hand.leases, done={0: [(2, 4), (7, 30)]}))
    assert known(rig).done == [(2, 4), (7, 9)], "no further than it was handed out"
    released = groupwire.Released(0, hand.leases[0], 1, [(5, 6)])
    hand.say(released)
    assert (known(rig).committed, known(rig).done) == (1, [(2, 4), (5, 6), (7, 9)])


@pytest.mark.parametrize("seed", range(5))
def test_ranges_are_what_a_set_of_offsets_says(seed: int) -> None:
    dice = random.Random(seed)
    queue, truth, base = Progress(committed=0, started=0), set[int](), 0
    for _ in range(300):
        first = base + dice.randrange(40)
        end = first + dice.randrange(6)
        queue.start(end)
        queue.finish(first, end)
        truth |= set(range(first, end))
        if not dice.randrange(10):
            while base in truth:
                base += 1
            queue.commit(base)
        while queue.committed in truth and queue.lease is None:
            truth.discard(queue.committed)
            base = queue.committed
        ahead = {offset for first, end in queue.done for offset in range(first, end)}
        assert ahead == {offset for offset in truth if offset >= queue.committed}
        edges = [edge for item in queue.done for edge in item]
        assert edges == sorted(set(edges)), "in order, apart from one another"
        base = max(base, queue.committed)


def test_bits_are_ranges_wherever_the_window_begins() -> None:
    for committed in (0, 1, 63, 500, 511, 512, 1023, 5000):
        offsets = [committed + n for n in (0, 1, 5, 11, 12, 300, 511)]
        bits = sum(1 << offset % 512 for offset in offsets)
        found = ranges_of(bits, committed, committed + 512)
        assert [o for a, b in found for o in range(a, b)] == offsets
        assert ranges_of(bits, committed, committed + 6)[-1][1] == committed + 6
    assert ranges_of(0, 3, 9) == ranges_of(7, 9, 9) == []
    assert list(without([(0, 10), (20, 30)], [(2, 4), (8, 22), (29, 40)])) == [
        (0, 2), (4, 8), (22, 29),
    ]  # fmt: skip


# -------------------------------------------------------------------------------------- the ledger


def full_ledger(storage: SimStorage) -> Ledger:
    ledger = open_ledger(storage, 1)
    key = ("orders", 0)
    ledger.commit("g", key, 3)
    ledger.grant("g", key, 7)
    ledger.start("g", key, 40, 7)
    for first in range(5, 30, 3):
        ledger.finish("g", key, (first, first + 1))
    ledger.sending("g", key, 33, 4, 1 << 40)
    ledger.sending("g", key, 34, 2, 77)
    ledger.sending("g", key, 34, 0, -1)
    ledger.fail("g", key, 36, 2)
    ledger.reset("g", ("orders", 1), 12)
    ledger.flush()
    return ledger


def test_the_ledger_says_the_same_read_again_and_compacted() -> None:
    storage = SimStorage(Disk())
    before = full_ledger(storage)
    queue = before.group("g").queue(("orders", 0))
    assert queue.sending == {33: (4, 1 << 40)}
    assert queue.attempts == [(36, 37, 2)]
    assert before.group("g").queue(("orders", 1)).committed == 12
    assert open_ledger(storage, 1).groups == before.groups
    compact(before)
    assert open_ledger(storage, 1).groups == before.groups
    before.finish("g", ("orders", 0), (33, 34))
    before.flush()
    after = open_ledger(storage, 2).group("g").queue(("orders", 0))
    assert after.sending == {}
    assert after.lease is None
    assert [item for item in after.attempts if item[0] <= 36 < item[1]] == [(36, 37, 3)]
    assert after.attempts_of(33) == after.attempts_of(5) == 0


def test_a_torn_tail_takes_the_last_entries_only() -> None:
    disk = Disk()
    storage = SimStorage(disk)
    before = full_ledger(storage)
    before.finish("g", ("orders", 0), (31, 32))
    before.flush()
    size = storage.size_of("gantry/ledger")
    storage.open("gantry/ledger", write=True).truncate(size - 5)
    after = open_ledger(storage, 1).group("g").queue(("orders", 0))
    assert not after.is_done(31)
    assert after.is_done(29)


# ---------------------------------------------------------------------------- failing in order


def test_failed_deliveries_count_once_each_and_survive_a_change_of_owner() -> None:
    rig = rig_with()
    first = rig.attach()
    first.join()
    first.note(q0=(4, 5))
    rig.settle()
    lease = first.leases[0]
    assert only(first.say(Failed(5, 0, lease, 4, 0)), Counted) == Counted(5, 0, 4, 1)
    assert only(first.say(Failed(5, 0, lease, 4, 0)), Counted).attempts == 1, "said again"
    assert only(first.say(Failed(6, 0, lease, 4, 1)), Counted).attempts == 2
    rig.replace_agent()
    assert known(rig).attempts == [(4, 5, 2)]
    first.die()
    second = rig.attach()
    second.join()
    assert second.granted[0].attempts == [(4, 5, 3)], "that it died of it counts, too"


def test_a_failure_without_a_lease_is_refused() -> None:
    rig = rig_with()
    hand = rig.attach()
    hand.join()
    heard = hand.say(Failed(5, 0, hand.leases[0] + 9, 0, 0))
    assert only(heard, Refused).error == "Evicted"
    assert rig.agent.reports.refused == 1


# ---------------------------------------------------------------------------- subscriptions


def test_a_member_with_another_subscription_is_refused_until_the_others_are_gone() -> None:
    rig = rig_with()
    first, second = rig.attach(), rig.attach()
    first.join(digest=1, subscription="orders: paid")
    refused = only(second.join(digest=2, subscription="orders: *, orderly"), Refused)
    assert refused.error == "GroupIllegal"
    for text in ("'g'", "orders: paid", "orders: *, orderly"):
        assert text in refused.text
    assert only(rig.attach().join(digest=1), groupwire.Joined)
    assert first.join(digest=1, subscription="orders: paid")
    for hand in [hand for hand in rig.hands.values() if hand is not second]:
        hand.die()
    assert only(second.join(digest=2), groupwire.Joined), "it is the only one left"


@mends("A3")
@pytest.mark.parametrize("queues", [None, [1]])
def test_a_replaced_groups_knows_what_its_members_have_subscribed(
    queues: list[int] | None,
) -> None:
    """From the leases: a newcomer may be quicker than they are to say it again."""
    rig = rig_with(2)
    first, second = rig.attach(), rig.attach()
    first.join(digest=1, subscription="orders: paid", queues=queues)
    compact(rig.agent.ledger)
    rig.replace_agent()
    refused = only(second.join(digest=2, subscription="orders: *"), Refused)
    assert refused.error == "GroupIllegal"
    first.listen()
    assert only(first.join(digest=1, queues=queues), groupwire.Joined)


def test_members_that_push_agree_on_what_becomes_of_failures() -> None:
    """One that pulls has no wish."""
    rig = rig_with()
    rig.attach().join(digest=1, max_attempts=17, subscription="orders: * (max_attempts 17)")
    for most, orderly in ((3, False), (17, True)):
        heard = rig.attach().join(digest=1, max_attempts=most, orderly=orderly)
        assert only(heard, Refused).error == "GroupIllegal"
    assert only(rig.attach().join(digest=1), groupwire.Joined)


def test_a_member_alone_may_change_its_subscription() -> None:
    rig = rig_with()
    hand = rig.attach()
    hand.join(digest=1)
    assert only(hand.join(digest=2), groupwire.Joined)
    rig.replace_agent()
    assert only(hand.join(digest=3), groupwire.Joined)


# ---------------------------------------------------------------------------- consume_timeout


def test_a_stuck_message_ends_its_session_and_goes_to_another_as_an_attempt() -> None:
    rig = rig_with(2)
    stuck, other = rig.attach(), rig.attach()
    stuck.join()
    other.join()
    stuck.listen()
    stuck.release_revoked()
    (queue,) = stuck.leases
    arena = stuck.session.arena
    at = progress.open_slot(arena, 0, stuck.leases[queue], queue, 0)
    for minute in range(15):
        progress.begin_messages(arena, at, minute + 2)
        progress.ack_messages(arena, at, minute + 1, minute + 2)
        rig.settle()
        assert not rig.sessions.cut, "others go on, but the first one does not end"
        rig.clock.advance(MINUTE_NS)
    rig.settle()
    assert [session for session, _ in rig.sessions.cut] == [stuck.number]
    level, _event, fields = next(
        note for note in rig.sessions.notes if note[1] == "consume_timeout"
    )
    assert (level, fields["group"], fields["queue"], fields["offset"]) == ("warning", "g", queue, 0)
    assert rig.board.process(4)["stuck"] == 1
    other.listen()
    granted = other.granted[queue]
    assert (granted.offset, granted.done, granted.attempts) == (0, [(1, 16)], [(0, 1, 1)])


def test_a_stuck_message_of_the_only_member_is_reported_once() -> None:
    rig = rig_with()
    hand = rig.attach()
    hand.join()
    hand.note(q0=(0, 1))
    for _ in range(40):
        rig.settle()
        rig.clock.advance(MINUTE_NS)
    assert not rig.sessions.cut
    assert [note[1] for note in rig.sessions.notes].count("consume_timeout") == 1


@pytest.mark.parametrize("columns", [([], [0], [""]), ([0, 1, 2], [0, 0], [""]), ([0, 1], [0], [])])
def test_columns_that_do_not_fit_together_are_no_request(columns: tuple[object, ...]) -> None:
    body = msgspec.msgpack.encode(["SendBack", 9, 0, 1, 17, *columns])
    with pytest.raises(msgspec.ValidationError):
        groupwire.decode_request(body)
