"""Brokers that start fast, and one with nothing special for all who need no more."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from typing import IO

import pytest

import gantrymq.temporary
from gantrymq.temporary import Broker
from tests.support.brokers import ServingBroker
from tests.support.forked import start_forked


@pytest.fixture(scope="module")
def cold_starts() -> bool:
    """Return whether brokers of a module start as a user's do; overridden where that is shown."""
    return False


@pytest.fixture(scope="module", autouse=True)
def warm_starts(cold_starts: bool) -> Iterator[None]:
    """Start brokers as forks of this process, which has loaded and compiled all that they need."""
    with pytest.MonkeyPatch.context() as patch:
        if not cold_starts:
            patch.setattr(ServingBroker, "forked", True)
            patch.setattr(gantrymq.temporary, "_spawn", _fork_broker)
        yield


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """Return the broker that tests share, whose names are unique; who ends one needs his own."""
    with Broker.temporary() as running:
        yield running


def _fork_broker(arguments: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    return start_forked("brokerd", arguments, stdin=subprocess.PIPE, stdout=log, stderr=log)
