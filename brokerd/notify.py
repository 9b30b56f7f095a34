"""Tells a service manager how the broker is (the sd_notify protocol)."""

from __future__ import annotations

import socket
from typing import Final

from gantrymq.shm.errors import in_any_file

#: A manager counts from each of these anew until READY: more than a step of a start takes.
EXTEND_S: Final = 120
#: How long room in its socket is waited for: a manager reads at once, or stands still.
_PATIENCE_S: Final = 0.1
#: Of a status; a manager drops a message of more than 4,096 bytes with all that it says.
_STATUS_MAX: Final = 1000


class ServiceManager:
    """Sends states to the socket that the manager named; without one it does nothing.

    What finds no room there is owed until it does, or until the same is said anew.
    """

    def __init__(self, address: str, watchdog_us: int = 0) -> None:
        # "@" stands for the zero byte of an abstract address.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        #: Half a watchdog period; 0: none is wanted.
        self.watchdog_ns = watchdog_us * 1000 // 2 if address else 0
        self._status = ""
        self._owed: dict[str, str] = {}

    def tell(self, **states: object) -> None:
        """Send states, `READY=1` for example.

        A manager that does not listen is no error, and one that does not read holds nothing up.
        """
        if self._address:
            self._owed |= {name: _line(str(value)) for name, value in states.items()}
            self._send(_PATIENCE_S)

    def repeat(self) -> None:
        """Send what is owed; call it now and then."""
        if self._owed:
            self._send(0.0)

    def show(self, status: str) -> None:
        """The line that `systemctl status` shows; sent when it changes."""
        if status != self._status:
            self._status = status
            self.tell(STATUS=status)

    def extend(self, status: str, seconds: int = EXTEND_S) -> None:
        """A start, or a stop, gets on: give it that much more time from now."""
        self._status = status
        self.tell(EXTEND_TIMEOUT_USEC=seconds * 1_000_000, STATUS=status)

    def _send(self, patience_s: float) -> None:
        text = "\n".join(f"{name}={value}" for name, value in self._owed.items())
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.settimeout(patience_s)
            try:
                channel.sendto(text.encode(), self._address)
            except OSError:
                return
        self._owed.clear()


def _line(value: str) -> str:
    """One line, of text that can be sent: an error may name any file."""
    return in_any_file(" ".join(value.splitlines()))[:_STATUS_MAX]
