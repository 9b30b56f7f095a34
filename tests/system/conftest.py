"""One broker with nothing special for all who need no more: names in it are unique."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gantrymq.temporary import Broker


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """Return the broker that tests share; who stops or kills one needs his own."""
    with Broker.temporary() as running:
        yield running
