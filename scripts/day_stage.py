"""The stage of the operator's day: places, processes, commands as typed, and what they must say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gantrymq.brokerd.access import started_of
from scripts.day_service import Service, Unit

ROOT = Path(__file__).resolve().parent.parent
UNIT = ROOT / "contrib" / "systemd" / "gantrymq.service"
STEP_S = 60.0
_LOOK_S = 0.05
#: Paths as an operator has them, and where they lie below the day's directory.
PLACES: Final = {
    "/usr/src/gantrymq": "src",
    "/opt/gantrymq": "opt/gantrymq",
    "/var/lib/gantrymq": "lib/gantrymq",
    "/var/cache/gantrymq": "cache",
    "/srv/wheels": "wheels",
    "/srv/backup": "backup",
    "/srv/restored": "restored",
}
#: What differs from one day to the next and says nothing.
_NOISE: Final = (
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\d]*Z?", "TIME"),
    (r"\bup [\d.]+ s", "up N s"),
    (r"\bepoch [0-9a-f]+", "epoch E"),
    (r"\bpid \d+", "pid PID"),
)


Tidy = tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...]


class Wrong(Exception):
    """Something did not come out as it must."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """A command as typed, and what it must come to; `lines` at most are shown of its output.

    It is repeated up to `patience_s` while it does not say what it must. `tidy` are patterns and
    what is shown in their place.
    """

    line: str
    code: int = 0
    says: tuple[str, ...] = ()
    lines: int = 20
    tidy: Tidy = ()
    patience_s: float = 0.0

    def play(self, stage: Stage) -> tuple[str, int]:
        """Its output for the eye, and its exit code. Raises Wrong."""
        deadline = time.monotonic() + self.patience_s
        while True:
            code, out = stage.shell(self.line)
            missing = [text for text in self.says if not re.search(text, out, re.MULTILINE)]
            if code == self.code and not missing:
                return _shown(out, self.lines, self.tidy), code
            if time.monotonic() > deadline:
                raise Wrong(f"exit code {code}, not {self.code}; not said: {missing}\n{out}")
            time.sleep(_LOOK_S)


@dataclass(frozen=True, slots=True)
class Do:
    """What a person or a stand-in does; `act` returns what is to be shown, or raises Wrong."""

    line: str
    act: Callable[[Stage], str]

    def play(self, stage: Stage) -> tuple[str, int]:
        """Its story for the eye."""
        return _shown(stage.typed(self.act(stage)), 40, ()), 0


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the day: what is done, and why, in a sentence."""

    title: str
    why: str
    acts: tuple[Shell | Do, ...]


def _shown(out: str, lines: int, tidy: Tidy) -> str:
    for pattern, text in (*_NOISE, *tidy):
        out = re.sub(pattern, text, out, flags=re.MULTILINE)
    kept = [line.rstrip() for line in out.rstrip().splitlines()]
    more = len(kept) - lines
    return "\n".join(kept[:lines] + [f"... ({more} more lines)"] * (more > 0))


class Application:
    """A process of scripts/day_apps.py, with the installation that `gantrymq` was at its start."""

    def __init__(self, stage: Stage, name: str, notes: Path) -> None:
        self.notes = notes
        installed = stage.place("/opt/gantrymq").resolve() / "bin" / "python"
        command = [str(installed), "-P", str(ROOT / "scripts" / "day_apps.py"), name]
        command += [str(stage.place("/var/lib/gantrymq")), str(notes)]
        self.process = subprocess.Popen(
            command, env=stage.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, count: int) -> None:
        """So many orders more."""
        assert self.process.stdin
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        """Its next line; Wrong if it has ended."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise Wrong(f"an application has ended: exit code {self.process.wait()}")
        return line.strip()

    def noted(self) -> list[bytes]:
        """Whole lines of its notes."""
        return self.notes.read_bytes().split(b"\n")[:-1] if self.notes.exists() else []

    def end(self) -> int:
        """End of its input, or SIGTERM; its exit code."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        if self.notes.name.startswith("billing"):
            self.process.terminate()
        code = self.process.wait(STEP_S)
        self.process.stdout.close()
        return code


class Stage:
    """One temporary directory, and all that runs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.orders: Application | None = None
        self.billing: list[Application] = []
        self.services: dict[str, Service] = {}
        #: Processes of brokers: number, and start in clock ticks, for a number may come again.
        self.known_processes: set[tuple[int, int]] = set()
        self.boards: set[str] = set()
        self.journal_read = 0
        self.orders_before_backup = 0
        for inside in PLACES.values():
            (folder / inside).parent.mkdir(parents=True, exist_ok=True)
        for name in ("/usr/src/gantrymq", "/var/lib/gantrymq", "/srv/wheels", "/srv/backup"):
            self.place(name).mkdir(mode=0o700)
        clean = {key: text for key, text in os.environ.items() if key[:6] not in ("PYTHON",)}
        ours = [self.place("/opt/gantrymq") / "bin", Path(sys.executable).parent]
        self.environment = clean | {
            "GANTRYMQ_HOME": str(self.place("/var/lib/gantrymq")),
            "XDG_CACHE_HOME": str(self.place("/var/cache/gantrymq")),
            "PATH": ":".join([*map(str, ours), clean.get("PATH", os.defpath)]),
            "COLUMNS": "110", "LC_ALL": "C.UTF-8", "NO_COLOR": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore",
        }  # fmt: skip

    # ---------------------------------------------------------------------------------- places

    def place(self, name: str) -> Path:
        """Where a path of the page lies."""
        return self.folder / PLACES[name]

    def real(self, text: str) -> str:
        """A text with the places' real paths."""
        for name, inside in PLACES.items():
            text = text.replace(name, str(self.folder / inside))
        return text

    def typed(self, text: str) -> str:
        """The reverse, for the eye."""
        for name, inside in PLACES.items():
            text = text.replace(str(self.folder / inside), name)
        text = text.replace(str(self.folder), "/srv").replace(str(ROOT), "CHECKOUT")
        return text.replace(str(Path.home()), "HOME")

    # -------------------------------------------------------------------------------- commands

    def shell(self, line: str) -> tuple[int, str]:
        """Run a line as typed; its exit code, and both of its outputs with the page's paths."""
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", self.real(line)], cwd=self.folder,
            env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False, timeout=STEP_S,
        )  # fmt: skip
        return done.returncode, self.typed(done.stdout)

    def status(self, home: str = "/var/lib/gantrymq") -> dict[str, dict[str, int]]:
        """Agents of a ready broker by name; empty if it is not ready."""
        code, out = self.shell(f"gantrymq status --json --home {home}")
        if code:
            return {}
        agents = {row["agent"]: row for row in json.loads(out)["processes"]}
        pids = {row["pid"] for row in agents.values() if row["pid"]}
        self.known_processes |= {(pid, started_of(pid)) for pid in pids}
        self.boards.add(json.loads((self.place(home) / "run" / "board").read_text())["board"])
        return agents

    def until(self, condition: Callable[[], bool], what: str, look_s: float = _LOOK_S) -> None:
        """Wait for something that must come."""
        deadline = time.monotonic() + STEP_S
        while not condition():
            if time.monotonic() > deadline:
                raise Wrong(f"{what} did not come within {STEP_S:.0f} s")
            time.sleep(look_s)

    # -------------------------------------------------------------------------------- services

    def service(
        self, name: str, home: str = "/var/lib/gantrymq", watchdog_s: int | None = None
    ) -> Service:
        """The service of a name; another home, or WatchdogSec, is put into the unit's lines."""
        if name not in self.services:
            folder = self.folder / "services" / name
            folder.mkdir(parents=True)
            text = UNIT.read_text(encoding="utf-8").replace("/var/lib/gantrymq", home)
            if watchdog_s is not None:
                text += f"\n[Service]\nWatchdogSec={watchdog_s}\n"  # as a drop-in does
            self.services[name] = Service(Unit(text, self.real), folder, self.environment)
        return self.services[name]

    def events(self) -> str:
        """What the journal has got since the last call, one event a line, without noise."""
        text = self.service("gantrymq").journal.read_text(encoding="utf-8")
        new, self.journal_read = text[self.journal_read :], len(text)
        shown = []
        for line in new.splitlines():
            if not line.startswith("{"):
                shown.append(self.typed(line))
                continue
            row = json.loads(line)
            kept = {name: row[name] for name in ("agent", "code", "why", "clean") if name in row}
            words = [f"{name}={value}" for name, value in kept.items()]
            shown.append(self.typed(" ".join([row["level"], row["event"], *words])))
        return "\n".join(shown)

    def close(self) -> None:
        """Nothing is left running."""
        for application in (self.orders, *self.billing):
            if application and application.process.poll() is None:
                application.process.kill()
                application.process.wait()
        for service in self.services.values():
            service.close()
