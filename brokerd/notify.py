"""Tells a service manager how the broker is (the sd_notify protocol)."""

from __future__ import annotations

import socket
from typing import Final

#: A manager counts from each of these anew until READY: more than a step of a start takes.
EXTEND_S: Final = 120
#: How long room in its socket is waited for: a manager reads at once, or not at all.
_PATIENCE_S: Final = 0.1


class ServiceManager:
    """Sends states to the socket that the manager named; without one it does nothing."""

    def __init__(self, address: str, watchdog_us: int = 0) -> None:
        # "@" stands for the zero byte of an abstract address.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        #: Half a watchdog period; 0: none is wanted.
        self.watchdog_ns = watchdog_us * 1000 // 2 if address else 0
        self._status = ""

    def tell(self, *states: str) -> None:
        """Send states, READY=1 for example.

        A manager that does not listen is no error, and one that does not read holds nothing up.
        """
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.settimeout(_PATIENCE_S)
            try:
                channel.sendto("\n".join(states).encode(), self._address)
            except OSError:
                return

    def show(self, status: str) -> None:
        """The line that `systemctl status` shows; sent when it changes."""
        if status != self._status:
            self._status = status
            self.tell(f"STATUS={status}")

    def extend(self, status: str, seconds: int = EXTEND_S) -> None:
        """A start, or a stop, gets on: give it that much more time from now."""
        self._status = status
        self.tell(f"EXTEND_TIMEOUT_USEC={seconds * 1_000_000}", f"STATUS={status}")
