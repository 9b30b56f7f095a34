"""A home whose store was made anew, or put back, behind the back of those who were attached."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gantrymq import Broker, Message, MessageModel, Producer, PullConsumer, PushConsumer
from gantrymq.brokerd.backup import backup
from gantrymq.clients.consumer import ConsumeFrom
from gantrymq.clients.home import read_board_file, store_of
from gantrymq.clients.message import Durability
from gantrymq.clients.session import Session
from gantrymq.clients.spark.options import ReadOptions
from gantrymq.clients.spark.table.job import Ingest, IngestOptions
from gantrymq.clients.transactions import checks
from gantrymq.clients.transactions.resolution import TransactionResolution
from gantrymq.shm.board import unlink_board
from gantrymq.shm.errors import Incompatible
from gantrymq.shm.lineage import lineage_of
from gantrymq.shm.storage import PosixStorage
from tests.support.spark_rows import rows_of
from tests.support.trials import mends

PATIENCE_S = 30.0
FIRST = ConsumeFrom.FIRST_OFFSET


@pytest.fixture
def own() -> Iterator[Broker]:
    """Return a broker whose store may be replaced; the board of its first life stays."""
    with Broker.temporary() as broker:
        before = read_board_file(broker.home)["board"]
        try:
            yield broker
        finally:
            unlink_board(before)


def id_of(broker: Broker) -> str:
    return lineage_of(PosixStorage(str(store_of(broker.home)))).store


def killed(broker: Broker) -> None:
    broker.process.kill()
    broker.process.wait()


def make_anew(broker: Broker) -> tuple[str, str]:
    """Ids before and after; the broker runs again."""
    before = id_of(broker)
    killed(broker)
    shutil.rmtree(store_of(broker.home))
    broker.start()
    return before, id_of(broker)


def bodies(broker: Broker, topic: str) -> list[bytes]:
    rows = rows_of(store_of(broker.home), topic=topic, includeActive="true")
    return [row["body"] for row in rows]


@mends("D1")
@pytest.mark.parametrize("durability", ["written", "durable"])
def test_what_was_not_answered_goes_into_no_other_store(
    own: Broker, unique_name: str, durability: Durability
) -> None:
    producer = Producer(home=own.home, timeout=PATIENCE_S)
    producer.send(unique_name, b"answered")
    own.process.send_signal(signal.SIGSTOP)
    pending = producer.send_async(unique_name, b"pending", durability=durability)
    before, now = make_anew(own)
    for _ in range(2):
        with pytest.raises(Incompatible, match=f"has store {now} now.*was of store {before}"):
            pending.result(PATIENCE_S)
    with pytest.raises(Incompatible, match="open a new producer"):
        producer.send(unique_name, b"later")
    with pytest.raises(Incompatible):
        producer.close()
    with Producer(home=own.home) as fresh:
        fresh.send(unique_name, b"fresh")
    assert bodies(own, unique_name) == [b"fresh"]


@mends("D1")
def test_a_consumer_takes_its_offsets_to_no_other_store(own: Broker, unique_name: str) -> None:
    with PullConsumer("g", [unique_name], home=own.home, consume_from=FIRST) as consumer:
        with Producer(home=own.home) as producer:
            producer.send_batch([Message(unique_name, b"old")] * 20)
        seen = 0
        while seen < 20:
            seen += len(consumer.poll(timeout=PATIENCE_S))
        before, now = make_anew(own)
        with Producer(home=own.home) as producer:
            producer.send_batch([Message(unique_name, b"new")] * 30)
        for _ in range(2):
            with pytest.raises(Incompatible, match=f"has store {now} now.*was of store {before}"):
                consumer.poll(timeout=PATIENCE_S)


@mends("D1")
def test_a_push_consumer_ends_with_what_has_happened(
    own: Broker, unique_name: str, poll_until: Callable[..., object]
) -> None:
    seen: list[bytes] = []
    with Producer(home=own.home) as producer:
        producer.send(unique_name, b"old")
    consumer = PushConsumer(
        "g", [unique_name], lambda message: seen.append(bytes(message.body)), home=own.home,
        consume_from=FIRST,
    )  # fmt: skip
    with consumer:
        poll_until(lambda: seen, "the first message")
        make_anew(own)
        with pytest.raises(Incompatible, match="made anew"):
            consumer.run()
    assert seen == [b"old"]


@mends("D1")
def test_broadcast_offsets_are_of_one_store(
    own: Broker,
    unique_name: str,
    poll_until: Callable[..., object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They outlive the consumer in a file of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    seen: list[bytes] = []

    def consumer() -> PushConsumer:
        return PushConsumer(
            "g", [unique_name], lambda message: seen.append(bytes(message.body)), home=own.home,
            consume_from=FIRST, model=MessageModel.BROADCASTING,
        )  # fmt: skip

    with Producer(home=own.home) as producer:
        producer.send(unique_name, b"old")
    with consumer():
        poll_until(lambda: seen, "the first message")
    before, now = make_anew(own)
    with Producer(home=own.home) as producer:
        producer.send(unique_name, b"new")
    with pytest.raises(Incompatible, match=f"in store {before}, and this is store {now}.*Remove"):
        consumer().start()
    for path in (tmp_path / "gantrymq" / "broadcast").rglob("*.json"):
        path.unlink()
    with consumer():
        poll_until(lambda: seen == [b"old", b"new"], "the new store's message")


@mends("S25")
def test_whoever_answers_checks_says_so_once(
    own: Broker,
    poll_until: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It did so each second, with a traceback, until the producer was closed."""
    monkeypatch.setattr(checks, "_PAUSE_S", 0.01, raising=False)
    attempts: list[str] = []
    whole = Session.require_store

    def counted(session: Session, before: str) -> Session:
        attempts.append(before)
        return whole(session, before)

    monkeypatch.setattr(Session, "require_store", counted)

    def checker(message: object) -> TransactionResolution:
        return TransactionResolution.UNKNOWN

    with Producer(home=own.home, producer_group="payers", transaction_checker=checker):
        poll_until(lambda: attempts, "it has a session")
        before, now = make_anew(own)
        attempts.clear()
        poll_until(lambda: len([one for one in attempts if one]) >= 3, "some attempts")
        time.sleep(0.05)
    said = [one for one in caplog.records if "checks of transactions" in one.message]
    assert [one.exc_info for one in said] == [None]
    assert f"has store {now} now, and this client was of store {before}" in said[0].message


@mends("D1")
def test_a_back_up_that_is_put_back_is_another_continuation(
    own: Broker, unique_name: str, tmp_path: Path
) -> None:
    """What was read up to the back-up goes on; what was read behind it does not."""

    def ingest(out: Path) -> int:
        read = ReadOptions.parse({"store": str(store_of(own.home)), "includeActive": "true"})
        with Ingest(IngestOptions(read, str(out), out.name)) as job:
            while job.step() is not None:
                pass
            return job.manifest.rows

    def send(*texts: bytes) -> None:
        with Producer(home=own.home) as producer:
            for text in texts:
                producer.send(unique_name, text, durability="durable")

    send(b"1", b"2")
    first = id_of(own)
    assert ingest(tmp_path / "early") == 2
    backup(own.home, tmp_path / "copy")
    send(b"3")
    assert ingest(tmp_path / "late") == 3
    killed(own)
    shutil.rmtree(store_of(own.home))
    shutil.move(store_of(tmp_path / "copy"), store_of(own.home))
    own.start()
    send(b"other", b"other", b"other")
    assert id_of(own) != first
    with pytest.raises(Incompatible, match=f"of store {first} up to position"):
        ingest(tmp_path / "late")
    assert ingest(tmp_path / "early") == 5
