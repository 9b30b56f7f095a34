"""A broker with nothing special for all tests that need no more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gantrymq.temporary import Broker
from tests.support.manager import FirstStart, start_first


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """Return the broker that tests share, whose names are unique; who ends one needs his own."""
    with Broker.temporary() as running:
        yield running


@pytest.fixture(scope="session")
def first_start(tmp_path_factory: pytest.TempPathFactory) -> FirstStart:
    """Return what a broker without compiled kernels says to a terminal and to a manager."""
    return start_first(tmp_path_factory.mktemp("first"))
