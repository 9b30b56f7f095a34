"""Requests to a broker's supervisor over the control socket; loads neither numpy nor numba."""

from __future__ import annotations

import os
import socket
import time
from io import FileIO
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from gantrymq.clients.closing import Closing
from gantrymq.clients.home import connect, shortage
from gantrymq.shm import layout, wire
from gantrymq.shm.errors import BrokerGone, GantryError, Timeout
from gantrymq.shm.fromhandlers import Suppressed, require_ours

ANSWER_S: Final = 30.0
#: A call that waits looks so often whether one that a signal handler made has heard its answer.
_AGAIN_S: Final = 0.05
#: Shorter waits are no number with one digit behind the point.
_TOLD_S: Final = 0.05

F = TypeVar("F", bound=wire.Frame)


class ControlChannel(Closing):
    """A connection that asks and waits for the answer; one thread at a time.

    A signal handler may ask amid a request of its thread.
    """

    def __init__(self, home: Path, answer_s: float = ANSWER_S) -> None:
        """`answer_s`: how long an answer is waited for. Raises BrokerGone."""
        self.home = home
        self.channel = connect(home, answer_s)
        self.channel.settimeout(_AGAIN_S)
        self._answer_s = answer_s
        self.was_refused = False  # the last request that was answered
        self._serial = 0  # of the last request
        #: By serial, of requests in hand: what has come for them.
        self._answers: dict[int, tuple[wire.AnyFrame, list[FileIO]] | None] = {}

    def ask(
        self, frame: wire.Frame, answer_s: float | None = None
    ) -> tuple[wire.AnyFrame, list[FileIO]]:
        """Send a request; the caller owns the files of the answer.

        `answer_s`: how long that is waited for, if not as long as usual.
        Raises what the broker refuses with, Timeout, or BrokerGone.
        """
        self._serial += 1
        serial = self._serial
        self._answers[serial] = None
        patience_s = self._answer_s if answer_s is None else answer_s
        until = time.monotonic() + patience_s
        try:
            whole = msgspec.structs.replace(frame, serial=serial)
            received = self._exchange(whole, serial, until)
        except TimeoutError as error:
            require_ours(error)
            # It is what was left of a caller's wait: 0.0 s would say nothing of that.
            within = f"{patience_s:.1f} s" if patience_s >= _TOLD_S else "time"
            raise Timeout(
                f"the broker at {self.home} did not answer in {within}: it is busy, or stopped."
                " Try again later"
            ) from error
        except OSError as error:
            require_ours(error)
            raise (shortage(error) or gone(self.home)) from error
        finally:
            del self._answers[serial]
        if received is None:
            raise gone(self.home)
        answer, files = received
        self.was_refused = isinstance(answer, wire.Refused)
        if isinstance(answer, wire.Refused):
            raise answer.as_error()
        return answer, files

    def _exchange(
        self, frame: wire.Frame, serial: int, until: float
    ) -> tuple[wire.AnyFrame, list[FileIO]] | None:
        """Send it and take what comes, for requests that this one came amid of, too."""
        sent = False
        while self._answers[serial] is None:
            try:
                if not sent:
                    with Suppressed(ConnectionError):  # who has ended it may have said why
                        wire.send(self.channel, frame)
                    sent = True
                received = self._receive()
            except TimeoutError as error:
                require_ours(error)
                if self._answers[serial] is None and time.monotonic() >= until:
                    raise
                continue
            if received is None:
                return None
            self._sort(received, serial)
        return self._answers[serial]

    def _receive(self) -> tuple[wire.AnyFrame, list[FileIO]] | None:
        try:
            return wire.receive_owned(self.channel)
        except ConnectionResetError as error:  # told once; what was sent before comes behind it
            require_ours(error)
            return wire.receive_owned(self.channel)

    def _sort(self, received: tuple[wire.AnyFrame, list[FileIO]], serial: int) -> None:
        told = received[0].serial or serial  # 0: told outside of requests, and the end of all
        if told in self._answers:
            self._answers[told] = received
        else:
            close_all(received[1])  # nobody waits for it any more

    @property
    def is_asking(self) -> bool:
        """Whether what comes next is for a request in hand."""
        return bool(self._answers)

    def hear(self) -> wire.Frame | None:
        """What has come outside of a request, None if it was an answer that nobody waits for.

        Raises BrokerGone at the end of the connection.
        """
        try:
            received = wire.receive_owned(self.channel)
        except TimeoutError as error:
            require_ours(error)
            return None  # a signal handler has taken it
        except (OSError, msgspec.MsgspecError) as error:
            require_ours(error)
            raise gone(self.home) from error
        if received is None:
            raise gone(self.home)
        frame, files = received
        close_all(files)
        return None if frame.serial else frame  # a signal ended the wait for that answer

    def request(self, frame: wire.Frame, kind: type[F]) -> F:
        """The answer to a request that brings no descriptors."""
        answer, files = self.ask(frame)
        close_all(files)
        return expect(answer, kind)

    def close(self) -> None:
        """End the connection. Safe to call twice."""
        self.channel.close()

    def shut_down(self) -> None:
        """End it for whoever waits on it; the descriptor stays valid."""
        with Suppressed(OSError):
            self.channel.shutdown(socket.SHUT_RDWR)


def look_at(home: Path, answer_s: float = ANSWER_S) -> ControlChannel:
    """Connect without a session, as the command line does."""
    control = ControlChannel(home, answer_s)
    try:
        control.request(wire.Hello(os.getpid(), layout.FINGERPRINT, "look"), wire.Welcome)
    except BaseException:
        control.close()
        raise
    return control


def close_all(files: list[FileIO]) -> None:
    """Give back what came with a frame."""
    for file in files:
        file.close()


def gone(home: Path) -> BrokerGone:
    """The error of a broker that was there."""
    return BrokerGone(
        f"the broker at {home} is gone: start it again (gantrymq serve --home {home})",
        home=str(home),
    )


def expect(frame: wire.AnyFrame, kind: type[F]) -> F:
    """The frame, which must be of that kind."""
    if not isinstance(frame, kind):
        raise GantryError(f"the broker answered with {type(frame).__name__}")
    return frame
