"""Sending and closing in signal handlers, amid sends of the same thread."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import pytest

from gantrymq.clients.consumer import PullConsumer
from gantrymq.clients.producer import Producer
from gantrymq.clients.session import NEVER_NS
from gantrymq.shm.errors import BrokerGone
from gantrymq.temporary import Broker
from tests.support.applications import FIRST, PATIENCE_S
from tests.support.tree import ROOT
from tests.support.trials import mends

#: Signals that come amid sends.
SIGNALS = 2000


@mends("A7", "S87")
def test_handlers_send_and_close_amid_sends(unique_name: str) -> None:
    """Nothing raises, waits in vain, is lost, doubled, or stored in another topic."""
    with Broker.temporary() as broker:
        _send_amid_sends(broker, unique_name)


def _send_amid_sends(broker: Broker, unique_name: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.signalled", broker.home, unique_name, str(SIGNALS)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    told = json.loads(ended.stdout)
    assert told["told"] == SIGNALS // 10
    stored = Counter(told["stored"])
    found: Counter[str] = Counter()
    group = "g-" + unique_name
    with PullConsumer(group, [*stored], home=broker.home, consume_from=FIRST) as consumer:
        while found.total() < stored.total():
            batch = consumer.poll(timeout=PATIENCE_S)
            assert len(batch), f"{found.total()} of {stored.total()} came"
            for message in batch:
                assert bytes(message.body).decode() == message.topic
                found[message.topic] += 1
        assert not len(consumer.poll(timeout=0))
    assert found == stored


@mends("S65")
def test_a_send_that_does_not_wait_goes_on_so_behind_a_handlers(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker being away by then."""
    with Producer(broker.home) as producer:
        link = producer._link
        monkeypatch.setattr(link, "_replace_session", lambda *_: pytest.fail("waits for a broker"))

        def put() -> None:
            link.at_once(lambda: None)  # as a handler's send_async comes amid this one
            link._attach_again(NEVER_NS)

        with pytest.raises(BrokerGone, match="away"):
            link.at_once(put)
        assert not link._impatient
