"""Completions are lost by no handler, though it takes them amid a look, and another ends it there.

A signal comes at each place of a producer's look; its handler sends, and looks as well. At each
place of that look a second signal comes, whose handler raises.
"""

from __future__ import annotations

import gc
import signal
import sys
import time
from _thread import interrupt_main
from collections.abc import Iterator
from types import FrameType

import pytest

from gantrymq.clients.producer import Producer
from gantrymq.clients.receipts import ReceiptFuture
from gantrymq.temporary import Broker
from tests.support.interrupts import Interrupted
from tests.support.trials import mends
from tests.system.test_send import PATIENCE_S


class Coming(int):
    """A signal that comes at the next place where Python looks for one: no call is one itself."""

    now = property(interrupt_main)


#: Signals for the handlers amid a look, and amid that one's.
OUTER, INNER = signal.SIGUSR1, signal.SIGUSR2
SENT = 3


class Looks:
    """One look of a producer with both signals, by the numbers of calls and returns amid it."""

    def __init__(self, producer: Producer, topic: str, *, is_caught: bool) -> None:
        """`is_caught`: the first handler goes on behind what the second raises."""
        self._producer, self._topic, self._is_caught = producer, topic, is_caught
        self._left: dict[int, int] | None = None  # places until a signal comes; None: it is over
        self._inner = 0
        self._heard: set[int] = set()
        self.receipts: list[ReceiptFuture] = []

    def play(self, outer: int, inner: int) -> tuple[bool, bool]:
        """Whether each of both signals was heard, amid its look or soon behind it."""
        self._send()
        self._left, self._inner, self._heard = {OUTER: outer}, inner, set()
        try:
            sys.setprofile(self._come)
            self._producer._link.look()
            self._left = None
            sys.setprofile(None)  # a signal that came at the very end may be heard here
        except Interrupted:
            self._left = None
            sys.setprofile(None)
        return OUTER in self._heard, INNER in self._heard

    def handle_outer(self, _number: int, _frame: FrameType | None) -> None:
        if self._left is None:
            return
        self._heard.add(OUTER)
        self._send()
        self._left[INNER] = self._inner
        sys.setprofile(self._come)
        try:
            self._producer._link.look()
        except Interrupted:
            if not self._is_caught:
                raise
            sys.setprofile(None)
            for receipt in self.receipts[-SENT:]:
                receipt.result(PATIENCE_S)

    def handle_inner(self, _number: int, _frame: FrameType | None) -> None:
        if self._left is not None:
            self._heard.add(INNER)
            raise Interrupted

    def _send(self) -> None:
        """Messages whose completions have come, and are not taken."""
        send, lane = self._producer.send_async, self._producer._link.lane
        self.receipts += [send(self._topic, b"") for _ in range(SENT)]
        while lane.taken() < lane.put_end:
            time.sleep(0)

    def _come(self, _frame: FrameType, _event: str, _arg: object) -> None:
        left = self._left or {}
        which = INNER if INNER in left else OUTER
        if which in left:
            left[which] -= 1
            if not left[which]:
                del left[which]
                sys.setprofile(None)  # it would hear the signal itself, at the next place
                _ = Coming(which).now


@pytest.fixture
def producer(broker: Broker) -> Iterator[Producer]:
    gc.collect()  # finalizers of what earlier tests have left would hear the signals
    with Producer(home=broker.home, timeout=PATIENCE_S) as made:
        yield made


@mends("S150")
@pytest.mark.parametrize("is_caught", [False, True], ids=["all ended", "caught"])
def test_what_a_handler_took_is_dealt_with(
    producer: Producer, unique_name: str, is_caught: bool
) -> None:
    producer.send(unique_name, b"")
    looks = Looks(producer, unique_name, is_caught=is_caught)
    before = signal.signal(OUTER, looks.handle_outer), signal.signal(INNER, looks.handle_inner)
    try:
        tried = played(looks)
    finally:
        for number, handler in zip((OUTER, INNER), before, strict=True):
            signal.signal(number, handler)
    assert tried > 100
    receipts = [receipt.result(PATIENCE_S) for receipt in looks.receipts]
    assert len({(one.message_queue, one.queue_offset) for one in receipts}) == len(receipts)


def played(looks: Looks) -> int:
    """How many pairs of places there were."""
    tried = outer = 0
    while True:
        outer, inner = outer + 1, 0
        while True:
            inner += 1
            had_outer, had_inner = looks.play(outer, inner)
            if not had_outer:
                return tried
            if not had_inner:
                break
            tried += 1
