"""Lives of a broker's agents with the txn-checker, halves to decide, and what the log has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import cast

import pytest

from gantrymq.shm import layout
from gantrymq.shm import transactionwire as wire
from gantrymq.shm.arena import plan_arena
from gantrymq.shm.codes import Role
from gantrymq.shm.controllane import ControlLane, End
from gantrymq.shm.kernels import frames
from gantrymq.shm.kernels.words import load_word, store_half
from gantrymq.shm.properties import GANTRY_TX, GIVEN_UP_TOPIC, HALF_TOPIC, NOTES_TOPIC, OP_TOPIC
from gantrymq.shm.record import Record
from gantrymq.workers.transactions import progress as transactionprogress
from gantrymq.workers.transactions.agent import TxnChecker
from tests.support.memory_sessions import memory_session
from tests.support.parking import Life, Parked
from tests.support.simclock import SimClock

_numbers = count(1)
CHECKER = Role.TXN_CHECKER
GROUP = "pay"
#: The last slot of the table: no topic has it. Slots of agents are believed, and must be in it.
NO_TOPIC = 63


class TxnLife(Life):
    """A life with the txn-checker, which stops first."""

    def __init__(
        self, directory: Path, clock: SimClock, sizes: dict[str, object] | None = None
    ) -> None:
        super().__init__(directory, clock, sizes, topics=("orders",))
        self.start(CHECKER)

    def kill_all(self) -> None:
        """All agents are replaced."""
        super().kill_all()
        self.kill(CHECKER)

    def stop(self) -> None:
        """A clean stop, in the order of the supervisor."""
        self.tables[CHECKER].stop = True
        idle = 0
        while idle < 3:
            idle = 0 if self.turn() else idle + 1
            self.clock.advance(1_000_000)
        self.agents.pop(CHECKER).close()
        super().stop()

    def mark_topic(self, name: str, system: int) -> None:
        """Say of a topic that it is deleted, or leaving, or neither (0)."""
        topic = self.board.topic_named(name)
        assert topic is not None
        self.board.set_half(self.board.topic_at(topic.slot) + layout.TOPIC_SYSTEM, system)
        self.board.count_change(layout.BOARD_TOPIC_CHANGES)

    def half(self, tx: str, number: int = 1, body: bytes = b"paid", **more: str) -> wire.Check:
        """Store a half as a producer does; where it is (size 0)."""
        self.turn()  # a writer that has just come adopts the lane that this goes by
        key = f"{next(_numbers):032X}"
        properties = {
            "UNIQ_KEY": key, "TAGS": "t", "TRAN_MSG": "true", "PGROUP": GROUP,
            GANTRY_TX: f"{tx},{number}", **more, "__transactionId__": key,
            "REAL_TOPIC": "orders", "REAL_QID": "1",
        }  # fmt: skip
        properties |= more
        properties = {name: text for name, text in properties.items() if text}
        (position,) = self.park(Parked(HALF_TOPIC, 0, properties, body))
        return wire.Check(position, 0, self.outcomes[-1].queue_offset, tx)

    def in_topic(self, topic: str) -> list[Record]:
        """Records of a topic, in order of the log."""
        return [record for record in self.records() if record.topic == topic]

    def ops(self) -> list[str]:
        """Bodies of all op records."""
        return [record.body.decode() for record in self.in_topic(OP_TOPIC)]

    def committed(self) -> Counter[int]:
        """How many commit copies there are, by the position of the half."""
        return Counter(
            record.prepared_transaction_offset
            for record in self.records()
            if record.sys_flag & layout.SYS_TRANSACTION == layout.SYS_COMMIT
            and record.prepared_transaction_offset >= 0
        )

    def parked(self) -> list[Record]:
        """What was given up."""
        return self.in_topic(GIVEN_UP_TOPIC)

    def notes(self) -> list[Record]:
        """Records of checks and settlements."""
        return self.in_topic(NOTES_TOPIC)


def last_segment(life: TxnLife) -> int:
    """Where it begins."""
    size = life.board.segment_bytes
    return life.board.word(layout.BOARD_APPENDED) // size * size


def remove_below(life: TxnLife, low: int) -> None:
    """What retention does to the log, once nobody needs it any more."""
    records = life.records()
    life.board.set_word(layout.BOARD_LOW, low)
    for topic in life.board.topics():
        for queue_id in range(topic.queue_count):
            kept = [
                record.queue_offset
                for record in records
                if (record.topic, record.queue_id) == (topic.name, queue_id)
                and record.physical_offset >= low
            ]
            at = life.board.queue_at(topic.queue_base + queue_id)
            end = life.board.word(at + layout.QUEUE_MAX_OFFSET)
            life.board.set_word(at + layout.QUEUE_MIN_OFFSET, min(kept, default=end))
    for base in range(0, low, life.board.segment_bytes):
        life.storage.unlink(f"commitlog/{base:020d}")


def refuse_next(life: TxnLife, behind: int = 0) -> None:
    """The writer refuses the next entry that the checker has put, or one behind it."""
    outlet = cast("TxnChecker", life.agents[CHECKER])._outlet
    assert outlet is not None
    arena, words = outlet.session.arena, outlet.words
    cursor = outlet._word(layout.LANE_UP_HEAD)
    for place in range(behind + 1):
        at = int(words[frames.UP]) + (cursor & int(words[frames.UP_MASK]))
        if place == behind:
            store_half(arena, at + layout.ENTRY_ROUTE, NO_TOPIC)
        cursor += int(arena[at : at + 4].view("<u4")[0])


class Peer:
    """A session with the txn-checker; answers come in whatever order."""

    _sessions = count(10_000)  # no fixed number of a test, or of an agent, is among these

    def __init__(self, life: TxnLife, group: str = "") -> None:
        self.life = life
        made = memory_session(next(self._sessions), plan_arena(4096, 4096, 4096, 4096))
        self.session = replace(made, groups=False, transactions=True)
        life.clients.append(self.session)
        life.tables[CHECKER].attach(self.session)
        self.lane = ControlLane(self.session.arena, self.session.plan.transactions, End.CLIENT)
        self.serial = 0
        self.heard: dict[int, wire.Ended | wire.Settled | wire.Enlisted] = {}
        self.checks: list[wire.Check] = []
        self._alone: dict[int, wire.End] = {}
        if group:
            self.enlist(group)

    def put(self, request: wire.AnyRequest) -> int:
        """Put a request; its serial."""
        assert self.lane.put(wire.encode(request))
        return request.serial

    def next_serial(self) -> int:
        """Of a request."""
        self.serial += 1
        return self.serial

    def enlist(self, group: str) -> None:
        """Answer checks of a group; again after the checker was replaced."""
        self.put(wire.Enlist(self.next_serial(), group))

    def end(
        self,
        halves: Sequence[wire.Check],
        *,
        commit: bool,
        group: str = GROUP,
        tx: str | None = None,
        alone: bool = False,
    ) -> int:
        """Put an END. `alone`: it may be answered by the writer's word."""
        named = [(half.position, half.queue_offset) for half in halves]
        name = halves[0].tx if tx is None else tx
        request = wire.End(self.next_serial(), group, name, commit, named, alone=alone)
        if alone:
            self._alone[request.serial] = request
        return self.put(request)

    def is_told(self, serial: int) -> bool:
        """Whether the writer has told of an END."""
        slot = layout.ARENA_TOLD + 8 * (serial & layout.TOLD_MASK)
        return load_word(self.session.arena, slot) == serial

    def settle(self, position: int, action: str) -> wire.Settled:
        """An operator's decision, answered."""
        serial = self.put(wire.Settle(self.next_serial(), position, action, "ops@host"))
        answer = self.answer(serial)
        assert isinstance(answer, wire.Settled)
        return answer

    def hear(self) -> None:
        """Take what has come."""
        while (body := self.lane.take()) is not None:
            notice = wire.decode_notice(body)
            if isinstance(notice, wire.Check):
                self.checks.append(notice)
            else:
                self.heard[notice.serial] = notice

    def answer(self, serial: int) -> wire.Ended | wire.Settled | wire.Enlisted:
        """The answer to a request; time goes on until it is there."""
        for _ in range(3000):
            self.hear()
            if serial in self.heard:
                return self.heard[serial]
            if serial in self._alone and self.is_told(serial):
                commit = self._alone[serial].commit
                return wire.Ended(serial, wire.COMMITTED if commit else wire.ROLLED_BACK)
            self.life.turn()
            self.life.clock.advance(100_000)
        raise AssertionError("no answer")

    def ended(self, halves: Sequence[wire.Check], **what: object) -> tuple[str, str]:
        """Put an END and wait: outcome and error."""
        answer = self.answer(self.end(halves, **what))  # type: ignore[arg-type]
        assert isinstance(answer, wire.Ended)
        return answer.outcome, answer.error


def listening(life: TxnLife) -> Peer:
    """A session that the writer knows as well, and that has asked something before."""
    peer = Peer(life)
    life.tables[Role.WRITER].attach(peer.session)
    assert peer.ended([life.half("0" * 32)], commit=True) == (wire.COMMITTED, "")
    life.settle()
    return peer


def txn_life(
    store: Path, monkeypatch: pytest.MonkeyPatch, sizes: dict[str, object] | None = None
) -> Iterator[TxnLife]:
    """A life for the time of a fixture, whose progress is noted each second."""
    monkeypatch.setattr(transactionprogress, "interval_ns", 1_000_000_000)
    made = TxnLife(store, SimClock(), sizes)
    yield made
    for agent in made.agents.values():
        agent.close()
