"""Real brokers in processes of their own, and what tests ask of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gantrymq.clients.home import read_board_file, store_of
from gantrymq.clients.running import ready_board
from gantrymq.shm.board import Board, attach_board, unlink_board
from gantrymq.shm.codes import Role
from gantrymq.shm.storelock import is_held
from tests.support.forked import run_forked, start_forked
from tests.support.watchdog import poll_until

#: Small files and tables, but processes as in production.
SMALL = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 20_000,
    "topics_max": 64,
    "board_queues_max": 1024,
}
#: A first start compiles every kernel.
START_S = 180.0


class ServingBroker:
    """`gantrymq serve` as a user runs it."""

    #: Whether its process is a fork of this one, for tests of something else than its start.
    forked = False

    def __init__(self, home: Path, **settings: object) -> None:
        self.home = home
        self.settings = SMALL | settings
        self.process: subprocess.Popen[str] = self._start()

    def _start(self) -> subprocess.Popen[str]:
        arguments = ["--home", str(self.home)]
        for name, value in self.settings.items():
            arguments += ["--set", f"{name}={value}"]
        return self._launch(arguments, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def _launch(
        self,
        arguments: list[str],
        **streams: Any,  # noqa: ANN401 - as Popen has them
    ) -> subprocess.Popen[str]:
        arguments = ["serve", *arguments]
        if self.forked:
            return start_forked("gantrymq", arguments, **streams)
        return subprocess.Popen([sys.executable, "-P", "-m", "gantrymq", *arguments], **streams)

    @property
    def board(self) -> Board:
        """The board of the life that runs."""
        return attach_board(read_board_file(self.home)["board"])

    def wait_until_ready(self, not_epoch: int = 0) -> Self:
        """Wait for a life other than `not_epoch`."""
        poll_until(lambda: self._is_ready(not_epoch), "the broker is ready", START_S)
        return self

    def _is_ready(self, not_epoch: int) -> bool:
        assert self.process.poll() is None, self.process.communicate()
        board = ready_board(self.home)
        return board is not None and board.epoch != not_epoch

    def pid_of(self, role: Role) -> int:
        """An agent's process, 0 while it is not running."""
        pid: int = self.board.process(role)["pid"]
        return pid

    def pids(self) -> dict[Role, int]:
        """All processes."""
        return {role: self.pid_of(role) for role in Role if self.board.process(role)["started_ms"]}

    def again(self) -> Self:
        """Start another life on the same home."""
        assert self.process.poll() is not None
        self.process = self._start()
        return self

    def kill_all(self) -> None:
        """SIGKILL to the supervisor; its children must follow by themselves."""
        self.process.kill()
        self.end()

    def stop(self) -> tuple[int, list[dict[str, Any]]]:
        """Stop cleanly; the exit code and the log's lines."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.end()

    def end(self) -> tuple[int, list[dict[str, Any]]]:
        """Wait for the end; the exit code and the log's lines."""
        _out, text = self.process.communicate(timeout=60)
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        return self.process.returncode, lines

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            _out, text = self.process.communicate()
            if error is not None:
                print(text, file=sys.stderr)
        name = read_board_file(self.home).get("board")
        if name and not is_held(store_of(self.home)):
            unlink_board(name)  # a killed one's, which the next start would remove


def command(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    return run_forked([*map(str, arguments)], stdin)


def descriptors_of(pid: int) -> list[str]:
    """What each open descriptor of a process is; one that is closed meanwhile is left out."""
    there = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            there.append(os.readlink(entry))
    return there


def is_alive(pid: int) -> bool:
    """True unless the process has ended, or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def abort_file(home: Path) -> Path:
    """The file that a clean stop removes."""
    return store_of(home) / "abort"
