"""What the native put remembers of topics, whatever a signal handler sends amid that."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest

from gantrymq.clients.fastcall import FastPut
from gantrymq.shm.codes import Level
from gantrymq.shm.kernels import fastput
from tests.support.interrupts import Interrupt
from tests.support.trials import mends

WITHIN = r"FastPut\.(learn|forget_routes)"


class Routes:
    """A put that has learned some topics whose places are the same ones of its cache."""

    def __init__(self) -> None:
        def nothing(*_given: Any, **_parts: Any) -> Any:  # noqa: ANN401
            return None

        self.fast = FastPut(nothing, nothing, nothing, nothing, nothing)
        texts = [f"topic {number}" for number in range(64 * 40)]
        sets = [int(fastput.cache_set(id(text), 0)) for text in texts]
        fullest = max(set(sets), key=sets.count)
        self._texts = [text for text, first in zip(texts, sets, strict=True) if first == fullest]
        assert len(self._texts) > fastput.ROUTE_WAYS + 2
        self._number = 0
        for _ in range(2):
            self.learn()

    def learn(self) -> None:
        """A topic that may have been learned before, and forgotten since."""
        self._number = (self._number + 1) % len(self._texts)
        self.fast.learn(self._texts[self._number], None, self._number, Level.WRITTEN)

    def forget(self) -> None:
        """What topics there are has changed."""
        self.fast.forget_routes(self._number)

    def check(self) -> None:
        """The state names no text that is not kept alive, and each with its own route."""
        ways = self.fast.state[fastput.ROUTES :].reshape(-1, 4)
        named = ways[np.flatnonzero(ways[:, 0])].tolist()
        kept = [way for ways in self.fast._kept.values() for way in ways]
        known = {id(topic): [id(topic), 0, route, level] for topic, _tag, route, level in kept}
        assert all(known.get(way[0]) == way for way in named)
        assert len({way[0] for way in named}) == len(named)


def learn_many(routes: Routes) -> None:
    """More than there are places for."""
    for _ in range(fastput.ROUTE_WAYS + 1):
        routes.learn()


def learn_anew(routes: Routes) -> None:
    """As a send after a topic was made."""
    routes.forget()
    routes.learn()


@mends("S87")
@pytest.mark.parametrize("amid", [Routes.learn, Routes.forget])
@pytest.mark.parametrize("handler", [Routes.learn, Routes.forget, learn_many, learn_anew])
def test_what_is_remembered_is_kept_alive(
    amid: Callable[[Routes], None], handler: Callable[[Routes], None]
) -> None:
    """A handler learns and forgets at each place of both where a signal may come."""
    for place in count():
        routes = Routes()
        with Interrupt(place, WITHIN, lambda routes=routes: handler(routes)) as interrupt:  # type: ignore[misc]
            amid(routes)
        routes.check()
        if not interrupt.was_hit:
            break
        routes.learn()
        routes.check()
    assert place
