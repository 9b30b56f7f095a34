"""A broker that runs and is not found: its run directory or its board was taken away under it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gantrymq.brokerd.backup import backup
from gantrymq.brokerd.doctor import examine
from gantrymq.clients.home import read_board_file, run_of
from gantrymq.shm.codes import ExitCode
from gantrymq.shm.errors import BrokerGone
from gantrymq.temporary import Broker
from tests.support.brokers import command
from tests.support.trials import mends

#: What holds the store, and what to do; not that one is to be started, which would get StoreBusy.
HELD = "a broker holds the store of {home}"
MEND = "restart it"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker.temporary() as started:
        yield started


def run_directory(home: Path) -> Path:
    return run_of(home)


def board(home: Path) -> Path:
    return Path("/dev/shm") / read_board_file(home)["board"][1:]


@contextmanager
def away(path: Path) -> Iterator[None]:
    """Its name alone, for the broker has it open."""
    elsewhere = path.with_name(f"{path.name}-away")
    path.rename(elsewhere)
    try:
        yield
    finally:
        elsewhere.rename(path)


@mends("S130")
@pytest.mark.parametrize("what", [run_directory, board])
def test_a_broker_that_is_not_found_is_no_reason_to_start_one(broker: Broker, what: object) -> None:
    home = broker.home
    assert callable(what)
    with away(what(home)):
        for line in (["status"], ["send", "t", "--body", "x"], ["delayed", "recall", "t", "x"]):
            ran = command(*line, "--home", home)
            assert ran.returncode == ExitCode.NO_BROKER, ran
            assert HELD.format(home=home) in ran.stderr
            assert MEND in ran.stderr
            assert "gantrymq serve" not in ran.stderr
        with pytest.raises(BrokerGone, match=MEND):
            backup(home, home.with_name(f"{home.name}-copy"))
        (found,) = [each for each in examine(home, {}) if each.check == "broker"]
        assert (found.verdict, HELD.format(home=home) in found.found) == ("wrong", True)
        assert MEND in found.mend
    assert command("status", "--home", home).returncode == ExitCode.OK


def test_without_any_broker_one_is_to_be_started(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(mode=0o700)
    for line in (["status"], ["send", "t", "--body", "x"]):
        ran = command(*line, "--home", tmp_path)
        assert (ran.returncode, "gantrymq serve" in ran.stderr) == (ExitCode.NO_BROKER, True)
