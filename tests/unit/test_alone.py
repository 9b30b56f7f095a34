"""Who may call an object that one thread at a time uses; calls that were broken off hold nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from gantrymq.clients.alone import Alone
from gantrymq.shm.errors import Rejected
from tests.support.interrupts import Interrupt
from tests.support.trials import mends
from tests.support.watchdog import PATIENCE_S


def use(alone: Alone) -> None:
    with alone:
        pass


def in_thread(call: Callable[[], None]) -> None:
    ended: list[None] = []

    def run() -> None:
        call()
        ended.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert ended


@mends("S41")
def test_a_call_that_was_interrupted_holds_up_no_thread() -> None:
    """As it takes the object, or lets it go; another thread finds that out."""
    number, was_hit = 0, True
    while was_hit:
        alone = Alone("thing", lambda: None)
        interrupt = Interrupt(number)
        with interrupt:
            use(alone)
        was_hit = interrupt.was_hit
        in_thread(lambda alone=alone: use(alone))  # type: ignore[misc]
        in_thread(lambda alone=alone: alone.end(lambda: None))  # type: ignore[misc]
        use(alone)
        number += 1
    assert number > 3


def test_a_call_that_goes_on_keeps_its_object() -> None:
    """Whatever another thread, or a signal handler amid it, asks for."""
    alone = Alone("thing", lambda: None)

    def refused_to_another() -> None:
        with pytest.raises(Rejected, match="one thread at a time may"):
            use(alone)

    with alone:
        in_thread(refused_to_another)
        with pytest.raises(Rejected, match="a signal handler may not"):
            use(alone)
    use(alone)


def test_a_call_that_fails_lets_go() -> None:
    alone = Alone("thing", lambda: None)
    with pytest.raises(ValueError, match="it"), alone:
        raise ValueError("it")
    assert not alone.holder
    use(alone)
