"""A simulated producer process: real ring kernels, driven step by step."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from gantrymq.clients.delays import Due, recall_handle
from gantrymq.shm import layout
from gantrymq.shm.codes import EntryFlag, ParkMode, Role, Status
from gantrymq.shm.kernels import frames, ring
from tests.support.lanes import lane_words, set_route
from tests.support.model import Intent, Receipt
from tests.support.recalling import Recallable
from tests.support.simclients import SimClient
from tests.support.simmachine import SimMachine
from tests.support.simulation import BORDER_MS
from tests.support.storedlog import require

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.workers.session import Session

UNANSWERED_MAX = 12
#: Names in recall handles, and RocketMQ's slots of time, as in the settings.
_BROKER = "broker"
BATCH_MAX = 4
_EXTRA = np.frombuffer(b"KEYS\x01one two  three\x02", np.uint8)
_DELAYS: list[tuple[int, int]] = [
    *((ParkMode.LEVEL, level) for level in (1, 3, 99)),
    *((ParkMode.AT, at_ms) for at_ms in (1, BORDER_MS - 1, BORDER_MS, 7_230_000_000_000)),
    *((ParkMode.AFTER, ms) for ms in (0, 1, 20, 400, 86_400_000)),
]
_BLOCK = b"TAGS\x01a\x02"


@dataclass(frozen=True, slots=True)
class Sent:
    """A message on its way."""

    seq: int
    intent: Intent
    flags: int
    wall_ms: int


class SimProducer(SimClient):
    """Sends numbered messages, keeps what is not answered, and submits it again after a restart.

    Some go alone, some in batches that are there whole or not at all.
    """

    def __init__(self, name: str, machine: SimMachine, count: int) -> None:
        super().__init__(name, machine)
        self.topics: list[str] = []  # none: all of the machine
        self.producer = self.dice.getrandbits(80).to_bytes(10, "big")
        self.left = count
        self.delays = True  # some of its messages are due later
        self.at_once = 0.8  # the share of the others
        self.waits = _DELAYS  # of which modes and values
        self.durable_end = 0  # somebody waits for this position
        self._slept_for = 0  # the same, if it went to sleep over that
        self._unanswered: deque[Sent] = deque()
        self._unput: deque[list[Sent]] = deque()  # each list: one message, or a batch
        self.answered: deque[Sent] = deque(maxlen=UNANSWERED_MAX)
        self._seq = 0
        self._words: NDArray[np.int64] = np.zeros(0, np.int64)
        self._life = 0  # of the broker, that the lane belongs to
        self._old: Session | None = None  # ended; `_words` are still of its lane
        self._out = np.zeros(8 * frames.COMPLETION_WORDS, np.int64)

    @property
    def done(self) -> bool:
        """All sent, answered, and durable where that was asked for."""
        return not (self.left or self._unanswered) and not self._waits_for_disk()

    def send_more(self, count: int) -> None:
        """The application has more to send, whatever this process is at."""
        self.left += count
        self.bell.ring()

    def inherit(self, dead: SimProducer, count: int) -> list[int]:
        """Go on as another did, as if its last `count` receipts had not come; their seqs."""
        self.producer, self._seq = dead.producer, dead._seq
        self._unanswered = deque(list(dead.answered)[-count:])
        seqs = [sent.seq for sent in self._unanswered]
        self.model.forget_receipts(self.producer.hex(), seqs)
        return seqs

    def session_over(self) -> None:
        """Its memory stays, with the answers that have not been taken."""
        if self._old is None:
            self._old = self.session
        super().session_over()

    def attached(self, session: Session) -> None:
        """Routes again; go on at once unless a living writer may still serve the old ring."""
        metadata = self.machine.metadata
        assert metadata is not None, "attached to a running broker"
        for number, topic in enumerate(self.machine.topics):
            set_route(session, number, metadata.open(topic, create=False).slot, _BLOCK)
        if self._old is None or self._life != self.machine.lives:
            self._go_over(session)

    def _go_over(self, session: Session) -> None:
        """Take what the old ring still answers, then put what has no answer yet, in order."""
        if self._old is not None:
            while self._take(self._old):
                pass
            self._old = None
        self._life = self.machine.lives
        self._words = lane_words(session.plan.writer)
        self._unput.clear()
        for batch, members in groupby(self._unanswered, lambda sent: sent.intent.batch):
            if batch:
                self._unput.append(list(members))
            else:
                self._unput.extend([sent] for sent in members)
        first = self._unanswered[0].seq if self._unanswered else self._seq + 1
        self._words[frames.SEQ] = self._words[frames.COMPLETED] = first - 1

    def go_on(self, session: Session, now_ns: int) -> None:
        """Take answers, put something, or go to sleep."""
        self._slept_for = 0
        if self._old is not None:
            at = session.plan.writer.control + layout.LANE_ADOPTED
            if not session.arena[at : at + 8].any():
                self._asleep = True  # the writer rings when it has let go of the old ring
                return
            self._go_over(session)
        worked = self._take(session)
        if self.left and len(self._unanswered) < UNANSWERED_MAX and self.dice.random() < 0.7:
            self._intend()
        if self._unput:
            worked = self._put(session) or worked
        full = len(self._unanswered) >= UNANSWERED_MAX
        if not worked and (self._unput or not self.left or full):
            self._asleep = self._may_sleep(session)

    # ------------------------------------------------------------------------------------ sending

    def _intend(self) -> None:
        """One more message, or a batch of some."""
        count = self.dice.randint(2, BATCH_MAX) if self.dice.random() < 0.3 else 1
        count = min(count, self.left)
        topic = self.dice.choice(self.topics or list(self.machine.topics))
        queue = self.dice.choice([-1, 0])
        flags = EntryFlag.RECEIPT | (EntryFlag.DURABLE if self.dice.random() < 0.2 else 0)
        batch = self._seq + 1 if count > 1 else 0
        sizes = [0, 10, 200] if count > 1 else [0, 10, 200, 1500]
        members = []
        for _ in range(count):
            self.left -= 1
            self._seq += 1
            body = f"{self.producer.hex()}:{self._seq}:".encode() + b"." * self.dice.choice(sizes)
            intent = Intent(topic, body, queue, batch, self._due() if count == 1 else (0, 0))
            self.model.sent(self.producer.hex(), self._seq, intent)
            now_ms = self.machine.simulation.clock.wall_ms()
            members.append(Sent(self._seq, intent, int(flags), now_ms))
        self._unanswered.extend(members)
        self._unput.append(members)

    def _due(self) -> tuple[int, int]:
        """Now, mostly; or later, by a level, at a time or after one, some of them no delay."""
        if not self.delays or self.dice.random() < self.at_once:
            return (0, 0)
        return self.dice.choice(self.waits)

    def _put(self, session: Session) -> bool:
        members = self._unput[0]
        self._words[frames.RING] = 0
        done = self._put_batch(session, members) if members[0].intent.batch else 0
        done = done or self._put_one(session, members[0])
        if self._words[frames.RING]:
            self.machine.bell(Role.WRITER).ring()
        if done == ring.FULL:
            return False
        assert done == members[-1].seq, f"put gave {done}, not {members[-1].seq}"
        self._unput.popleft()
        return True

    def _put_one(self, session: Session, sent: Sent) -> int:
        body = np.frombuffer(sent.intent.body, np.uint8)
        extra = self._extra(sent.seq)
        return int(ring.put(session.arena, self._words, self._form(sent), body, extra))

    def _extra(self, _seq: int) -> NDArray[np.uint8]:
        """Properties that go with a message."""
        return _EXTRA

    def _put_batch(self, session: Session, members: list[Sent]) -> int:
        form = self._form(members[0])
        form[0] |= int(EntryFlag.BATCH)
        bodies = [sent.intent.body for sent in members]
        lengths = [length for body in bodies for length in (len(body), 0)]
        routes = np.array(lengths + [int(form[1])] * len(members), np.int64)
        payload = np.frombuffer(b"".join(bodies), np.uint8)
        return int(ring.put_batch(session.arena, self._words, form, payload, routes))

    def _form(self, sent: Sent) -> NDArray[np.int64]:
        route = list(self.machine.topics).index(sent.intent.topic)
        born_ms = 1_700_000_000_000
        form = [sent.flags, route, sent.intent.queue, born_ms, 0, 0, *sent.intent.due]
        return np.array(form, np.int64)

    # ------------------------------------------------------------------------------------ answers

    def _take(self, session: Session) -> bool:
        self._words[frames.RING] = 0
        taken = int(ring.take_completions(session.arena, self._words, self._out))
        if self._words[frames.RING]:
            self.machine.bell(Role.WRITER).ring()
        rows = self._out[: taken * frames.COMPLETION_WORDS].reshape(-1, frames.COMPLETION_WORDS)
        for row in rows:
            self._answered(row)
        return taken > 0

    def _answered(self, row: NDArray[np.int64]) -> None:
        seq, status = int(row[frames.OUT_SEQ]), Status(int(row[frames.OUT_STATUS]))
        sent = self._unanswered.popleft()
        assert seq == sent.seq, f"{self.name} waits for {sent.seq}, was answered {seq}"
        receipt = Receipt(
            status,
            int(row[frames.OUT_QUEUE]),
            int(row[frames.OUT_OFFSET]),
            int(row[frames.OUT_POSITION]),
            int(row[frames.OUT_END]),
        )
        self.model.answered(self.producer.hex(), seq, receipt)
        stored_ms = int(row[frames.OUT_MS])
        if status == Status.OK and not self.machine.simulation.clock.was_set:
            require(stored_ms >= sent.wall_ms, "P8", f"{sent} is stored as of {stored_ms}")
        waits = sent.intent.due[0] not in (0, ParkMode.HALF)
        if self.delays and status == Status.OK and waits:
            self._note_handle(sent, receipt, int(row[frames.OUT_MS]))
        self.answered.append(sent)
        if sent.flags & EntryFlag.DURABLE:
            self.durable_end = max(self.durable_end, receipt.end)

    def _note_handle(self, sent: Sent, receipt: Receipt, store_ms: int) -> None:
        """What its sender could cancel it by (DT-70)."""
        producer = self.producer.hex()
        unique = f"{producer.upper()}{sent.seq:012X}"
        mode, value = sent.intent.due
        names = (sent.intent.topic, _BROKER, unique)
        precision_ms = self.machine.configuration.settings.timer_precision_ms
        handle = recall_handle(Due(ParkMode(mode), value), store_ms, names, precision_ms)
        if handle is not None:
            name = (producer, sent.seq)
            known = Recallable(name, sent.intent.topic, handle, receipt.position)
            self.model.recalls.known.append(known)

    def _waits_for_disk(self) -> bool:
        board = self.machine.board
        return board is None or board.word(layout.BOARD_DURABLE) < self.durable_end

    def sleeps_over(self, durable: int) -> bool:
        """Whether it sleeps on though the disk has what it waits for."""
        return self._asleep and not self.bell.rung and 0 < self._slept_for <= durable

    def _may_sleep(self, session: Session) -> bool:
        """Raise the flags, look again."""
        if self._waits_for_disk():
            self._slept_for = self.durable_end
            at = layout.ARENA_DURABLE_WANTED
            ring.publish(session.arena, at, self.durable_end)
            if not self._waits_for_disk():
                return False
        control = session.plan.writer.control
        flag_at = control + layout.LANE_CLIENT_ARMED
        for word, seen in (
            (layout.LANE_DOWN_TAIL, frames.DOWN_CURSOR),
            (layout.LANE_UP_HEAD, frames.UP_SEEN),
        ):
            if word == layout.LANE_UP_HEAD and not self._unput:
                continue
            if not ring.arm(session.arena, flag_at, 1, control + word, int(self._words[seen])):
                return False
        return True
