"""`Broker.temporary()`: a broker for a test or a script, in one child process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Final, Self, TypeVar

from gantrymq.brokerd import temporaryhome
from gantrymq.clients.closing import Closing, OfOneProcess
from gantrymq.clients.home import read_board_file
from gantrymq.clients.running import ready_board
from gantrymq.clients.shortwaits import start, take
from gantrymq.shm.codes import ExitCode
from gantrymq.shm.errors import Closed, GantryError, SettingIllegal, StoreFailed
from gantrymq.shm.fromhandlers import Suppressed
from gantrymq.shm.jsontext import parse_json
from gantrymq.shm.ownfiles import appending, replace_whole

T = TypeVar("T")

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


class Broker(Closing, OfOneProcess):
    """A broker of one's own. It ends with this process, at the latest.

    It stays the parent's in a forked child, whose end leaves it alone.
    """

    def __init__(self, home: Path, word: str, process: subprocess.Popen[bytes]) -> None:
        #: Its directory, for `Producer(home=broker.home)` and the like.
        self.home = home
        #: Its process; tests kill it.
        self.process = process
        self._word = word
        self._earlier_board = ""
        self._pid = os.getpid()
        self._is_closed = False
        _brokers.add(self)

    @classmethod
    def temporary(cls, **settings: object) -> Self:
        """Start a broker with small files in a fresh directory, and wait until it is ready.

        Settings are those of `gantrymq serve --print-config`; `profile="standard"` gives it a
        process per agent. Raises SettingIllegal, or StoreFailed with what it said if it fails.
        """
        judge_settings(settings)
        return _unbroken(partial(cls._made, _OF_ITS_KIND | settings), cls._discard)

    @classmethod
    def _made(cls, settings: dict[str, object], given_up: threading.Event) -> Self:
        home, word = temporaryhome.make()
        try:
            broker = cls(home, word, _start(home, word, settings))
            broker._wait_until_ready(given_up)
        except BaseException:
            _remove(home, word)
            raise
        return broker

    def _discard(self) -> None:
        """Nobody gets it."""
        self._kill()
        self.close()

    def __repr__(self) -> str:
        state = "running" if self.process.poll() is None else "stopped"
        return f"<Broker at {self.home}, {state}>"

    def stop(self) -> None:
        """Stop cleanly; the files stay until the end of the `with`. Safe to call twice.

        Raises Closed in a forked child.
        """
        self._require_own()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdin:
            with Suppressed(BrokenPipeError):
                self.process.stdin.close()

    def start(self) -> None:
        """Start it again on the same files, after `stop` or a kill. Raises Closed after `close`."""
        self._require_own()
        self._require_files()
        if self.process.poll() is None:
            return
        self.stop()
        given = parse_json((self.home / _SETTINGS_NAME).read_text(encoding="utf-8"))
        # What a killed life announced must not be taken for the next one's.
        self._earlier_board = read_board_file(self.home).get("board", "")
        _unbroken(partial(self._begin, given), Broker._kill)

    def _begin(self, settings: dict[str, object], given_up: threading.Event) -> Self:
        self.process = _start(self.home, self._word, settings)
        self._wait_until_ready(given_up)
        return self

    def close(self) -> None:
        """Stop, and remove every file and the shared memory. A forked child's does nothing."""
        if self._pid != os.getpid():
            return
        self.stop()
        self._is_closed = True
        _remove(self.home, self._word)

    def __enter__(self) -> Self:
        self._require_own()
        self._require_files()
        return self

    def _require_own(self) -> None:
        if self._pid != os.getpid():
            raise Closed(
                "this broker belongs to the parent of this forked process, which stops it: start"
                " one of your own with Broker.temporary()"
            )

    def _require_files(self) -> None:
        if self._is_closed:
            raise Closed(
                "this broker is closed and its files are removed: Broker.temporary() makes another"
                " one; to go on with the files use `stop` and `start` before `close`"
            )

    def _let_go(self) -> None:
        """Of the pipe at whose end the broker stops; a forked child has its own of it."""
        if self.process.stdin:
            self.process.stdin.close()

    def _wait_until_ready(self, given_up: threading.Event) -> None:
        """If that fails its process is over."""
        deadline = time.monotonic() + _START_S
        try:
            while not self._is_ready():
                if self.process.poll() is not None:
                    raise _failure(self.home, self.process.returncode)
                if time.monotonic() > deadline:
                    raise StoreFailed(f"the temporary broker was not ready after {_START_S:.0f} s")
                if given_up.wait(_PAUSE_S):
                    raise Closed("nobody waits for the temporary broker any more")
        except BaseException:
            self._kill()
            raise

    def _kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._let_go()

    def _is_ready(self) -> bool:
        return ready_board(self.home, but=self._earlier_board) is not None


_brokers: weakref.WeakSet[Broker] = weakref.WeakSet()


def _close_in_child() -> None:
    for broker in list(_brokers):
        broker._let_go()


os.register_at_fork(after_in_child=_close_in_child)


def judge_settings(settings: Mapping[str, object]) -> None:
    """Raise SettingIllegal for settings that a temporary broker would not start with."""
    from gantrymq.brokerd.config import load

    load(given=_OF_ITS_KIND | dict(settings))


def _remove(home: Path, word: str) -> None:
    """The files of a broker that has ended, and its boards: a killed one could not remove them."""
    from gantrymq.brokerd.epoch import forget_old_boards

    with Suppressed(FileNotFoundError):  # it has made no store
        forget_old_boards(home, keep="")
    temporaryhome.remove(home, word)


def _unbroken(make: Callable[[threading.Event], T], undo: Callable[[T], object]) -> T:
    """What `make` makes in a thread: no signal handler comes amid that, only amid the wait for it.

    One that raises there has it undone. `make` is to end early, with nothing left, once the event
    that it is given is set. (`Thread.join` would take the thread for ended where one has raised.)
    """
    begun, given_up = threading.Event(), threading.Event()
    made: list[T] = []
    failed: list[BaseException] = []
    ended: SimpleQueue[None] = SimpleQueue()

    def run() -> None:
        begun.set()
        try:
            if given_up.is_set():  # maybe nobody waits for the end
                return
            made.append(make(given_up))
        except BaseException as error:
            failed.append(error)
        finally:
            ended.put(None)

    try:
        start(threading.Thread(target=run, name="gantrymq-temporary"))
        take(ended)
    except BaseException:
        given_up.set()
        if begun.is_set() and not (made or failed):
            take(ended)
        for one in made:
            undo(one)
        raise
    if failed:
        raise failed[0]
    return made[0]  # by no call: no handler comes behind it


_SETTINGS_NAME: Final = "given.json"
_LOG_NAME: Final = "broker.log"


def _start(home: Path, word: str, settings: dict[str, object]) -> subprocess.Popen[bytes]:
    replace_whole(home / _SETTINGS_NAME, json.dumps(settings).encode())
    arguments = ["--home", str(home), "--lifeline", word]
    for name, value in settings.items():
        arguments += ["--set", f"{name}={value}"]
    with appending(home / _LOG_NAME) as log:
        return _spawn(arguments, log)


def _spawn(arguments: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "gantrymq.brokerd", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)


def _failure(home: Path, code: int) -> GantryError:
    said = (home / _LOG_NAME).read_text(errors="replace").strip()[-2000:]
    kind = SettingIllegal if code == ExitCode.USAGE else StoreFailed
    return kind(f"the temporary broker ended with {code}:\n{said}")
