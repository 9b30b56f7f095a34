"""The demo's story of filters: it holds at a real broker, and would say if not."""

from __future__ import annotations

import pytest

from gantrymq.clients.producer import Producer
from gantrymq.temporary import Broker
from scripts import demo_filter
from scripts.demo_flights import TOPIC

LINES = [
    b"carrier,dep_delay",
    *(
        b"%s,%d" % (carrier, delay)
        for carrier in (b"UA", b"DL", b"AA")
        for delay in (-3, 60, 61, 900)
    ),
    b"UA,NA",
]


def test_it_holds_at_a_real_broker_and_tells_if_not(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    with Producer(home=broker.home) as producer:
        for number, line in enumerate(LINES[1:]):
            carrier, delay = line.decode().split(",")
            known = {} if delay == "NA" else {"DEP_DELAY": delay}
            producer.send(TOPIC, line, keys=[str(number)], properties={"CARRIER": carrier, **known})
    assert demo_filter.judge(broker.home, said.append, LINES), said
    assert said[-1].endswith("the CSV has 4: holds")
    wrong = [*LINES, b"DL,75"]  # nobody sent it
    monkeypatch.setattr(demo_filter, "GROUP", "demo-late-again")
    monkeypatch.setattr(demo_filter, "_SILENT_S", 0.1)
    assert not demo_filter.judge(broker.home, said.append, wrong)
