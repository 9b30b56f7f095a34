"""`Broker.temporary()`: a broker for a test or a script, in one child process."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final, Self

from clients.closing import Closing
from clients.home import read_board_file
from shm.board import attach_board, unlink_board
from shm.codes import BrokerState, ExitCode
from shm.errors import BrokerGone, GantryError, SettingIllegal, StoreFailed
from shm.layout import BOARD_STATE

#: Kernels may have to be compiled first.
_START_S: Final = 300.0
_STOP_S: Final = 60.0
_PAUSE_S: Final = 0.005
#: It is gone soon: a disk that others have nearly filled is no reason to refuse its messages.
_OF_ITS_KIND: Final[dict[str, object]] = {
    "profile": "temporary",
    "disk_space_clean_forcibly_ratio": 100,
    "disk_space_warning_level_ratio": 100,
}


class Broker(Closing):
    """A broker of one's own. It ends with this process, at the latest."""

    def __init__(self, home: Path, process: subprocess.Popen[bytes]) -> None:
        #: Its directory, for `Producer(home=broker.home)` and the like.
        self.home = home
        #: Its process; tests kill it.
        self.process = process
        self._earlier_board: str | None = None

    @classmethod
    def temporary(cls, **settings: object) -> Self:
        """Start a broker with small files in a fresh directory, and wait until it is ready.

        Settings are those of `gantrymq serve --print-config`; `profile="standard"` gives it a
        process per agent. Raises SettingIllegal, or StoreFailed with what it said if it fails.
        """
        home = Path(tempfile.mkdtemp(prefix="gantrymq-"))
        try:
            broker = cls(home, _start(home, _OF_ITS_KIND | settings))
            broker._wait_until_ready()
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise
        return broker

    def stop(self) -> None:
        """Stop cleanly; the files stay until the end of the `with`. Safe to call twice."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()

    def start(self) -> None:
        """Start it again on the same files, after `stop` or a kill."""
        if self.process.poll() is None:
            return
        self.stop()
        given = json.loads((self.home / _SETTINGS_NAME).read_text(encoding="utf-8"))
        # What a killed life announced must not be taken for the next one's.
        self._earlier_board = read_board_file(self.home).get("board")
        self.process = _start(self.home, given)
        self._wait_until_ready()

    def close(self) -> None:
        """Stop, and remove every file and the shared memory."""
        self.stop()
        board = read_board_file(self.home).get("board")
        if board:  # a killed one could not remove it
            unlink_board(board)
        shutil.rmtree(self.home, ignore_errors=True)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_S
        while not self._is_ready():
            if self.process.poll() is not None:
                raise _failure(self.home, self.process.returncode)
            if time.monotonic() > deadline:
                self.process.kill()
                self.process.wait()
                raise StoreFailed(f"the temporary broker was not ready after {_START_S:.0f} s")
            time.sleep(_PAUSE_S)

    def _is_ready(self) -> bool:
        name = read_board_file(self.home).get("board")
        if not name or name == self._earlier_board:
            return False
        try:
            return attach_board(name).half(BOARD_STATE) == BrokerState.READY
        except BrokerGone:
            return False


_SETTINGS_NAME: Final = "given.json"
_LOG_NAME: Final = "broker.log"


def _start(home: Path, settings: dict[str, object]) -> subprocess.Popen[bytes]:
    (home / _SETTINGS_NAME).write_text(json.dumps(settings), encoding="utf-8")
    arguments = ["--home", str(home), "--lifeline"]
    for name, value in settings.items():
        arguments += ["--set", f"{name}={value}"]
    with (home / _LOG_NAME).open("ab") as log:
        return _spawn(arguments, log)


def _spawn(arguments: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "brokerd", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)


def _failure(home: Path, code: int) -> GantryError:
    said = (home / _LOG_NAME).read_text(errors="replace").strip()[-2000:]
    kind = SettingIllegal if code == ExitCode.USAGE else StoreFailed
    return kind(f"the temporary broker ended with {code}:\n{said}")
