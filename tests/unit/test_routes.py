"""Routes of a session as the writer sees them: it may look at one between any two stores."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np

from gantrymq.brokerd.lanes import _read_route
from gantrymq.clients.routes import Routes
from gantrymq.shm import layout, limits, wire
from gantrymq.shm.codes import Level
from gantrymq.shm.kernels import frames
from tests.support.interrupts import Interrupt
from tests.support.trials import mends

WITHIN = r"Routes\.(number|_slot|_write)$"
LONG = "L" * (limits.ROUTE_BLOCK_BYTES_MAX + 1)
TOPICS = ("others", "orders")


class Arena(np.ndarray[Any, np.dtype[np.uint8]]):
    """Calls `seen` behind each store."""

    seen: Callable[[], None] | None = None

    def __setitem__(self, key: Any, value: Any) -> None:  # noqa: ANN401 - as numpy has it
        super().__setitem__(key, value)
        if self.seen is not None:
            self.seen()


class Sending:
    """A client that has numbers of routes in its ring, and the writer that may look at these."""

    def __init__(self) -> None:
        size = layout.ROUTES_AT + limits.ROUTES_MAX * layout.ROUTE_BYTES
        self.arena = np.zeros(size, np.uint8).view(Arena)
        self.arena.seen = self.look
        self.routes = Routes()
        self.session: Any = SimpleNamespace(arena=self.arena, open_topic=self._opened)
        self.sent: dict[int, tuple[str, bytes]] = {}  # by number: the topic and block it stands for

    def _opened(self, name: str, *, create: bool = True) -> wire.TopicOpened:
        assert create
        return wire.TopicOpened(TOPICS.index(name), name, 0, 1, 1, int(Level.WRITTEN))

    def send(self, topic: str, tag: str | None) -> bytes:
        """Put a message under a route; what goes with it besides."""
        number, inline = self.routes.number(self.session, topic, tag)
        block = b"" if tag is None or inline else f"TAGS\x01{tag}\x02".encode()
        assert self.sent.setdefault(number, (topic, block)) == (topic, block)
        self.look()
        return inline

    def send_both(self) -> None:
        """By the route without a tag, with and without one."""
        for tag in (None, LONG):
            self.send("orders", tag)

    def look(self) -> None:
        """What the writer may do now."""
        for number, (topic, block) in self.sent.items():
            at = layout.ROUTES_AT + number * layout.ROUTE_BYTES
            found = _read_route(self.arena[at : at + layout.ROUTE_BYTES].tobytes())
            assert found[0] != frames.ROUTE_REFUSED, (
                "it refuses all that is sent by it from then on"
            )
            assert found == (TOPICS.index(topic), block)


@mends("S213")
def test_a_route_in_use_is_not_written_again() -> None:
    """P1: a tag too long for a route goes with its message, by the route without a tag."""
    sending = Sending()
    assert sending.send("orders", None) == b""
    for number in range(3):
        assert sending.send("orders", f"{number}{LONG}")
    assert sending.send("orders", "t") == b""
    assert len(sending.sent) == 2


@mends("S213")
def test_a_handler_sends_amid_the_first_send() -> None:
    """At each place where a signal may come."""
    for place in count():
        sending = Sending()
        with Interrupt(place, WITHIN, sending.send_both) as interrupt:
            sending.send("orders", None)
        assert set(sending.sent) == {0}
        if not interrupt.was_hit:
            break
    assert place


@mends("S213")
def test_a_send_that_a_handler_breaks_off_takes_no_route_away() -> None:
    """At each place: what comes next goes by the same one."""
    for place in count():
        sending = Sending()
        with Interrupt(place, WITHIN) as interrupt:
            sending.send("orders", LONG)
        sending.send_both()
        assert set(sending.sent) == {0}
        if not interrupt.was_hit:
            break
    assert place
