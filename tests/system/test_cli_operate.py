"""What an operator looks with: status, top, metrics, groups, single records, doctor."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gantrymq.brokerd.sample import rates, take
from gantrymq.cli.board import running_board
from gantrymq.cli.tail import _records
from gantrymq.cli.top import _looks
from gantrymq.cli.topic_show import find_topic
from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.producer import Producer
from gantrymq.shm.board import attach_board
from gantrymq.shm.codes import ExitCode
from gantrymq.shm.errors import BrokerGone
from gantrymq.shm.layout import RECORD_BODY_CRC
from gantrymq.temporary import Broker
from tests.support.applications import require_light
from tests.support.brokers import ServingBroker, command
from tests.support.forked import run_program, start_forked
from tests.support.terminal import Terminal
from tests.support.trials import mends
from tests.support.watchdog import poll_until

SENT = 40


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """Topic `seen` with 40 messages in 4 queues; group `half` has committed 10 of them."""
    with Broker.temporary() as broker:
        with Producer(broker.home) as producer:
            for number in range(SENT):
                producer.send("seen", b"body-%d" % number, tag="t", keys=["k"])
        first = ConsumeFrom.FIRST_OFFSET
        with PullConsumer("half", ["seen"], home=broker.home, consume_from=first) as consumer:
            taken = 0
            while taken < 10:
                taken += len(consumer.poll(max_messages=10 - taken, timeout=1.0))
            consumer.commit()
        yield broker.home


def rows(*arguments: object) -> list[dict[str, Any]]:
    ran = command(*arguments, "--json")
    assert ran.returncode == 0, ran
    return [json.loads(line) for line in ran.stdout.splitlines()]


#: The documented schema of `status --json`: docs/operate.md names each of these.
STATUS = {
    "home": str, "state": str, "epoch": str, "uptime_s": float, "failed_errno": int,
    "sessions": int, "topics": int, "queues": int, "places": dict, "store": dict, "log": dict,
    "transactions": dict, "delayed": dict, "processes": list, "groups": list,
    "dead_letters": list,
}  # fmt: skip
PARTS = {
    "store": {"segment_bytes", "segments", "log_bytes", "disk_free_bytes",
              "disk_used_percent", "disk_full"},
    "places": {
        "topics_used", "topics_max", "queues_used", "queues_max", "deleted_topics",
        "deleted_queues",
    },
    "log": {
        "appended", "settled", "durable", "dispatched", "indexed", "low", "durable_lag_bytes",
        "dispatch_lag_bytes", "index_lag_bytes",
    },
    "transactions": {"open", "oldest_s", "given_up", "checks"},
    "processes": {
        "agent", "pid", "restarts", "started_ms", "heartbeats", "busy_cycles", "work", "bytes",
        "refused", "cut_off",
    },
    "groups": {"group", "topic", "lag"},
    "delayed": {"levels", "timers", "delivered", "late_p50_ms", "late_p99_ms", "late_max_ms"},
}  # fmt: skip


def exported(home: Path) -> bool:
    """Whether the offsets' file, which is written every few seconds, knows the group."""
    file = home / "store" / "config" / "consumerOffset.json"
    return file.exists() and "@half" in file.read_text()


def test_status_has_the_documented_fields(home: Path) -> None:
    poll_until(lambda: exported(home), "offsets are exported")
    (shown,) = rows("status", "--home", home)
    assert {name: type(value) for name, value in shown.items()} == STATUS
    for name, fields in PARTS.items():
        items = shown[name] if isinstance(shown[name], list) else [shown[name]]
        assert items
        assert all(set(item) == fields for item in items), name
    assert shown["groups"] == [{"group": "half", "topic": "seen", "lag": SENT - 10}]
    assert shown["store"]["segments"] == 1
    text = Path("docs/operate.md").read_text(encoding="utf-8")
    names = [*STATUS, *(field for fields in PARTS.values() for field in fields)]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_metrics_are_what_prometheus_reads(home: Path) -> None:
    poll_until(lambda: exported(home), "offsets are exported")
    ran = command("metrics", "--home", home)
    assert ran.returncode == 0, ran
    families = {family.name: family for family in text_string_to_metric_families(ran.stdout)}
    assert all(name.startswith("gantrymq_") and f.documentation for name, f in families.items())
    lag = families["gantrymq_group_lag_messages"].samples
    assert sum(sample.value for sample in lag) == SENT - 10
    assert {sample.labels["queue"] for sample in lag} == {"0", "1", "2", "3"}
    ends = families["gantrymq_queue_max_offset"].samples
    assert sum(s.value for s in ends if s.labels["topic"] == "seen") == SENT
    beats = {s.labels["agent"]: s.value for s in families["gantrymq_agent_heartbeats"].samples}
    assert all(beats[agent] > 0 for agent in ("writer", "flusher", "reader", "groups"))
    states = {s.labels["state"]: s.value for s in families["gantrymq_state"].samples}
    assert [state for state, value in states.items() if value] == ["ready"]
    assert families["gantrymq_log_segments"].samples[0].value == 1
    found = {row["name"] for row in rows("metrics", "--home", home)}
    assert found == {sample.name for family in families.values() for sample in family.samples}


def test_a_textfile_is_replaced_again_and_again(tmp_path: Path) -> None:
    """`metrics_textfile`: by the supervisor, readable for a collector, never half."""
    settings = {"metrics_textfile": "out.prom", "metrics_interval": 1, "profile": "small"}
    with ServingBroker(tmp_path / "home", **settings) as broker:
        path = broker.wait_until_ready().home / "out.prom"
        poll_until(path.exists, "it is written")
        first = path.stat()
        assert first.st_mode & 0o777 == 0o644
        poll_until(lambda: path.stat().st_ino != first.st_ino, "it is replaced")
        assert list(text_string_to_metric_families(path.read_text()))
        assert broker.stop()[0] == ExitCode.OK


def test_a_textfile_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    settings = {"metrics_textfile": "no/such/folder/out.prom", "metrics_interval": 1}
    home = tmp_path / "home"
    checked = [f"--set={name}={value}" for name, value in settings.items()]
    found = command("serve", "--check", "--home", home, *checked)
    assert found.returncode == ExitCode.OK, "no stricter than a start"
    assert "no directory that this user may write to" in found.stderr
    with ServingBroker(home, **settings, profile="small") as broker:
        board = broker.wait_until_ready().board
        start = board.process(1)["heartbeat"]
        poll_until(lambda: board.process(1)["heartbeat"] > start + 3, "some seconds go by")
        code, lines = broker.stop()
    assert code == ExitCode.OK
    assert [line["event"] for line in lines].count("metrics_not_written") == 1


def test_top_shows_rates_and_needs_a_terminal(home: Path) -> None:
    (shown,) = rows("top", "--home", home, "--once", "--interval", 0.2)
    assert [row["agent"] for row in shown["agents"]][:2] == ["supervisor", "writer"]
    assert shown["groups"] == [
        {"group": "half", "topic": "seen", "queues": 4, "lag": SENT - 10, "committed_per_s": 0.0}
    ]
    (topic,) = [row for row in shown["topics"] if row["topic"] == "seen"]
    assert (topic["messages"], topic["sent_per_s"]) == (SENT, 0.0)
    # Idle agents beat once a second: a shorter look does not call them silent.
    assert {row["beats"] for row in shown["agents"]} <= {True, None}
    early, late = (take(running_board(home), {}, time_s) for time_s in (0.0, 5.0))
    late.agents["reader"].heartbeat = early.agents["reader"].heartbeat
    assert False in [row["beats"] for row in rates(early, late)["agents"]]
    once = command("top", "--home", home, "--once", "--interval", 0.1)
    assert once.returncode == 0
    assert "groups by lag" in once.stdout
    piped = command("top", "--home", home)
    assert piped.returncode == ExitCode.USAGE
    assert "--once" in piped.stderr


def test_top_refreshes_on_a_terminal_and_ends_with_the_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Broker.temporary() as broker, Terminal() as terminal:
        monkeypatch.setenv("TERM", "xterm")
        line = ["top", "--interval", "0.1", "--home", str(broker.home)]
        with start_forked(
            "gantrymq", line, stdout=terminal.slave, stderr=subprocess.PIPE, text=True
        ) as process:
            poll_until(lambda: terminal.read().count("topics by rate") >= 3, "it refreshes")
            with Producer(broker.home) as producer:
                producer.send("rising", b"x")
            poll_until(lambda: "rising" in terminal.read(), "a new topic is shown")
            broker.stop()

            def ended() -> bool:
                terminal.read()  # what nobody reads would hold it up
                return process.poll() is not None

            poll_until(ended, "it ends with the broker")
            _out, said = process.communicate()
    assert process.returncode == ExitCode.NO_BROKER
    assert "has ended" in said


def test_groups_are_listed_and_described(home: Path) -> None:
    (listed,) = [row for row in rows("group", "list", "--home", home) if row["group"] == "half"]
    wanted = {"group": "half", "topics": "seen", "queues": 4, "members": 0, "lag": SENT - 10}
    assert listed == wanted
    (described,) = rows("group", "describe", "half", "--home", home)
    assert described["lag"] == SENT - 10
    assert sum(queue["offset"] for queue in described["queues"]) == 10
    assert {queue["pid"] for queue in described["queues"]} == {None}
    assert "half" in command("group", "describe", "half", "--home", home).stdout
    missing = command("group", "describe", "none", "--home", home)
    assert missing.returncode == ExitCode.USAGE
    assert "group list" in missing.stderr


def test_a_group_shows_who_holds_its_queues_and_what_is_in_work(home: Path) -> None:
    first = ConsumeFrom.FIRST_OFFSET
    with PullConsumer("holder", ["seen"], home=home, consume_from=first) as consumer:
        batch = consumer.poll(max_messages=5, timeout=10.0)
        assert len(batch)

        def queues() -> list[dict[str, Any]]:
            (shown,) = rows("group", "describe", "holder", "--home", home)
            found: list[dict[str, Any]] = shown["queues"]
            return found

        poll_until(lambda: {q["pid"] for q in queues()} == {os.getpid()}, "the holder is shown")
        shown = rows("group", "list", "--home", home)
        assert [row["members"] for row in shown if row["group"] == "holder"] == [1]


@mends("S21")
def test_whoever_follows_a_board_ends_with_its_life(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another life may hold the lock at the next look: the board that is mapped is not its."""
    board = running_board(home)
    followers: list[Iterator[object]] = [
        _looks(home, 0.01),
        _records(home, board, find_topic(board, "seen"), (1, True)),
    ]
    for follower in followers:
        assert next(follower)
    sleeps = iter([None] * 100)  # and fails then
    monkeypatch.setattr("gantrymq.cli.tail.time", SimpleNamespace(sleep=lambda _: next(sleeps)))
    monkeypatch.setattr("gantrymq.clients.running.board_name", lambda home: "another")
    for follower in followers:
        with pytest.raises(BrokerGone, match="has ended"):
            list(islice(follower, 100))


def test_tail_is_no_member(home: Path) -> None:
    before = rows("group", "list", "--home", home)
    shown = rows("tail", "seen", "-n", 2, "--home", home)
    assert [row["queue"] for row in shown].count(0) == 2
    assert len(shown) == 8
    assert shown == sorted(shown, key=lambda row: row["position"])
    assert (shown[-1]["body"], shown[-1]["tag"], shown[-1]["keys"]) == ("body-39", "t", ["k"])
    assert command("tail", "seen", "-n", 0, "--home", home).stdout == ""
    assert rows("group", "list", "--home", home) == before


def test_tail_follows() -> None:
    with Broker.temporary() as broker, Producer(broker.home) as producer:
        producer.send("flow", b"first")
        line = ["tail", "flow", "-f", "--home", str(broker.home)]
        with start_forked(
            "gantrymq", line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout
            assert process.stdout.readline() == "first\n"
            producer.send("flow", b"second")
            assert process.stdout.readline() == "second\n"
            producer.close()
            broker.stop()
            _out, said = process.communicate(timeout=60)
    assert process.returncode == ExitCode.NO_BROKER
    assert "has ended" in said


def test_a_message_is_got_by_its_id(home: Path) -> None:
    """SF-31, SF-33: an offset message id is host and position."""
    with Producer(home) as producer:
        receipt = producer.send("got", b"found", tag="x", properties={"region": "eu"})
    (found,) = rows("get", receipt.offset_msg_id, "--home", home)
    assert (found["body"], found["tag"], found["topic"]) == ("found", "x", "got")
    assert (found["message_id"], found["offset_msg_id"]) == (
        receipt.message_id,
        receipt.offset_msg_id,
    )
    assert found["properties"]["region"] == "eu"
    assert (found["queue"], found["queue_offset"]) == (
        receipt.message_queue.queue_id,
        receipt.queue_offset,
    )
    assert rows("get", found["position"], "--home", home) == [found]
    for wrong in ("no-id", "12345678901234567890", str(1 << 40)):
        ran = command("get", wrong, "--home", home)
        assert (ran.returncode, ran.stdout) == (ExitCode.USAGE, ""), ran
    inside = command("get", found["position"] + 20, "--home", home)
    assert inside.returncode == ExitCode.USAGE
    assert f"the one at {found['position']}" in inside.stderr


def test_a_record_is_inspected_as_fields_and_bytes(home: Path) -> None:
    store = home / "store"
    (shown,) = rows("store", "inspect", 0, store)
    fields = shown["fields"]
    assert (shown["kind"], shown["ours"], fields["topic"]) == ("record", True, "seen")
    assert len(bytes.fromhex(shown["bytes"])) == fields["total_size"]
    log = (store / "commitlog" / f"{0:020d}").read_bytes()
    assert bytes.fromhex(shown["bytes"]) == log[: fields["total_size"]]
    assert rows("store", "inspect", fields["offset_msg_id"], "--home", home) == [shown]
    text = command("store", "inspect", 0, store).stdout
    assert re.search(r"^ +0  [0-9a-f ]{47}  ", text, re.MULTILINE)
    wrong = command("store", "inspect", 7, store)
    assert wrong.returncode == ExitCode.DOES_NOT_HOLD
    assert "record_around  0" in wrong.stdout


def test_damage_is_named_when_a_record_is_got() -> None:
    with Broker.temporary() as broker:
        with Producer(broker.home) as producer:
            receipt = producer.send("t", b"x" * 100)
        broker.stop()
        with (broker.home / "store" / "commitlog" / f"{0:020d}").open("r+b") as file:
            file.seek(RECORD_BODY_CRC)
            file.write(b"\x01\x02\x03\x04")
        got = command("get", receipt.offset_msg_id, "--home", broker.home)
        assert got.returncode == ExitCode.STORE
        assert "damaged" in got.stderr
        seen = command("store", "inspect", 0, "--home", broker.home, "--json")
        assert seen.returncode == ExitCode.DOES_NOT_HOLD
        assert json.loads(seen.stdout)["kind"] == "invalid"


def test_doctor_is_content_with_a_running_broker(home: Path) -> None:
    ran = command("doctor", "--home", home, "--json")
    findings = {row["check"]: row for row in map(json.loads, ran.stdout.splitlines())}
    wrong = [row for row in findings.values() if row["verdict"] == "wrong"]
    assert (ran.returncode, wrong) == (ExitCode.OK, [])
    assert findings["broker"]["found"] == "it runs and is ready"
    assert {"python", "packages", "/dev/shm", "kernel cache", "java", "disk"} <= set(findings)


def test_completion_knows_topics_and_groups(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_GANTRYMQ_COMPLETE", "complete_bash")
    monkeypatch.setenv("GANTRYMQ_HOME", str(home))

    def completed(line: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
        program = "import sys; sys.argv = ['gantrymq']; from gantrymq.cli.app import app; "
        return run_program(program + "app(prog_name='gantrymq')").stdout.split()

    assert completed("gantrymq topic describe se") == ["seen"]
    assert completed("gantrymq group describe ha") == ["half"]
    assert completed("gantrymq tail se") == ["seen"]
    assert "doctor" in completed("gantrymq d")


def test_looking_loads_neither_numpy_nor_numba(home: Path) -> None:
    looks = (
        ("status",), ("topic", "list"), ("topic", "create", "light"),
        ("top", "--once", "--interval", "0.1"), ("group", "list"), ("group", "describe", "half"),
        ("doctor",), ("metrics",), ("get", "0"), ("tail", "seen", "-n", "1"),
    )  # fmt: skip
    require_light([*((*look, "--home", home) for look in looks), ("--help",)])


def test_a_look_costs_the_board_and_small_files_only(home: Path) -> None:
    """Metrics are memory: no frame to the broker, no file of log or queues."""
    from gantrymq.brokerd.metrics import render
    from gantrymq.clients.home import read_board_file, store_of
    from gantrymq.shm.storage import PosixFile, PosixStorage

    opened: list[str] = []

    class Watched(PosixStorage):
        def open(self, name: str, *, write: bool = False) -> PosixFile:
            opened.append(name)
            return super().open(name, write=write)

    board = attach_board(read_board_file(home)["board"])
    assert render(board, Watched(str(store_of(home))))
    assert set(opened) <= {"config/consumerOffset.json", "config/consumerOffset.json.bak"}
