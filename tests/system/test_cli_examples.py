"""Every command's help has an example that runs, `--json`, and its exit codes."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperCommand, TyperGroup

from gantrymq.cli.app import command_line
from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.producer import Producer
from gantrymq.shm.codes import ExitCode
from gantrymq.temporary import Broker
from tests.support.brokers import START_S, command
from tests.support.forked import CommandServer, Place, run_forked
from tests.support.watchdog import poll_until

#: Minutes; or run elsewhere, by tests/meta/test_bench_smoke.py as it stands, and by tests/spark.
_ONLY_PARSED = ("bench --quick", "bench --smoke", "ingest --store ~")
#: What a shell makes something else of, quotes apart.
_FOR_A_SHELL = re.compile(r"[|&;<>~$*?`]")
#: Until somebody ends them.
_ENDLESS = re.compile(r" (-f|--follow)\b|gantrymq serve --home \S+ --set")
#: Not while a broker has the store, and not to a folder outside of this test's.
_ON_A_STOPPED_STORE = re.compile(r" --salvage | store rebuild |gantrymq (handover|adopt) ")


def as_command(*names: str) -> TyperCommand | TyperGroup:
    found: object = command_line()
    for name in names:
        assert isinstance(found, TyperGroup)
        found = found.commands[name]
    assert isinstance(found, TyperCommand | TyperGroup)
    return found


def commands(*above: str) -> Iterator[tuple[str, ...]]:
    """Names of all commands, those in groups too."""
    group = as_command(*above)
    if not isinstance(group, TyperGroup):
        yield above
        return
    for name in group.commands:
        yield from commands(*above, name)


COMMANDS = tuple(commands())


def help_of(name: tuple[str, ...]) -> str:
    return as_command(*name).help or ""


def examples(name: tuple[str, ...]) -> list[str]:
    return re.findall(r"^Example: (.*\bgantrymq .*)$", help_of(name), re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_a_help_is_whole(name: tuple[str, ...]) -> None:
    """An example of this very command, its exit codes among those documented, and --json."""
    assert examples(name)
    assert all(f"gantrymq {' '.join(name)}" in example for example in examples(name))
    codes = re.search(r"^Exit codes: ((?:.|\n)*?)(?:\n\n|\Z)", help_of(name), re.MULTILINE)
    assert codes
    named = [int(code) for code in re.findall(r"(?:^|; |;\n)(\d+) ", codes[1])]
    assert named[0] == 0
    assert set(named) <= set(map(int, ExitCode))
    assert any("--json" in option.opts for option in as_command(*name).params)


def test_the_help_can_be_shown() -> None:
    shown = command("store", "backup", "--help")
    assert shown.returncode == 0
    assert "Example: gantrymq store backup" in shown.stdout
    assert command("--help").stdout.count("\n  ") > len(COMMANDS) // 2


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A user's folder: a broker at ./mq, also the user's own; a topic, a group, some messages."""
    folder = tmp_path_factory.mktemp("examples")
    programs = folder / "bin"
    programs.mkdir()
    server = CommandServer(programs)
    (programs / "jq").write_text("#!/bin/sh\nexec cat\n")
    (programs / "jq").chmod(0o755)
    (folder / "messages.jsonl").write_text(json.dumps({"body": "x", "tag": "t"}) + "\n")
    with Broker.temporary() as broker:
        (folder / "mq").symlink_to(broker.home)
        (folder / ".local" / "state").mkdir(parents=True)
        (folder / ".local" / "state" / "gantrymq").symlink_to(broker.home)
        assert run(folder, "gantrymq topic create orders --queues 8 --durability durable") == 0
        with Producer(broker.home) as producer:
            for number in range(20):
                producer.send("orders", b"%d" % number)
        first = ConsumeFrom.FIRST_OFFSET
        with PullConsumer("retired", ["orders"], home=broker.home):
            pass
        with PullConsumer("billing", ["orders"], home=broker.home, consume_from=first) as consumer:
            poll_until(lambda: len(consumer.poll(timeout=0.5)), "a message")
            consumer.commit()
        broker.stop()
        shutil.copytree(broker.home / "store", folder / "stopped")
        shutil.copytree(broker.home / "store", folder / "left" / "store")
        broker.start()
        yield folder
    server.close()


def environment(folder: Path) -> dict[str, str]:
    known = os.environ | {
        "HOME": str(folder),
        "GANTRYMQ_HOME": str(folder / "mq"),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path.cwd()),
    }
    known.pop("XDG_STATE_HOME", None)
    return known


def run(folder: Path, line: str) -> int:
    """Run an example as typed into a shell; the exit code of all its parts."""
    program, *words = shlex.split(line)
    if program == "gantrymq" and not _FOR_A_SHELL.search(line):
        place = Place(str(folder), environment(folder))
        ran = run_forked(words, timeout=START_S, place=place)
    else:
        ran = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line], cwd=folder, env=environment(folder),
            capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=START_S,
        )  # fmt: skip
    assert ran.returncode == 0, (line, ran)
    return ran.returncode


def run_for_a_while(folder: Path, line: str) -> None:
    """One that goes on for ever: it says something, then ^C ends it."""
    with subprocess.Popen(
        ["bash", "-c", f"{line} 2>&1"], cwd=folder, env=environment(folder),
        stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, process_group=0, text=True,
    ) as process:  # fmt: skip
        assert process.stdout
        try:
            said = process.stdout.readline()
        finally:
            os.killpg(process.pid, signal.SIGINT)
        try:
            rest = process.communicate(timeout=START_S)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert said
    assert "Traceback" not in said + rest


EXAMPLES = [(name, example) for name in COMMANDS for example in examples(name)]
#: What removes the topic comes last.
EXAMPLES.sort(key=lambda item: item[0] == ("topic", "delete"))


@pytest.mark.parametrize(("name", "example"), EXAMPLES, ids=[item[1] for item in EXAMPLES])
def test_an_example_runs(place: Path, name: tuple[str, ...], example: str) -> None:
    if any(f"gantrymq {start}" in example for start in _ONLY_PARSED):
        assert run(place, f"{example} --help") == 0
    elif name == ("serve",) and _ENDLESS.search(example):
        # The broker of this test has the store: another home does as well.
        run_for_a_while(place, example.replace("./mq", "./mine"))
    elif _ENDLESS.search(example):
        run_for_a_while(place, example.replace("| jq", "| stdbuf -o0 jq"))
    elif _ON_A_STOPPED_STORE.search(example):
        stopped = example.replace("~/.local/state/gantrymq/store", "stopped")
        stopped = stopped.replace("./mq", "left")
        assert run(place, stopped.replace("/srv/new", "salvaged")) == 0
    else:
        assert run(place, example) == 0
