"""A simulated process that speaks to all agents by the lanes of its session, a step at a time."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from gantrymq.shm import groupwire, layout, schedulerwire, transactionwire
from gantrymq.shm.codes import EntryFlag, ParkMode, Role
from gantrymq.shm.controllane import ControlLane, End
from gantrymq.shm.kernels import frames, ring
from gantrymq.shm.kernels.words import load_word
from gantrymq.shm.properties import GANTRY_TX, encode_properties
from tests.support.lanes import lane_words, set_route
from tests.support.simclients import SimClient
from tests.support.simmachine import SimMachine

if TYPE_CHECKING:
    from gantrymq.shm.arena import LanePlan
    from gantrymq.workers.session import Session

#: Whose lane is which of a session's.
LANE_OF = {
    Role.WRITER: "writer",
    Role.GROUPS: "groups",
    Role.SCHEDULER: "scheduler",
    Role.TXN_CHECKER: "transactions",
}
_WIRES: dict[Role, Any] = {
    Role.GROUPS: groupwire,
    Role.SCHEDULER: schedulerwire,
    Role.TXN_CHECKER: transactionwire,
}
BORN_MS = 1_700_000_000_000
NO_BYTES = np.zeros(0, np.uint8)
NOW = (int(ParkMode.NONE), 0)
HALF = (int(ParkMode.HALF), 0)


class Talker(SimClient):
    """Puts what it is told to put, and keeps what it is answered until that is asked for."""

    groups = scheduler = transactions = True

    def __init__(self, name: str, machine: SimMachine) -> None:
        super().__init__(name, machine)
        self.notices: deque[Any] = deque()  # of all control lanes
        self.answers: deque[list[int]] = deque()  # the writer's, as words of frames.OUT_*
        self.slots: list[int] = []  # of the machine's topics, on the board
        self._lanes: dict[Role, ControlLane] = {}
        self._words = np.zeros(0, np.int64)
        self._out = np.zeros(64 * frames.COMPLETION_WORDS, np.int64)
        #: Ends of what was put into each up ring and is not given back yet.
        self._put: dict[Role, deque[int]] = {role: deque() for role in LANE_OF}

    def step(self, now_ns: int) -> None:
        """Attach as a producer that nobody has seen before, or go on."""
        if self.session is None:
            self.producer = self.dice.getrandbits(80).to_bytes(10, "big")
        super().step(now_ns)

    def attached(self, session: Session) -> None:
        """Fresh lanes, and a route to each topic."""
        metadata = self.machine.metadata
        assert metadata is not None, "attached to a running broker"
        self.slots = [metadata.open(topic, create=False).slot for topic in self.machine.topics]
        for number, slot in enumerate(self.slots):
            set_route(session, number, slot)
        self._lanes = {role: self._lane(session, role) for role in _WIRES}
        self._words = lane_words(session.plan.writer)
        self.notices.clear()
        self.answers.clear()
        for ends in self._put.values():
            ends.clear()

    def _lane(self, session: Session, role: Role) -> ControlLane:
        return ControlLane(session.arena, getattr(session.plan, LANE_OF[role]), End.CLIENT)

    def hear(self) -> None:
        """Take all that agents have answered."""
        session = self.session
        assert session is not None, "attached"
        for role, lane in self._lanes.items():
            while (body := lane.take()) is not None:
                self.notices.append(_WIRES[role].decode_notice(body))
                self._ring(role)
        while taken := int(ring.take_completions(session.arena, self._words, self._out)):
            rows = self._out[: taken * frames.COMPLETION_WORDS]
            self.answers.extend(rows.reshape(-1, frames.COMPLETION_WORDS).tolist())
            self._ring(Role.WRITER)

    def ask(self, role: Role, body: bytes) -> bool:
        """Put a request; False if there is no room now."""
        lane = self._lanes[role]
        done = lane.put(body)
        self._note(role, int(lane.words[frames.UP_CURSOR]), done=done)
        return done

    def send(
        self, topic: int, body: bytes, due: tuple[int, int] = NOW, *, flags: int = 0,
        extra: dict[str, str] | None = None,
    ) -> bool:  # fmt: skip
        """Put a message of the machine's n-th topic; False if there is no room now."""
        session = self.session
        assert session is not None, "attached"
        form = np.array([EntryFlag.RECEIPT | flags, topic, -1, BORN_MS, 0, 0, *due], np.int64)
        block = np.frombuffer(encode_properties(extra), np.uint8) if extra else NO_BYTES
        data = np.frombuffer(body, np.uint8)
        done = int(ring.put(session.arena, self._words, form, data, block)) != ring.FULL
        self._note(Role.WRITER, int(self._words[frames.UP_CURSOR]), done=done)
        return done

    def send_half(self, tx: str, group: str, topic: int = 0) -> bool:
        """Put a half message of a transaction."""
        named = {"TRAN_MSG": "true", "PGROUP": group, GANTRY_TX: f"{tx},1"}
        return self.send(topic, b"half", HALF, extra=named)

    def send_batch(self, topic: int, bodies: list[bytes]) -> bool:
        """Put messages that are stored together or not at all."""
        session = self.session
        assert session is not None, "attached"
        flags = EntryFlag.RECEIPT | EntryFlag.BATCH
        form = np.array([flags, topic, 0, BORN_MS, 0, 0, *NOW], np.int64)
        lengths = [length for body in bodies for length in (len(body), 0)]
        routes = np.array(lengths + [topic] * len(bodies), np.int64)
        payload = np.frombuffer(b"".join(bodies), np.uint8)
        done = ring.put_batch(session.arena, self._words, form, payload, routes)
        self._note(Role.WRITER, int(self._words[frames.UP_CURSOR]), done=done != ring.FULL)
        return bool(done != ring.FULL)

    def _note(self, role: Role, end: int, *, done: bool) -> None:
        if done:
            self._put[role].append(end)
        self._ring(role)

    def _ring(self, role: Role) -> None:
        self.machine.bell(role).ring()

    def given_back(self, role: Role) -> int:
        """How many of its entries an agent has taken, and said so, since the last call."""
        session, ends = self.session, self._put[role]
        if session is None:
            return 0
        plan: LanePlan = getattr(session.plan, LANE_OF[role])
        head, count = load_word(session.arena, plan.control + layout.LANE_UP_HEAD), 0
        while ends and ends[0] <= head:
            ends.popleft()
            count += 1
        return count
