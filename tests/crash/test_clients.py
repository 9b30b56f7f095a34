"""Clients that die, stop, fork or lie: it costs nobody else anything (P5, P6, P12, F1, F12)."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gantrymq.clients.home import store_of
from gantrymq.clients.producer import Producer
from gantrymq.clients.session import Session
from gantrymq.shm import layout
from gantrymq.shm.codes import EntryFlag, EntryKind, Role, Status
from gantrymq.shm.errors import Closed, Evicted, Rejected
from gantrymq.temporary import Broker
from tests.crash.conftest import SMALL
from tests.support.adversary import PUBLISHED, STEPS, Hand, Victim
from tests.support.agents import AGENTS, board_of, log_lines, pid_of, restarts_of, wait_until_shown
from tests.support.loads import BackgroundLoad, Load
from tests.support.stores import Stored, require_sound
from tests.support.trials import mends
from tests.support.watchdog import PATIENCE_S, poll_until


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """One broker for all tests here: none of them may harm it."""
    with Broker.temporary(**SMALL) as broker:
        yield broker.home
        broker.stop()
        assert broker.process.returncode == 0
        require_sound(store_of(broker.home))


@pytest.fixture
def healthy(home: Path, unique_name: str) -> Iterator[Load]:
    """A load beside the culprit; afterwards all of it is right, and no agent was harmed."""
    before = restarts_of(home)
    with Load(home, unique_name) as load:
        load.round()
        yield load
        load.round()
        load.finish()
        load.require_kept(sound(home))
    assert restarts_of(home) == before


def sound(home: Path) -> list[Stored]:
    """All records, of a broker that is at rest."""
    wait_until_shown(home)
    return require_sound(store_of(home))


def evicted(home: Path) -> set[int]:
    """Processes that the broker says it has cut off."""
    return {line["pid"] for line in log_lines(home) if line["event"] == "evicted"}


def bodies(home: Path) -> list[bytes]:
    return [item.record.body for item in sound(home)]


def go_until(home: Path, body: bytes, last: str, stop: signal.Signals) -> None:
    """Publish up to a step, signal oneself there, and if that is survived publish the rest."""
    hand = Hand(home)
    for name in hand.steps(body):
        if name == last:
            os.kill(os.getpid(), stop)
    poll_until(lambda: hand.taken, "the writer has taken it")
    hand.close()


@pytest.mark.parametrize("step", STEPS)
def test_a_client_that_dies_at_any_step_of_a_publish(
    home: Path, healthy: Load, unique_name: str, step: str
) -> None:
    """Its message is there if the tail was published, else it is not; the session ends."""
    body = unique_name.encode() * 20
    sessions = board_of(home).half(layout.BOARD_SESSION_COUNT)
    victim = Victim(lambda: go_until(home, body, step, signal.SIGKILL))
    assert victim.end() == -signal.SIGKILL
    healthy.round()
    poll_until(
        lambda: board_of(home).half(layout.BOARD_SESSION_COUNT) == sessions, "its session is over"
    )
    healthy.finish()
    wanted = int(STEPS.index(step) >= PUBLISHED)
    poll_until(lambda: bodies(home).count(body) == wanted, "what it had published is stored")


@pytest.mark.parametrize("step", STEPS)
def test_a_client_that_stops_at_any_step_of_a_publish(
    home: Path, healthy: Load, unique_name: str, step: str
) -> None:
    """Nobody waits for it; continued, it goes on as if nothing had been."""
    body = unique_name.encode() * 20
    victim = Victim(lambda: go_until(home, body, step, signal.SIGSTOP))
    victim.wait_until_stopped()
    for _ in range(3):
        healthy.round()
    healthy.finish()
    if STEPS.index(step) < PUBLISHED:
        assert bodies(home).count(body) == 0
    victim.resume()
    assert victim.end() == 0
    assert bodies(home).count(body) == 1


def test_what_a_client_writes_after_its_eviction_is_not_read(
    home: Path, healthy: Load, unique_name: str
) -> None:
    """F12: stopped, evicted, continued: its arena is its own, and nobody looks at it."""
    late = unique_name.encode() + b"-late"

    def work() -> None:
        hand = Hand(home)
        hand.set_word(hand.plan.control + layout.LANE_UP_TAIL, 7)  # not aligned
        hand.session.writer_bell.ring()
        os.kill(os.getpid(), signal.SIGSTOP)
        assert hand.evicted
        hand.put(*(hand.entry(late) for _ in range(5)))
        with pytest.raises(Evicted):
            hand.session.check()

    victim = Victim(work)
    victim.wait_until_stopped()
    poll_until(lambda: victim.pid in evicted(home), "it is cut off")
    victim.resume()
    assert victim.end() == 0
    healthy.round()
    healthy.finish()
    assert late not in bodies(home)


def test_a_forked_child_cannot_use_its_parents_producer(healthy: Load) -> None:
    """The child's use raises Closed, its end takes nothing along, the parent goes on."""
    producer = healthy.producer

    def work() -> None:
        for use in (
            lambda: producer.send("orders", b"of the child"),
            lambda: producer.send_oneway("orders", b"of the child"),
            lambda: producer.send_async("orders", b"of the child"),
            producer.flush,
        ):
            with pytest.raises(Closed):
                use()
        producer.close()

    assert Victim(work).end() == 0
    healthy.round()


def test_a_child_forked_amid_the_load_opens_its_own(home: Path, healthy: Load) -> None:
    background = BackgroundLoad(healthy)
    poll_until(lambda: background.count > 200, "the load runs")

    def work() -> None:
        with Producer(home, timeout=PATIENCE_S) as own:
            own.send("orders", b"of a child with its own session")

    victims = [Victim(work) for _ in range(4)]
    assert [victim.end() for victim in victims] == [0] * 4
    background.stop()
    healthy.finish()
    assert bodies(home).count(b"of a child with its own session") == 4


def test_ring_bytes_that_change_during_the_drain(home: Path, healthy: Load, seed: int) -> None:
    """F16: bytes are judged on a private copy, so every record that was made is a sound one."""
    dice = np.random.default_rng(seed)
    over = threading.Event()
    background = BackgroundLoad(healthy)
    for _ in range(5):
        hand = Hand(home)
        up = hand.arena[hand.plan.up : hand.plan.up + 8192]
        thread = threading.Thread(target=_flip, args=(up, dice, over))
        over.clear()
        thread.start()
        for number in range(400):
            entry = hand.entry(b"flipped" * (number % 30))
            if hand.evicted:
                break
            if (hand.tail & 8191) + len(entry) > 8192:
                hand.tail = (hand.tail | 8191) + 1  # leave what lies there: zeroes or flips
            hand.put(entry)
        over.set()
        thread.join()
        hand.close()
    background.stop()


def _flip(ring: np.ndarray, dice: np.random.Generator, over: threading.Event) -> None:
    while not over.is_set():
        places = dice.integers(0, ring.size, 16)
        ring[places] ^= dice.integers(0, 256, 16, np.uint8)


def _lane_words() -> list[int]:
    return [
        lane + layout.LANE.offset(name)
        for lane in (layout.WRITER_LANE_AT, layout.GROUPS_LANE_AT)
        for name in ("up_tail", "down_head", "up_head", "down_tail", "adopted", "last_seq")
    ]


WORDS = (7, 8, 1 << 20, (1 << 63) - 8, (1 << 63) - 1, (1 << 64) - 1)


@pytest.mark.parametrize("value", WORDS)
def test_impossible_cursors(home: Path, healthy: Load, value: int) -> None:
    """F15: each word of both lanes, one session each; agents' own words are garbage as well."""
    hands = []
    for at in _lane_words():
        hand = Hand(home)
        hand.set_word(at, value)
        hand.session.writer_bell.ring()
        hand.session.groups_bell.ring()
        hands.append(hand)
    up_tail = hands[_lane_words().index(layout.WRITER_LANE_AT + layout.LANE_UP_TAIL)]
    poll_until(lambda: up_tail.evicted, "the one with the impossible tail is cut off")
    healthy.round()
    for hand in hands:
        hand.close()


def test_garbage_all_over_an_arena(home: Path, healthy: Load, seed: int) -> None:
    """F15, F16: rings, cursors, routes, interest, everything but the eviction flag."""
    for number in range(40):
        dice = random.Random(f"{seed}-{number}")
        session = Session(home, secret=os.urandom(10), groups=True)
        start = layout.INTEREST_AT if dice.random() < 0.5 else 64
        end = dice.choice([layout.WRITER_LANE_AT, layout.RINGS_AT, session.plan.size])
        before = session.arena[layout.ARENA_EVICTED]
        noise = np.frombuffer(dice.randbytes(end - start), np.uint8)
        if dice.random() < 0.3:
            noise = noise & np.uint8(0x0F)
        session.arena[start:end] = noise
        session.arena[layout.ARENA_EVICTED] = before
        session.writer_bell.ring()
        session.groups_bell.ring()
        if number % 5 == 0:
            healthy.round()
        session.close()
    healthy.finish()


def test_agents_take_over_hostile_arenas(home: Path, unique_name: str) -> None:
    """What a replaced agent finds in a client's memory harms that client alone."""
    with Load(home, unique_name) as load:
        load.round()
        hands = []
        for value in WORDS[2:]:
            for at in _lane_words():
                hand = Hand(home)
                poll_until(partial(_is_adopted, hand), "it is adopted")
                hand.set_word(at, value)
                hands.append(hand)
        before = restarts_of(home)
        for role in AGENTS:
            os.kill(pid_of(home, role), signal.SIGKILL)
        wanted = {role: count + 1 for role, count in before.items()}
        poll_until(lambda: restarts_of(home) == wanted, "all are replaced")
        for _ in range(3):
            load.round()
        load.finish()
        for hand in hands:
            hand.close()
        load.require_kept(sound(home))
    assert restarts_of(home) == wanted


def _is_adopted(hand: Hand) -> bool:
    return hand.word(hand.plan.control + layout.LANE_ADOPTED) == 1


def test_entries_that_break_the_rules(home: Path, healthy: Load) -> None:
    """F16: each costs its session, and the entries before it in the ring count."""
    send = int(EntryKind.SEND)
    batch = int(EntryFlag.BATCH | EntryFlag.RECEIPT)
    cases: list[dict[str, int]] = [
        {"length": 0},
        {"length": 4},
        {"length": 52},
        {"length": 1 << 19},
        {"length": 0xFFFFFFF8},
        {"kind": send + 1},
        {"kind": 77},
        {"seq": 0},
        {"seq": 1 << 48},
        {"seq": (1 << 64) - 1},
        {"body_bytes": 1 << 19},
        {"body_bytes": 0xFFFFFFFF},
        {"extra_bytes": 0x80000000},
        {"flags": batch, "batch": 0},
        {"flags": batch, "batch": 2},
        {"flags": batch, "batch": 0xFFFFFFFF},
    ]
    for number, fields in enumerate(cases):
        good = b"good-%d" % number
        hand = Hand(home)
        hand.put(hand.entry(good))
        poll_until(partial(getattr, hand, "taken"), "the good one is taken")
        hand.put(hand.entry(b"bad", b"", **fields))
        poll_until(partial(getattr, hand, "evicted"), f"{fields} is cut off")
        hand.close()
        healthy.round()
    found = bodies(home)
    assert b"bad" not in found
    assert [found.count(b"good-%d" % number) for number in range(len(cases))] == [1] * len(cases)


def test_a_session_that_ends_with_an_endless_ring(home: Path, healthy: Load) -> None:
    """What it left is appended, no more than a ring's worth; a batch that can't be is left."""
    os.kill(pid_of(home, Role.WRITER), signal.SIGSTOP)
    hands = []
    for count in (2, 50_000, 0xFFFFFFFF):
        hand = Hand(home)
        flags = int(EntryFlag.BATCH | EntryFlag.RECEIPT)
        hand.put(hand.entry(b"left"), hand.entry(b"unfinished", flags=flags, batch=count))
        hands.append(hand)
    liar = Hand(home)
    liar.set_word(liar.plan.control + layout.LANE_UP_TAIL, 1 << 62)
    for hand in (*hands, liar):
        hand.close()
    os.kill(pid_of(home, Role.WRITER), signal.SIGCONT)
    healthy.round()
    healthy.finish()
    found = bodies(home)
    assert found.count(b"left") == 3
    assert b"unfinished" not in found


def test_an_evicted_producer_that_comes_back_appends_nothing_twice(
    home: Path, healthy: Load, unique_name: str
) -> None:
    """P6: the living writer answers from the log what it took before it cut the session off."""
    body = unique_name.encode() * 3
    hand = Hand(home)
    good = hand.entry(body)
    os.kill(pid_of(home, Role.WRITER), signal.SIGSTOP)
    hand.put(good, hand.entry(b"bad", length=4))
    os.kill(pid_of(home, Role.WRITER), signal.SIGCONT)
    poll_until(lambda: hand.evicted, "it is cut off")
    assert not hand.completions()
    again = Hand(home, secret=hand.secret)
    again.put(good)
    (answer,) = poll_until(again.completions, "it is answered")
    hand.close()
    again.close()
    (stored,) = [item for item in sound(home) if item.record.body == body]
    assert answer["status"] == Status.DUPLICATE
    assert answer["position"] == stored.record.physical_offset
    assert answer["queue_offset"] == stored.record.queue_offset


def test_a_producer_whose_connection_ends_goes_on(home: Path, unique_name: str) -> None:
    """The broker lives: what it has taken from the old session is not appended again."""
    bodies_sent = [b"%s-%d" % (unique_name.encode(), number) for number in range(300)]
    with Producer(home, timeout=PATIENCE_S) as producer:
        producer.send("orders", b"warm")
        os.kill(pid_of(home, Role.WRITER), signal.SIGSTOP)
        futures = [producer.send_async("orders", body) for body in bodies_sent]
        producer._link.session._control.channel.shutdown(socket.SHUT_RDWR)
        os.kill(pid_of(home, Role.WRITER), signal.SIGCONT)
        receipts = [future.result(PATIENCE_S) for future in futures]
        producer.send("orders", b"and on")
    mine = [item.record for item in sound(home) if item.record.body in set(bodies_sent)]
    assert sorted(record.body for record in mine) == sorted(bodies_sent)
    places = {record.body: (record.queue_id, record.queue_offset) for record in mine}
    told = [(receipt.message_queue.queue_id, receipt.queue_offset) for receipt in receipts]
    assert told == [places[body] for body in bodies_sent]


def test_another_process_may_not_send_in_a_producers_name(home: Path, healthy: Load) -> None:
    """F16: not even one that knows its secret, as a forked child does, while it is attached."""
    secret = healthy.producer._link._secret

    def work() -> None:
        with pytest.raises(Rejected):
            Session(home, secret=secret)

    assert Victim(work).end() == 0


@mends("S165")
def test_who_knows_a_producers_number_can_neither_send_in_its_name_nor_lock_it_out(
    unique_name: str,
) -> None:
    """F16: also while it is away, as behind a restart of the broker: all can read its number."""
    topic = unique_name
    with Broker.temporary() as broker, Producer(broker.home, timeout=PATIENCE_S) as producer:
        producer.send(topic, b"before")
        number = bytes.fromhex(producer._link.identity[0])
        broker.stop()
        broker.start()
        thief = Hand(broker.home, topic, number)
        assert thief.producer != number
        thief.put(thief.entry(b"theirs"), thief.entry(b"theirs too"))
        poll_until(thief.completions, "it is answered")
        receipts = [producer.send(topic, b"after %d" % n) for n in range(3)]
        assert all(receipt.queue_offset >= 0 for receipt in receipts)
        assert all(receipt.message_id.startswith(number.hex().upper()) for receipt in receipts)
        thief.close()
        name = number.hex().upper()
        mine = [item.record.body for item in sound(broker.home) if item.producer == name]
    assert sorted(mine) == [b"after 0", b"after 1", b"after 2", b"before"]
