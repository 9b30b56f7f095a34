"""Writer, flusher, reader and `groups` over one simulated disk; members whose owner is the test.

Any agent can be killed between two of its steps, or inside a call of its storage, and comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace

import numpy as np

from gantrymq.brokerd.config import load
from gantrymq.brokerd.flusher import Flusher
from gantrymq.brokerd.writer import open_writer
from gantrymq.shm import layout
from gantrymq.shm.arena import plan_arena
from gantrymq.shm.codes import EntryFlag, Level, Role
from gantrymq.shm.kernels import ring
from gantrymq.shm.properties import encode_properties
from gantrymq.shm.record import Filler, Record, parse_record
from gantrymq.workers.agent import Agent, Bells
from gantrymq.workers.groups.agent import open_groups
from gantrymq.workers.reader.agent import Reader
from tests.support.faults import FaultPlan, KilledError
from tests.support.groups_rig import Hand
from tests.support.lanes import lane_words, set_route
from tests.support.memory_sessions import MemorySessions, memory_board, memory_session
from tests.support.simbell import SimBell
from tests.support.simclock import SimClock
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage

#: As brokerd.agents calls them; settings here are a namespace with what they ask for.
OPENERS: dict[Role, Callable[..., Agent]] = {
    Role.WRITER: open_writer,
    Role.FLUSHER: Flusher,
    Role.READER: Reader,
    Role.GROUPS: open_groups,
}
LEVELS = "1s 5s 10s 30s 1m"
TOPICS = {
    "orders": 2, "%RETRY%g": 3, "%DLQ%g": 1, "SCHEDULE_TOPIC_XXXX": 5, "rmq_sys_wheel_timer": 1,
}  # fmt: skip
SEGMENT_BYTES = 1 << 16


class RetryRig:
    """See the module."""

    def __init__(self, level: Level = Level.WRITTEN) -> None:
        """`level` of the topic `orders`."""
        sizes = {
            "mapped_file_size_commit_log": SEGMENT_BYTES,
            "mapped_file_size_consume_queue": 20_000,
            "max_message_size": 16 * 1024,
        }
        found = load(given=sizes, environment={}).settings
        known = {name: getattr(found, name) for name in found.__dataclass_fields__}
        given = {"message_delay_level": LEVELS, "timer_precision_ms": 1000}
        self.settings = SimpleNamespace(**(known | given))
        self.disk, self.clock = Disk(), SimClock()
        self.board = memory_board(TOPICS, segment_bytes=SEGMENT_BYTES)
        self.board.set_half(self.board.topic_at(0) + layout.TOPIC_LEVEL, level)
        self.board.count_change(layout.BOARD_TOPIC_CHANGES)
        self.bells = Bells.each(SimBell)
        self.agents: dict[Role, Agent] = {}
        self.tables: dict[Role, MemorySessions] = {}
        self.faults: dict[Role, FaultPlan] = {}
        self.stalled: set[Role] = set()  # who does nothing for now
        self.steps = 0
        self._last = 0
        own = memory_session(
            self._next(), plan_arena(1 << 18, 1 << 12, 256, 256), producer=b"g" * 10
        )
        self.own = replace(own, groups=False, owner=int(Role.GROUPS))
        plan = plan_arena(1 << 18, 1 << 14, 4096, 4096)
        self._producer = memory_session(self._next(), plan, producer=b"p" * 10)
        self._lane = lane_words(plan.writer)
        set_route(self._producer, 0, 0)
        set_route(self._producer, 1, 1)
        self.hands: dict[int, Hand] = {}
        for role in OPENERS:
            self.start(role)

    def _next(self) -> int:
        self._last += 1
        return self._last

    # -------------------------------------------------------------------------------------- agents

    def start(self, role: Role) -> None:
        """Start or replace an agent; it is told of all sessions."""
        table = self.tables[role] = MemorySessions()
        for session in (self.own, self._producer, *(hand.session for hand in self.hands.values())):
            table.attach(session)
        storage = SimStorage(self.disk, role.name, self.faults.pop(role, None))
        opener = OPENERS[role]
        parts = storage, self.clock, self.board, table, self.bells, self.settings
        try:
            self.agents[role] = opener(*parts)
        except KilledError:
            self.start(role)

    def step(self, role: Role) -> int:
        """One duty cycle; an agent that dies in it is replaced."""
        self.steps += 1
        try:
            return self.agents[role].do_work(self.clock.monotonic_ns())
        except KilledError:
            self.start(role)
            return 1

    def cycle(self) -> int:
        """One duty cycle of each."""
        return sum(self.step(role) for role in OPENERS if role not in self.stalled)

    def settle(self) -> None:
        """Run all until nobody has anything to do."""
        idle = 0
        for _ in range(1000):
            idle = 0 if self.cycle() else idle + 1
            if idle == 2:
                return
        raise AssertionError("the agents never come to rest")

    @property
    def sessions(self) -> MemorySessions:
        """The table of `groups`."""
        return self.tables[Role.GROUPS]

    # ------------------------------------------------------------------------------------- clients

    def attach(self) -> Hand:
        """Add a member to be."""
        plan = plan_arena(256, 256, 1 << 15, 1 << 15)
        hand = Hand(self, memory_session(self._next(), plan))  # type: ignore[arg-type]
        self.hands[hand.number] = hand
        for table in self.tables.values():
            table.attach(hand.session)
        return hand

    def kill(self, hand: Hand) -> None:
        """A client's process dies."""
        del self.hands[hand.number]
        for table in self.tables.values():
            table.detach(hand.number)

    def send(
        self, body: bytes, queue: int = 0, properties: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Put a message into `orders`."""
        form = np.array([EntryFlag.RECEIPT, 0, queue, 7, 1_700_000_000_000, 0], np.int64)
        extra = np.frombuffer(encode_properties(properties), np.uint8)
        data = np.frombuffer(body, np.uint8)
        assert ring.put(self._producer.arena, self._lane, form, data, extra) > 0

    # ----------------------------------------------------------------------------------------- log

    def log(self) -> Iterator[Record]:
        """All records, in order."""
        storage = SimStorage(self.disk, "oracle")
        end = self.board.word(layout.BOARD_APPENDED)
        for name in storage.list("commitlog"):
            file = storage.open(f"commitlog/{name}")
            data = bytearray(file.size())
            file.read_into(data, 0)
            at, base = 0, int(name)
            while base + at < end and at < len(data):
                item = parse_record(data, at, len(data))
                if isinstance(item, Filler):
                    break
                assert isinstance(item, Record), item
                yield item
                at += item.total_size

    def copies(self) -> list[Record]:
        """Records that the broker derived."""
        return [record for record in self.log() if record.prepared_transaction_offset < 0]
