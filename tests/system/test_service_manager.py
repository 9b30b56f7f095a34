"""A parent that speaks sd_notify as systemd does, and the unit file that goes with it."""

from __future__ import annotations

import configparser
import ctypes
import errno
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gantrymq.clients.producer import Producer
from gantrymq.shm.codes import ExitCode, Role
from tests.support.brokers import START_S, ServingBroker
from tests.support.forked import run_forked
from tests.support.manager import FirstStart, Manager, step_of
from tests.support.otherselves import OTHER_UID, is_root
from tests.support.seccomp import only_system_service
from tests.support.tree import ROOT
from tests.support.trials import mends
from tests.support.watchdog import poll_until

UNIT = ROOT / "contrib" / "systemd" / "gantrymq.service"
PERIOD_US = 3_000_000
_PR_SET_NO_NEW_PRIVS, _PR_SET_MDWE, _PR_MDWE_REFUSE_EXEC_GAIN = 38, 65, 1


@pytest.fixture(scope="module")
def cold_starts() -> bool:
    """What is said while a broker starts is part of what is shown here."""
    return True


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what is said later."""
    monkeypatch.setattr(ServingBroker, "forked", True)


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    with closing(Manager(tmp_path)) as made:
        monkeypatch.setenv("NOTIFY_SOCKET", made.address)
        monkeypatch.setenv("WATCHDOG_USEC", str(PERIOD_US))
        yield made


@pytest.mark.usefixtures("warm")
def test_a_whole_life_is_told(tmp_path: Path, manager: Manager) -> None:
    with ServingBroker(tmp_path / "home") as broker:
        broker.wait_until_ready()
        poll_until(lambda: "READY=1" in manager.hear(), "READY")
        poll_until(lambda: manager.patted() >= 2, "two pats")
        assert broker.stop()[0] == ExitCode.OK
    said = manager.hear()
    order = [said.index(state) for state in ("READY=1", "WATCHDOG=1", "STOPPING=1")]
    assert order == sorted(order)
    assert any(state.startswith("STATUS=starting: checking the log") for state in said)
    assert any(state.startswith("STATUS=ready; 0 sessions") for state in said)
    # A start and a stop ask for their time.
    extended = [i for i, state in enumerate(said) if state.startswith("EXTEND_TIMEOUT_USEC=")]
    assert extended[0] < order[0] < extended[-1] < order[2]


@pytest.mark.usefixtures("warm")
def test_an_agent_that_hangs_is_not_patted_for(tmp_path: Path, manager: Manager) -> None:
    """What systemd would end the broker for; a stopped reader stands for one that hangs."""
    with ServingBroker(tmp_path / "home") as broker:
        board = broker.wait_until_ready().board
        poll_until(lambda: manager.patted() >= 1, "a pat")
        pid = broker.pid_of(Role.READER)
        os.kill(pid, signal.SIGSTOP)
        try:
            before, start = manager.patted(), board.process(Role.FLUSHER)["heartbeat"]
            # The flusher beats about ten times a second: more than a period.
            poll_until(
                lambda: board.process(Role.FLUSHER)["heartbeat"] > start + 45, "time goes by"
            )
            assert manager.patted() <= before + 1  # all may have beaten once more before
        finally:
            os.kill(pid, signal.SIGCONT)
        stopped = manager.patted()
        poll_until(lambda: manager.patted() > stopped, "it is patted again")
        assert broker.stop()[0] == ExitCode.OK


@pytest.mark.usefixtures("warm")
def test_a_failed_start_is_shown(tmp_path: Path, manager: Manager) -> None:
    (tmp_path / "home" / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "home" / "store" / "commitlog" / "stray").write_bytes(b"")
    with ServingBroker(tmp_path / "home") as broker:
        assert broker.end()[0] == ExitCode.STORE
    assert "READY=1" not in manager.hear()
    assert any(state.startswith("STATUS=not started: ") for state in manager.said)


@mends("S192")
@pytest.mark.usefixtures("warm")
def test_a_refusal_that_names_a_file_which_is_not_utf8_is_shown(
    tmp_path: Path, manager: Manager
) -> None:
    """Its exit code is the one by which a unit does not try again."""
    store = tmp_path / "home" / "store"
    store.mkdir(parents=True, mode=0o755)
    theirs = store / os.fsdecode(b"theirs\xff")
    if is_root():
        theirs.touch()
        os.chown(theirs, OTHER_UID, -1)
    else:  # who cannot give a file away has another refusal
        theirs.symlink_to("nowhere")
    with ServingBroker(tmp_path / "home") as broker:
        assert broker.end()[0] == ExitCode.NOT_PERMITTED
    (status,) = [state for state in manager.hear() if "not started" in state]
    assert r"theirs\udcff" in status


def test_the_first_compile_asks_for_time(first_start: FirstStart) -> None:
    assert first_start.code == ExitCode.OK
    states = first_start.states
    assert len(set(filter(None, map(step_of, states)))) >= 2, "steps of the compile are told"
    asked = [state for state in states if state.startswith("EXTEND_TIMEOUT_USEC=")]
    assert len(asked) >= 3
    assert "READY=1" not in states


@pytest.mark.usefixtures("warm")
def test_a_watchdog_for_another_process_is_not_ours(
    tmp_path: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    with ServingBroker(tmp_path / "home", profile="small") as broker:
        broker.wait_until_ready()
        assert broker.stop()[0] == ExitCode.OK
    assert "READY=1" in manager.hear()
    assert manager.patted() == 0


# ------------------------------------------------------------------------------- the unit file


def options() -> dict[str, str]:
    """The last value of each option of the unit."""
    parser = configparser.RawConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign] # names have capitals
    parser.read_string(UNIT.read_text(encoding="utf-8"))
    return dict(parser["Service"])


def test_the_unit_says_what_the_broker_needs() -> None:
    unit = options()
    assert unit["Type"] == "notify"
    assert int(unit["WatchdogSec"]) >= 10
    assert unit["KillMode"] == "mixed"
    # Kernels are machine code that is loaded; the boot id is read from /proc/sys.
    assert "MemoryDenyWriteExecute" not in unit
    assert "ProcSubset" not in unit
    # Other users' clients are refused by their uid, which a user namespace would hide.
    assert unit.get("PrivateUsers", "no") == "no"


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify`, where there is one; its text is empty if nothing is wrong."""
    program = shutil.which("systemd-analyze")
    if program is None:
        assert options()["ExecStart"]
        return
    text = re.sub(r"^(ExecStart\w*)=\S+", rf"\1={sys.executable}", UNIT.read_text(), flags=re.M)
    copy = tmp_path / "gantrymq.service"
    copy.write_text(text)
    ran = subprocess.run(
        [program, "verify", str(copy)], capture_output=True, text=True, check=False
    )
    about_us = [line for line in ran.stderr.splitlines() if "gantrymq.service" in line]
    assert (ran.returncode, about_us) == (0, []), ran


def test_the_ingests_unit_calls_what_there_is() -> None:
    from gantrymq.cli.app import command_line

    unit = (UNIT.parent / "gantrymq-ingest.service").read_text()
    found = re.findall(r"^ExecStart=\S+/gantrymq (\w+) (.*)$", unit, re.M)
    assert len(found) == 1
    command = getattr(command_line(), "commands")[found[0][0]]  # noqa: B009 - a group of typer
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in found[0][1].split() if word.startswith("--")} <= known
    assert "Unit=" not in (UNIT.parent / "gantrymq-ingest.timer").read_text(), "that of its name"


def test_it_runs_without_new_privileges_and_finds_what_would_stop_it(tmp_path: Path) -> None:
    """NoNewPrivileges as in the unit; with MemoryDenyWriteExecute `doctor` says what to do."""

    def no_new_privileges() -> None:
        ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)

    def deny_write_execute() -> None:
        ctypes.CDLL(None).prctl(_PR_SET_MDWE, _PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)

    line = ["doctor", "--home", str(tmp_path / "home")]
    fine = run_forked(line, prepare=no_new_privileges)
    assert "executable memory" in fine.stdout
    assert "wrong  executable memory" not in fine.stdout
    denied = run_forked(line, prepare=deny_write_execute)
    if ctypes.CDLL(None).prctl(66, 0, 0, 0, 0) >= 0:  # PR_GET_MDWE: a kernel that has it
        assert denied.returncode == ExitCode.DOES_NOT_HOLD
        assert "MemoryDenyWriteExecute" in denied.stdout


def test_the_broker_lives_with_the_units_system_calls(tmp_path: Path) -> None:
    """Started, sent to, stopped, under `@system-service`; numba compiles; other calls fail."""
    assert options()["SystemCallFilter"] == "@system-service"
    compiles = "import numba; assert numba.njit(lambda x: x + 1)(1) == 2"
    subprocess.run([sys.executable, "-c", compiles], preexec_fn=only_system_service, check=True)
    home = tmp_path / "home"
    line = [sys.executable, "-P", "-m", "gantrymq", "serve", "--home", str(home)]
    with subprocess.Popen(
        line, preexec_fn=only_system_service,  # noqa: PLW1509 - no thread runs here
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr
        events = (json.loads(text)["event"] for text in process.stderr if text.startswith("{"))
        assert "ready" in events
        with Producer(home) as producer:
            assert producer.send("boxed", b"x", durability="durable").queue_offset == 0
        process.terminate()
        assert process.wait(START_S) == ExitCode.OK
    if platform.machine() == "x86_64":
        probe = (
            "import ctypes; libc = ctypes.CDLL(None, use_errno=True);"
            "libc.umount(b'/no/such/place'); print(ctypes.get_errno())"
        )
        shown = subprocess.run(
            [sys.executable, "-c", probe],
            preexec_fn=only_system_service, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert int(shown.stdout) == errno.EPERM
