"""The demo's story of filters: an SQL subscription on the flights gets just the CSV's rows."""

from __future__ import annotations

import csv
import io
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.subscription import FilterExpression, FilterType
from scripts import demo_flights as data

GROUP: Final = "demo-late"
LATE_MINUTES: Final = 60
CARRIERS: Final = ("UA", "DL")
EXPRESSION: Final = f"DEP_DELAY > {LATE_MINUTES} AND CARRIER IN ('UA','DL')"
_SILENT_S: Final = 30.0


def expected(lines: Iterable[bytes]) -> set[int]:
    """Numbers of the flights that the expression means, by the standard library's csv alone."""
    text = io.StringIO(b"\n".join(lines).decode())
    return {
        number
        for number, row in enumerate(csv.DictReader(text))
        if row["carrier"] in CARRIERS
        and row["dep_delay"] != data.MISSING
        and int(row["dep_delay"]) > LATE_MINUTES
    }


def subscribed(home: Path, count: int) -> tuple[Counter[int], float]:
    """Numbers of the flights that the subscription gets, and seconds; it expects `count`."""
    wanted = FilterExpression(EXPRESSION, FilterType.SQL92)
    got: Counter[int] = Counter()
    began = time.monotonic()
    with PullConsumer(
        GROUP, {data.TOPIC: wanted}, home=home, consume_from=ConsumeFrom.FIRST_OFFSET
    ) as consumer:
        while got.total() < count:
            batch = consumer.poll(timeout=_SILENT_S)
            if not len(batch):
                break
            got.update(int(properties["KEYS"]) for properties in batch.properties)
        took = time.monotonic() - began
        got.update(int(properties["KEYS"]) for properties in consumer.poll(timeout=0.2).properties)
    return got, took


def judge(home: Path, say: Callable[[str], None], lines: Iterable[bytes] | None = None) -> bool:
    """Compare the subscription's flights with the CSV's; say what came of it."""
    wanted = expected(data.lines() if lines is None else lines)
    got, took = subscribed(home, len(wanted))
    holds = bool(wanted) and set(got) == wanted and got.total() == len(wanted)
    say(
        f"SQL subscription {EXPRESSION}: {got.total():,} flights in {took:.1f} s, the CSV has"
        f" {len(wanted):,}: {'holds' if holds else 'DOES NOT HOLD'}"
    )
    return holds
