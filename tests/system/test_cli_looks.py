"""Commands that only look: quick, and the same by the parser of options; messages by their keys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.producer import Producer
from gantrymq.shm.codes import ExitCode
from gantrymq.temporary import Broker
from tests.support.brokers import command
from tests.support.forked import run_each
from tests.support.watchdog import poll_until


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """Topic `seen` with four messages; group `half` has committed some of them."""
    with Broker.temporary() as broker:
        with Producer(broker.home) as producer:
            for number in range(4):
                producer.send("seen", b"body-%d" % number, tag="t", keys=["k"])
        first = ConsumeFrom.FIRST_OFFSET
        with PullConsumer("half", ["seen"], home=broker.home, consume_from=first) as consumer:
            poll_until(lambda: len(consumer.poll(timeout=0.5)), "a message")
            consumer.commit()
        yield broker.home


def rows(*arguments: object) -> list[dict[str, Any]]:
    ran = command(*arguments, "--json")
    assert ran.returncode == 0, ran
    return [json.loads(line) for line in ran.stdout.splitlines()]


LOOKS = [
    ("status",), ("topic", "list"), ("topic", "list", "--system"), ("topic", "describe", "seen"),
    ("group", "list"), ("group", "describe", "half"), ("metrics",), ("get", "0"),
    ("dlq", "list"),
]  # fmt: skip
QUERY = ("query", "seen", "--key", "none")
#: These load numpy, by which what waits is told and the log is looked through, but no parser.
LARGE_LOOKS = [
    ("delayed", "list"), ("delayed", "list", "--topic", "seen", "--limit", "1"),
    ("delayed", "list", "--handles"), QUERY,
]  # fmt: skip


@pytest.mark.parametrize(
    ("looks", "banned"),
    [(LOOKS, "{'typer', 'numpy', 'numba'}"), (LARGE_LOOKS, "{'typer'}")],
    ids=["plain", "large"],
)
def test_looks_do_without_the_parser_of_options(
    home: Path, looks: list[tuple[str, ...]], banned: str
) -> None:
    """It would take longer than the rest."""
    code = (
        "import json, sys\nfrom gantrymq.cli import main\n"
        "for line in json.loads(sys.argv[1]):\n"
        "    sys.argv = ['gantrymq', *line]\n"
        "    try:\n        main()\n"
        "    except SystemExit as end:\n        assert not end.code, line\n"
        f"assert not {banned} & set(sys.modules)\n"
    )
    lines = [[*look, "--home", str(home)] for look in looks]
    line = [sys.executable, "-P", "-c", code, json.dumps(lines)]
    ran = subprocess.run(line, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran
    assert "no such" not in ran.stdout
    said = ("broker at", "seen", "half", "body-0") if looks is LOOKS else ("0 waiting",)
    assert all(word in ran.stdout for word in said)


@pytest.mark.parametrize("look", [*LOOKS, *LARGE_LOOKS[:2], QUERY], ids=" ".join)
def test_a_look_is_the_same_by_the_parser_of_options(home: Path, look: tuple[str, ...]) -> None:
    ran = run_each([(*look, "--home", home, "--json"), (*look, f"--home={home}", "--json")])
    assert [each.returncode for each in ran] == [0, 0], ran
    plain, parsed = ([json.loads(line) for line in each.stdout.splitlines()] for each in ran)
    assert [row.keys() for row in plain] == [row.keys() for row in parsed]
    assert look[0] in ("status", "metrics") or plain == parsed


@pytest.mark.parametrize("look", [*LOOKS, *LARGE_LOOKS[:1], QUERY], ids=" ".join)
def test_a_wrong_look_is_refused_by_the_parser_of_options(look: tuple[str, ...]) -> None:
    wrong = (["--hom"], ["--home"], ["--json", "surplus", "words"], [""])
    *refused, helped = run_each([(*look, *words) for words in (*wrong, ["--help"])])
    for ran in refused:
        assert (ran.returncode, ran.stdout) == (ExitCode.USAGE, ""), ran
    assert helped.returncode == ExitCode.OK


def test_a_message_is_got_by_its_key(home: Path) -> None:
    """SF-78, SF-82: `Aa#` and `BB#` have one hash, so the record has to decide."""
    with Producer(home) as producer:
        receipt = producer.send("Aa", b"first")
        producer.send("BB", b"other")
    wanted = ("get", receipt.message_id, "--home", home)
    (found,) = rows(*wanted)  # whether or not the index has it yet
    assert (found["body"], found["offset_msg_id"]) == ("first", receipt.offset_msg_id)
    assert found["message_id"] == receipt.message_id
    assert rows(*wanted, "--topic", "Aa") == [found]
    assert rows("get", receipt.offset_msg_id, "--home", home) == [found]
    other = command(*wanted, "--topic", "BB")
    assert (other.returncode, other.stdout) == (ExitCode.USAGE, "")
    assert f"no message has the id {receipt.message_id} in topic BB" in other.stderr


def test_it_is_shown_how_far_the_index_is(home: Path) -> None:
    def log() -> dict[str, Any]:
        (shown,) = rows("status", "--home", home)
        found: dict[str, Any] = shown["log"]
        return found

    with Producer(home) as producer:
        producer.send("seen", b"one more")
    poll_until(lambda: log()["index_lag_bytes"] == 0, "all is indexed")
    shown = log()
    assert shown["indexed"] == shown["appended"]
    named = [
        row for row in rows("metrics", "--home", home) if row["labels"] == {"position": "indexed"}
    ]
    assert [row["value"] for row in named] == [shown["indexed"]]


def test_a_group_is_described_by_queue(home: Path) -> None:
    """Who has a queue, how far it is, what is behind and for how long."""
    with Producer(home) as producer:
        producer.send("seen", b"nobody has read this")
    ran = command("group", "describe", "half", "--json", "--home", home)
    shown = json.loads(ran.stdout)
    queues = shown["queues"]
    assert {row["topic"] for row in queues} == {"seen"}
    assert shown["lag"] == sum(row["max_offset"] - row["offset"] for row in queues) > 0
    assert {row["session"] for row in queues} == {None}, "it has left"
    for row in queues:
        assert (row["oldest_ms"] is None) == (row["lag"] == 0)
        assert row["lag"] == 0 or 0 < row["oldest_ms"] < 3_600_000
    with PullConsumer("half", ["seen"], home=home) as consumer:
        poll_until(lambda: len(consumer.poll(timeout=0.5)), "a message")
        ran = command("group", "describe", "half", "--json", "--home", home)
        assert {row["pid"] for row in json.loads(ran.stdout)["queues"]} == {os.getpid()}
