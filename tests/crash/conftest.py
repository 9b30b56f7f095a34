"""Brokers of crash tests: a process per agent, files so small that segments roll all the time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from gantrymq.temporary import Broker

#: A segment takes a few rounds of a load, a ConsumeQueue file a hundred messages.
SMALL = {
    "profile": "standard",
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 500,
    "max_index_num": 1000,
    "topics_max": 64,
    "board_queues_max": 1024,
    "flush_interval_commit_log": 10,
    "log_level": "info",
}


@pytest.fixture
def start_broker() -> Iterator[Callable[..., Broker]]:
    """Return a function that starts a broker; all end with the test."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(Broker.temporary(**(SMALL | settings)))
