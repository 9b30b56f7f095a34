"""Tells a service manager how the broker is (the sd_notify protocol)."""

from __future__ import annotations

import socket


class ServiceManager:
    """Sends states to the socket that the manager named; without one it does nothing."""

    def __init__(self, address: str, watchdog_us: int = 0) -> None:
        # "@" stands for the zero byte of an abstract address.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_ns = watchdog_us * 1000 // 2 if address else 0
        self._next_ns = 0

    def tell(self, state: str) -> None:
        """Send a state, READY=1 for example. A manager that does not listen is no error."""
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            try:
                channel.sendto(state.encode(), self._address)
            except OSError:
                return

    def pat_watchdog(self, now_ns: int) -> None:
        """Say that the broker lives, twice in a watchdog period."""
        if self.watchdog_ns and now_ns >= self._next_ns:
            self._next_ns = now_ns + self.watchdog_ns
            self.tell("WATCHDOG=1")
