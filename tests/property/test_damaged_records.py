"""Bits that flip in the log under a running broker: what an agent leaves out for it, it names.

Successors of the scheduler and of the txn-checker read records again: halves, decisions, notes,
what was given up, what waits for its time, copies that say where they come from. One of them has a
wrong bit. It is named in the broker's log, or the store has failed by its name; nothing else is
touched, and no wrong content goes out.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gantrymq.shm import layout
from gantrymq.shm import transactionwire as wire
from gantrymq.shm.codes import Role
from gantrymq.shm.properties import (
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    NOTES_TOPIC,
    OP_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from gantrymq.shm.record import Record
from gantrymq.shm.transactionwire import COMMIT
from tests.support.parking import at_message, level_message
from tests.support.transacting import CHECKER, GROUP, Peer, TxnLife, txn_life
from tests.support.trials import mends

HOURS_100_MS = 360_000_000
TOPICS = (
    HALF_TOPIC, OP_TOPIC, GIVEN_UP_TOPIC, NOTES_TOPIC, TIMER_TOPIC, SCHEDULE_TOPIC, "orders",
)  # fmt: skip
NAMES = ("record_damaged", "parked_record_passed_over")
#: Flips of each kind of record; `make soak` has more.
FLIPS = int(os.environ.get("GANTRYMQ_TEST_FLIPS", "2"))


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TxnLife]:
    yield from txn_life(tmp_path / "store", monkeypatch)


@dataclass(slots=True)
class Scene:
    """Halves and parked messages, and how many messages come of each in the end."""

    halves: dict[str, int]  # positions
    copies: dict[str, int]


def transaction(number: int) -> str:
    return f"{number:032x}"


def set_up(life: TxnLife) -> Scene:
    """One half of each fate; two messages that wait."""
    halves = {}
    for number, name in enumerate(("given", "settled"), 1):
        halves[name] = life.half(transaction(number), body=name.encode(), PGROUP="gone").position
    life.run_for(2000)
    life.clock.step_wall(HOURS_100_MS)
    life.run_for(8000)
    assert life.board.word(layout.BOARD_GIVEN_UP) == 2
    peer = Peer(life)
    assert not peer.settle(halves["settled"], COMMIT).error
    for number, name in enumerate(("committed", "rolled"), 3):
        half = life.half(transaction(number), body=name.encode())
        peer.ended([half], commit=name == "committed")
        halves[name] = half.position
    for number, name in enumerate(("open", "open too"), 5):
        halves[name] = life.half(transaction(number), body=name.encode()).position
    timer = at_message(life.clock.wall_ms() + 30_000)
    level = level_message(4)  # 30 s
    for waits in (timer, level):
        waits.properties["REAL_TOPIC"] = "orders"
        life.park(waits)
    life.run_for(2000)  # it is noted by now, or not
    copies = dict.fromkeys(("settled", "committed", "open", "open too"), 1)
    return Scene(halves, {**copies, "given": 0, "rolled": 0, "later": 2})


def subjects(scene: Scene, record: Record, records: list[Record]) -> set[str]:
    """What may turn out otherwise if a record is damaged."""
    if record.topic in (TIMER_TOPIC, SCHEDULE_TOPIC):
        return {"later"}
    if record.topic == "orders":
        return {record.body.decode()}
    names = {position: name for name, position in scene.halves.items()}
    if record.topic == HALF_TOPIC:
        return {names[record.physical_offset]}
    if record.topic == OP_TOPIC:
        offsets = [int(word) for word in record.body.decode().split(",") if word]
        halves = [each for each in records if each.topic == HALF_TOPIC]
        return {names[halves[offset].physical_offset] for offset in offsets}
    return {"given", "settled"}


def flip(life: TxnLife, position: int, bit: int) -> None:
    """Flip one bit, by its number in a record, where agents have it mapped."""
    size = life.board.segment_bytes
    base, byte = position // size * size, bit // 8
    with open(f"{life.storage.root}/commitlog/{base:020d}", "r+b") as file:
        file.seek(position - base + byte)
        (was,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([was ^ 1 << bit % 8]))


def go_on(life: TxnLife) -> list[str]:
    """Successors; a producer that commits what it is asked about. Why the store has failed."""
    try:
        _go_on(life)
    except AssertionError:
        failures = [text for table in life.tables.values() for _errno, text in table.failures]
        if not failures:
            raise
        return failures
    return []


def _go_on(life: TxnLife) -> None:
    for role in (CHECKER, Role.SCHEDULER):
        life.kill(role)
    peer, ended = Peer(life, GROUP), set[int]()
    for _ in range(50):
        life.run_for(1000)
        peer.hear()
        for check in peer.checks:
            if check.position not in ended:
                ended.add(check.position)
                peer.end([check], commit=True)
        peer.checks.clear()


def outcome(life: TxnLife) -> Counter[str]:
    """Messages of the topic by what they came of. Their content is as it was."""
    found: Counter[str] = Counter()
    for record in life.in_topic("orders"):
        found[record.body.decode()] += 1
    return found


@mends("S54")
@pytest.mark.parametrize("number", range(FLIPS))
@pytest.mark.parametrize("topic", TOPICS)
def test_what_a_flipped_bit_takes_is_named(
    life: TxnLife, topic: str, number: int, fresh_seed: int
) -> None:
    dice = random.Random(f"{fresh_seed} {topic} {number}")
    scene, records = set_up(life), life.records()
    victim = dice.choice([record for record in records if record.topic == topic])
    position, bit = victim.physical_offset, dice.randrange(8 * victim.total_size)
    what, touched = f"bit {bit} of {victim}", subjects(scene, victim, records)
    flip(life, position, bit)
    if failures := go_on(life):
        assert f"{position} " in str(failures), (what, failures)
        return
    named = {
        fields["position"]
        for table in life.tables.values()
        for _level, event, fields in table.notes
        if event in NAMES
    }
    assert named <= {position}, what
    flip(life, position, bit)  # else the test would not see what is behind it
    found = outcome(life)
    assert found.keys() <= scene.copies.keys(), (what, found)
    others = {name: count for name, count in found.items() if count != scene.copies[name]}
    others |= {name: 0 for name, count in scene.copies.items() if count and name not in found}
    assert others.keys() <= touched, (what, found)
    assert named or not others, (what, found)


def test_a_position_that_a_client_makes_up_is_not_called_damaged(life: TxnLife) -> None:
    half = life.half(transaction(1))
    life.run_for(2000)
    peer = Peer(life, GROUP)
    for position in (half.position + 1, half.position + 64, 0, life.records()[-1].physical_offset):
        for tx in (half.tx, ""):
            wrong = wire.Check(position, 0, half.queue_offset, half.tx)
            for halves in ([wrong], [half, wrong]):
                peer.ended(halves, commit=True, tx=tx, group="")
        peer.settle(position, COMMIT)
    assert not [note for table in life.tables.values() for note in table.notes if note[1] in NAMES]
