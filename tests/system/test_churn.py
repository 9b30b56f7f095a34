"""Sessions, groups and topics that come and go: what the broker holds does not grow with them."""

from __future__ import annotations

import os
from pathlib import Path

from clients.consumer import PullConsumer
from clients.producer import Producer
from clients.session import Session
from shm import layout
from tests.support.brokers import ServingBroker
from tests.support.footprint import Footprint, footprints
from tests.support.push import FIRST
from tests.support.trials import mends
from tests.support.watchdog import poll_until

#: `make soak ONLY=churn` has thousands.
SESSIONS = int(os.environ.get("GANTRYMQ_TEST_SESSIONS", "400"))
#: What is counted first: until then caches fill.
FIRST_SESSIONS = 100


def come_and_go(home: Path, topic: str, number: int) -> None:
    """A session of one of the kinds that there are, which ends."""
    kind = number % 4
    if kind == 0:
        with Producer(home) as producer:
            producer.send(topic, b"one of many")
    elif kind == 1:
        with PullConsumer("g-" + topic, [topic], home=home, consume_from=FIRST) as consumer:
            consumer.poll(10, timeout=0.0)
    elif kind == 2:
        Session(home, scheduler=True, transactions=True).close()
    else:
        Session(home, groups=True).close()


def settled(broker: ServingBroker) -> dict[str, Footprint]:
    """What each process holds once it does not fall any more: ends are told a little later."""
    seen = [footprints(broker)]

    def rests() -> bool:
        words = [layout.BOARD_APPENDED, layout.BOARD_DISPATCHED, layout.BOARD_INDEXED]
        if len({broker.board.word(word) for word in words}) > 1:
            return False
        seen.append(footprints(broker))
        pairs = zip(seen[-2].values(), seen[-1].values(), strict=True)
        return not any(before.exceeds(now) for before, now in pairs)

    poll_until(rests, "the processes have given back what they give back")
    return seen[-1]


@mends("R2")
def test_sessions_that_have_ended_leave_nothing_in_any_process(
    tmp_path: Path, unique_name: str
) -> None:
    with ServingBroker(tmp_path / "home") as broker:
        broker.wait_until_ready()
        for number in range(FIRST_SESSIONS):
            come_and_go(broker.home, unique_name, number)
        before = settled(broker)
        for number in range(SESSIONS):
            come_and_go(broker.home, unique_name, number)
        after = settled(broker)
        print(*(f"{name}: {counts}" for name, counts in after.items()), sep="\n")
        assert [name for name in after if after[name].exceeds(before[name])] == [], (before, after)
