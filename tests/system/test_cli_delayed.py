"""`gantrymq delayed` against a running broker, and a stopped one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gantrymq.clients.producer import Producer
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.push.consumeresult import ConsumeResult
from gantrymq.clients.recalloutcome import RecallOutcome
from gantrymq.shm.codes import ExitCode
from gantrymq.temporary import Broker
from tests.support.applications import bodies_of
from tests.support.brokers import command
from tests.support.push import FIRST, LEVELS, PATIENCE_S
from tests.support.watchdog import poll_until

HOUR_S = 3600


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with Broker.temporary(message_delay_level=LEVELS) as broker:
        yield broker.home


def rows(*arguments: object) -> list[dict[str, Any]]:
    ran = command(*arguments, "--json")
    assert ran.returncode == 0, ran
    return [json.loads(line) for line in ran.stdout.splitlines()]


def waiting(home: Path, topic: str, *options: object) -> list[dict[str, Any]]:
    return rows("delayed", "list", "--topic", topic, *options, "--home", home)


def test_delayed_messages_are_listed_and_recalled(home: Path, unique_name: str) -> None:
    """DT-70: of all that wait, the next one first; neither what was delivered nor recalls."""
    topic = unique_name
    with Producer(home) as producer:
        receipts = [
            producer.send(topic, b"x" * number, delay=HOUR_S * number) for number in (3, 1, 2)
        ]
        other = producer.send("other-" + topic, f"REAL_TOPIC\x01{topic}\x02".encode(), delay=60)
        producer.send(topic, b"soon", delay=0.01)
        producer.send(topic, b"level", delay_level=1)
    last, first, second = receipts
    poll_until(lambda: len(waiting(home, topic)) == 3, "the others are delivered", PATIENCE_S)
    found = waiting(home, topic)
    assert [row["message_id"] for row in found] == [r.message_id for r in (first, second, last)]
    assert [row["recall_handle"] for row in found] == [
        r.recall_handle for r in (first, second, last)
    ]
    assert [(row["size"], row["kind"]) for row in found] == [(n, "exact") for n in (1, 2, 3)]
    gaps = [b["due_ms"] - a["due_ms"] for a, b in pairwise(found)]
    assert all(abs(gap - HOUR_S * 1000) < 60_000 for gap in gaps)
    assert waiting(home, topic, "--limit", 1) == found[:1]
    assert [row["message_id"] for row in waiting(home, "other-" + topic)] == [other.message_id]
    ask = ("delayed", "recall", topic, second.recall_handle, "--home", home)
    assert command(*ask).stdout == "cancelled\n"
    assert [row["message_id"] for row in waiting(home, topic)] == [
        first.message_id, last.message_id
    ]  # fmt: skip
    handles = command("delayed", "list", "--topic", topic, "--handles", "--home", home).stdout
    assert handles.split() == [first.recall_handle, last.recall_handle]
    ran = command("delayed", "recall", topic, "-", "--home", home, stdin="junk\n" + handles)
    assert (ran.returncode, ran.stdout) == (2, "2 of 3 cancelled, 1 no handle\n")
    assert "is no recall handle" in ran.stderr
    assert waiting(home, topic) == []


def test_waiting_messages_are_chosen_and_a_dry_run_recalls_none(
    home: Path, unique_name: str
) -> None:
    """By tag, key, kind and time; a dry run says what waits, and all of it goes on waiting."""
    topic, start = unique_name, time.time_ns() // 1_000_000
    with Producer(home) as producer:
        plain = [
            producer.send(
                topic, b"TAGS\x01b\x02", tag="ab"[number % 2], keys=["all", f"k{number}"],
                delivery_timestamp=start + HOUR_S * 1000 * (number + 1),
            )
            for number in range(4)
        ]  # fmt: skip
        level = producer.send(topic, b"x", tag="b", delay_level=18)
    sent = [receipt.message_id for receipt in plain]
    poll_until(lambda: len(waiting(home, topic)) == 5, "all are dispatched", PATIENCE_S)

    def ids(*options: object) -> list[str]:
        return [row["message_id"] for row in waiting(home, topic, *options)]

    assert set(ids("--tag", "b")) == {sent[1], sent[3], level.message_id}
    assert ids("--tag", "b", "--kind", "exact") == [sent[1], sent[3]]
    assert ids("--kind", "level") == [level.message_id]
    assert ids("--kind", "absent") == []
    assert ids("--key", "k2") == [sent[2]]
    assert ids("--key", "k") == ids("--tag", "TAGS") == ids("--key", "") == []
    due = start + HOUR_S * 1000 * 2
    assert ids("--from", due, "--until", due + 1) == [sent[1]]
    assert ids("--kind", "exact", "--before", due) == sent[:1]
    assert ids("--since", due) == sent[1:]
    handles = [receipt.recall_handle for receipt in plain]
    gone = ("delayed", "recall", topic, handles[3], "--home", home)
    assert command(*gone, "--dry-run").stdout == "would be cancelled\n"
    assert command(*gone).returncode == 0
    ask = ("delayed", "recall", topic, "-", "--dry-run", "--home", home)
    ran = command(*ask, stdin="\n".join(str(handle) for handle in handles))
    assert ran.returncode == ExitCode.DOES_NOT_HOLD
    assert ran.stdout == "3 of 4 would be cancelled, 1 not waiting; nothing was changed\n"
    ran = command(*ask, "--json", stdin=f"{handles[3]}\n{handles[0]}\n")
    told = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [(row["outcome"], row["dry_run"]) for row in told] == [
        ("not_waiting", True), ("cancelled", True)
    ]  # fmt: skip
    assert ids("--kind", "exact") == sent[:3]


def test_messages_are_sent_with_a_delay(home: Path, unique_name: str) -> None:
    """All by the option, or one by a field of its line; the handle cancels it."""
    lines = '{"body": "late"}\n{"body": "later", "delay": 7200}\n'
    ask = ("send", unique_name, "--lines", "json", "--delay", "3600", "--home", home, "--json")
    sent = [json.loads(line) for line in command(*ask, stdin=lines).stdout.splitlines()]
    ran = command("delayed", "list", "--topic", unique_name, "--home", home, "--json")
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [row["recall_handle"] for row in found] == [row["recall_handle"] for row in sent]
    assert 3500 < found[1]["due_ms"] / 1000 - found[0]["due_ms"] / 1000 < 3700
    for row in sent:
        ran = command("delayed", "recall", unique_name, row["recall_handle"], "--home", home)
        assert ran.returncode == 0
    ran = command("send", unique_name, "--body", "x", "--delay", "-1", "--home", home)
    assert ran.returncode == 2
    assert "delay" in ran.stderr


def test_a_recall_that_is_too_late_says_so(home: Path, unique_name: str) -> None:
    with Producer(home) as producer:
        receipt = producer.send(unique_name, b"x", delay=0.01)
    bodies_of(home, unique_name, 1)
    ran = command("delayed", "recall", unique_name, receipt.recall_handle, "--home", home, "--json")
    assert ran.returncode == ExitCode.DOES_NOT_HOLD
    assert json.loads(ran.stdout)["outcome"] in ("already_delivered", "unknown_handle")


def assert_told_without_a_broker(home: Path, topic: str, before: list[dict[str, Any]]) -> None:
    """What waits is listed by the log; a recall is refused, which says what to do."""
    found = waiting(home, topic)
    # A delay's time is that of the wall clock here, of the clock that nobody sets there.
    assert all(abs(a["due_ms"] - b["due_ms"]) < 60_000 for a, b in zip(found, before, strict=True))
    kept = [name for name in before[0] if name != "due_ms"]
    assert [[row[name] for name in kept] for row in found] == [
        [row[name] for name in kept] for row in before
    ]
    assert waiting(home, topic, "--limit", 1) == found[:1]
    assert waiting(home, "other-" + topic) == []
    (handle,) = [row["recall_handle"] for row in found if row["recall_handle"]]
    for given in (handle, "-"):
        ran = command("delayed", "recall", topic, given, "--home", home, stdin=f"{handle}\n")
        assert (ran.returncode, ran.stdout) == (ExitCode.NO_BROKER, ""), ran
        assert f"gantrymq serve --home {home}`" in ran.stderr
        assert "recall again" in ran.stderr


def test_without_a_broker_or_a_store_nothing_is_listed(tmp_path: Path) -> None:
    ran = command("delayed", "list", "--home", tmp_path)
    assert (ran.returncode, ran.stdout) == (ExitCode.NO_BROKER, "")
    assert f"no broker runs at {tmp_path}" in ran.stderr


def test_what_waits_is_the_same_after_a_restart(unique_name: str) -> None:
    """Levels are listed too; what the note counts is not, nor what was recalled before it."""
    topic = unique_name
    with Broker.temporary() as broker:
        with Producer(broker.home) as producer:
            level = producer.send(topic, b"x", delay_level=18)
            timer = producer.send(topic, b"x", delay=2 * HOUR_S)
            recalled = producer.send(topic, b"x", delay=HOUR_S)
            producer.send(topic, b"x", delay=0.01)
            assert recalled.recall_handle
            outcome = producer.recall_message(topic, recalled.recall_handle)
            assert outcome == RecallOutcome.CANCELLED
        bodies_of(broker.home, topic, 1)
        poll_until(lambda: len(waiting(broker.home, topic)) == 2, "all are dispatched")
        before = waiting(broker.home, topic)
        assert {row["message_id"]: row["kind"] for row in before} == {
            level.message_id: "level 18", timer.message_id: "exact"
        }  # fmt: skip
        assert [row["recall_handle"] for row in before if row["kind"] != "exact"] == [None]
        broker.stop()
        assert_told_without_a_broker(broker.home, topic, before)
        broker.start()
        note = json.loads((broker.home / "store" / "gantry" / "schedule.json").read_text())
        assert (note["timers_next"], note["scanned"] > 0) == (4, True)
        assert waiting(broker.home, topic) == before
        shown = command("delayed", "list", "--home", broker.home).stdout
        assert shown.endswith("2 waiting\n")


def metrics(home: Path) -> dict[tuple[str, str], float]:
    """Values by name and one label's value."""
    return {
        (row["name"], next(iter(row["labels"].values()), "")): row["value"]
        for row in rows("metrics", "--home", home)
    }


def test_what_waits_is_late_or_dead_is_shown(unique_name: str) -> None:
    """By status, top and metrics: pending by kind, lateness, dead letters by group."""
    topic, group = unique_name, "g-" + unique_name
    with Broker.temporary() as broker:
        home = broker.home
        (fresh,) = rows("status", "--home", home)
        nothing = dict.fromkeys(("levels", "timers", "delivered"), 0)
        late = dict.fromkeys(("late_p50_ms", "late_p99_ms", "late_max_ms"))
        assert fresh["delayed"] == nothing | late
        assert fresh["dead_letters"] == []
        with Producer(home) as producer:
            for _ in range(2):
                producer.send(topic, b"x", delay=HOUR_S)
            producer.send(topic, b"x", delay_level=18)
            for _ in range(5):
                producer.send(topic, b"soon", delay=0.8)  # it is read before it is due
        with PushConsumer(
            group, [topic], lambda _m: ConsumeResult.DEAD_LETTER, home=home, consume_from=FIRST
        ):
            poll_until(
                lambda: metrics(home).get(("gantrymq_dead_letters", group)) == 5, "all died", 30.0
            )
        wanted = {"levels": 1, "timers": 2, "delivered": 5}
        poll_until(
            lambda: wanted.items() <= rows("status", "--home", home)[0]["delayed"].items(),
            "a second has passed",
        )
        (shown,) = rows("status", "--home", home)
        delayed = shown["delayed"]
        assert 0 <= delayed["late_p50_ms"] <= delayed["late_p99_ms"] <= delayed["late_max_ms"]
        assert shown["dead_letters"] == [{"group": group, "messages": 5, "resent": 0}]
        assert "delayed: 2 timers and 1 of levels wait, 5 delivered, 99 % of them within" in (
            text := command("status", "--home", home).stdout
        )
        assert f"dead letters\ngroup{' ' * (len(group) - 5)}  messages  resent\n{group}" in text
        (top,) = rows("top", "--once", "--interval", 0.1, "--home", home)
        assert (top["delayed"]["waiting"], top["delayed"]["delivered_per_s"]) == (3, 0.0)
        assert top["delayed"]["late_p99_ms"] == delayed["late_p99_ms"]
        assert "3 delayed wait" in " ".join(
            command("top", "--once", "--interval", 0.1, "--home", home).stdout.split()
        )
        found = metrics(home)
        kinds = [found["gantrymq_delayed_messages", kind] for kind in ("level", "timer")]
        assert kinds == [1, 2]
        assert found["gantrymq_delayed_delivered_total", ""] == 5
        name = "gantrymq_delivery_lateness_seconds"
        assert found[f"{name}_bucket", "+Inf"] == found[f"{name}_count", ""] == 5
        assert found[f"{name}_sum", ""] <= 5 * found["gantrymq_delivery_lateness_max_seconds", ""]
        command("dlq", "resend", group, "--at", 0, "--home", home)
        command("dlq", "purge", group, "--at", 1, "--at", 2, "--home", home)
        (shown,) = rows("status", "--home", home)
        assert shown["dead_letters"] == [{"group": group, "messages": 3, "resent": 1}]
        assert metrics(home)["gantrymq_dead_letters_resent", group] == 1
