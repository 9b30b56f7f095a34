"""Sessions of the simulator that keep a lane full: each kind of flood that there is, by name.

Kinds come from the unions of the wire modules and from the ways to park a message, so that a new
request has its flood at once; what makes a sound request of one is in tests.support.floods.
"""

from __future__ import annotations

import itertools
import math
from base64 import urlsafe_b64encode
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import msgspec

from gantrymq.clients.delays import Due, recall_handle
from gantrymq.shm import groupwire, layout, schedulerwire, transactionwire
from gantrymq.shm.arena import ArenaPlan, plan_arena
from gantrymq.shm.codes import EntryFlag, ParkMode, Role, Status
from gantrymq.shm.controllane import BrokenLane
from gantrymq.shm.kernels import frames
from gantrymq.shm.kernels.progress import note_progress, open_slot
from gantrymq.workers.groups import agent as groups
from gantrymq.workers.transactions import desk
from tests.support.extremes import kinds_of, requests_of
from tests.support.floods import BASE, LANES, OF_MEMBERS, packed
from tests.support.simmachine import SimMachine
from tests.support.simtalker import LANE_OF, Talker

#: Rings of a session that floods: as in a real one, but for the writer's, of which each fill would
#: go to a disk that is in memory.
PLAN: ArenaPlan = plan_arena(writer_up=1 << 14, writer_down=1 << 14)
#: A request that is larger leaves room for few others.
BODY_MAX = 1500
#: Of what it has parked, or keeps open, it asks for so many at a time.
STOCK = 64
HOUR_MS = 3_600_000
#: Topics of the machine, by number: what floods send there is in nobody else's way.
FLOOD_TOPIC = 0

#: Each turn puts something: True; or there is no room now, or nothing to put: False.
Flood = Callable[["Flooder"], Iterator[bool]]


class Flooder(Talker):
    """One of the sessions that flood; attaches again when it was cut off."""

    def __init__(self, name: str, machine: SimMachine, flood: Flood) -> None:
        super().__init__(name, machine)
        machine.expect_cut_off.add(name)
        self.leases: dict[int, int] = {}
        self.joined = False
        self.receipts: deque[list[int]] = deque(maxlen=STOCK)
        self._flood = flood
        self._turns: Iterator[bool] = iter(())

    def attached(self, session: object) -> None:
        """Begin anew."""
        assert self.session is not None, "attached"
        super().attached(self.session)
        self.leases.clear()
        self.joined = False
        self.receipts.clear()
        self._turns = self._flood(self)
        self.fill()

    def go_on(self, session: object, now_ns: int) -> None:
        """Fill its lane."""
        del session, now_ns
        self.fill()

    def fill(self) -> None:
        """Put all that fits."""
        if self.session is None or self.session.arena[layout.ARENA_EVICTED]:
            return
        self.hear()
        self._remember()
        try:
            while next(self._turns, False):
                pass
        except BrokenLane:
            return  # it was cut off amid this

    def _remember(self) -> None:
        for notice in self.notices:
            if isinstance(notice, groupwire.Granted):
                self.leases[notice.queue] = notice.lease
            elif isinstance(notice, groupwire.Joined):
                self.joined = True
        self.notices.clear()
        stored = (row for row in self.answers if row[frames.OUT_STATUS] == Status.OK)
        self.receipts.extend(stored)
        self.answers.clear()

    @property
    def number(self) -> int:
        """Of its session."""
        assert self.session is not None, "attached"
        return self.session.session


@dataclass(frozen=True)
class Kind:
    """A kind of flood: whose lane it fills, and what one of its requests costs there at most."""

    role: Role
    flood: Flood
    cost: float = 1
    is_due: bool = False  # timers that are delivered as soon as they are read


#: More than any budget.
DEAR = math.inf


# ------------------------------------------------------------------------------- the control lanes


def _same(role: Role, kind: type[msgspec.Struct], flooder: Flooder) -> Iterator[bool]:
    """One request again and again; by a member with its leases where there are such."""
    if kind in OF_MEMBERS:
        yield from _join(flooder)
    leases = flooder.leases
    topics = [flooder.slots[FLOOD_TOPIC]]
    lease = next(iter(leases.values()), 0)
    body = packed(kind, {"lease": lease, "leases": leases, "topics": topics})
    while True:
        yield flooder.ask(role, body)


def _join(flooder: Flooder) -> Iterator[bool]:
    """Become the only member of a group."""
    join = groupwire.Join(1, f"flood{flooder.number}", [flooder.slots[FLOOD_TOPIC]])
    while not flooder.ask(Role.GROUPS, groupwire.encode(join)):
        yield False
    while not flooder.joined:
        yield False


def _extreme(role: Role, flooder: Flooder) -> Iterator[bool]:
    """Each request of a lane with each field at the ends of its type."""
    bodies = _extremes_of(role)
    while True:
        body = flooder.dice.choice(bodies)  # each attach begins with another: most end the session
        while not flooder.ask(role, body):
            yield False
        yield True


@cache
def _extremes_of(role: Role) -> list[bytes]:
    kinds = kinds_of(LANES[LANE_OF[role]])
    bodies = itertools.chain.from_iterable(requests_of(kind, lambda: BASE) for kind in kinds)
    return [body for body in bodies if len(body) < BODY_MAX]


def _in_and_out(flooder: Flooder) -> Iterator[bool]:
    """A member that comes and goes, under one name."""
    join = groupwire.encode(groupwire.Join(1, "flood", [flooder.slots[FLOOD_TOPIC]]))
    for body in itertools.cycle((join, groupwire.encode(groupwire.Leave(2)))):
        while not flooder.ask(Role.GROUPS, body):
            yield False
        yield True


def _words(flooder: Flooder) -> Iterator[bool]:
    """Offsets as words, other ones in each turn, and bells."""
    yield from _join(flooder)
    assert flooder.session is not None, "attached"
    arena, leases = flooder.session.arena, flooder.leases
    places = [open_slot(arena, slot, leases.get(slot, 1), slot, 0) for slot in range(64)]
    for number in itertools.count():
        for at in places:
            note_progress(arena, at, number % 7, number % 7 + 300)
        flooder.machine.bell(Role.GROUPS).ring()
        yield False


def _unknown(flooder: Flooder) -> Iterator[bool]:
    """Recalls of what was never sent."""
    for number in itertools.count():
        due_ms = flooder.machine.simulation.clock.wall_ms() + HOUR_MS
        text = f"v1 plain b {due_ms} {flooder.number:016x}{number:016x}"
        handle = urlsafe_b64encode(text.encode()).decode()
        body = schedulerwire.encode(schedulerwire.Recall(number, "plain", handle))
        while not flooder.ask(Role.SCHEDULER, body):
            yield False
        yield True


def _known(flooder: Flooder) -> Iterator[bool]:
    """Recalls of what it has parked just now."""
    due_ms = flooder.machine.simulation.clock.wall_ms() + HOUR_MS
    due = Due(ParkMode.AT, due_ms)
    for serial in itertools.count():
        while not flooder.receipts:
            yield flooder.send(FLOOD_TOPIC, b"p", (int(due.mode), due.value))
        row = flooder.receipts.popleft()
        unique = f"{flooder.producer.hex().upper()}{row[frames.OUT_SEQ]:012X}"
        handle = recall_handle(due, row[frames.OUT_MS], ("plain", "b", unique), 1000)
        recall = schedulerwire.Recall(serial, "plain", handle or "")
        while not flooder.ask(Role.SCHEDULER, schedulerwire.encode(recall)):
            yield False


def _decided(flooder: Flooder) -> Iterator[bool]:
    """Halves, and the ENDs of them."""
    group = f"flood{flooder.number}"
    for serial in itertools.count(1):
        while not flooder.receipts:
            yield flooder.send_half("f" * 32, group)
        row = flooder.receipts.popleft()
        half = row[frames.OUT_POSITION], row[frames.OUT_OFFSET]
        end = transactionwire.End(serial, group, "", commit=serial % 2 == 0, halves=[half])
        while not flooder.ask(Role.TXN_CHECKER, transactionwire.encode(end)):
            yield False


# -------------------------------------------------------------------------------------- messages


def _sends(size: int, flags: int, flooder: Flooder) -> Iterator[bool]:
    while True:
        yield flooder.send(FLOOD_TOPIC, b"x" * size, flags=flags)


def _batches(flooder: Flooder) -> Iterator[bool]:
    while True:
        yield flooder.send_batch(FLOOD_TOPIC, [b"x"] * 50)


def _parks(mode: ParkMode, value: int, flooder: Flooder) -> Iterator[bool]:
    while True:
        if mode is ParkMode.HALF:
            yield flooder.send_half("f" * 32, "flood")
        else:
            yield flooder.send(FLOOD_TOPIC, b"p", (int(mode), value))


# ---------------------------------------------------------------------------- sessions that change


def _in_and_gone(flooder: Flooder) -> Iterator[bool]:
    """Attaches, joins, and is gone."""
    yield from _join(flooder)
    flooder.machine.end_session(flooder.number)
    yield False


def _cost_of(kind: type[msgspec.Struct]) -> float:
    if kind in (transactionwire.Settle, transactionwire.End):
        return desk.SETTLE_COST if kind is transactionwire.Settle else desk.END_COST + 1
    return 1 + groups.COSTS.get(kind, 0) + 1  # for what it names, which is little


def _of_lanes() -> Iterator[tuple[str, Kind]]:
    for role, lane in LANE_OF.items():
        for kind in kinds_of(LANES[lane]) if role is not Role.WRITER else ():
            yield f"{lane}.{kind.__name__}", Kind(role, partial(_same, role, kind), _cost_of(kind))
        if role is not Role.WRITER:
            yield f"{lane}.extremes", Kind(role, partial(_extreme, role), DEAR)
    yield "groups.Join+Leave", Kind(Role.GROUPS, _in_and_out, _cost_of(groupwire.Join))
    yield "groups.words", Kind(Role.GROUPS, _words, DEAR)
    yield "groups.attach", Kind(Role.GROUPS, _in_and_gone, DEAR)
    yield "scheduler.Recall.unknown", Kind(Role.SCHEDULER, _unknown)
    yield "scheduler.Recall.known", Kind(Role.SCHEDULER, _known)
    yield "transactions.End.halves", Kind(Role.TXN_CHECKER, _decided)


def _of_messages() -> Iterator[tuple[str, Kind]]:
    sends = {"": (100, 0), ".large": (3000, 0), ".durable": (1, int(EntryFlag.DURABLE))}
    for more, (size, flags) in sends.items():
        yield f"writer.SEND{more}", Kind(Role.WRITER, partial(_sends, size, flags))
    yield "writer.SEND.batch", Kind(Role.WRITER, _batches)
    values = {ParkMode.LEVEL: (1, 18), ParkMode.AT: (1, 1 << 42), ParkMode.AFTER: (0, HOUR_MS)}
    for mode in ParkMode:
        if mode is not ParkMode.NONE:  # never in an entry
            for value in values.get(mode, (0,)):
                park = partial(_parks, mode, value)
                is_due = mode in (ParkMode.AT, ParkMode.AFTER) and value <= 1
                kind = Kind(Role.WRITER, park, is_due=is_due)
                yield f"writer.PARK.{mode.name}.{value}", kind


def floods() -> dict[str, Kind]:
    """All floods by name."""
    return dict(itertools.chain(_of_lanes(), _of_messages()))
