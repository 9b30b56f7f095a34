"""Groups as `groups` keeps them in memory: members, subscriptions, and what to do next.

Truth about offsets and leases is the ledger's; here is who is a member and what follows from it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from gantrymq.shm import layout
from gantrymq.shm.board import Board, TopicSlot
from gantrymq.shm.groupwire import AVERAGE, ConsumeFrom, Done, Failed, Join
from gantrymq.shm.limits import DELIVERIES_MAX, PROGRESS_WINDOW
from gantrymq.shm.properties import RETRY_PREFIX
from gantrymq.workers.groups.assignment import STEP, assign, assign_average
from gantrymq.workers.groups.ledger import Ledger
from gantrymq.workers.groups.progress import UNSET, Lease, Progress, QueueKey

#: Ranges of what is done with out of order that are noted of one queue: a window of words has a
#: quarter of these at most.
DONE_MAX: Final = 2 * PROGRESS_WINDOW
#: What it costs to end a lease, and each range of what is done with out of order.
COST_OF_LEASE: Final = 1 / 2
COST_OF_RANGE: Final = 1 / 8
#: A queue that is granted or asked back costs as much as so many that are looked at.
COST_OF_MOVE: Final = 8
#: Queues of a group that are looked at before it is another group's turn.
TURN_QUEUES: Final = 512

T = TypeVar("T")


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
    since: int = 0  # `Group.marked` when it had joined


@dataclass(slots=True)
class Group:
    """A group that has, or had, members in this life of `groups`."""

    name: str
    members: dict[int, Member] = field(default_factory=dict)
    marked: int = 0  # how often it was to be balanced anew
    balanced: int = 0  # what `marked` was when the last balancing that is over began


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
        self._has_news = False

    def refresh(self) -> None:
        """Know the topics and queues of now; costs next to nothing where they are the same."""
        seen = self.board.topic_changes
        if seen == self._seen:
            return
        topics, before = self.board.topics(), self.by_slot
        self._seen, self._has_news = seen, True
        self._changed |= {topic.slot for topic in topics if before.get(topic.slot) is not topic}
        made = {topic.name: topic.made for topic in topics if not topic.deleted}
        self.gone |= {name for name, number in self._made.items() if made.get(name) != number}
        self._made = made
        self.by_slot = {topic.slot: topic for topic in topics}
        self.slots = {topic.name: topic.slot for topic in topics if not topic.leaving}

    def take_news(self) -> bool:
        """Whether topics are others than at the last call."""
        self.refresh()
        news, self._has_news = self._has_news, False
        return news

    def take_changed(self) -> set[int]:
        """Slots of topics that were found to be others, or to have other queues, since."""
        changed, self._changed = self._changed, set()
        return changed

    def is_there(self, name: str) -> bool:
        """Whether a topic is on the board and not deleted."""
        return name in self._made

    def slot_of(self, name: str) -> int:
        """Slot of a topic that is there; -1: there is none, or it was deleted."""
        return self.slots.get(name, -1) if name in self._made else -1

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
        #: Groups that are to be balanced, whose turn it is first, and how far that is.
        self._turns: dict[str, Iterator[Move | int] | None] = {}
        #: Queues by group that nobody is to have for now: their offsets are being reset.
        self.blocked: dict[str, set[int]] = {}

    # -------------------------------------------------------------------------- joining, leaving

    def join(self, session: int, request: Join) -> Iterator[int]:
        """Add or change a member, and fix where the group begins in topics new to it.

        A generator: topics are many. It yields how many queues it has looked at since; until it is
        through the session is a member that keeps what it holds and gets nothing.
        """
        group = self.groups.setdefault(request.group, Group(request.group))
        member = self._member(group, session, request)
        group.members[session] = replace(member, chosen=self.held_by(session))
        self.group_of[session] = request.group
        for slot in sorted(member.topics):
            self.follow()
            if not self.topics.by_slot[slot].deleted:
                self._fix_start(group.name, slot, request)
            yield 1 + len(self.topics.queues(slot))
        if request.queues is not None:
            offered = (queue for slot in member.topics for queue in self.topics.queues(slot))
            member.chosen = frozenset(offered).intersection(request.queues)
        self.mark(group.name)
        member.since = group.marked
        group.members[session] = member

    def _member(self, group: Group, session: int, request: Join) -> Member:
        topics = frozenset(request.topics)
        first = next(iter(group.members.values()), None)
        if first is not None and first.topics == topics:
            topics = first.topics  # as a rule all share one set, which is looked at once for all
        return Member(
            session,
            topics,
            request.consume_from,
            digest=request.digest,
            subscription=request.subscription,
            assignment=request.assignment,
            max_attempts=request.max_attempts,
            orderly=request.orderly,
        )

    def restore_member(self, group: str, member: Member) -> None:
        """Take a holder of leases for a member until it says itself what it wants.

        Until then it keeps what it holds and gets nothing: it may have chosen by hand. Who comes
        meanwhile with another subscription than its lease was granted under is refused.
        """
        self.mark(group)
        self.groups[group].members[member.session] = member
        self.group_of[member.session] = group

    def _fix_start(self, group: str, slot: int, request: Join) -> None:
        """The first member decides for the queues that exist; later queues begin at 0."""
        topic = self.topics.by_slot[slot]
        progress = self.ledger.group(group)
        if topic.name in progress.subscribed:
            return
        known = any(queue.committed != UNSET for queue in progress.queues_of(topic.name))
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

    def leave(self, session: int, failed: bool) -> Iterator[float]:
        """End a membership and all leases of the session; `failed` counts what it had started.

        A generator that yields what each lease has cost: a call that was broken off may be
        followed by another.
        """
        name = self.group_of.pop(session, None)
        if name is not None:
            self.groups[name].members.pop(session, None)
            self.mark(name)
        while leases := self.ledger.leases_of(session, 1):
            group, key, _lease = leases[0]
            ranges = len(self.ledger.group(group).queue(key).done)
            self.ledger.end_lease(group, key, failed)
            self.mark(group)
            yield COST_OF_LEASE + COST_OF_RANGE * ranges

    def forget(self, name: str) -> None:
        """Know nothing of a group without members, for the ledger does not either."""
        self.groups.pop(name, None)
        self._turns.pop(name, None)

    def unsettle(self, session: int) -> None:
        """Balance a session's group anew."""
        if session in self.group_of:
            self.mark(self.group_of[session])

    def mark(self, group: str) -> None:
        """Balance a group anew."""
        self.groups.setdefault(group, Group(group)).marked += 1
        self._turns.setdefault(group, None)

    def is_balanced(self, session: int) -> bool:
        """Whether all that could be granted to a session when it joined was, or is asked back."""
        group = self.groups.get(self.group_of.get(session, ""))
        return group is None or group.balanced >= group.members[session].since

    @property
    def has_unbalanced(self) -> bool:
        """Whether there are groups to balance."""
        return bool(self._turns)

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

    def held_by(self, session: int) -> frozenset[int]:
        """Board queues that a session holds."""
        queues = (self.topics.queue(key) for _, key, _ in self.ledger.leases_of(session))
        return frozenset(queue for queue in queues if queue is not None)

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
        fresh = progress.fresh([(a, b) for a, b in inside if progress.committed <= a < b])
        fresh = fresh[: DONE_MAX - len(progress.done)]
        if fresh:
            self.ledger.finish_all(group, key, fresh)

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

    def follow(self) -> None:
        """Know the topics of now, and of those that are gone nothing more.

        At once: what is said from now on of one that was made again is not to be forgotten.
        """
        if self.topics.take_news():
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
        self.follow()
        changed = self.topics.take_changed()
        if not changed:
            return
        for name, group in self.groups.items():
            if any(not changed.isdisjoint(member.topics) for member in group.members.values()):
                self.mark(name)

    def moves(self, queues_max: int = 1 << 30) -> Iterator[Move]:
        """What has to be granted or revoked so that every group is balanced.

        So many queues are looked at, a move counting as several; the rest waits for the next call.
        Groups have turns. What changes while a group is looked at makes it be looked at again.
        """
        left = queues_max
        while self._turns and left > 0:
            name = next(iter(self._turns))
            plan = self._turns.pop(name) or self._plan(self.groups[name])
            spent = 1
            for step in plan:
                if isinstance(step, Move):
                    yield step
                spent += COST_OF_MOVE if isinstance(step, Move) else step
                if spent >= min(left, TURN_QUEUES):
                    self._turns[name] = plan
                    break
            left -= spent

    def _plan(self, group: Group) -> Iterator[Move | int]:
        """Balance a group: its moves, and between them how many queues were looked at.

        Others are at work meanwhile, so each move is judged again when its turn comes.
        """
        begun, members = group.marked, dict(group.members)
        leases: dict[int, Lease] = {}
        for part in _parts(list(self.ledger.group(group.name).queues)):
            leases |= self._leases(group.name, part)
            yield len(part)
        owned = {queue: lease.session for queue, lease in leases.items()}
        target = yield from self._target(members, owned)
        for queue in self.blocked.get(group.name, ()):
            target.pop(queue, None)
        yield from self._revokes(group, leases, target)
        yield from self._grants(
            group, members, [item for item in target.items() if item[0] not in leases]
        )
        self._balanced(group, begun)

    def _revokes(
        self, group: Group, leases: dict[int, Lease], target: dict[int, int]
    ) -> Iterator[Move | int]:
        for part in _parts(list(leases.items())):
            for queue, lease in part:
                if target.get(queue) != lease.session and self._may_lose(group, queue, lease):
                    yield Move(group.name, queue, lease.session, grant=False)
            yield len(part)

    def _grants(
        self, group: Group, members: dict[int, Member], wanted: list[tuple[int, int]]
    ) -> Iterator[Move | int]:
        for part in _parts(wanted):
            for queue, session in part:
                member = members[session]
                if group.members.get(session) is member and self._may_have(group, queue):
                    yield Move(group.name, queue, session, grant=True, digest=member.digest)
            yield len(part)

    def _balanced(self, group: Group, begun: int) -> None:
        """A group is balanced, as it was when that began."""
        group.balanced = begun
        if group.marked != begun:
            self._turns.setdefault(group.name, None)
        elif not group.members:
            del self.groups[group.name]

    def _may_lose(self, group: Group, queue: int, lease: Lease) -> bool:
        """Whether a lease is still there, and not asked back already."""
        held = self._leases(group.name, [key] if (key := self.topics.key(queue)) else [])
        return held.get(queue) is lease and not lease.revoking

    def _may_have(self, group: Group, queue: int) -> bool:
        """Whether a queue may be granted now; it has an offset then."""
        key = self.topics.key(queue)
        if key is None or queue in self.blocked.get(group.name, ()):
            return False
        progress = self.ledger.group(group.name).queue(key)
        is_held = queue in self._leases(group.name, [key])
        if is_held or progress.sending or not self.topics.is_there(key[0]):
            # Nobody is to have a deleted one; copies on their way are of a holder before, and when
            # they are settled the group is balanced again.
            return False
        if progress.committed == UNSET:  # a queue younger than the subscription
            self.ledger.commit(group.name, key, self._inside(queue, 0))
        return True

    def _target(
        self, members: Mapping[int, Member], owned: dict[int, int]
    ) -> Generator[int, None, dict[int, int]]:
        """Queue -> session: what was chosen by hand first, the rest balanced among the others.

        Of two that choose a queue its holder has it, else who attached first. Yields how many
        queues it has looked at.
        """
        by_hand: dict[int, int] = {}
        for session, member in sorted(members.items()):
            for queue in member.chosen or ():
                if owned.get(queue) == session or queue not in by_hand:
                    by_hand[queue] = session
            yield len(member.chosen or ())
        subscribed = {session: m.topics for session, m in members.items() if m.chosen is None}
        slots = sorted(set().union(*set(subscribed.values()))) if subscribed else []
        is_averaged = any(member.assignment == AVERAGE for member in members.values())
        # Retry topics apart: otherwise one member might have those, and another all the rest.
        target: dict[int, int] = {}
        for retries in (False, True):
            queues_of = {
                slot: [queue for queue in self.topics.queues(slot) if queue not in by_hand]
                for slot in slots
                if self._is_retry(slot) == retries
            }
            yield len(queues_of)
            if is_averaged:  # some member has asked for RocketMQ's way of spreading queues
                target |= yield from assign_average(queues_of, subscribed)
            else:
                target |= yield from assign(queues_of, subscribed, owned)
        return target | by_hand

    def _is_retry(self, slot: int) -> bool:
        topic = self.topics.by_slot.get(slot)
        return topic is not None and topic.name.startswith(RETRY_PREFIX)

    def _leases(self, group: str, keys: Sequence[QueueKey]) -> dict[int, Lease]:
        """Board queue -> lease, of those of these queues that are held."""
        queues = self.ledger.group(group).queues
        found = ((key, queues[key].lease) for key in keys if key in queues)
        held = ((self.topics.queue(key), lease) for key, lease in found if lease is not None)
        return {queue: lease for queue, lease in held if queue is not None and lease is not None}


def _parts(items: list[T]) -> Iterator[list[T]]:
    """A list in parts of STEP."""
    return (items[at : at + STEP] for at in range(0, len(items), STEP))
