"""The command line as a user meets it: output, errors that say what to do, exit codes of api.md."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from gantrymq.clients.queries.client import Client
from gantrymq.shm.codes import ExitCode
from gantrymq.shm.errors import BrokerGone
from gantrymq.temporary import Broker
from tests.support.brokers import command
from tests.support.forked import run_forked
from tests.support.trials import mends

#: What is said of a setting.
SETTING = {"name", "value", "unit", "default", "origin", "meaning", "allowed"}


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with Broker.temporary() as broker:
        yield broker.home


def rows(*arguments: object, stdin: str = "") -> list[dict[str, Any]]:
    ran = command(*arguments, "--json", stdin=stdin)
    assert ran.returncode == 0, ran
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_serve_can_check_and_show_its_settings(tmp_path: Path) -> None:
    (tmp_path / "gantrymq.toml").write_text("sessions_max = 7\n")
    shown = {row["name"]: row for row in rows("serve", "--print-config", "--home", tmp_path)}
    assert shown["sessions_max"]["value"] == 7
    assert shown["sessions_max"]["origin"].endswith("gantrymq.toml")
    assert shown["max_message_size"]["unit"] == "bytes"
    assert command("serve", "--check", "--home", tmp_path).returncode == 0
    text = command("serve", "--print-config", "--home", tmp_path, "--set", "broker_name=x").stdout
    (tmp_path / "gantrymq.toml").write_text(text)
    again = {row["name"]: row for row in rows("serve", "--print-config", "--home", tmp_path)}
    assert {name: row["value"] for name, row in again.items()} == {
        name: row["value"] for name, row in shown.items()
    } | {"broker_name": "x"}, "the text is a gantrymq.toml that says the same"
    assert all(set(row) == SETTING for row in again.values())
    assert all(
        row["meaning"] in " ".join(text.replace("\n# ", " ").split()) for row in again.values()
    )
    wrong = command("serve", "--check", "--home", tmp_path, "--set", "sesions_max=3")
    assert wrong.returncode == ExitCode.USAGE
    assert "did you mean 'sessions_max'" in wrong.stderr
    assert not (tmp_path / "store").exists()


def test_settings_are_checked_against_the_store(home: Path) -> None:
    """Sizes that a store was made with are its own, and others are refused before a start."""
    shown = {row["name"]: row for row in rows("serve", "--print-config", "--home", home)}
    size = shown["mapped_file_size_commit_log"]
    assert (size["value"], size["origin"]) == (16 << 20, "the store (gantry/store.json)")
    given = ("--set", "mapped_file_size_commit_log=1048576")
    wrong = command("serve", "--check", "--home", home, *given)
    assert wrong.returncode == ExitCode.USAGE
    assert "16777216 in this store" in wrong.stderr


def test_without_a_broker_the_code_is_69_and_the_text_helps(tmp_path: Path) -> None:
    for arguments in (
        ("status",),
        ("topic", "list"),
        ("topic", "create", "orders"),
        ("send", "orders", "--body", "x"),
    ):
        ran = command(*arguments, "--home", tmp_path)
        assert ran.returncode == ExitCode.NO_BROKER, ran
        assert "gantrymq serve" in ran.stderr
        assert not ran.stdout


def test_wrong_usage_is_2() -> None:
    assert command("topic", "create").returncode == ExitCode.USAGE
    assert command("no-such-command").returncode == ExitCode.USAGE


def test_status_shows_the_board(home: Path) -> None:
    (row,) = rows("status", "--home", home)
    assert row["state"] == "ready"
    assert row["log"]["durable_lag_bytes"] >= 0
    names = [process["agent"] for process in row["processes"]]
    assert names == [
        "supervisor",
        "writer",
        "flusher",
        "reader",
        "groups",
        "scheduler",
        "txn_checker",
        "housekeeper",
    ]
    assert "ready" in command("status", "--home", home).stdout


def test_status_answers_when_the_broker_hangs(home: Path) -> None:
    (row,) = rows("status", "--home", home)
    pid = row["processes"][0]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        assert rows("status", "--home", home)[0]["epoch"] == row["epoch"]
        assert command("topic", "list", "--home", home).returncode == 0
    finally:
        os.kill(pid, signal.SIGCONT)


def test_status_after_a_kill_says_that_nothing_runs() -> None:
    with Broker.temporary() as broker:
        broker.process.kill()
        broker.process.wait()
        ran = command("status", "--home", broker.home)
        assert ran.returncode == ExitCode.NO_BROKER
        assert "no broker runs" in ran.stderr


def test_the_life_of_a_topic(home: Path) -> None:
    made = rows(
        "topic", "create", "cli-life", "--queues", 3, "--durability", "durable", "--home", home
    )
    assert made == [{"topic": "cli-life", "queues": 3, "durability": "durable"}]
    assert "cli-life" in [row["topic"] for row in rows("topic", "list", "--home", home)]
    (described,) = rows("topic", "describe", "cli-life", "--home", home)
    assert [queue["queue"] for queue in described["queue_offsets"]] == [0, 1, 2]
    assert command("topic", "create", "cli-life", "--home", home).returncode == ExitCode.USAGE
    assert rows("topic", "delete", "cli-life", "--home", home)[0]["deleted"] is True
    gone = command("topic", "describe", "cli-life", "--home", home)
    assert gone.returncode == ExitCode.USAGE
    assert "topic list" in gone.stderr


def test_a_name_that_breaks_a_rule(home: Path) -> None:
    """CQ-100."""
    ran = command("topic", "create", "with blank", "--home", home)
    assert ran.returncode == ExitCode.USAGE
    assert "letters, digits" in ran.stderr
    system = command("topic", "create", "TBW102", "--home", home)
    assert system.returncode == ExitCode.NOT_PERMITTED


def test_lines_go_in_and_come_out(home: Path) -> None:
    sent = rows("send", "cli-lines", "--tag", "a", "--home", home, stdin="one\ntwo\n\nfour\n")
    assert len(sent) == 4
    assert len({row["message_id"] for row in sent}) == 4
    got = rows("receive", "cli-lines", "--group", "g1", "--max", 4, "--wait", 30, "--home", home)
    assert sorted(row["body"] for row in got) == ["", "four", "one", "two"]
    assert {row["tag"] for row in got} == {"a"}
    assert {(row["queue"], row["queue_offset"]) for row in got} == {
        (row["queue"], row["queue_offset"]) for row in sent
    }
    # The group has committed them.
    assert rows("receive", "cli-lines", "--group", "g1", "--wait", 0.3, "--home", home) == []


def test_json_lines_carry_tag_keys_and_properties(home: Path) -> None:
    line = {"body": "x", "tag": "t", "keys": ["k1", "k2"], "properties": {"region": "eu"}}
    rows("send", "cli-json", "--lines", "json", "--home", home, stdin=json.dumps(line) + "\n")
    arguments = ("--group", "g", "--max", 1, "--wait", 30, "--home", home)
    (got,) = rows("receive", "cli-json", *arguments)
    assert (got["body"], got["tag"], got["keys"]) == ("x", "t", ["k1", "k2"])
    assert got["properties"]["region"] == "eu"
    bad = command("send", "cli-json", "--lines", "json", "--home", home, stdin='{"tag": "x"}\n')
    assert bad.returncode == ExitCode.USAGE
    assert "line 1" in bad.stderr


def test_a_store_can_be_dumped_and_verified(home: Path) -> None:
    rows("send", "cli-store", "--home", home, "--durability", "durable", stdin="one\ntwo\n")
    lines = rows("store", "dump", home / "store")
    assert {"meta", "record", "summary"} <= {line["kind"] for line in lines}
    assert [line for line in lines if line["kind"] == "record" and line["topic"] == "cli-store"]
    verified = command("store", "verify", home / "store")
    assert verified.returncode == 0, verified


def test_a_damaged_store_does_not_verify() -> None:
    with Broker.temporary() as broker:
        rows("send", "t", "--home", broker.home, stdin="one\ntwo\n")
        broker.stop()
        log = broker.home / "store" / "commitlog" / ("0" * 20)
        with log.open("r+b") as file:
            file.seek(88)
            byte = file.read(1)
            file.seek(88)
            file.write(bytes([byte[0] ^ 1]))
        ran = command("store", "verify", broker.home / "store")
        assert ran.returncode == ExitCode.DOES_NOT_HOLD, ran
        assert "Traceback" not in ran.stderr
        settings = broker.home / "settings"
        settings.write_text("")
        parsed = command("store", "verify", broker.home / "store", "--settings", settings)
        ran.args = parsed.args
        assert vars(parsed) == vars(ran), "the same answer without the parser of options"


@pytest.mark.parametrize("given", [[], ["--settings"], ["--jsn", "."], ["."] * 2, ["absent"]])
def test_a_wrong_call_of_verify_is_refused_by_name(given: list[str]) -> None:
    ran = command("store", "verify", *given)
    assert ran.returncode == ExitCode.USAGE
    assert "Error:" in ran.stderr


def test_a_reader_of_the_output_may_leave(home: Path) -> None:
    """`| head` ends without a trace."""
    read, write = os.pipe()
    os.close(read)
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "gantrymq", "serve", "--print-config"],
        stdout=write, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(write)
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("streams", ["<&-", ">&-", "<&- >&-", "2>&-", "<&- >&- 2>&-"])
def test_a_standard_stream_may_be_closed(home: Path, streams: str) -> None:
    """As supervisors and cron do; no file of ours takes its place."""
    call = f"{sys.executable} -P -m gantrymq send closed --body x --home {home} {streams}"
    ran = subprocess.run(["sh", "-c", call], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    gone = f"{sys.executable} -P -m gantrymq status --home {home}/no {streams}"
    ran = subprocess.run(["sh", "-c", gone], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (ExitCode.NO_BROKER, "")


def test_a_send_that_ends_early_says_what_is_stored(home: Path) -> None:
    """Whoever repeats the rest has to know; a failed output is told apart from a full store."""
    lines = '{"body": "1"}\n{"body": "2"}\n{"body": "3", "tag": 5}\n{"body": "4"}\n'
    ran = command("send", "early", "--lines", "json", "--json", "--home", home, stdin=lines)
    assert ran.returncode == ExitCode.USAGE
    assert "line 3: tag is 5" in ran.stderr
    assert "stored before that: 2" in ran.stderr
    assert len(ran.stdout.splitlines()) == 2
    for as_json in ("", "--json"):
        call = f"{sys.executable} -P -m gantrymq send early --home {home} {as_json} > /dev/full"
        ran = subprocess.run(
            ["sh", "-c", call], input="3\n", capture_output=True, text=True, check=False
        )
        assert ran.returncode == ExitCode.IO_ERROR
        assert "standard output" in ran.stderr
        assert "stored: 1" in ran.stderr
    got = rows("receive", "early", "--group", "g", "--max", 4, "--wait", 30, "--home", home)
    assert sorted(row["body"] for row in got) == ["1", "2", "3", "3"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"body": "x", "keys": 5}', "keys is 5"),
        ('{"body": "x", "keys": [5]}', "key is int"),
        ('{"body": "x", "properties": [1]}', "properties is [1]"),
        ('{"body": "x", "delay": "soon"}', "delay is"),
        ('{"body": "x", "body_base64": "eA=="}', "give one"),
    ],
)
def test_a_line_of_other_kinds_is_refused(home: Path, line: str, said: str) -> None:
    ran = command("send", "kinds", "--lines", "json", "--home", home, stdin=line + "\n")
    assert ran.returncode == ExitCode.USAGE
    assert said in ran.stderr


def test_an_empty_home_is_no_working_directory() -> None:
    for call in (("status",), ("serve", "--check")):
        ran = command(*call, "--home", "")
        assert ran.returncode == ExitCode.USAGE
        assert "empty" in ran.stderr


def test_the_version_is_told_without_a_command() -> None:
    shown = command("--version")
    assert shown.returncode == 0
    assert shown.stdout.strip() == version("gantrymq")


@mends("S256", "S260")
@pytest.mark.parametrize("words", [
    "status", "get abc", "query t", "delayed list", "dlq list g", "tx list", "tx show abc",
    "top --once", "metrics", "topic list", "group list", "tail t",
])  # fmt: skip
@pytest.mark.parametrize("named", ["", "file", "file/below"])
def test_where_no_home_can_be_there_is_no_broker(words: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run_forked([*words.split(), "--home", str(tmp_path / named)])
    assert done.returncode == ExitCode.NO_BROKER, done
    assert str(tmp_path) in done.stderr
    assert "Errno" not in done.stderr
    with pytest.raises(BrokerGone):
        Client(tmp_path / named)
    with pytest.raises(BrokerGone):
        Client(tmp_path / (300 * "a"))


@mends("S259")
@pytest.mark.parametrize(("line", "told"), [
    ("null", "no object"), ("[]", "no object"), ("{}", "neither body"), ("{", "no JSON"),
    ('{"body": "x", "body_base64": "eA=="}', "both body"), ('{"body_base64": 5}', "base64"),
    ('{"body": "x", "keys": [1]}', "key"), ('{"body": "x", "properties": {"a": 1}}', "a"),
    ('{"body": "x", "delay": -1}', "delay"), ('{"body": "x", "tag": 5}', "tag"),
    ('{"body": "x", "more": 5}', "more"), ('{"body": "\\ud800"}', "UTF-8"),
])  # fmt: skip
def test_a_wrong_line_is_named_in_plain_words(home: Path, line: str, told: str) -> None:
    text = '{"body": "first"}\n' + line + "\n"
    done = command("send", "wrong-lines", "--lines", "json", "--home", home, stdin=text)
    assert done.returncode == ExitCode.USAGE
    assert "line 2: " in done.stderr
    assert told in done.stderr
    assert "stored before that: 1" in done.stderr
    assert not re.search("NoneType|indices|KeyError", done.stderr)
