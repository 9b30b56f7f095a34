"""A broker with nothing special for all tests that need no more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import gantrymq.temporary
from gantrymq.temporary import Broker
from tests.support.forked import spawn_forked
from tests.support.manager import FirstStart, start_first
from tests.support.push import LEVELS


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """Return the broker that tests share, whose names are unique; who ends one needs his own."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:  # as warm_starts, which is not there yet
            patch.setattr(gantrymq.temporary, "_spawn", spawn_forked)
            sizes = {"topics_max": 1024, "board_queues_max": 8192}  # for all tests of a run
            running = stack.enter_context(Broker.temporary(**sizes))
        yield running


@pytest.fixture(scope="module")
def retrying_broker() -> Iterator[Broker]:
    """Return a broker of a file's own that tries again soon."""
    with Broker.temporary(message_delay_level=LEVELS) as running:
        yield running


@pytest.fixture
def topic(unique_name: str) -> str:
    """Return a topic that nobody else uses."""
    return unique_name


@pytest.fixture(scope="session")
def first_start(tmp_path_factory: pytest.TempPathFactory) -> FirstStart:
    """Return what a broker without compiled kernels says to a terminal and to a manager."""
    return start_first(tmp_path_factory.mktemp("first"))
