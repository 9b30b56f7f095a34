"""A parent that speaks sd_notify as systemd does, and a first start of a broker below it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tests.support.brokers import START_S
from tests.support.terminal import Terminal
from tests.support.watchdog import poll_until

_STEPS = 2


class Manager:
    """The receiving end of NOTIFY_SOCKET."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "notify")
        self.channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.channel.bind(self.address)
        self.channel.setblocking(False)
        self.said: list[str] = []

    def hear(self) -> list[str]:
        """All states so far, one an entry."""
        while True:
            try:
                self.said += self.channel.recv(4096).decode().split("\n")
            except BlockingIOError:
                return self.said

    def patted(self) -> int:
        return self.hear().count("WATCHDOG=1")

    def close(self) -> None:
        self.channel.close()


@dataclass(frozen=True, slots=True)
class FirstStart:
    """What a broker said that was told to stop amid its first compile."""

    code: int
    shown: str  # on the terminal
    states: list[str]  # to the manager


def step_of(state: str) -> str | None:
    """Number of the kernel that is compiled, if a state tells it."""
    found = re.match(r"STATUS=starting: \w+ \((\d+) of \d+\)", state)
    return found[1] if found else None


def start_first(folder: Path) -> FirstStart:
    """Start a broker that finds nothing compiled, and stop it after a few kernels."""
    with closing(Manager(folder)) as manager, Terminal() as terminal:
        environment = os.environ | {
            "XDG_CACHE_HOME": str(folder / "cache"),
            "NOTIFY_SOCKET": manager.address,
        }
        environment.pop("NUMBA_DISABLE_JIT", None)
        command = [sys.executable, "-P", "-m", "gantrymq", "serve", "--home", str(folder / "home")]

        def told() -> bool:
            shown = terminal.read()  # what nobody reads would hold it up
            states = manager.hear()
            steps = {step_of(state) for state in states} - {None}
            if len(steps) >= _STEPS and " starting " in shown:
                return True
            assert process.poll() is None, f"it has ended: {shown}"
            # Whoever loads machine code before the start says so compiles without a word.
            assert "READY=1" not in states, f"all is compiled, and of it was told: {states}"
            return False

        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=terminal.slave, env=environment
        )
        try:
            poll_until(told, f"{_STEPS} steps", START_S)
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait()
        return FirstStart(code, terminal.read(), manager.hear())
