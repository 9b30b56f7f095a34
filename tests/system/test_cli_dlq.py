"""`gantrymq dlq` against a running broker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gantrymq.brokerd.verify import verify
from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.message import Message
from gantrymq.clients.producer import Producer
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.push.consumeresult import ConsumeResult
from gantrymq.clients.running import find_board
from gantrymq.shm import layout
from gantrymq.shm.codes import ExitCode
from gantrymq.temporary import Broker
from gantrymq.workers.groups.deadletternote import FILE
from tests.support.brokers import command
from tests.support.push import FIRST, LEVELS, PATIENCE_S
from tests.support.trials import mends
from tests.support.watchdog import poll_until

LETTERS = 6


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with Broker.temporary(message_delay_level=LEVELS) as broker:
        yield broker.home


def fail(message: Message) -> ConsumeResult | None:
    number = message.properties["number"]
    if number == "0":
        return ConsumeResult.DEAD_LETTER
    raise ValueError(f"no stock\nfor {number}")


@pytest.fixture
def topic(home: Path, unique_name: str) -> str:
    """A topic whose messages are all dead letters of group g-<topic>: half paid, one binary."""
    group = "g-" + unique_name
    with Producer(home) as producer:
        for number in range(LETTERS):
            body = b"\xff\x00" if number == 5 else b"body-%d" % number
            producer.send(
                unique_name, body, tag="paid" if number % 2 else "open",
                keys=[f"k{number}", "all"], properties={"number": str(number)},
            )  # fmt: skip
    consumer = PushConsumer(
        group, [unique_name], fail, home=home, consume_from=FIRST, max_attempts=1
    )
    with consumer:
        poll_until(
            lambda: listed(home).get(group, {}).get("messages") == LETTERS, "all died", PATIENCE_S
        )
    return unique_name


def rows(*arguments: object) -> list[dict[str, Any]]:
    ran = command(*arguments, "--json")
    assert ran.returncode == 0, ran
    return [json.loads(line) for line in ran.stdout.splitlines()]


def listed(home: Path) -> dict[str, dict[str, Any]]:
    return {row["group"]: row for row in rows("dlq", "list", "--home", home)}


def show(home: Path, topic: str, *options: object) -> list[dict[str, Any]]:
    return rows("dlq", "show", f"g-{topic}", *options, "--home", home)


def numbers(found: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["properties"]["number"]) for row in found)


def content(home: Path, topic: str, count: int) -> list[tuple[Any, ...]]:
    """What a fresh group gets of a topic, once there are so many."""
    found: list[tuple[Any, ...]] = []
    group = f"look-{time.monotonic_ns()}"
    with PullConsumer(group, [topic], home=home, consume_from=ConsumeFrom.FIRST_OFFSET) as consumer:
        while len(found) < count:
            batch = consumer.poll(timeout=PATIENCE_S)
            assert len(batch), found
            found += [(bytes(m.body), m.tag, tuple(m.keys), dict(m.properties)) for m in batch]
    return sorted(found, key=repr)


def test_letters_are_listed_and_shown(home: Path, topic: str) -> None:
    """RD-18, RD-20: what is kept of each, in pages, by filters."""
    row = listed(home)[f"g-{topic}"]
    assert (row["messages"], row["resent"]) == (LETTERS, 0)
    assert row["oldest_ms"] <= row["newest_ms"]
    found = show(home, topic)
    assert numbers(found) == list(range(LETTERS))
    stored = dead_letters_of(home, topic)
    for letter in found:
        number = letter["properties"]["number"]
        assert letter["topic"] == topic
        assert letter["attempts"] == 1
        assert letter["keys"] == [f"k{number}", "all"]
        assert letter["properties"] == {"number": number}
        assert letter["reason"] == (
            "the listener answered DEAD_LETTER"
            if number == "0"
            else f"ValueError: no stock\nfor {number}"
        )
        assert letter["message_id"] == stored[number]["UNIQ_KEY"]
        assert letter["origin_message_id"] == stored[number]["DLQ_ORIGIN_MESSAGE_ID"]
    assert numbers(show(home, topic, "--tag", "paid")) == [1, 3, 5]
    assert numbers(show(home, topic, "--key", "k4")) == [4]
    assert numbers(show(home, topic, "--reason", "NO STOCK")) == [1, 2, 3, 4, 5]
    assert show(home, topic, "--topic", "another") == []
    middle = found[3]["dead_ms"]
    earlier = show(home, topic, "--before", middle)
    later = show(home, topic, "--since", middle)
    assert numbers(earlier + later) == list(range(LETTERS))
    assert {letter["dead_ms"] < middle for letter in earlier} <= {True}
    assert show(home, topic, "--offset", 2, "--limit", 2) == found[2:4]
    text = command("dlq", "show", f"g-{topic}", "--limit", 2, "--home", home).stdout
    assert "there are more: --offset 2" in text
    assert "no stock for" in text


def dead_letters_of(home: Path, topic: str) -> dict[str, dict[str, str]]:
    from gantrymq.shm.properties import parse_properties

    with PullConsumer(
        f"dlq-{topic}", [f"%DLQ%g-{topic}"], home=home, consume_from=FIRST
    ) as consumer:
        found: dict[str, dict[str, str]] = {}
        while len(found) < LETTERS:
            batch = consumer.poll(timeout=PATIENCE_S)
            assert len(batch), found
            parsed = [parse_properties(bytes(stored)) for stored in batch.raw_properties]
            found |= {properties["number"]: properties for properties in parsed}
    return found


def test_letters_are_named_by_offset_and_id(home: Path, topic: str, tmp_path: Path) -> None:
    """As a letter and as the message that it was; what is not there is named, nothing is done."""
    group, at = f"g-{topic}", ("--home", home)
    found = show(home, topic)
    assert show(home, topic, "--at", 4, "--at", 1) == [found[1], found[4]]
    assert show(home, topic, "--id", found[2]["message_id"]) == [found[2]]
    assert show(home, topic, "--id", found[3]["origin_message_id"], "--at", 3) == [found[3]]
    assert show(home, topic, "--at", 3, "--id", found[2]["message_id"]) == []
    file = tmp_path / "some.jsonl"
    dry = ("dlq", "export", group, file, "--at", 1, "--at", 2, "--dry-run", *at)
    (told,) = rows(*dry)
    assert (told["dry_run"], told["exported"], told["topics"]) == (True, 2, {topic: 2})
    assert command(*dry).stdout == f"{topic}  2\n2 would be written; no file was made\n"
    assert not file.exists()
    (told,) = rows("dlq", "export", group, file, "--at", 1, *at)
    assert (told["dry_run"], told["exported"]) == (False, 1)
    assert json.loads(file.read_text())["properties"] == found[1]["properties"]
    taken = command(*dry)
    assert (taken.returncode, taken.stdout) == (ExitCode.USAGE, "")
    nowhere = command(*dry[:3], tmp_path / "no" / "some.jsonl", *dry[4:])
    assert (nowhere.returncode, nowhere.stdout) == (ExitCode.IO_ERROR, "")
    (sent,) = rows("dlq", "resend", group, "--id", found[0]["message_id"], *at)
    assert (sent["resent"], sent["topics"]) == (1, {topic: 1})
    assert [letter["offset"] for letter in show(home, topic) if letter["resent"]] == [0]
    (gone,) = rows("dlq", "purge", group, "--at", 5, *at)
    assert gone["purged"] == 1
    for line in (
        ("show", group, "--at", 5), ("resend", group, "--at", 0, "--at", 99),
        ("purge", group, "--id", "none", "--at", 0), ("export", group, tmp_path / "no", "--at", 99),
    ):  # fmt: skip
        ran = command("dlq", *line, *at)
        assert (ran.returncode, ran.stdout) == (ExitCode.USAGE, ""), ran
        assert f"dlq show {group}` shows all" in ran.stderr
    assert not (tmp_path / "no").exists()
    assert numbers(show(home, topic)) == numbers(found[:5])


def test_letters_are_sent_again_once(home: Path, topic: str) -> None:
    group = ("dlq", "resend", f"g-{topic}")
    before = content(home, topic, LETTERS)
    (dry,) = rows(*group, "--dry-run", "--home", home)
    assert (dry["dry_run"], dry["resent"], dry["topics"]) == (True, LETTERS, {topic: LETTERS})
    assert listed(home)[f"g-{topic}"]["resent"] == 0
    (paid,) = rows(*group, "--tag", "paid", "--home", home)
    assert (paid["resent"], paid["resent_before"], paid["failed"]) == (3, 0, 0)
    assert [letter["resent"] for letter in show(home, topic, "--tag", "paid")] == [True] * 3
    (rest,) = rows(*group, "--home", home)
    assert (rest["resent"], rest["resent_before"]) == (3, 3)
    (again,) = rows(*group, "--home", home)
    assert (again["resent"], again["resent_before"]) == (0, LETTERS)
    assert listed(home)[f"g-{topic}"]["resent"] == LETTERS
    doubled = content(home, topic, 2 * LETTERS)
    assert doubled == sorted(before * 2, key=repr)


def test_what_cannot_be_sent_again_is_told_and_kept(unique_name: str) -> None:
    topic, group = unique_name, "g-" + unique_name
    with Broker.temporary(auto_create_topic_enable=False) as broker:
        at = ("--home", broker.home)
        assert command("topic", "create", topic, *at).returncode == 0
        with Producer(broker.home) as producer:
            producer.send(topic, b"x")
        with PushConsumer(
            group, [topic], lambda _m: ConsumeResult.DEAD_LETTER, home=broker.home,
            consume_from=FIRST,
        ):  # fmt: skip
            poll_until(lambda: listed(broker.home), "it died", PATIENCE_S)
        deleted = command("topic", "delete", topic, *at)
        assert deleted.returncode == 0, deleted
        ran = command("dlq", "resend", group, *at)
        assert (ran.returncode, ran.stdout) == (ExitCode.DOES_NOT_HOLD, "0 sent again\n")
        assert "1 not sent: " in ran.stderr
        assert topic in ran.stderr
        assert [letter["resent"] for letter in show(broker.home, topic)] == [False]


def test_what_is_exported_can_be_sent(home: Path, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "dead.jsonl"
    ask = ("dlq", "export", f"g-{topic}", file, "--home", home)
    (told,) = rows(*ask)
    assert (told["exported"], told["topics"]) == (LETTERS, {topic: LETTERS})
    there = command(*ask)
    assert (there.returncode, there.stdout) == (ExitCode.USAGE, "")
    assert "name a new file" in there.stderr
    other = "back-" + topic
    sent = command("send", other, "--lines", "json", "--home", home, stdin=file.read_text())
    assert sent.returncode == 0, sent
    assert content(home, other, LETTERS) == content(home, topic, LETTERS)


@mends("S226")
def test_the_newest_letter_is_listed_though_later_ones_were_purged(home: Path, topic: str) -> None:
    group = f"g-{topic}"
    letters = show(home, topic)
    for left in range(LETTERS - 1, 0, -1):
        ran = command("dlq", "purge", group, "--at", letters[left]["offset"], "--home", home)
        assert ran.returncode == 0, ran
        assert listed(home)[group]["newest_ms"] == letters[left - 1]["dead_ms"]


def test_what_is_purged_is_not_shown_nor_sent(home: Path, topic: str) -> None:
    group = f"g-{topic}"
    (dry,) = rows("dlq", "purge", group, "--dry-run", "--home", home)
    assert dry == {"group": group, "dry_run": True, "purged": LETTERS}
    assert numbers(show(home, topic)) == list(range(LETTERS))
    (some,) = rows("dlq", "purge", group, "--tag", "paid", "--home", home)
    assert some["purged"] == 3
    assert numbers(show(home, topic)) == [0, 2, 4]
    assert listed(home)[group]["messages"] == 3
    (sent,) = rows("dlq", "resend", group, "--dry-run", "--home", home)
    assert sent["resent"] == 3
    (rest,) = rows("dlq", "purge", group, "--home", home)
    assert rest["purged"] == 3
    assert show(home, topic) == []
    assert group not in listed(home)


def test_what_was_done_is_kept_by_copies_and_checked(
    home: Path, topic: str, tmp_path: Path
) -> None:
    group, store, saved = f"g-{topic}", tmp_path / "copy" / "store", tmp_path / "saved"
    rows("dlq", "purge", group, "--tag", "paid", "--home", home)
    rows("dlq", "resend", group, "--tag", "open", "--home", home)
    copied = command("store", "backup", tmp_path / "copy", "--home", home)
    assert copied.returncode == 0, copied
    command("store", "verify", "--salvage", saved, store)
    kept = store / FILE
    assert kept.read_bytes() == (saved / FILE).read_bytes() == (home / "store" / FILE).read_bytes()
    marks = json.loads(kept.read_text())["groups"][group]["0"]
    assert [sum(end - first for first, end in marks[name]) for name in marks] == [3, 3]
    assert not [item for item in verify(store, None).findings if FILE in str(item)]
    kept.write_bytes(kept.read_bytes().replace(b"purged", b"Purged", 1))
    assert [item for item in verify(store, None).findings if FILE in str(item)]


def test_mistakes_with_dead_letters_are_named(home: Path, topic: str) -> None:
    for line, text in (
        (("dlq", "show", "nobody"), "there is no group nobody"),
        (("dlq", "purge", f"g-{topic}", "--before", "soon"), "2026-01-31T08:00"),
        (("dlq", "list", "nobody"), "there is no group nobody"),
        (("delayed", "recall", topic, "nothing"), "is no recall handle"),
    ):
        ran = command(*line, "--home", home)
        assert (ran.returncode, ran.stdout) == (ExitCode.USAGE, ""), ran
        assert text in ran.stderr


@mends("S273")
def test_what_is_noted_as_sent_again_is_durable(unique_name: str) -> None:
    """Whatever level its topic has: nobody else asks for a sync here."""
    with Broker.temporary(flush_interval_commit_log=60_000) as broker:
        with Producer(broker.home) as producer:
            producer.send(unique_name, b"x", properties={"number": "0"})
        with PushConsumer(
            "g", [unique_name], fail, home=broker.home, consume_from=FIRST, max_attempts=1
        ):
            poll_until(lambda: "g" in listed(broker.home), "it died", PATIENCE_S)
        (sent,) = rows("dlq", "resend", "g", "--home", broker.home)
        assert sent["resent"] == 1
        board = find_board(broker.home)
        assert board is not None
        assert board.word(layout.BOARD_DURABLE) == board.word(layout.BOARD_APPENDED)
