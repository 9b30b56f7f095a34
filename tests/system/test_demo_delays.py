"""The demo's story of delays and failures: it holds at a real broker, and would say if not."""

from __future__ import annotations

import re

import pytest

from gantrymq.clients.recalloutcome import RecallOutcome
from gantrymq.temporary import Broker
from scripts import demo_delays
from scripts.demo_delays import CANCELLED, LATER, NONSENSE, DeadLetter, Delivery, Story, problems

SENT_MS = 1_700_000_000_000


def sound_story() -> Story:
    """What a broker that keeps its promises does, in round figures."""
    times = {
        (LATER, 1): 1_501, (demo_delays.LAST, 1): 2_101, (demo_delays.SHAKY, 1): 0,
        (demo_delays.SHAKY, 2): 802, (NONSENSE, 1): 0, (NONSENSE, 2): 800, (NONSENSE, 3): 1_600,
    }  # fmt: skip
    deliveries = [
        Delivery(order, attempt, SENT_MS + ms, SENT_MS + ms)
        for (order, attempt), ms in times.items()
    ]
    letters = [DeadLetter(NONSENSE, "ValueError: no order at all")]
    return Story(
        SENT_MS, deliveries, letters, RecallOutcome.CANCELLED, RecallOutcome.ALREADY_DELIVERED
    )


def test_it_holds_at_a_real_broker() -> None:
    said: list[str] = []
    with Broker.temporary() as broker:
        assert demo_delays.judge(broker.home, said.append), said
    assert re.fullmatch(r"delayed: asked for 1,500 ms .* \d+ ms late", said[0]), said
    assert said[-2:] == [
        "dead letter in %DLQ%demo-billing: 'nonsense', because of ValueError: no order at all",
        "delays and failures: hold",
    ]


def changed(name: str) -> Story:
    """A story in which one promise is broken."""
    story = sound_story()
    kept = [item for item in story.deliveries if item.order != name]
    early = Delivery(LATER, 1, SENT_MS + 1_499, SENT_MS + 1_500)
    soon = [Delivery(NONSENSE, n, SENT_MS, SENT_MS + 799 * (n - 1)) for n in (1, 2, 3)]
    return {
        LATER: story._replace(deliveries=[*kept, early]),
        CANCELLED: story._replace(deliveries=[*kept, Delivery(CANCELLED, 1, SENT_MS, SENT_MS)]),
        NONSENSE: story._replace(deliveries=[*kept, *soon]),
        "twice": story._replace(deliveries=[*kept, kept[0]]),
        "letters": story._replace(letters=story.letters * 2),
        "in time": story._replace(in_time=RecallOutcome.UNKNOWN_HANDLE),
        "too late": story._replace(too_late=RecallOutcome.CANCELLED),
    }[name]


@pytest.mark.parametrize(
    "name", [LATER, CANCELLED, NONSENSE, "twice", "letters", "in time", "too late"]
)
def test_a_broken_promise_is_said(name: str) -> None:
    assert problems(sound_story()) == []
    assert problems(changed(name))
