"""`gantrymq tx`: what is in doubt is listed and shown, and settled once, with who and when."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gantrymq.cli.board import describe, running_board
from gantrymq.cli.tx_show import look
from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.message import Message
from gantrymq.clients.producer import Producer
from gantrymq.clients.transactions.resolution import TransactionResolution
from gantrymq.shm.properties import HALF_TOPIC
from gantrymq.temporary import Broker
from tests.support.brokers import command
from tests.support.forked import run_each, start_program
from tests.support.trials import mends
from tests.support.watchdog import poll_until

TOPIC = "orders"
GROUP = "pay"
DYING = """
import os, sys
from gantrymq.clients.producer import Producer
producer = Producer(sys.argv[1], producer_group="pay")
transaction = producer.begin_transaction()
for body in sys.argv[3:]:
    producer.send(sys.argv[2], body.encode(), transaction=transaction, keys=[body], tag="t")
os._exit(0)
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Checks come after a second, two of them; then a half is given up."""
    settings = {"transaction_timeout_s": 1, "transaction_check_interval_s": 1}
    with Broker.temporary(**settings, transaction_check_max=2) as running:
        yield running


@pytest.fixture
def patient_broker() -> Iterator[Broker]:
    """Nothing is given up of which a checker knows, however long its answer takes."""
    settings = {"transaction_timeout_s": 1, "transaction_check_interval_s": 1}
    with Broker.temporary(**settings, transaction_check_max=1000) as running:
        yield running


def leave_open(broker: Broker, *bodies: str, topic: str = TOPIC) -> None:
    """A producer sends the messages of one transaction, and dies."""
    assert start_program(DYING, broker.home, topic, *bodies).wait() == 0


def rows(broker: Broker, *words: str) -> list[dict[str, Any]]:
    done = command("tx", "list", *words, "--json", "--home", broker.home)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def row_of(broker: Broker, body: str) -> dict[str, Any]:
    """The row of the message with a body."""
    doubts = look(broker.home).read()
    (found,) = [doubt.message_id for doubt in doubts if doubt.record.body == body.encode()]
    (row,) = [row for row in rows(broker) if row["message_id"] == found]
    return row


def shown(broker: Broker, message: str) -> dict[str, Any]:
    done = command("tx", "show", message, "--json", "--home", broker.home)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[0])
    return found


def describe_transactions(broker: Broker) -> dict[str, Any]:
    """What `status` says of them."""
    found: dict[str, Any] = describe(running_board(broker.home), broker.home)["transactions"]
    return found


def delivered(broker: Broker, count: int) -> list[str]:
    first = ConsumeFrom.FIRST_OFFSET
    found: list[str] = []
    name = f"all-{os.urandom(4).hex()}"
    with PullConsumer(name, [TOPIC], home=broker.home, consume_from=first) as consumer:
        while len(found) < count:
            batch = consumer.poll(timeout=30.0)
            assert len(batch), found
            found += [bytes(body).decode() for body in batch.bodies]
        found += [bytes(body).decode() for body in consumer.poll(timeout=0).bodies]
    return sorted(found)


def give_up(broker: Broker, *bodies: str) -> list[dict[str, Any]]:
    """Have messages given up: their producer never knows."""
    leave_open(broker, *bodies)
    names = {row_of(broker, body)["message_id"] for body in bodies}

    def unknown(_message: Message) -> TransactionResolution:
        return TransactionResolution.UNKNOWN

    def given_up() -> int:
        found = look(broker.home).read()
        return sum(doubt.message_id in names and doubt.state == "given_up" for doubt in found)

    with Producer(broker.home, producer_group=GROUP, transaction_checker=unknown):
        poll_until(lambda: given_up() == len(names), "they are given up", 30.0)
    return [row for row in rows(broker, "--state", "given_up") if row["message_id"] in names]


def test_open_messages_are_listed_and_shown(broker: Broker) -> None:
    """Filters by topic, group, state; by message id, transaction id and position."""
    leave_open(broker, "first", "second")
    first, second = row_of(broker, "first"), row_of(broker, "second")
    assert (first["state"], first["topic"], first["group"]) == ("open", TOPIC, GROUP)
    assert first["checks"] == 0  # nobody is there to be asked
    assert first["transaction_id"] == second["transaction_id"]
    assert first["position"] < second["position"]
    wanted: list[tuple[tuple[object, ...], int]] = []
    for words, count in (
        (("--topic", TOPIC), 2),
        (("--group", GROUP, "--state", "open"), 2),
        (("--topic", "others"), 0),
        (("--group", "others"), 0),
        (("--state", "given_up"), 0),
        (("--limit", "1"), 1),
    ):
        wanted.append((("tx", "list", *words, "--json", "--home", broker.home), count))
    for ran, (line, count) in zip(run_each([line for line, _ in wanted]), wanted, strict=True):
        assert (ran.returncode, len(ran.stdout.splitlines())) == (0, count), line
    ids = command("tx", "list", "--ids", "--home", broker.home).stdout.split()
    assert set(ids) == {first["message_id"], second["message_id"]}
    for name in (first["message_id"], str(first["position"])):
        found = shown(broker, name)
        assert (found["body"], found["tag"], found["keys"]) == ("first", "t", ["first"])
    told = command("tx", "show", first["transaction_id"], "--hex", "--home", broker.home).stdout
    assert told.count("transaction_id") == 2
    assert "66 69 72 73 74" in told
    table = command("tx", "list", "--home", broker.home).stdout
    assert table.endswith("2 open, 0 given up\n")
    poll_until(lambda: describe_transactions(broker)["open"] == 2, "the board counts them")
    state = json.loads(command("status", "--json", "--home", broker.home).stdout)
    assert (state["transactions"]["open"], state["transactions"]["given_up"]) == (2, 0)
    assert state["transactions"]["oldest_s"] >= 0
    done = command("tx", "rollback", first["transaction_id"], "--home", broker.home)
    assert (done.returncode, done.stdout.count("rolled back")) == (0, 2)
    assert rows(broker) == []
    for name in (first["message_id"], str(first["position"])):
        found = shown(broker, name)
        assert (found["state"], found["body"]) == ("rolled_back", "first")
        assert found["history"][-1]["what"] == "rolled_back"
        assert "@" in found["history"][-1]["by"]
    told = command("tx", "show", first["transaction_id"], "--home", broker.home).stdout
    assert told.count("  rolled back by ") == 2


def test_what_is_given_up_is_settled_once(broker: Broker) -> None:
    """Commit delivers it; another decision is refused; who and when is kept."""
    ids = [row["message_id"] for row in give_up(broker, "bought")]
    history = shown(broker, ids[0])["history"]
    assert [entry["what"] for entry in history] == ["checked", "checked", "given_up"]
    counts = {"open": 0, "oldest_s": None, "given_up": 1, "checks": 2}
    poll_until(lambda: describe_transactions(broker) == counts, "status counts it")
    metrics = command("metrics", "--home", broker.home).stdout
    assert "gantrymq_given_up_halves 1.0" in metrics
    assert "gantrymq_transaction_checks_total 2.0" in metrics
    assert "gantrymq_open_halves 0.0" in metrics
    done = command("tx", "commit", ids[0], "--as", "auditor", "--json", "--home", broker.home)
    assert done.returncode == 0, done
    assert json.loads(done.stdout)["outcome"] == "committed"
    assert delivered(broker, 1) == ["bought"]
    assert rows(broker) == []
    again = command("tx", "commit", ids[0], "--home", broker.home)
    assert again.returncode == 2
    assert "it may have been decided" in again.stderr
    found = shown(broker, ids[0])
    assert (found["state"], found["history"][-1]["by"]) == ("committed", "auditor")
    inspected = command("store", "dump", broker.home / "store").stdout
    assert b"auditor".hex() in inspected.lower()


def test_a_recheck_asks_again(broker: Broker) -> None:
    """The producer's checker knows by now."""
    before = delivered(broker, 0)
    (row,) = give_up(broker, "later")

    def recheck() -> None:
        done = command("tx", "recheck", row["message_id"], "--as", "me", "--home", broker.home)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split(None, 1)[1] == "checked again\n"

    recheck()
    now = row_of(broker, "later")
    assert (now["state"], now["checks"]) == ("open", 0)

    def commit(_message: Message) -> TransactionResolution:
        return TransactionResolution.COMMIT

    def is_decided() -> bool:
        doubts = look(broker.home).read()
        if [doubt.state for doubt in doubts] == ["given_up"]:  # its answer took two seconds
            recheck()
        return not doubts

    with Producer(broker.home, producer_group=GROUP, transaction_checker=commit):
        poll_until(is_decided, "it is decided", 30.0)
    assert delivered(broker, len(before) + 1) == sorted([*before, "later"])


@mends("S210")
def test_a_stopped_store_can_be_looked_at_and_not_settled() -> None:
    """69 and what to do; the rows are those of before, whatever else lies in the queue's folder."""
    with Broker.temporary() as broker:
        look_at_a_stopped_store(broker)


def look_at_a_stopped_store(broker: Broker) -> None:
    leave_open(broker, "waiting")
    before = row_of(broker, "waiting")
    broker.stop()
    (Path(broker.home) / "store" / "consumequeue" / HALF_TOPIC / "0" / "stray").touch()
    after = row_of(broker, "waiting")
    assert after | {"age_s": 0} == before | {"age_s": 0}
    refused = command("tx", "commit", before["message_id"], "--home", broker.home)
    assert refused.returncode == 69
    assert "gantrymq serve --home" in refused.stderr
    broker.start()
    assert row_of(broker, "waiting")["position"] == before["position"]
    done = command("tx", "rollback", before["message_id"], "--home", broker.home)
    assert done.returncode == 0


def test_what_became_of_a_decided_one_is_told(patient_broker: Broker) -> None:
    """When, and that its producer did it, by itself or perhaps when it was asked."""
    broker = patient_broker
    with Producer(broker.home, producer_group=GROUP) as producer:
        transaction = producer.begin_transaction()
        sent = producer.send(Message(TOPIC, b"ended", keys=("ended",)), transaction=transaction)
        transaction.commit()
    found = shown(broker, sent.message_id)
    assert (found["state"], found["topic"], found["keys"]) == ("committed", TOPIC, ["ended"])
    (entry,) = found["history"]
    assert (entry["what"], entry["by"]) == ("committed", "producer")
    assert 0 <= entry["at_ms"] - found["stored_ms"] < 60_000
    leave_open(broker, "asked")
    row = row_of(broker, "asked")

    def commit(_message: Message) -> TransactionResolution:
        return TransactionResolution.COMMIT

    with Producer(broker.home, producer_group=GROUP, transaction_checker=commit):
        poll_until(lambda: rows(broker) == [], "it is committed", 30.0)
    found = shown(broker, row["message_id"])
    assert found["state"] == "committed"
    assert found["checks"] >= 1, "again if the answer took longer than a second"
    checks = ["checked"] * found["checks"]
    assert [entry["what"] for entry in found["history"]] == [*checks, "committed"]
    assert found["history"][-1]["by"] == "producer, perhaps when it was asked"


@mends("S188")
def test_what_cannot_be_settled_keeps_no_other_from_it(patient_broker: Broker) -> None:
    """It is named, with what to do: one whose topic is gone, and what is no half message."""
    broker, unknown = patient_broker, "0" * 32
    leave_open(broker, "lost", topic="gone")
    leave_open(broker, "kept")
    lost, kept = (row_of(broker, body)["message_id"] for body in ("lost", "kept"))
    assert command("topic", "delete", "gone", "--home", broker.home).returncode == 0
    done = command("tx", "commit", lost, kept, "--home", broker.home)
    assert (done.returncode, done.stdout) == (1, f"{kept}  committed\n")
    assert f"gantrymq: {lost}: its topic is gone: make its topic" in done.stderr
    assert [row["message_id"] for row in rows(broker)] == [lost]
    assert delivered(broker, 1) == ["kept"]
    done = command("tx", "rollback", unknown, lost, "--home", broker.home)
    assert (done.returncode, done.stdout) == (2, f"{lost}  rolled back\n")
    assert f"no half message in doubt has the id {unknown}" in done.stderr


def test_mistakes_are_named(broker: Broker, tmp_path: Path) -> None:
    unknown = command("tx", "show", "0" * 32, "--home", broker.home)
    assert (unknown.returncode, "no half message has" in unknown.stderr) == (2, True)
    nowhere = command("tx", "list", "--home", tmp_path)
    assert (nowhere.returncode, "nor a store at" in nowhere.stderr) == (69, True)
    odd = command("tx", "list", "--state", "lost", "--home", broker.home)
    assert odd.returncode == 2
