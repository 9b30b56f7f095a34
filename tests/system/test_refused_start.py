"""A start that is refused, or told to stop, leaves the store and the machine as they were."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gantrymq.brokerd import epoch
from gantrymq.brokerd.broker import Broker
from gantrymq.brokerd.doctor import examine
from gantrymq.brokerd.reactor import Reactor
from gantrymq.clients.home import read_board_file, store_of
from gantrymq.shm.codes import ExitCode
from tests.support import leaks
from tests.support.forked import run_forked
from tests.support.trials import mends


def start(home: Path, *options: str, prepare: Callable[[], None] | None = None) -> tuple[int, str]:
    """Exit code of a broker, and what it logged."""
    done = run_forked(["serve", "--home", str(home), *options], prepare=prepare)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def begun_with_a_signal() -> None:
    """The next broker is told to stop as its supervisor is made."""
    make = Reactor.__init__

    def made(self: Reactor) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        make(self)

    Reactor.__init__ = made  # type: ignore[method-assign]


def without_descriptors() -> None:
    """As where none is left for the supervisor."""

    def refuse(self: Reactor) -> None:
        raise OSError(errno.EMFILE, "no descriptor is left")

    Reactor.__init__ = refuse  # type: ignore[method-assign]


def without_a_second_agent() -> None:
    """As where no process is left for it; it is said what is left as the store is given back."""
    fork, forked, close = os.fork, list[int](), Broker.close

    def second_fails() -> int:
        if forked:
            raise BlockingIOError(errno.EAGAIN, "no process is left")
        forked.append(fork())
        return forked[0]

    def closed(self: Broker, *, clean: bool) -> None:
        sys.stderr.write(f"left at work: {len(leaks.descendants(os.getpid()))}\n")
        close(self, clean=clean)

    os.fork, Broker.close = second_fails, closed  # type: ignore[method-assign]


def require_untouched(home: Path) -> None:
    """As after a clean stop: nothing of a life is left."""
    assert epoch.boards_of(home) == []
    assert read_board_file(home) == {}
    assert not (store_of(home) / "abort").exists()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of a store that was stopped cleanly."""
    made = tmp_path / "home"
    code, told = start(made, prepare=begun_with_a_signal)
    assert code == ExitCode.OK
    assert '"clean": true' in told
    return made


@mends("S191")
@pytest.mark.parametrize("options", [(), ("--check",)])
@pytest.mark.parametrize("first", [False, True])
def test_a_metrics_file_in_the_store(
    first: bool, options: tuple[str, ...], home: Path, tmp_path: Path
) -> None:
    """Refused before anything is opened, also where the store is still to be made."""
    at = tmp_path / "new" if first else home
    code, told = start(at, *options, "--set", "metrics_textfile=store/gantry.prom")
    assert code == ExitCode.USAGE
    assert "metrics_textfile" in told
    assert "name a place outside" in " ".join(told.split())
    assert ("not_started" in told) == (not options)
    if first:
        assert not at.exists()
    else:
        require_untouched(at)
        (at / "gantrymq.toml").write_text('metrics_textfile = "store/gantry.prom"\n')
        found = next(one for one in examine(at, {"JAVA_HOME": "/none"}) if one.check == "settings")
        assert found.verdict == "wrong"


@mends("S191")
def test_what_the_supervisor_is_refused_is_a_refused_start(home: Path) -> None:
    code, told = start(home, prepare=without_descriptors)
    assert code == ExitCode.IO_ERROR
    assert "not_started" in told
    require_untouched(home)


@mends("S191")
def test_a_signal_amid_the_last_steps_of_a_start_is_a_clean_stop(home: Path) -> None:
    code, told = start(home, prepare=begun_with_a_signal)
    assert code == ExitCode.OK
    assert '"clean": true' in told
    require_untouched(home)


@mends("S191")
def test_an_agent_that_cannot_be_started_ends_those_that_were(home: Path) -> None:
    """They would write on while their broker gives the store back."""
    code, told = start(home, prepare=without_a_second_agent)
    assert code == ExitCode.IO_ERROR
    assert "not_started" in told
    assert "left at work: 0" in told
    assert epoch.boards_of(home) == []
    assert start(home, prepare=begun_with_a_signal)[0] == ExitCode.OK


@mends("S191")
@pytest.mark.parametrize("options", [(), ("--check",)])
def test_limits_of_the_process_are_looked_at_by_check_too(
    options: tuple[str, ...], home: Path
) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    code, told = start(home, *options, prepare=small_files)
    assert code == ExitCode.IO_ERROR
    assert "ulimit -f" in told
    require_untouched(home)


@mends("S257")
@pytest.mark.parametrize("options", [(), ("--check",)])
@pytest.mark.parametrize("file", ["store", "run"])
def test_a_file_in_place_of_a_folder(options: tuple[str, ...], file: str, tmp_path: Path) -> None:
    made = tmp_path / "home"
    made.mkdir(mode=0o700)
    (made / file).write_text("mine")
    code, told = start(made, *options)
    assert code == ExitCode.IO_ERROR
    assert f"{made}/{file}" in told
    assert "move it away" in " ".join(told.split())
    assert ("not_started" in told) == (not options)
    assert [each.name for each in made.iterdir()] == [file]
    assert (made / file).read_text() == "mine"
