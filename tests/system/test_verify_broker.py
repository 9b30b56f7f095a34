"""`store verify` while a broker runs, after a kill, and as a command."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from gantrymq import Producer
from gantrymq.brokerd.verify import verify
from gantrymq.clients.running import board_name
from gantrymq.shm import layout
from gantrymq.shm.board import attach_board
from gantrymq.shm.codes import ExitCode, Role
from gantrymq.shm.errors import StoreBusy
from tests.support.brokers import command
from tests.support.small_stores import RECORDS, SEGMENT_BYTES, flip, send, small_broker
from tests.support.trials import mends
from tests.support.watchdog import poll_until

FIRST = f"commitlog/{0:020d}"
SECOND = f"commitlog/{SEGMENT_BYTES:020d}"


def test_a_running_store_is_judged_where_it_is_dispatched() -> None:
    """What is dispatched does not change any more, whatever is sent meanwhile."""
    with small_broker() as broker, Producer(broker.home) as producer:
        send(broker)
        store = broker.home / "store"
        poll_until(lambda: verify(store).units == RECORDS, "everything is dispatched", 30.0)
        for number in range(RECORDS):
            producer.send_oneway("orders", b"meanwhile %d" % number)
        report = verify(store)
        assert report.ok, str(report)
        assert report.state == "running"
        assert report.units == report.records >= RECORDS


@mends("S127")
def test_a_running_store_is_judged_from_where_its_board_says_that_it_begins() -> None:
    """Of segments that go next nothing is judged."""
    low = 3 * SEGMENT_BYTES
    with small_broker() as broker:
        send(broker)
        store = broker.home / "store"
        poll_until(lambda: verify(store).units == RECORDS, "everything is dispatched", 30.0)
        name = board_name(broker.home)
        assert name
        board = attach_board(name, write=True)
        flip(store / FIRST, 50)
        assert not verify(store).ok
        groups = board.process(Role.GROUPS)["pid"]
        os.kill(groups, signal.SIGSTOP)  # retention writes that word
        board.set_word(layout.BOARD_LOW, low)
        report = verify(store)
        os.kill(groups, signal.SIGCONT)
        assert report.ok, str(report)
        assert (report.log_start, (store / FIRST).exists()) == (low, True)


def test_a_killed_store_is_judged_where_it_was_durable() -> None:
    """What lies behind the durable position may be torn: the next start cuts it."""
    with small_broker() as broker:
        with Producer(broker.home, durability="durable") as producer:
            durable = [producer.send("orders", b"durable %d" % i) for i in range(50)]
        broker.process.kill()
        broker.process.wait()
        store = broker.home / "store"
        report = verify(store)
        assert report.ok, str(report)
        assert report.state == "killed"
        places = [int(receipt.offset_msg_id[16:], 16) for receipt in durable]
        *_, last = judged = [place for place in places if place < report.judged_to]
        assert len(judged) >= len(places) - 1, "the checkpoint follows each answer"
        flip(store / FIRST, last + 20)
        assert [(f.path, f.position) for f in verify(store).findings] == [(FIRST, last)]


def test_a_store_of_an_unknown_broker_that_runs_is_refused() -> None:
    with small_broker() as broker:
        board = broker.home / "run" / "board"
        kept = board.read_bytes()
        board.unlink()
        with pytest.raises(StoreBusy, match="stop it first"):
            verify(broker.home / "store")
        board.write_bytes(kept)


def test_the_command_says_it_by_its_exit_code(plain_store: Path, tmp_path: Path) -> None:
    """0 and 1, as documented; `--json` for programs; no progress without a terminal."""
    store = Path(shutil.copytree(plain_store, tmp_path / "store"))
    clean = command("store", "verify", store, "--json")
    assert (clean.returncode, clean.stderr) == (0, "")
    content = json.loads(clean.stdout)
    assert (content["ok"], content["findings"], content["records"]) == (True, [], RECORDS)
    flip(store / SECOND, 50)
    damaged = command("store", "verify", store)
    assert damaged.returncode == 1
    assert f"{SECOND} at 0: no record" in damaged.stdout
    assert damaged.stderr == "gantrymq: the store does not hold what it should; see above\n"


@mends("S128")
@pytest.mark.parametrize(
    "call",
    [
        ("verify",), ("verify", "--json"), ("verify", "--salvage", "{new}"), ("rebuild",),
        ("rebuild", "--dry-run"), ("inspect", "0"), ("dump",),
    ],
)  # fmt: skip
def test_a_directory_that_holds_no_store_is_said_to_hold_none(
    tmp_path: Path, call: tuple[str, ...]
) -> None:
    """An empty one, or the home in place of its store; nothing is made in it."""
    home = tmp_path / "home"
    (home / "store" / "commitlog").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    words = [word.format(new=tmp_path / "new") for word in call]
    done = command("store", *words, home)
    assert (done.returncode, done.stdout) == (ExitCode.IO_ERROR, "")
    assert f"{home} holds no store: neither commitlog/ nor config/ is there" in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


@mends("S128")
def test_a_back_up_of_no_store_is_refused_by_the_same_words(tmp_path: Path) -> None:
    """With its own code: there is nothing to copy."""
    (tmp_path / "store").mkdir()
    done = command("store", "backup", tmp_path / "copy", "--home", tmp_path)
    assert done.returncode == ExitCode.USAGE
    assert "holds no store: neither commitlog/ nor config/ is there" in done.stderr
