"""Groups against a model: members come, work, give back and die in any order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gantrymq.shm import groupwire, wire
from gantrymq.workers.groups.missing import MISSING_NS
from tests.support.groups_rig import Hand, Rig
from tests.support.memory_sessions import QUEUES_PER_TOPIC, grow_topic

FILLED = 1000


class GroupsMachine(RuleBasedStateMachine):
    """The model: per queue the last committed offset, and which living hand may work on it."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(orders=3)
        for queue in range(QUEUES_PER_TOPIC):
            self.rig.fill(queue, FILLED)
        self.queues = 3
        self.committed = [0] * QUEUES_PER_TOPIC
        self.members: set[int] = set()
        self.told: set[object] = set()

    def hands(self) -> list[Hand]:
        return [self.rig.hands[number] for number in sorted(self.rig.hands)]

    def hear(self) -> None:
        self.rig.settle()
        for hand in self.hands():
            hand.listen()

    @rule()
    def attach_and_join(self) -> None:
        if len(self.rig.hands) < 5:
            hand = self.rig.attach()
            hand.join()
            self.members.add(hand.number)
        self.hear()

    @precondition(lambda self: self.members)
    @rule(pick=st.randoms(use_true_random=False))
    def die(self, pick: object) -> None:
        hand = self.pick(pick)
        self.members.discard(hand.number)
        hand.die()
        self.hear()

    @precondition(lambda self: self.members)
    @rule(pick=st.randoms(use_true_random=False))
    def leave(self, pick: object) -> None:
        hand = self.pick(pick)
        hand.leases.clear()
        hand.revoked.clear()
        hand.say(groupwire.Leave(5))
        self.members.discard(hand.number)
        self.hear()

    @precondition(lambda self: self.members)
    @rule(pick=st.randoms(use_true_random=False), step=st.integers(1, 9), answered=st.booleans())
    def work(self, pick: object, step: int, answered: bool) -> None:
        hand = self.pick(pick)
        wanted = {q: min(self.committed[q] + step, FILLED) for q in hand.leases}
        request = groupwire.Commit(2, dict(hand.leases), wanted)
        if answered:
            answer = [n for n in hand.say(request) if isinstance(n, groupwire.Committed)]
            assert answer[-1] == groupwire.Committed(2, {}), "a holder's commit must be taken"
        else:
            assert hand.lane.put(groupwire.encode(request))
            self.rig.settle()
        for queue, offset in wanted.items():
            self.committed[queue] = offset

    @precondition(lambda self: self.members)
    @rule(pick=st.randoms(use_true_random=False))
    def late_commit(self, pick: object) -> None:
        """A lease that is over, or was never given, moves nothing."""
        hand = self.pick(pick)
        number = self.rig.agent.ledger.last_lease
        stale = dict.fromkeys(range(self.queues), number + 1)
        answer = hand.say(groupwire.Commit(3, stale, dict.fromkeys(stale, FILLED)))
        assert groupwire.Committed(3, stale) in answer

    @precondition(lambda self: any(hand.revoked for hand in self.rig.hands.values()))
    @rule()
    def release(self) -> None:
        for hand in self.hands():
            hand.release_revoked()
        self.hear()

    @precondition(lambda self: self.queues < QUEUES_PER_TOPIC)
    @rule()
    def grow(self) -> None:
        self.queues += 1
        grow_topic(self.rig.board, 0, self.queues)
        self.hear()

    @rule(lost=st.booleans())
    def replace_agent(self, lost: bool) -> None:
        if lost and self.members:  # one dies while nobody is looking
            number = min(self.members)
            self.members.discard(number)
            del self.rig.hands[number]
        self.rig.replace_agent()
        for hand in self.hands():
            assert groupwire.Rejoin() in hand.listen()
            if hand.number in self.members:
                hand.join()
        self.rig.clock.advance(MISSING_NS)
        self.hear()
        self.rig.clock.advance(MISSING_NS)
        self.hear()

    @rule()
    def restart_broker(self) -> None:
        self.rig.restart_broker()
        self.members.clear()

    @rule(seconds=st.integers(1, 6))
    def pass_time(self, seconds: int) -> None:
        self.rig.clock.advance(seconds * 1_000_000_000)
        self.hear()

    def pick(self, random: object) -> Hand:
        number = random.choice(sorted(self.members))  # type: ignore[attr-defined]
        return self.rig.hands[number]

    @invariant()
    def the_supervisor_is_told_who_is_a_member(self) -> None:
        """What the notes of `groups` say, but for ends that the supervisor knows before it."""
        for _level, event, fields in self.rig.sessions.notes:
            if event == wire.GROUP_JOINED:
                self.told.add(fields["session"])
            elif event == wire.GROUP_LEFT:
                self.told.discard(fields["session"])
        self.told &= self.rig.hands.keys()
        assert self.told == self.members

    @invariant()
    def no_queue_has_two_living_owners(self) -> None:
        owners: dict[int, int] = {}
        for hand in self.hands():
            for queue in hand.leases:
                assert queue not in owners, f"{queue}: {owners[queue]} and {hand.number}"
                owners[queue] = hand.number

    @invariant()
    def the_ledger_has_what_was_committed(self) -> None:
        known = self.rig.agent.ledger.group("g").queues
        for queue in range(self.queues):
            progress = known.get(("orders", queue))
            stored = progress.committed if progress else -1
            assert stored in (self.committed[queue], -1) or self.committed[queue] == 0

    @invariant()
    def who_begins_begins_where_the_last_one_committed(self) -> None:
        """Nothing skipped, nothing given twice beyond what was not committed."""
        for hand in self.hands():
            for queue, lease in hand.leases.items():
                granted = hand.granted[queue]
                assert granted.lease == lease
                assert granted.offset <= self.committed[queue]

    @invariant()
    def every_queue_has_an_owner_once_all_have_answered(self) -> None:
        if self.members and not any(hand.revoked for hand in self.hands()):
            owned = {queue for hand in self.hands() for queue in hand.leases}
            assert owned == set(range(self.queues))

    def teardown(self) -> None:
        self.rig.agent.close()


TestGroups = GroupsMachine.TestCase
TestGroups.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
