"""`Client` and `gantrymq query` with a broker that runs, is stopped, or killed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gantrymq import (
    Broker,
    BrokerGone,
    Client,
    Message,
    MessageQueue,
    Producer,
    Rejected,
    TopicNotFound,
)
from gantrymq.clients.control import look_at
from gantrymq.clients.home import read_board_file
from gantrymq.clients.message import SendReceipt
from gantrymq.shm import layout, wire
from gantrymq.shm.board import attach_board
from gantrymq.shm.codes import ExitCode
from tests.support.brokers import command
from tests.support.trials import mends
from tests.support.watchdog import poll_until

COUNT = 80


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Topic `orders` with COUNT messages of two keys."""
    with Broker.temporary() as running:
        with Producer(running.home) as producer:
            for number in range(COUNT):
                producer.send(order(number))
        yield running


def order(number: int) -> Message:
    keys = (f"n{number}", "all", "all", "größe" if number % 2 else "k")
    return Message("orders", b"%d" % number, tag="t", keys=keys, properties={"p": "v"})


def test_what_was_just_sent_is_found(broker: Broker) -> None:
    """The index is half a second behind: the log is looked through from there."""
    with Client(broker.home) as client, Producer(broker.home) as producer:
        for number in range(20):
            receipt = producer.send(Message("fresh", b"x", keys=(f"k{number % 4}",)))
            found = client.query("fresh", f"k{number % 4}")
            (newest,) = found.page(1)
            assert newest.message_id == receipt.message_id
            assert len(found.page(99)) == number // 4
            assert not found.reasons
            assert client.get(receipt.message_id) == newest
            assert client.get(receipt.offset_msg_id) == newest


def test_messages_come_whole_and_in_pages(broker: Broker) -> None:
    with Client(broker.home) as client:
        found = client.query("orders", "all")
        pages = [found.page(33) for _ in range(4)]
        assert [len(page) for page in pages] == [33, 33, COUNT - 66, 0]
        messages = [message for page in pages for message in page]
        assert [message.body for message in messages] == [b"%d" % n for n in range(COUNT)][::-1]
        assert found.before == messages[-1].position
        again = client.query("orders", "all", before=messages[9].position, limit=5)
        assert list(again) == messages[10:15]
        message = messages[0]
        assert message.keys == order(COUNT - 1).keys
        assert (message.tag, message.properties) == ("t", {"p": "v"})
        assert message.delivery_attempt == 1
        begin, end = messages[20].store_timestamp, messages[4].store_timestamp
        assert begin is not None
        assert end is not None
        inside = [m for m in messages if begin <= (m.store_timestamp or 0) <= end]
        moment = datetime.fromtimestamp(end / 1000, UTC)
        for asked in (
            client.query("orders", "all", begin=begin, end=end),
            client.query("orders", begin=begin, end=moment),
        ):
            assert list(asked) == inside


def test_a_deleted_topic_s_messages_are_there_until_they_expire(broker: Broker) -> None:
    with Producer(broker.home) as producer:
        producer.send(Message("gone", b"x", keys=("k",)))
    with look_at(broker.home) as control:
        control.request(wire.DeleteTopic("gone"), wire.Frame)
    with Client(broker.home) as client:
        assert [message.body for message in client.query("gone", "k")] == [b"x"]
        with pytest.raises(TopicNotFound, match="no topic gone"):
            client.queues("gone")


def test_what_makes_no_sense_is_refused_by_name(broker: Broker) -> None:
    with Client(broker.home) as client:
        queue = client.queues("orders")[0]
        with pytest.raises(Rejected, match="boundary is 'middle'"):
            client.search_offset(queue, 0, "middle")
        with pytest.raises(Rejected, match="has queues 0 to 3, not 9"):
            client.max_offset(MessageQueue("orders", 9))
        with pytest.raises(Rejected, match="no record begins at 77"):
            client.get("77", "orders")
        with pytest.raises(Rejected, match="neither as a message_id nor as a place"):
            client.get("F" * 32)
    with pytest.raises(BrokerGone, match="neither a broker nor a store"):
        Client(broker.home / "nowhere")


def rows(*arguments: object) -> list[dict[str, object]]:
    ran = command("query", *arguments, "--json")
    assert (ran.returncode, ran.stderr) == (ExitCode.OK, "")
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_the_command_pages_and_says_how_to_go_on(broker: Broker) -> None:
    home = ("--home", broker.home)
    first = rows("orders", "--key", "all", "--limit", 50, *home)
    assert [row["body"] for row in first] == [str(n) for n in range(COUNT)][:-51:-1]
    shown = command("query", "orders", "--key", "größe", "--limit", "3", *home).stdout
    assert f"3 messages, more with --before {first[4]['position']}\n" in shown
    rest = rows("orders", "--key", "all", "--before", first[-1]["position"], *home)
    assert [row["body"] for row in rest] == [str(n) for n in range(COUNT - 50)][::-1]
    assert rows("orders", "--id", first[0]["message_id"], *home) == first[:1]
    assert rows("orders", "--key", "all", "--no-index", "--limit", 50, *home) == first
    at = str(first[0]["store_timestamp"])
    ran = command("query", "orders", "--offset-at", at, "--json", *home)
    (queue,) = (q for q in json.loads(ran.stdout)["queues"] if q["queue"] == first[0]["queue"])
    assert queue["lower"] <= first[0]["queue_offset"] <= queue["upper"]
    assert command("query", "orders", "--key", "nobody", *home).stdout == "0 messages\n"


def test_the_command_names_what_is_wrong(broker: Broker) -> None:
    home = ("--home", broker.home)
    for wrong, said in [
        (("nobody", "--key", "k"), "there is no topic nobody"),
        (("orders", "--key", os.fsdecode(b"\xff")), "'\\udcff' is no text in UTF-8"),
        (("orders", "--begin", "2026-01-02", "--end", "2026-01-01"), "swap them"),
        (("orders", "--end", "soon"), "'soon' is no time"),
    ]:
        ran = command("query", *wrong, *home)
        assert (ran.returncode, ran.stdout) == (ExitCode.USAGE, "")
        assert said in ran.stderr
        assert "Traceback" not in ran.stderr


def test_a_stopped_and_a_killed_broker_s_store_answer_alike(tmp_path: Path) -> None:
    """The index of a life that was cut off is behind its log; so is its note."""
    with Broker.temporary(mapped_file_size_commit_log=1 << 16) as broker:
        with Producer(broker.home) as producer:
            receipts = [producer.send(order(number)) for number in range(COUNT)]
        client = Client(broker.home)
        board = attach_board(read_board_file(broker.home)["board"])
        answers = [answer_of(client, receipts)]
        poll_until(
            lambda: board.word(layout.BOARD_INDEXED) == board.word(layout.BOARD_APPENDED),
            "all is indexed",
        )
        answers.append(answer_of(client, receipts))
        broker.stop()
        answers.append(answer_of(client, receipts))
        (broker.home / "store" / "gantry" / "index.json").unlink()  # as before its first note
        answers.append(answer_of(client, receipts))
        assert all(answer == answers[0] for answer in answers)
        assert len(list(client.query("orders", "all"))) == COUNT


@mends("S204")
@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_a_deletion_hides_the_same_in_a_stopped_store(ending: str) -> None:
    """What was before is found by its key alone; queues without a message are there."""
    with Broker.temporary() as broker:
        with Producer(broker.home) as producer:
            for topic in ("again", "gone"):
                for _ in range(10):
                    producer.send(Message(topic, b"old", keys=("k",), queue_id=1))
            for topic in ("again", "gone"):
                with look_at(broker.home) as control:
                    control.request(wire.DeleteTopic(topic), wire.Frame)
            with look_at(broker.home) as control:
                control.request(wire.CreateTopic("again", 4, "written"), wire.Frame)
                control.request(wire.CreateTopic("empty", 2, "written"), wire.Frame)
            new = producer.send(Message("again", b"new", queue_id=1))
        client = Client(broker.home)
        poll_until(lambda: client.max_offset(new.message_queue) == 11, "it is in its queue")
        running = [shown_of(client, topic) for topic in ("again", "gone", "empty")]
        if ending == "killed":
            broker.process.kill()
            broker.process.wait()
        else:
            broker.stop()
        assert [shown_of(client, topic) for topic in ("again", "gone", "empty")] == running
    assert running[0] == ([(0, 0), (10, 11), (0, 0), (0, 0)], [b"new"], 10)
    assert running[1:] == [(None, None, 10), ([(0, 0), (0, 0)], [], 0)]


def shown_of(client: Client, topic: str) -> tuple[object, ...]:
    """Offsets and bodies, None where there is no such topic; how many are found by their key."""
    by_key = len(list(client.query(topic, "k")))
    try:
        spans = [(client.min_offset(q), client.max_offset(q)) for q in client.queues(topic)]
        return spans, [message.body for message in client.query(topic)], by_key
    except TopicNotFound:
        with pytest.raises(TopicNotFound):
            list(client.query(topic))
        return None, None, by_key


def answer_of(client: Client, receipts: list[SendReceipt]) -> tuple[object, ...]:
    queue = receipts[-1].message_queue
    newest = client.get(receipts[-1].message_id)
    return (
        list(client.query("orders", "all")),
        list(client.query("orders", "n7")),
        list(client.query("orders", limit=7)),
        newest,
        client.search_offset(queue, newest.store_timestamp or 0, "upper"),
        client.max_offset(queue),
    )
