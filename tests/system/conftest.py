"""A broker with nothing special for all tests that need no more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gantrymq.temporary import Broker


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """Return the broker that tests share, whose names are unique; who ends one needs his own."""
    with Broker.temporary() as running:
        yield running
