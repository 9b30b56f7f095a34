"""Transactions by a real broker: commit, rollback, failures, checks, bad input."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.message import Durability, Message
from gantrymq.clients.producer import Producer
from gantrymq.clients.session import now_ns
from gantrymq.clients.transactions.checkerlink import CheckerLink
from gantrymq.clients.transactions.endform import EndForm
from gantrymq.clients.transactions.resolution import TransactionResolution
from gantrymq.clients.transactions.transaction import Transaction
from gantrymq.shm import layout, limits
from gantrymq.shm.codes import EntryFlag
from gantrymq.shm.errors import (
    Closed,
    GroupIllegal,
    MessageIllegal,
    TransactionDecided,
    TransactionFailed,
    TransactionInDoubt,
)
from gantrymq.shm.properties import HALF_TOPIC
from gantrymq.shm.transactionwire import FOREIGN_GROUP, NOT_A_HALF, UNSTORABLE, End, Ended
from gantrymq.shm.transactionwire import UNKNOWN as UNKNOWN_HALF
from gantrymq.temporary import Broker
from tests.support.stores import read_live_log
from tests.support.transactions import delivered
from tests.support.watchdog import poll_until

PATIENCE_S = 60.0


def deadline_ns() -> int:
    """The end of what is waited for from now on."""
    return now_ns() + int(PATIENCE_S * 1e9)


COMMIT = TransactionResolution.COMMIT
ROLLBACK = TransactionResolution.ROLLBACK
UNKNOWN = TransactionResolution.UNKNOWN


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {"transaction_timeout_s": 1, "transaction_check_interval_s": 1}
    with Broker.temporary(**settings) as running:
        yield running


@pytest.fixture(scope="module")
def producer(broker: Broker) -> Iterator[Producer]:
    with Producer(broker.home, producer_group="pay", timeout=PATIENCE_S) as made:
        yield made


def received(broker: Broker, topic: str, count: int) -> list[Message]:
    """So many messages as a consumer gets them."""
    found: list[Message] = []
    first = ConsumeFrom.FIRST_OFFSET
    with PullConsumer(f"of-{topic}", [topic], home=broker.home, consume_from=first) as consumer:

        def have_come() -> bool:
            found.extend(consumer.poll(timeout=0.1))
            return len(found) >= count

        poll_until(have_come, "all have come")
    return found


def test_commit_delivers_all_as_they_were_sent(
    broker: Broker, producer: Producer, unique_name: str
) -> None:
    """LW-41, TX-15: nothing before the commit; then each with what its sender gave, no more."""
    other = unique_name + "-other"
    with producer.transaction() as tx:
        first = producer.send(
            unique_name, b"one", tag="paid", keys=["k1", "k2"], properties={"region": "eu"},
            message_group="g", transaction=tx,
        )  # fmt: skip
        producer.send(Message(other, b"two"), tx)
        for _ in range(3):
            producer.send(unique_name, b"more", tag="paid", transaction=tx)
        assert delivered(broker, unique_name) == delivered(broker, other) == []
    assert tx.state == "committed"
    assert delivered(broker, unique_name) == [b"more"] * 3 + [b"one"]
    found = {bytes(message.body): message for message in received(broker, unique_name, 4)}
    message = found[b"one"]
    assert (message.tag, message.keys, message.properties) == (
        "paid",
        ("k1", "k2"),
        {"region": "eu"},
    )
    assert (message.message_id, message.message_group) == (first.message_id, "g")
    assert (message.topic, message.queue_id) == (unique_name, first.message_queue.queue_id)
    assert (message.delivery_attempt, message.queue_offset) == (1, 0)
    halves = {
        item.message_id: item.record
        for item in read_live_log(broker.home)
        if item.record.topic == HALF_TOPIC
    }
    assert message.born_timestamp == halves[first.message_id].born_timestamp
    (message,) = received(broker, other, 1)
    assert message.properties == {}
    assert not limits.RESERVED_KEYS & message.properties.keys()


def test_an_exception_rolls_back(broker: Broker, producer: Producer, unique_name: str) -> None:
    """Nothing is ever delivered; the exception goes its way and says what became of it."""
    with pytest.raises(KeyError) as caught, producer.transaction() as tx:  # noqa: PT012
        producer.send(unique_name, b"never", transaction=tx)
        raise KeyError(unique_name)
    assert any("1 messages rolled back" in note for note in caught.value.__notes__)
    assert (tx.state, delivered(broker, unique_name)) == ("rolled_back", [])


def test_the_official_clients_form(broker: Broker, producer: Producer, unique_name: str) -> None:
    kept, dropped = producer.begin_transaction(), producer.begin_transaction()
    producer.send(Message(unique_name, b"kept"), kept)
    producer.send(Message(unique_name, b"dropped"), dropped)
    kept.commit()
    dropped.rollback()
    assert delivered(broker, unique_name) == [b"kept"]
    empty = producer.begin_transaction()
    empty.commit()
    assert empty.state == "committed"


def test_the_first_decision_stands(broker: Broker, producer: Producer, unique_name: str) -> None:
    tx = producer.begin_transaction()
    producer.send(unique_name, b"once", transaction=tx)
    tx.commit()
    tx.commit()  # the same again has the same answer
    with pytest.raises(TransactionDecided, match="committed") as caught:
        tx.rollback()
    assert caught.value.outcome == "committed"
    with pytest.raises(Closed, match="is committed"):
        producer.send(unique_name, b"late", transaction=tx)
    back = producer.begin_transaction()
    producer.send(unique_name, b"back", transaction=back)
    back.rollback()
    back.rollback()
    with pytest.raises(TransactionDecided):
        back.commit()
    with pytest.raises(TransactionDecided):
        back.commit_async()
    assert delivered(broker, unique_name) == [b"once"]


def test_what_another_has_decided_is_told(
    broker: Broker, producer: Producer, unique_name: str
) -> None:
    """LW-43: as when a check was answered first: the error says how it was decided."""
    tx = producer.begin_transaction()
    producer.send(unique_name, b"gone", transaction=tx)
    with closing(CheckerLink(broker.home)) as link:
        answer = link.end(End(0, "pay", tx.transaction_id, False, tx.places()), deadline_ns())
        assert answer.outcome == "rolled_back"
    with pytest.raises(TransactionDecided) as caught:
        tx.commit()
    assert (caught.value.outcome, tx.state) == ("rolled_back", "rolled_back")
    assert delivered(broker, unique_name) == []


def test_a_message_that_is_left_out_is_named_and_its_transaction_in_doubt(
    broker: Broker, producer: Producer, unique_name: str
) -> None:
    """Others of it are committed: nobody is told to do all of it again, only to ask again."""
    tx = producer.begin_transaction()
    producer.send(unique_name, b"once", transaction=tx)
    error = tx.end_by(Ended(1, "committed", UNSTORABLE, "the message cannot be stored"))
    assert isinstance(error, TransactionInDoubt)
    assert "cannot be stored; its other messages are committed. Ask again" in str(error)
    tx.commit()
    assert delivered(broker, unique_name) == [b"once"]


def test_a_message_that_cannot_be_stored(
    broker: Broker, producer: Producer, unique_name: str
) -> None:
    """`send` raises, what follows it does not run, what was stored is rolled back."""
    steps = []
    with pytest.raises(MessageIllegal) as caught, producer.transaction() as tx:  # noqa: PT012
        producer.send(unique_name, b"stored", transaction=tx)
        producer.send(unique_name, b"bad", properties={"UNIQ_KEY": "x"}, transaction=tx)
        steps.append("local work")
    assert (steps, tx.state) == ([], "rolled_back")
    assert "1 messages rolled back" in caught.value.__notes__[0]
    with pytest.raises(TransactionFailed, match="1 that were stored"):  # noqa: PT012, SIM117
        with producer.transaction() as tx:
            producer.send(unique_name, b"stored", transaction=tx)
            with pytest.raises(MessageIllegal):
                producer.send(unique_name, b"x" * (limits.BODY_BYTES_MAX + 1), transaction=tx)
            with pytest.raises(Closed, match="has failed"):
                producer.send(unique_name, b"after it", transaction=tx)
    with pytest.raises(TransactionFailed):
        tx.commit()
    late = producer.begin_transaction()
    refused = producer.send_async(unique_name, b"", queue_id=900, transaction=late)
    future = late.commit_async()
    with pytest.raises(TransactionFailed, match="no such queue"):
        future.result(PATIENCE_S)
    assert isinstance(refused.exception(PATIENCE_S), MessageIllegal)
    assert delivered(broker, unique_name) == []


def test_many_commits_at_a_time(broker: Broker, producer: Producer, unique_name: str) -> None:
    """`send_async` and `commit_async`, asked in any order, by callbacks and by nobody."""
    called = threading.Event()
    futures = []
    for number in range(64):
        tx = producer.begin_transaction()
        for part in range(1 + number % 2):
            producer.send_async(unique_name, b"%d-%d" % (number, part), transaction=tx)
        futures.append(tx.commit_async())
    futures[0].add_done_callback(lambda _: called.set())
    assert called.wait(PATIENCE_S)
    for future in reversed(futures):
        future.result(PATIENCE_S)
    tx.commit()
    assert len(delivered(broker, unique_name)) == 96
    with Producer(broker.home, producer_group="pay") as other:
        tx = other.begin_transaction()
        other.send_async(unique_name, b"last", transaction=tx)
        tx.commit_async()
    assert delivered(broker, unique_name)[-1] == b"last", "closing waits for it"


PARTS: dict[str, Any] = {"plain": {}, "tag": {"tag": "a"}, "keys": {"keys": ["k"]}}


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("wished", [None, "written", "durable"])
@pytest.mark.parametrize("usual", ["written", "durable"])
def test_the_level_of_a_half(
    broker: Broker, unique_name: str, usual: Durability, wished: Durability | None, parts: str
) -> None:
    """Whoever waits for a half, or wishes so, has it synced at once; others wait for the commit's.

    By Python's way (first) and the native one.
    """
    level, given = wished or usual, {"durability": wished, **PARTS[parts]}
    with (
        Producer(broker.home, durability=usual, producer_group="pay", timeout=PATIENCE_S) as own,
        own.transaction() as tx,
    ):
        for _ in range(2):
            half = own.send_async(unique_name, b"x", transaction=tx, **given)
            assert _last_is_urgent(own) == (level == "durable" and wished is not None)
            receipt = own.send(unique_name, b"x", transaction=tx, **given)
            assert _last_is_urgent(own) == (level == "durable")
            assert [receipt.durability, half.result(PATIENCE_S).durability] == [level, level]


def _last_is_urgent(producer: Producer) -> bool:
    """Whether what was put last asks the flusher to sync at once."""
    lane = producer._link.lane
    up = lane.arena[lane.plan.up : lane.plan.up + lane.plan.up_bytes]
    at, flags = 0, 0
    while at < lane.put_end:  # the ring has not come round yet
        flags = layout.ENTRY.unpack(up, at)["flags"]
        at += int.from_bytes(up[at : at + 4].tobytes(), "little")
    return bool(flags & EntryFlag.DURABLE)


def test_a_delay_counts_from_the_commit(
    broker: Broker, producer: Producer, unique_name: str
) -> None:
    """LW-47: the wish is stored under a key of our own."""
    with producer.transaction() as tx:
        producer.send(unique_name, b"soon", delay=0.05, transaction=tx)
        producer.send(unique_name, b"at once", delivery_timestamp=1, transaction=tx)
        producer.send(unique_name, b"by level", delay_level=1, transaction=tx)
    poll_until(lambda: len(delivered(broker, unique_name)) == 3, "all are delivered")
    for message in received(broker, unique_name, 3):
        assert message.properties == {}


def test_threads_share_a_transaction(broker: Broker, producer: Producer, unique_name: str) -> None:
    tx = producer.begin_transaction()

    def send(number: int) -> None:
        for part in range(10):
            producer.send(unique_name, b"%d-%d" % (number, part), transaction=tx)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    tx.commit()
    assert len(set(delivered(broker, unique_name))) == 40


#: `Any`: the types say that these are wrong.
BAD: dict[str, Callable[[Any, Transaction, str], Any]] = {
    "oneway": lambda producer, tx, topic: producer.send_oneway(topic, b"x", transaction=tx),
    "oneway by place": lambda producer, tx, topic: producer.send_oneway(Message(topic, b"x"), tx),
    "batch": lambda producer, tx, topic: producer.send_batch(
        [Message(topic, b"x")], transaction=tx
    ),
    "batch by place": lambda producer, tx, topic: producer.send_batch([Message(topic, b"x")], tx),
    "bodies": lambda producer, tx, topic: producer.send_batch(topic, [b"x"], transaction=tx),
    "async batch": lambda producer, tx, topic: producer.send_batch_async(
        topic, [b"x"], transaction=tx
    ),
    "no transaction": lambda producer, tx, topic: producer.send(topic, b"x", transaction="tx"),
    "immunity": lambda producer, tx, topic: producer.send(
        topic, b"x", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "soon"}, transaction=tx
    ),
}


@pytest.mark.parametrize("way", BAD)
def test_what_has_no_place_in_a_transaction(
    broker: Broker, producer: Producer, unique_name: str, way: str
) -> None:
    """TX-2: refused by name, nothing is stored."""
    tx = producer.begin_transaction()
    with pytest.raises(MessageIllegal):
        BAD[way](producer, tx, unique_name)
    assert delivered(broker, unique_name) == []


def test_a_group_is_needed(broker: Broker, producer: Producer, unique_name: str) -> None:
    with Producer(broker.home) as bare:
        with pytest.raises(GroupIllegal, match="producer_group"):
            bare.begin_transaction()
        tx = producer.begin_transaction()
        with pytest.raises(MessageIllegal, match="another producer"):
            bare.send(unique_name, b"x", transaction=tx)
    with pytest.raises(GroupIllegal):
        Producer(broker.home, transaction_checker=lambda _: COMMIT)
    with pytest.raises(GroupIllegal):
        Producer(broker.home, producer_group="no group!")
    with pytest.raises(Closed):
        bare.begin_transaction()


def test_forged_ends_change_nothing(broker: Broker, producer: Producer, unique_name: str) -> None:
    """LW-42: position, offset, group and transaction must all be the half's."""
    producer.send(unique_name, b"plain")
    plain = next(item for item in read_live_log(broker.home) if item.record.topic == unique_name)
    tx = producer.begin_transaction()
    producer.send(unique_name, b"open", transaction=tx)
    ((position, offset),) = tx.places()
    no_half = (NOT_A_HALF, UNKNOWN_HALF)
    forged = [
        ("other", tx.transaction_id, (position, offset), (FOREIGN_GROUP,)),
        ("pay", "0" * 32, (position, offset), (NOT_A_HALF,)),
        ("pay", tx.transaction_id, (position, offset + 1), no_half),
        ("pay", tx.transaction_id, (position + 1, offset), no_half),
        ("pay", tx.transaction_id, (1 << 60, offset), no_half),
        ("pay", tx.transaction_id, (plain.position, plain.record.queue_offset), no_half),
    ]
    with closing(CheckerLink(broker.home)) as link:
        for group, name, half, errors in forged:
            asked = link.end_soon(EndForm(group), name, True, half)  # 0 before there is a session
            answer = link.end(End(asked, group, name, True, [half]), deadline_ns())
            assert (answer.error in errors, answer.outcome) == (True, ""), (group, name, half)
        assert asked > 0
    assert delivered(broker, unique_name) == [b"plain"]
    tx.commit()
    assert delivered(broker, unique_name) == [b"open", b"plain"]


def test_a_session_ends_more_than_its_ring_holds(broker: Broker, unique_name: str) -> None:
    """The room of each request is given back."""
    count = 2 * limits.TRANSACTION_RING_BYTES // 100
    with Producer(broker.home, producer_group="pay-" + unique_name) as producer:
        for _ in range(count):
            tx = producer.begin_transaction()
            producer.send_async(unique_name, b"never", transaction=tx)
            tx.rollback()
