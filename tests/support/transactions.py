"""What tests of transactions ask of a store."""

from __future__ import annotations

from gantrymq.temporary import Broker
from tests.support.stores import read_live_log


def delivered(broker: Broker, topic: str) -> list[bytes]:
    """Bodies that are in the queues of a topic."""
    log = read_live_log(broker.home)
    return sorted(item.record.body for item in log if item.record.topic == topic)
