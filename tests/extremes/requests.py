"""Requests of every lane: entries for the writer, and what groups, scheduler, txn-checker hear."""

from __future__ import annotations

import random
import time
from base64 import urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gantrymq.clients.session import Session
from gantrymq.shm import groupwire, layout, schedulerwire, transactionwire
from gantrymq.shm.arena import LanePlan
from gantrymq.shm.codes import EntryKind
from gantrymq.shm.controllane import ControlLane, End
from tests.extremes.honest import Honest
from tests.extremes.values import packed, spoiled
from tests.support.extremes import NUMBERS, kinds_of
from tests.support.watchdog import poll_until

#: Requests of one session for one agent, at most, and sessions that have theirs at once.
BURST = 400
AT_ONCE = 16
TOPIC = "anything"
UNIONS = {
    "groups": groupwire.AnyRequest,
    "scheduler": schedulerwire.Recall,
    "transactions": transactionwire.AnyRequest,
}
#: Of entries so many break a rule of the ring, which ends their session.
BREAKS = 0.0005
#: Of so many bursts the last one is none at all.
ENDS = 0.1


class Hostile:
    """A session with all lanes, and what it has asked."""

    def __init__(self, home: Path, dice: random.Random, topic: str = TOPIC) -> None:
        self.dice = dice
        self.session = Session(
            home, dice.randbytes(10), groups=True, scheduler=True, transactions=True
        )
        self.topic = self.session.open_topic(topic)
        arena, plan = self.session.arena, self.session.plan
        self.lanes = {name: ControlLane(arena, getattr(plan, name), End.CLIENT) for name in UNIONS}
        route = layout.ROUTE.pack(ready=1, topic=self.topic.slot)
        self.write(layout.ROUTES_AT, route)
        self._tail = self._seq = 0
        #: By the place of a lane: where each request of it ends.
        self._ends: dict[int, list[int]] = {}

    def write(self, at: int, data: bytes) -> None:
        """Bytes of the arena."""
        self.session.arena[at : at + len(data)] = np.frombuffer(data, np.uint8)

    def word(self, at: int) -> int:
        """A word of the arena."""
        return int(self.session.arena[at : at + 8].view("<u8")[0])

    # ------------------------------------------------------------------------------ control lanes

    def base(self) -> dict[str, object]:
        """What makes a sound request of any type."""
        queue = self.topic.queue_base
        return {
            "serial": self.dice.randrange(1, 1 << 20), "group": f"g{self.dice.randrange(8)}",
            "topics": [self.topic.slot], "queue": queue, "lease": self.dice.randrange(1, 40),
            "offset": 1, "offsets": [self.dice.randrange(9)], "delays": [0], "whys": ["no"],
            "max_attempts": 3, "leases": {queue: 1}, "started": {queue: 4}, "starts": {queue: 0},
            "done": [[1, 2]], "filters": [[self.topic.slot, "SQL92", "a > 1"]], "attempts": 0,
            "topic": TOPIC, "handle": _handle(self.dice), "tx": self.dice.randbytes(16).hex(),
            "halves": [[self.dice.randrange(1 << 20), self.dice.randrange(9)]], "commit": True,
            "position": self.dice.randrange(1 << 20), "action": "recheck", "who": "ops",
        }  # fmt: skip

    def ask(self, lane: str, count: int) -> None:
        """Put requests, as many as fit; the last one may be none at all."""
        kinds, ring = kinds_of(UNIONS[lane]), self.lanes[lane]
        largest = ring.plan.up_bytes // 2 - 16
        base, body = self.base(), b""
        for _ in range(count):
            kind = self.dice.choice(kinds)
            given = base
            if kind in (groupwire.Commit, groupwire.Reset):
                queue = self.topic.queue_base
                given = base | {"offsets": {queue: 1}, "done": {queue: [[1, 2]]}}
            body = packed(kind, given, self.dice)[:largest]
            if not self._put(ring, body):
                break
        if self.dice.random() < ENDS:
            self._put(ring, spoiled(body, self.dice)[:largest])

    def _put(self, ring: ControlLane, body: bytes) -> bool:
        if not ring.put(body):
            return False
        self._note_end(ring.plan)
        return True

    def _note_end(self, plan: LanePlan) -> None:
        end = self.word(plan.control + layout.LANE_UP_TAIL)
        self._ends.setdefault(plan.control, []).append(end)

    def hear(self) -> None:
        """Read all answers, or not all of them; completions are passed over."""
        control = self.session.plan.writer.control
        told = self.word(control + layout.LANE_DOWN_TAIL)
        self.write(control + layout.LANE_DOWN_HEAD, told.to_bytes(8, "little"))
        for ring in self.lanes.values():
            for _ in range(self.dice.choice((0, 8, 1 << 20))):
                if ring.take() is None:
                    break

    # ------------------------------------------------------------------------------------ entries

    def send(self, count: int) -> None:
        """Publish entries by one store; the last one may be none at all."""
        plan, end = self.session.plan.writer, self.session.plan.writer.up_bytes // 2
        ends = self._ends.setdefault(plan.control, [])
        for _ in range(count):
            if self._tail >= end:
                break
            self._seq += 1
            self._write_entry(_entry(self.dice, self._seq))
            ends.append(self._tail)
        if self.dice.random() < ENDS:
            self._write_entry(self.dice.randbytes(layout.ENTRY_BYTES))
            ends.append(self._tail)
        self.write(plan.control + layout.LANE_UP_TAIL, self._tail.to_bytes(8, "little"))

    def _write_entry(self, entry: bytes) -> None:
        self.write(self.session.plan.writer.up + self._tail, entry)
        self._tail += len(entry)

    def is_settled(self) -> bool:
        """Whether each agent has taken all, or the session is over."""
        self.hear()
        if self.session.arena[layout.ARENA_EVICTED]:
            return True
        return all(self._head(control) >= ends[-1] for control, ends in self._ends.items() if ends)

    def taken(self) -> int:
        """How many requests agents have taken, the one that ended the session included."""
        return sum(
            bisect_right(ends, self._head(control)) for control, ends in self._ends.items()
        ) + int(self.session.arena[layout.ARENA_EVICTED])

    def _head(self, control: int) -> int:
        return self.word(control + layout.LANE_UP_HEAD)

    def ring(self) -> None:
        """Wake all agents."""
        session = self.session
        for bell in (
            session.writer_bell,
            session.groups_bell,
            session.scheduler_bell,
            session.checker_bell,
        ):
            bell.ring()


#: Fields that have to fit the ring, or each other.
_RULED = (
    "length", "kind", "flags", "seq", "route", "body_bytes", "extra_bytes", "batch",
)  # fmt: skip


def _entry(dice: random.Random, seq: int) -> bytes:
    """An entry whose size is right; all else may be anything."""
    body = dice.randbytes(dice.choice((0, 1, 8, 100)))
    extra = dice.choice((b"", b"a\1b\2", b"a\1\2", dice.randbytes(12)))
    head = {
        "kind": int(EntryKind.SEND),
        "seq": seq,
        "queue": -1,
        "born_ms": 1,
        "flags": dice.randrange(8),
    }
    if dice.random() < 0.2:
        head["kind"] = int(EntryKind.PARK)
        value = dice.choice(NUMBERS) & ((1 << 63) - 1)
        body = layout.PARK.pack(mode=dice.choice((0, 1, 2, 3, 4, 9)), value=value) + body
    head |= {"body_bytes": len(body), "extra_bytes": len(extra)}
    size = (layout.ENTRY_BYTES + len(body) + len(extra) + 7) & ~7
    head["length"] = size
    for name in dice.sample(("born_ms", "queue", "app_flag"), dice.randrange(3)):
        head[name] = _fitting(name, dice)
    if dice.random() < BREAKS:
        name = dice.choice(_RULED)
        head[name] = _fitting(name, dice)
    return (layout.ENTRY.pack(**head) + body + extra).ljust(size, b"\0")


def _fitting(name: str, dice: random.Random) -> int:
    """A number that the field can hold."""
    (field,) = [field for field in layout.ENTRY.fields if field.name == name]
    number = dice.choice(NUMBERS) & ((1 << 8 * field.size) - 1)
    signed = str(field.type).startswith("i") and number >> 8 * field.size - 1
    return number - (1 << 8 * field.size) if signed else number


def _handle(dice: random.Random) -> str:
    due = dice.choice((dice.choice(NUMBERS), int(time.time() * 1000) + dice.randrange(90_000)))
    return urlsafe_b64encode(f"v1 {TOPIC} broker {due} {'K' * 32}".encode()).decode()


def play(honest: Honest, count: int, seed: int) -> Iterator[int]:
    """Put so many requests; yields how many there were, after each burst."""
    dice = random.Random(seed)
    home = honest.broker.home
    done = 0
    while done < count:
        hostiles = [Hostile(home, dice) for _ in range(AT_ONCE)]
        for hostile in hostiles:
            hostile.send(dice.randrange(BURST))
            for lane in UNIONS:
                hostile.ask(lane, dice.randrange(BURST))
            hostile.ring()
        for hostile in hostiles:
            poll_until(hostile.is_settled, "all requests are taken")
            done += hostile.taken()
            hostile.session.close()
        yield done
