"""Groups as `groups` keeps them in memory: members, subscriptions, and what to do next.

Truth about offsets and leases is the ledger's; here is who is a member and what follows from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from gantrymq.shm import layout
from gantrymq.shm.board import Board, TopicSlot
from gantrymq.shm.groupwire import AVERAGE, ConsumeFrom, Done, Failed, Join
from gantrymq.shm.limits import DELIVERIES_MAX, PROGRESS_WINDOW
from gantrymq.shm.properties import RETRY_PREFIX
from gantrymq.workers.groups.assignment import assign, assign_average
from gantrymq.workers.groups.ledger import Ledger
from gantrymq.workers.groups.progress import UNSET, Lease, Progress, QueueKey

#: Ranges of what is done with out of order that are noted of one queue: a window of words has a
#: quarter of these at most.
DONE_MAX: Final = 2 * PROGRESS_WINDOW


@dataclass(slots=True)
class Member:
    """A session in a group."""

    session: int
    topics: frozenset[int]
    consume_from: int
    chosen: frozenset[int] | None = None  # queues taken by hand; None: by balancing
    digest: int = 0  # of its topics and filters; 0: not stated
    subscription: str = ""
    assignment: str = ""  # how queues are to be spread; "": not stated
    max_attempts: int = 0  # of a push consumer; 0: not stated
    orderly: bool = False


@dataclass(slots=True)
class Group:
    """A group that has, or had, members in this life of `groups`."""

    name: str
    members: dict[int, Member] = field(default_factory=dict)

    @property
    def is_averaged(self) -> bool:
        """Whether its members have asked for RocketMQ's way of spreading queues."""
        return any(member.assignment == AVERAGE for member in self.members.values())


@dataclass(frozen=True, slots=True)
class Move:
    """A queue to grant to a session, or to ask back from its holder."""

    group: str
    queue: int  # board queue number
    session: int
    grant: bool
    digest: int = 0  # of the subscription of who is granted it


class Topics:
    """The board's topics and queues by number, read again when there are others."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.by_slot: dict[int, TopicSlot] = {}
        self.slots: dict[str, int] = {}
        self._seen = (-1, -1, -1)
        self._changed: set[int] = set()
        self._made: dict[str, int] = {}  # of topics that are not deleted
        #: Names that meant another topic than they do now, or none any more, since `forget_gone`.
        self.gone: set[str] = set()

    def refresh(self) -> None:
        """Know the topics and queues of now; costs next to nothing where they are the same."""
        seen = self.board.topic_changes
        if seen == self._seen:
            return
        topics, before = self.board.topics(), self.by_slot
        self._seen = seen
        self._changed |= {topic.slot for topic in topics if before.get(topic.slot) is not topic}
        made = {topic.name: topic.made for topic in topics if not topic.deleted}
        self.gone |= {name for name, number in self._made.items() if made.get(name) != number}
        self._made = made
        self.by_slot = {topic.slot: topic for topic in topics}
        self.slots = {topic.name: topic.slot for topic in topics if not topic.leaving}

    def take_changed(self) -> set[int]:
        """Slots of topics that are others, or have other queues, than at the last call."""
        self.refresh()
        changed, self._changed = self._changed, set()
        return changed

    def is_there(self, name: str) -> bool:
        """Whether a topic is on the board and not deleted."""
        return name in self._made

    def queues(self, slot: int) -> range:
        """Board queue numbers of a topic."""
        topic = self.by_slot.get(slot)
        return range(topic.queue_base, topic.queue_base + topic.queue_count) if topic else range(0)

    def key(self, queue: int) -> QueueKey | None:
        """Topic's name and queue id of a board queue; None if there is no such queue."""
        if not 0 <= queue < self.board.queues_max:
            return None
        topic = self.by_slot.get(self.board.half(self.board.queue_at(queue) + layout.QUEUE_TOPIC))
        if topic is None or not 0 <= queue - topic.queue_base < topic.queue_count:
            return None
        return topic.name, queue - topic.queue_base

    def queue(self, key: QueueKey) -> int | None:
        """Board queue of a topic's name and queue id."""
        topic = self.by_slot.get(self.slots.get(key[0], -1))
        if topic is None or key[1] >= topic.queue_count:
            return None
        return topic.queue_base + key[1]


class Membership:
    """Who is in which group, and which leases have to move for that."""

    def __init__(self, ledger: Ledger, board: Board) -> None:
        self.ledger = ledger
        self.board = board
        self.topics = Topics(board)
        self.groups: dict[str, Group] = {}
        self.group_of: dict[int, str] = {}
        self._unbalanced: dict[str, None] = {}  # groups, in the order in which they became so
        #: Queues that nobody is to have for now: their offsets are being reset.
        self.blocked: set[tuple[str, int]] = set()

    # -------------------------------------------------------------------------- joining, leaving

    def join(self, session: int, request: Join) -> None:
        """Add or change a member, and fix where the group begins in topics new to it."""
        self.topics.refresh()
        self.forget_gone()
        group = self.groups.setdefault(request.group, Group(request.group))
        member = Member(session, frozenset(request.topics), request.consume_from)
        member.digest, member.subscription = request.digest, request.subscription
        member.assignment = request.assignment
        member.max_attempts, member.orderly = request.max_attempts, request.orderly
        if request.queues is not None:
            offered = (queue for slot in member.topics for queue in self.topics.queues(slot))
            member.chosen = frozenset(offered).intersection(request.queues)
        group.members[session] = member
        self.mark(group.name)
        self.group_of[session] = request.group
        for slot in sorted(member.topics):
            if not self.topics.by_slot[slot].deleted:
                self._fix_start(group.name, slot, request)

    def restore_member(self, group: str, member: Member) -> None:
        """Take a holder of leases for a member until it says itself what it wants.

        Until then it keeps what it holds and gets nothing: it may have chosen by hand. Who comes
        meanwhile with another subscription than its lease was granted under is refused.
        """
        self.mark(group)
        members = self.groups[group].members
        known = members.get(member.session)
        topics = member.topics | (known.topics if known else frozenset())
        leases = self._leases(group).items()
        held = frozenset(queue for queue, lease in leases if lease.session == member.session)
        members[member.session] = Member(
            member.session, topics, member.consume_from, held, member.digest
        )
        self.group_of[member.session] = group

    def _fix_start(self, group: str, slot: int, request: Join) -> None:
        """The first member decides for the queues that exist; later queues begin at 0."""
        topic = self.topics.by_slot[slot]
        progress = self.ledger.group(group)
        if topic.name in progress.subscribed:
            return
        known = any(
            name == topic.name and queue.committed != UNSET
            for (name, _), queue in progress.queues.items()
        )
        for queue in self.topics.queues(slot):
            key = (topic.name, queue - topic.queue_base)
            if progress.queue(key).committed == UNSET:
                # A group with offsets of some queues only has not met the others: nothing is lost.
                start = 0 if known else self._first_offset(queue, topic.name, request)
                self.ledger.commit(group, key, self._inside(queue, start))
        self.ledger.subscribe(group, topic.name, topic.queue_count)

    def _first_offset(self, queue: int, topic: str, request: Join) -> int:
        words = self.board.queue(queue)
        if topic.startswith(RETRY_PREFIX):
            return 0
        if request.consume_from == ConsumeFrom.FIRST_OFFSET:
            return words["min_offset"]
        if request.consume_from == ConsumeFrom.TIMESTAMP and queue in request.starts:
            return request.starts[queue]
        if not self.board.is_dispatched_anew():
            # The reader is still making units of older messages: those are not new to the group.
            return max(words["max_offset"], words["next_offset"])
        return words["max_offset"]

    def _inside(self, queue: int, offset: int) -> int:
        word, at = self.board.word, self.board.queue_at(queue)
        low = word(at + layout.QUEUE_MIN_OFFSET)
        # Not `max_offset`: after a restart the reader may still be making units seen before.
        high = max(word(at + layout.QUEUE_MAX_OFFSET), word(at + layout.QUEUE_NEXT_OFFSET), low)
        return min(max(offset, low), high)

    def leave(self, session: int, failed: bool) -> None:
        """End a membership and all leases of the session; `failed` counts what it had started."""
        name = self.group_of.pop(session, None)
        if name is not None:
            self.groups[name].members.pop(session, None)
            self.mark(name)
        for group, key, _lease in self.ledger.leases_of(session):
            self.ledger.end_lease(group, key, failed)
            self.mark(group)

    def forget(self, name: str) -> None:
        """Know nothing of a group without members, for the ledger does not either."""
        self.groups.pop(name, None)
        self._unbalanced.pop(name, None)

    def unsettle(self, session: int) -> None:
        """Balance a session's group anew."""
        if session in self.group_of:
            self.mark(self.group_of[session])

    def mark(self, group: str) -> None:
        """Balance a group anew."""
        self.groups.setdefault(group, Group(group))
        self._unbalanced[group] = None

    def is_balanced(self, session: int) -> bool:
        """Whether nothing is to be granted to a session, or asked back, for now."""
        return self.group_of.get(session) not in self._unbalanced

    @property
    def has_unbalanced(self) -> bool:
        """Whether there are groups to balance."""
        return bool(self._unbalanced)

    # ------------------------------------------------------------------------------------ leases

    def held(self, session: int, queue: int, lease: int) -> tuple[str, QueueKey, Progress] | None:
        """Group, queue and progress, if the session holds the queue by that very lease."""
        group = self.group_of.get(session)
        key = self.topics.key(queue)
        if group is None or key is None:
            return None
        progress = self.ledger.group(group).queues.get(key)
        if progress is None or progress.lease is None:
            return None
        ours = progress.lease.session == session and progress.lease.number == lease
        return (group, key, progress) if ours else None

    def commit(self, session: int, queue: int, lease: int, offset: int) -> bool:
        """Store an offset, held within the queue's bounds (LW-50); False if the lease is over."""
        held = self.held(session, queue, lease)
        if held is None:
            return False
        group, key, _ = held
        self.ledger.commit(group, key, self._inside(queue, offset), session)
        return True

    def start(self, session: int, queue: int, lease: int, next_offset: int) -> Progress | None:
        """Note what has been handed out; how far the queue is, or None if the lease is over."""
        held = self.held(session, queue, lease)
        if held is None:
            return None
        group, key, progress = held
        highest = self.board.word(self.board.queue_at(queue) + layout.QUEUE_MAX_OFFSET)
        bounded = min(next_offset, highest)
        if bounded > progress.started:
            self.ledger.start(group, key, bounded, session)
        return progress

    def finish(self, held: tuple[str, QueueKey, Progress], done: list[Done]) -> None:
        """Note what a holder is done with, as far as it was handed out to it."""
        group, key, progress = held
        if len(progress.done) >= DONE_MAX:
            return  # what is not noted is delivered again, if this holder does not get so far
        inside = [(first, min(end, progress.started)) for first, end in done]
        for item in progress.fresh([(a, b) for a, b in inside if progress.committed <= a < b]):
            self.ledger.finish(group, key, item)

    def release(self, session: int, queue: int, lease: int) -> bool:
        """The holder has finished with a queue; False if the lease was over already."""
        held = self.held(session, queue, lease)
        if held is None:
            return False
        group, key, _ = held
        self.ledger.end_lease(group, key, failed=False)
        self.mark(group)
        return True

    def fail(self, session: int, request: Failed) -> int:
        """Count a failed delivery; how many there are by now, or -1 if the lease is over."""
        held = self.held(session, request.queue, request.lease)
        if held is None:
            return -1
        group, key, progress = held
        known = progress.attempts_of(request.offset)
        is_begun = progress.committed <= request.offset < progress.started
        # As many as are counted (the ledger has 16 bits) are as many as there can be.
        if request.attempts >= known and is_begun and known < DELIVERIES_MAX:
            known += 1
            self.ledger.fail(group, key, request.offset, known)
        return known

    # --------------------------------------------------------------------------------- balancing

    def begin_life(self, epoch: int) -> None:
        """Go on in a life of the broker, with all offsets inside their queues (LW-50).

        A power cut may have shortened the log. In a new life the ends count that recovery has left:
        others may have appended since, and an offset beyond such an end would pass over that.
        """
        self.topics.refresh()
        is_new = epoch != self.ledger.epoch
        for name, group in self.ledger.groups.items():
            for key in list(group.queues):
                queue = self.topics.queue(key)
                if queue is not None:
                    words = self.board.queue(queue)
                    high = words["recovered_end"]
                    if not is_new:
                        high = max(words["max_offset"], words["next_offset"])
                    low = words["min_offset"]
                    self.ledger.clamp(name, key, low, max(low, high))
        if is_new:
            self.ledger.limit_positions(self.board.word(layout.BOARD_RECOVERED_END))
            self.ledger.begin_epoch(epoch)
        known = {topic for group in self.ledger.groups.values() for topic in group.topics()}
        self.topics.gone |= {topic for topic in known if not self.topics.is_there(topic)}
        self.forget_gone()

    def forget_gone(self) -> None:
        """Forget how far groups are in topics that were deleted, as RocketMQ does.

        What a member still holds is kept until it gives it back; if the topic was made again, that
        goes on in it, behind all that the old one had. Called now and then, too.
        """
        if self.topics.gone:
            kept = self.ledger.forget_topics(self.topics.gone)
            self.topics.gone = {name for name in kept if not self.topics.is_there(name)}

    def grown(self) -> None:
        """Look for new and deleted topics: groups that have subscribed are balanced anew."""
        changed = self.topics.take_changed()
        if not changed:
            return
        self.forget_gone()
        for name, group in self.groups.items():
            if any(not changed.isdisjoint(member.topics) for member in group.members.values()):
                self.mark(name)

    def moves(self, queues_max: int = 1 << 30) -> Iterator[Move]:
        """What has to be granted or revoked so that every group is balanced.

        Groups of so many queues in all are looked at, of which the last may have some more; the
        others wait for the next call.
        """
        left = queues_max
        while self._unbalanced and left > 0:
            name = next(iter(self._unbalanced))
            del self._unbalanced[name]
            yield from self._moves_of(self.groups[name])
            left -= 1 + len(self.ledger.group(name).queues)
            if not self.groups[name].members:
                del self.groups[name]

    def _moves_of(self, group: Group) -> Iterator[Move]:
        progress = self.ledger.group(group.name)
        leases = self._leases(group.name)
        owned = {queue: lease.session for queue, lease in leases.items()}
        target = self._target(group, owned)
        for queue, lease in leases.items():
            if target.get(queue) != lease.session and not lease.revoking:
                yield Move(group.name, queue, lease.session, grant=False)
        for queue, session in target.items():
            if queue not in leases:
                key = self.topics.key(queue)
                assert key is not None, f"the board lost queue {queue}"
                if progress.queue(key).sending:
                    continue  # of a holder before; balanced again when that is settled
                if progress.queue(key).committed == UNSET:  # a queue younger than the subscription
                    self.ledger.commit(group.name, key, self._inside(queue, 0))
                digest = group.members[session].digest
                yield Move(group.name, queue, session, grant=True, digest=digest)

    def _target(self, group: Group, owned: dict[int, int]) -> dict[int, int]:
        """Queue -> session: what was chosen by hand first, the rest balanced among the others.

        Of two that choose a queue its holder has it, else who attached first.
        """
        by_hand: dict[int, int] = {}
        for session, member in sorted(group.members.items()):
            for queue in member.chosen or ():
                if owned.get(queue) == session or queue not in by_hand:
                    by_hand[queue] = session
        members = group.members.items()
        subscribed = {session: m.topics for session, m in members if m.chosen is None}
        slots = sorted(set().union(*subscribed.values())) if subscribed else []
        # Retry topics apart: otherwise one member might have those, and another all the rest.
        target: dict[int, int] = {}
        for retries in (False, True):
            queues_of = {
                slot: [queue for queue in self.topics.queues(slot) if queue not in by_hand]
                for slot in slots
                if self._is_retry(slot) == retries
            }
            if group.is_averaged:
                target |= assign_average(queues_of, subscribed)
            else:
                target |= assign(queues_of, subscribed, owned)
        target |= by_hand
        return {q: session for q, session in target.items() if self._may_have(group, q, owned)}

    def _may_have(self, group: Group, queue: int, owned: Mapping[int, int]) -> bool:
        """Whether a queue may be anybody's: one of a deleted topic only as long as it is."""
        if (group.name, queue) in self.blocked:
            return False
        key = self.topics.key(queue)
        return queue in owned or (key is not None and self.topics.is_there(key[0]))

    def _is_retry(self, slot: int) -> bool:
        topic = self.topics.by_slot.get(slot)
        return topic is not None and topic.name.startswith(RETRY_PREFIX)

    def _leases(self, group: str) -> dict[int, Lease]:
        found = (
            (self.topics.queue(k), q.lease) for k, q in self.ledger.group(group).queues.items()
        )
        return {queue: lease for queue, lease in found if queue is not None and lease is not None}
