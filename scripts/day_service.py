"""A service manager for the operator's day: does with a unit file what systemd does with it.

Of the unit it honours ExecStartPre, ExecStart, Environment, Type=notify (READY, WATCHDOG and
EXTEND_TIMEOUT_USEC), TimeoutStartSec, TimeoutStopSec, WatchdogSec, Restart=on-failure, RestartSec,
RestartPreventExitStatus, StartLimitBurst, LimitCORE=0 and KillMode=mixed. User
and sandbox are not applied.
"""

from __future__ import annotations

import configparser
import contextlib
import os
import re
import resource
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

_LOOK_S = 0.02


class Unit:
    """Options of a unit file, paths replaced by those of the stage."""

    def __init__(self, text: str, replace: Callable[[str], str]) -> None:
        parser = configparser.RawConfigParser(strict=False, interpolation=None)
        parser.optionxform = str  # type: ignore[assignment, method-assign] # names have capitals
        parser.read_string(text)
        self._options = {**parser["Unit"], **parser["Service"]}
        self._replace = replace

    def command(self, name: str) -> list[str]:
        """`ExecStart` and its like as arguments."""
        return shlex.split(self._replace(self._options[name]))

    def environment(self) -> dict[str, str]:
        """What `Environment=` sets."""
        words = shlex.split(self._replace(self._options["Environment"]))
        return {name: value for name, _equals, value in (word.partition("=") for word in words)}

    def number(self, name: str) -> float:
        """Seconds, or a count."""
        return float(self._options[name])

    def codes(self) -> set[int]:
        """Exit codes after which the service is left alone."""
        return {int(word) for word in self._options["RestartPreventExitStatus"].split()}


class Service:
    """One service: its process, what it has told, and what was done about its end."""

    def __init__(self, unit: Unit, folder: Path, environment: dict[str, str]) -> None:
        self.unit = unit
        self.story: list[str] = []
        self.state = "inactive"
        self.exit_code = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.journal = folder / "journal"
        self._environment = environment | unit.environment()
        self._address = str(folder / "notify")
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._channel.bind(self._address)
        self._channel.setblocking(False)
        self._until = 0.0  # a start, or a stop, may take so long
        self._pat = 0.0
        self._starts = 0
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._closing = threading.Event()
        self._watcher.start()

    # --------------------------------------------------------------------- what an operator asks

    def start(self) -> str:
        """Returns the state that a start has led to: active or failed."""
        self._starts = 0
        self.state = "activating"
        self._launch()
        return self._wait_while("activating", "restarting")

    def stop(self) -> int:
        """SIGTERM to the main process; its exit code."""
        assert self.process
        self.state = "deactivating"
        self._until = time.monotonic() + self.unit.number("TimeoutStopSec")
        self.process.terminate()
        self._wait_while("deactivating")
        return self.exit_code

    def close(self) -> None:
        """End the watch, and whatever still runs; cleanly if it can be."""
        self._closing.set()
        self._watcher.join()
        if self.process and self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(self.unit.number("TimeoutStopSec"))
        self._kill_all()
        self._channel.close()

    def told(self) -> list[str]:
        """The story since the last call."""
        told, self.story = self.story, []
        return told

    # ---------------------------------------------------------------------- what the manager does

    def _launch(self) -> None:
        before = self._run_before()
        if before:
            self._ended(before, "ExecStartPre")
            return
        self._starts += 1
        watchdog_us = int(self.unit.number("WatchdogSec") * 1e6)
        told = {"NOTIFY_SOCKET": self._address, "WATCHDOG_USEC": str(watchdog_us)}
        self._until = time.monotonic() + self.unit.number("TimeoutStartSec")
        with self.journal.open("ab") as journal:
            self.process = subprocess.Popen(
                self.unit.command("ExecStart"), env=self._environment | told, stderr=journal,
                stdout=journal, stdin=subprocess.DEVNULL, start_new_session=True,
                cwd=self.journal.parent,
            )  # fmt: skip
        resource.prlimit(self.process.pid, resource.RLIMIT_CORE, (0, 0))

    def _run_before(self) -> int:
        with self.journal.open("ab") as journal:
            return subprocess.run(
                self.unit.command("ExecStartPre"), env=self._environment, stdout=journal,
                stderr=journal, stdin=subprocess.DEVNULL, check=False,
            ).returncode  # fmt: skip

    def _watch(self) -> None:
        """One look after the other, until it is closed."""
        while not self._closing.wait(_LOOK_S):
            self._hear()
            process = self.process
            if process and process.poll() is not None:
                self.process = None
                self._ended(process.returncode, "main process")
            elif process:
                self._look_at_time(process)

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                for word in self._channel.recv(4096).decode().split("\n"):
                    self._heard(word)

    def _heard(self, word: str) -> None:
        now = time.monotonic()
        if word == "READY=1":
            self._pat, self.state = now, "active"
        elif word == "WATCHDOG=1":
            self._pat = now
            return
        elif match := re.fullmatch(r"EXTEND_TIMEOUT_USEC=(\d+)", word):
            self._until = max(self._until, now + int(match[1]) / 1e6)
            return
        self.story.append(word)

    def _look_at_time(self, process: subprocess.Popen[bytes]) -> None:
        now = time.monotonic()
        if self.state == "active" and now > self._pat + self.unit.number("WatchdogSec"):
            self.story.append("no WATCHDOG=1 in time: SIGABRT")
            self._pat = now
            process.send_signal(signal.SIGABRT)
        elif self.state in ("activating", "deactivating") and now > self._until:
            self.story.append(f"{self.state} took too long: SIGKILL")
            process.kill()

    def _ended(self, code: int, what: str) -> None:
        """Decide what follows, as Restart=on-failure says."""
        self._hear()
        self.exit_code = code
        name = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        self.story.append(f"{what} ended: {name}")
        self._kill_all()
        if self.state == "deactivating" or code == 0:
            self.state = "inactive" if code == 0 else "failed"
        elif code in self.unit.codes() or what == "ExecStartPre":
            self.story.append(f"not started again (RestartPreventExitStatus has {code})")
            self.state = "failed"
        elif self._starts >= self.unit.number("StartLimitBurst"):
            self.story.append("not started again (StartLimitBurst)")
            self.state = "failed"
        else:
            self.state = "restarting"
            self._closing.wait(self.unit.number("RestartSec"))
            self.story.append("started again (Restart=on-failure)")
            self._launch()

    def _kill_all(self) -> None:
        """KillMode=mixed: what is left of the service is killed."""
        for pid in _in_environment(f"NOTIFY_SOCKET={self._address}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _wait_while(self, *states: str) -> str:
        while self.state in states:
            time.sleep(_LOOK_S)
        return self.state


def _in_environment(assignment: str) -> list[int]:
    """Processes that were started with it: what a control group holds under systemd."""
    wanted, found = assignment.encode(), []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found
