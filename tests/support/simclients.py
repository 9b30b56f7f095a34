"""Simulated client processes: a member of a group, and what all clients share."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from gantrymq.shm import groupwire, layout
from gantrymq.shm.codes import AgentState, Role
from gantrymq.shm.controllane import ControlLane, End
from gantrymq.shm.kernels import progress
from gantrymq.shm.queuenames import queue_directory
from gantrymq.shm.record import OWN, Record, parse_record
from tests.support import simbits
from tests.support.model import Model
from tests.support.simbell import SimBell
from tests.support.simmachine import SimMachine
from tests.support.storedlog import QueueName, broken

if TYPE_CHECKING:
    from gantrymq.workers.session import Session

NEVER_NS = 3_600_000_000_000


class SimClient:
    """What producers and consumers share: a bell, a session that may end at any time, sleep."""

    groups = False
    scheduler = False
    transactions = False
    producer = b""

    def __init__(self, name: str, machine: SimMachine) -> None:
        self.name = name
        self.machine = machine
        self.model: Model = machine.model
        self.dice = machine.simulation.dice
        self.bell = SimBell()
        self.session: Session | None = None
        self.stopped = False  # by SIGSTOP
        self._asleep = False

    def ready_at(self, now_ns: int) -> int:
        """Asleep until rung; without a broker, until there is one."""
        if self.stopped:
            return now_ns + NEVER_NS
        if self.session is None:
            return now_ns if self.machine.running else now_ns + NEVER_NS
        return now_ns + NEVER_NS if self._asleep and not self.bell.rung else now_ns

    def session_over(self) -> None:
        """The socket has ended."""
        self.session = None

    def sleeps_over(self, durable: int) -> bool:
        """Whether it sleeps on though the log is durable up to where it waits for."""
        del durable
        return False

    def killed(self) -> None:
        """Its steps are whole."""

    def die(self) -> None:
        """SIGKILL this process."""
        self.machine.simulation.remove(self.name)
        if self.session is not None:
            self.machine.end_session(self.session.session)

    def step(self, now_ns: int) -> None:
        """Attach, or wake, or go on."""
        if self.session is None:
            self._asleep = False
            self.bell.clear()
            self.session = self.machine.attach(self)
            if self.session is not None:
                self.attached(self.session)
        elif self._asleep:
            self.bell.clear()
            self._asleep = False
        else:
            self.go_on(self.session, now_ns)

    def attached(self, session: Session) -> None:
        """A fresh session is there."""
        raise NotImplementedError

    def go_on(self, session: Session, now_ns: int) -> None:
        """One step with a session."""
        raise NotImplementedError


class SimConsumer(SimClient):
    """A member of a group that reads what it is granted, commits now and then, and gives back."""

    groups = True
    #: Of its topics and filters, as groupwire.Join has it.
    digest = 5

    def __init__(self, name: str, machine: SimMachine, group: str) -> None:
        super().__init__(name, machine)
        self.group = group
        self.owned: dict[int, tuple[int, int]] = {}  # board queue -> (lease, next offset)
        self._slots: dict[int, int] = {}  # board queue -> slot of the progress table
        self._outbox: deque[Any] = deque()
        self._serial = 0
        self._join_serial = 0
        self._asked: dict[int, dict[int, int]] = {}  # serial of a commit -> offsets
        self._revoked: dict[int, int] = {}  # queue -> lease, to give back when no commit waits
        self._released: dict[tuple[int, int], groupwire.Released] = {}  # (queue, lease) -> as said
        self._given: dict[int, int] = {}  # given back at an offset, not confirmed by a commit yet
        self._lane: ControlLane | None = None
        self._names: dict[int, QueueName] = {}  # a queue keeps its number for a broker's life
        self._storage = machine.storage_for(name)

    def session_over(self) -> None:
        """All leases are over; `groups`, or its successor, will see what the words say."""
        is_poison = self.machine.poisons.is_of(self.session)  # then its words are not heeded
        if self.session is not None and self.machine.running and not is_poison:
            for queue in self.owned:
                committed = self._word(self.session, queue, layout.PROGRESS_COMMITTED)
                self.model.left_behind(self.group, self._name(queue), committed)
        super().session_over()
        self._slots.clear()
        self.owned.clear()
        self._released.clear()
        self._given.clear()
        self._outbox.clear()
        self._asked.clear()
        self._revoked.clear()

    def attached(self, session: Session) -> None:
        """Join."""
        self._names.clear()
        self._lane = ControlLane(session.arena, session.plan.groups, End.CLIENT)
        self._join()

    def go_on(self, session: Session, now_ns: int) -> None:
        """Hear notices, speak, read, commit, or go to sleep."""
        worked = self._hear(session) or self._speak()
        if not self._asked:
            self._give_back_revoked(session)
        for queue in list(self.owned):
            if self.dice.random() < 0.6:
                worked = self._read(queue, session) or worked
        if self.owned and worked and self.dice.random() < 0.5:
            self.commit(session, wait=self.dice.random() < 0.25)
        if not worked:
            self._asleep = self._may_sleep(session)

    def _join(self) -> None:
        metadata = self.machine.metadata
        assert metadata is not None, "attached to a running broker"
        slots = [metadata.open(topic, create=False).slot for topic in self.machine.topics]
        self._serial += 1
        self._join_serial = self._serial
        start = groupwire.ConsumeFrom.FIRST_OFFSET
        has_bits = self.machine.configuration.settings.enable_calc_filter_bit_map
        told = [(slot, simbits.DIALECT, simbits.EXPRESSION) for slot in slots if has_bits]
        self._outbox.append(
            groupwire.Join(self._serial, self.group, slots, start, digest=self.digest, filters=told)
        )

    def _hear(self, session: Session) -> bool:
        lane = self._lane
        assert lane is not None, "attached"
        body = lane.take()
        if lane.wants_bell:
            self.machine.bell(Role.GROUPS).ring()
        if body is None:
            return False
        self._obey(groupwire.decode_notice(body), session)
        return True

    def _obey(self, notice: groupwire.AnyNotice, session: Session) -> None:
        match notice:
            case groupwire.Granted(queue, lease, offset):
                self._take_over(queue, lease, offset, session)
            case groupwire.Revoke(queue, lease):
                self._revoke(queue, lease, session)
            case groupwire.Committed(serial, lost):
                self._committed(serial, lost)
            case groupwire.Rejoin():
                self._join()
                self._outbox.extend(groupwire.Commit(serial, {}) for serial in self._asked)
            case groupwire.Refused() as refused:
                self._refused(refused)

    def _refused(self, refused: groupwire.Refused) -> None:
        """For want of room, or while a stranger is in the group.

        A commit is said again some time, a join at once.
        """
        if self.machine.poisons.is_of(self.session):
            return  # its end is told at the same time
        assert refused.error in ("DiskFull", "GroupIllegal"), f"{self.name} was refused: {refused}"
        self.model.tally["groups full" if refused.error == "DiskFull" else "refused members"] += 1
        self._asked.pop(refused.serial, None)
        if refused.serial == self._join_serial:
            self._join()

    def _take_over(self, queue: int, lease: int, offset: int, session: Session) -> None:
        held = self.owned.get(queue)
        self._revoked.pop(queue, None)  # a replaced one revokes again if it has to
        # A replaced `groups` repeats itself, perhaps about what has been given back since.
        if not self._repeat_release(queue, lease) and (held is None or held[0] != lease):
            if queue in self._slots:
                self._close_slot(queue, session)
            self.model.granted(self.group, self._name(queue), session.session, offset)
            self.owned[queue] = (lease, offset)
            slot = min(set(range(len(self._slots) + 1)) - set(self._slots.values()))
            self._slots[queue] = slot
            progress.open_slot(session.arena, slot, lease, queue, offset)

    def _speak(self) -> bool:
        lane = self._lane
        assert lane is not None, "attached"
        if not self._outbox or not lane.put(groupwire.encode(self._outbox[0])):
            return False
        self._outbox.popleft()
        if lane.wants_bell:
            self.machine.bell(Role.GROUPS).ring()
        return True

    def _revoke(self, queue: int, lease: int, session: Session) -> None:
        del session  # the release comes later, when no commit is waited for
        held = self.owned.get(queue)
        if not self._repeat_release(queue, lease) and held is not None and held[0] == lease:
            self._revoked[queue] = lease

    def _give_back_revoked(self, session: Session) -> None:
        """As clients do: not while a commit is waited for, which means the words of all queues."""
        for queue, lease in self._revoked.items():
            if queue in self.owned and self.owned[queue][0] == lease:
                self._give_back(queue, lease, session)
        self._revoked.clear()

    def _give_back(self, queue: int, lease: int, session: Session) -> None:
        held = self.owned.pop(queue)
        self._close_slot(queue, session)
        self.model.gave_back(self.group, self._name(queue), session.session)
        released = self._released[queue, lease] = groupwire.Released(queue, lease, held[1])
        self._given[queue] = held[1]
        self._outbox.append(released)

    def _repeat_release(self, queue: int, lease: int) -> bool:
        """Whether a lease was given back: a `groups` that has died may have taken it along."""
        released = self._released.get((queue, lease))
        if released is not None:
            self._outbox.append(released)
        return released is not None

    def _read(self, queue: int, session: Session) -> bool:
        board = self.machine.board
        assert board is not None, "a session implies a board"
        lease, offset = self.owned[queue]
        if offset >= board.word(board.queue_at(queue) + layout.QUEUE_MAX_OFFSET):
            return False
        committed = self._word(session, queue, layout.PROGRESS_COMMITTED)
        progress.note_progress(session.arena, self._at(queue), committed, offset + 1)
        try:
            record = self._look(self._name(queue), offset)
        except FileNotFoundError as error:
            self._pass_gap(queue, error)
            return True
        self.model.consumer_read(self.group, self._name(queue), offset, record)
        self.owned[queue] = (lease, offset + 1)
        return True

    def _pass_gap(self, queue: int, error: FileNotFoundError) -> None:
        """As clients do: what is below the queue's first offset has been removed."""
        board, (lease, offset) = self.machine.board, self.owned[queue]
        assert board is not None, "a session implies a board"
        first = board.word(board.queue_at(queue) + layout.QUEUE_MIN_OFFSET)
        if first <= offset:
            broken("P10", f"{self.name} holds {self._name(queue)} at {offset}: {error}")
        self.model.skipped(self.group, self._name(queue), offset, first)
        self.owned[queue] = (lease, first)

    def _look(self, name: QueueName, offset: int) -> Record:
        settings, at = self.machine.configuration.settings, offset * layout.CQ_UNIT_BYTES
        base = at // settings.mapped_file_size_consume_queue
        base *= settings.mapped_file_size_consume_queue
        file = self._storage.open(f"{queue_directory(self._storage, *name)}/{base:020d}")
        unit = layout.CQ_UNIT.unpack(file.view(), at - base)
        position, segment = unit["physical_offset"], settings.mapped_file_size_commit_log
        base = position // segment * segment
        view = self._storage.open(f"commitlog/{base:020d}").view()
        record = parse_record(view.data, position - base, segment, OWN, position)
        assert isinstance(record, Record), f"unit {offset} of {name} points at {record}"
        assert (record.topic, record.queue_id) == name, f"unit {offset} of {name}: {record}"
        assert record.queue_offset == offset, f"unit {offset} of {name}: {record}"
        return record

    def _wants_of(self, queue: int) -> bool:
        """Whether it reads what is there of a queue that it owns."""
        del queue
        return True

    def commit(self, session: Session, *, wait: bool) -> None:
        """Pass all that was read, by words alone or asking for an answer as well."""
        offsets = {queue: offset for queue, (_lease, offset) in self.owned.items()}
        for queue, offset in offsets.items():
            progress.note_progress(session.arena, self._at(queue), offset, offset)
        if wait:
            self._serial += 1
            self._asked[self._serial] = self._given | offsets  # requests are taken in order
            self._given = {}
            self._outbox.append(groupwire.Commit(self._serial, {}))

    def _at(self, queue: int) -> int:
        return layout.PROGRESS_AT + self._slots[queue] * layout.PROGRESS_BYTES

    def _word(self, session: Session, queue: int, field: int) -> int:
        at = self._at(queue) + field
        return int(session.arena[at : at + 8].view("<i8")[0])

    def _close_slot(self, queue: int, session: Session) -> None:
        progress.close_slot(session.arena, self._at(queue))
        del self._slots[queue]

    def _committed(self, serial: int, lost: dict[int, int]) -> None:
        for queue, offset in self._asked.pop(serial, {}).items():
            if queue not in lost:
                key = (self.group, self._name(queue))
                self.model.committed[key] = max(self.model.committed.get(key, 0), offset)

    def _name(self, queue: int) -> QueueName:
        if queue not in self._names:
            self._names[queue] = self._read_name(queue)
        return self._names[queue]

    def _read_name(self, queue: int) -> QueueName:
        board = self.machine.board
        assert board is not None, "a session implies a board"
        row = board.queue(queue)
        topic = board.topic(row["topic"])
        assert topic is not None, f"queue {queue} has a topic"
        return topic.name, row["queue_id"]

    def _may_sleep(self, session: Session) -> bool:
        """Wait for the group's notices and for new messages in what is owned."""
        arena, board = session.arena, self.machine.board
        assert board is not None, "a session implies a board"
        lane = self._lane
        assert lane is not None, "attached"
        for index, queue in enumerate(self.owned):
            at = layout.INTEREST_AT + 4 * index
            arena[at : at + 4].view("<u4")[0] = queue
        at = layout.ARENA_INTEREST_COUNT
        arena[at : at + 4].view("<u4")[0] = len(self.owned)
        at = layout.ARENA_WAIT_ARMED
        arena[at : at + 4].view("<u4")[0] = 1
        for queue, (_lease, offset) in self.owned.items():
            there = board.word(board.queue_at(queue) + layout.QUEUE_MAX_OFFSET)
            if offset < there and self._wants_of(queue):
                return False
        return not self._outbox and lane.arm(AgentState.ARMED)
