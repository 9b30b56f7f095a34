"""What each argument of the table may be, by its bounds: values just outside, and just inside.

The numbers are written down here once more, not taken from clients/arguments.py: who takes a bound
away there has it taken away from the code alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gantrymq import MessageQueue
from gantrymq.clients.arguments import TABLE, Judge

WORD_MAX = 9_223_372_036_854_775_807
TEN_YEARS_S = 315_360_000.0
YEAR_9999_MS = 253_402_300_799_999
EVER_MS = 4_611_686_018_427_387_904
TOPIC_MAX, DERIVED_TOPIC_MAX, GROUP_MAX, INSTANCE_MAX = 127, 255, 120, 200
QUEUE_ID_MAX = 1023
PATH_MAX = 4000


@dataclass(frozen=True)
class Bound:
    """One bound of an argument.

    What is outside is refused. What is inside is taken, or fails later, for another reason. What
    becomes something else is taken as that.
    """

    name: str
    outside: tuple[object, ...] = ()
    inside: tuple[object, ...] = ()
    becomes: tuple[tuple[float, float], ...] = ()


Bounds = tuple[Bound, ...]


def whole(low: int, high: int) -> Bounds:
    return (
        Bound("low", (low - 1, low - 2, -(1 << 64)), (low, low + 1)),
        Bound("high", (high + 1, high + 2, 1 << 64), (high - 1, high)),
    )


def _above(seconds: float) -> float:
    return math.nextafter(seconds, math.inf)


#: Less than 0 is 0, more than ten years is for ever: nothing is refused but what is no number.
SECONDS: Bounds = (
    Bound("number", (math.nan,), (0, 0.0, 1e-9, 5e-324)),
    Bound("low", (), (-1, -math.inf), ((-1, 0.0), (-5e-324, 0.0), (-math.inf, 0.0), (0, 0.0))),
    Bound(
        "high",
        (),
        (_above(TEN_YEARS_S), 10**5000, math.inf),
        ((TEN_YEARS_S, TEN_YEARS_S), (_above(TEN_YEARS_S), math.inf), (math.inf, math.inf)),
    ),
)
SPAN: Bounds = (
    Bound("number", (math.nan,)),
    Bound("low", (0, 0.0, -5e-324, -1, -math.inf), (5e-324, 1)),
    Bound("high", (_above(TEN_YEARS_S), 1e300, 10**5000, math.inf), (TEN_YEARS_S, 315_359_999)),
)


def name(most: int, begin: str = "") -> Bounds:
    """Letters, digits and _-%|; `begin` makes those that are taken unique."""
    return (
        Bound("low", ("",), ("x",)),
        Bound("high", ("x" * (most + 1), "x" * 70_000), ((begin + "x" * most)[:most],)),
        Bound("letters", ("a b", "ü", "a\0", "a/b", "a\n", "a\ud800"), ("_-%|aZ09",)),
    )


TOPIC: Bounds = (
    *name(TOPIC_MAX),
    Bound(
        "high of derived ones",
        tuple(f"%{kind}%".ljust(DERIVED_TOPIC_MAX + 1, "x") for kind in ("RETRY", "DLQ")),
        tuple(f"%{kind}%".ljust(DERIVED_TOPIC_MAX, "x") for kind in ("RETRY", "DLQ")),
    ),
)


def group(begin: str) -> Bounds:
    return (
        *name(GROUP_MAX, begin),
        Bound("the broker's own", ("CID_RMQ_SYS_", "CID_RMQ_SYS_x"), (f"{begin}_CID_RMQ_SYS",)),
    )


#: In bytes, however many letters these are.
HOME: Bounds = (
    Bound("high", ("/" + "x" * PATH_MAX, "/" + "ü" * (PATH_MAX // 2)), ("/x" * (PATH_MAX // 2),)),
    Bound("letters", ("/a\0b",), ("/nowhere-ü",)),
)


def queue(topic: str) -> Bounds:
    """Of a queue: its number, and its topic's name."""
    numbers = (
        Bound(
            bound.name,
            tuple(MessageQueue(topic, number) for number in bound.outside),  # type: ignore[arg-type]
            tuple(MessageQueue(topic, number) for number in bound.inside),  # type: ignore[arg-type]
        )
        for bound in whole(0, QUEUE_ID_MAX)
    )
    names = (
        Bound(
            f"{bound.name} of the topic",
            tuple(MessageQueue(text, 0) for text in bound.outside),  # type: ignore[arg-type]
            tuple(MessageQueue(text, 0) for text in bound.inside),  # type: ignore[arg-type]
        )
        for bound in TOPIC
    )
    return (*numbers, *names)


def each(bounds: Bounds, put: Callable[[Any], object]) -> Bounds:
    """The same of what is part of something."""
    return tuple(
        Bound(bound.name, tuple(map(put, bound.outside)), tuple(map(put, bound.inside)))
        for bound in bounds
    )


def queues(topic: str) -> Bounds:
    """Of several: any of them, behind one that is right."""
    return each(queue(topic), lambda item: [MessageQueue(topic, 0), item])


#: The first day of the calendar has no time without a zone.
INSTANT = Bound(
    "first time", (datetime.min,), (datetime(1, 1, 3), datetime.max.replace(tzinfo=UTC))
)
MOMENT: Bounds = (*whole(-EVER_MS, EVER_MS), INSTANT)


def place() -> Bounds:
    return (*whole(0, WORD_MAX), INSTANT, Bound("words", ("", "beginn", "END"), ("begin", "end")))


def subscription() -> Bounds:
    """Each topic of a list, and of a mapping; one at least."""
    return (
        Bound("least", ([], {}, ()), (["x"],)),
        *each(TOPIC, lambda topic: [topic]),
        *(
            Bound(f"{bound.name}, mapped", bound.outside, bound.inside)
            for bound in each(TOPIC, lambda topic: {topic: "*"})
        ),
    )


def ranges(topic: str, begin: str) -> dict[tuple[str, str], Bounds]:
    """All rows of the table that have bounds, by callable and argument.

    `topic` is one that there is, `begin` what names of groups that are made begin with.
    """
    found: dict[tuple[str, str], Bounds] = {
        ("Producer", "producer_group"): group(begin),
        ("PullConsumer", "group"): group(begin),
        ("PullConsumer", "subscription"): subscription(),
        ("PullConsumer", "consume_timestamp"): (INSTANT,),
        ("PullConsumer.poll", "max_messages"): whole(1, WORD_MAX),
        ("PullConsumer.seek", "to"): place(),
        ("PushConsumer", "group"): group(begin),
        ("PushConsumer", "subscription"): subscription(),
        ("PushOptions", "concurrency"): whole(1, 1000),
        ("PushOptions", "max_attempts"): whole(1, 65_535),
        ("PushOptions", "consume_timeout"): SPAN,
        ("PushOptions", "instance"): name(INSTANCE_MAX),
        ("PushOptions", "consume_timestamp"): (INSTANT,),
        ("MessageBatch.message_at", "row"): whole(0, WORD_MAX),
        ("Client.query", "limit"): whole(0, WORD_MAX),
        ("Client.query", "begin"): MOMENT,
        ("Client.query", "end"): MOMENT,
        ("Client.query", "before"): whole(0, WORD_MAX),
        ("Client.query", "scan_bytes"): whole(0, WORD_MAX),
        ("Client.search_offset", "moment"): MOMENT,
        ("Found.page", "count"): whole(0, WORD_MAX),
    }
    for argument, bounds in {"timeout": SECONDS, "home": HOME, "topic": TOPIC}.items():
        found |= {(call, argument): bounds for call, rows in TABLE.items() if argument in rows}
    found |= {(call, "queue"): queue(topic) for call, rows in TABLE.items() if "queue" in rows}
    found |= {(call, "queues"): queues(topic) for call, rows in TABLE.items() if "queues" in rows}
    return found


#: Judges of what has no bounds: one of a few things, or any of a type.
BOUNDLESS = {
    "flag", "member", "choice", "text", "durability", "checker", "listener", "callback", "shape",
}  # fmt: skip


def kind_of(judge: Judge) -> str:
    """What a row is judged by: the name of a judge, or of what makes it."""
    made_by, _, rest = judge.__qualname__.partition(".")
    if made_by == "optional" and rest:
        (inner,) = (cell.cell_contents for cell in judge.__closure__ or ())
        return kind_of(inner)
    return made_by


#: Rows of the table that several callables use.
SHARED: Mapping[str, tuple[str, ...]] = {
    "Producer.send": (
        "Producer.send", "Producer.send_async", "Producer.send_batch", "Producer.send_batch_async",
    ),
    "ReceiptFuture.result": ("ReceiptFuture.result", "ReceiptFuture.exception"),
    "PushOptions": ("PushConsumer",),
    "PushConsumer.stop": ("PushConsumer.stop", "PushConsumer.close"),
}  # fmt: skip


def users_of(call: str) -> tuple[str, ...]:
    """The public callables whose arguments are judged by the rows of a name in the table."""
    return SHARED.get(call, (call,))


def lifted(judge: Judge, values: tuple[object, ...]) -> Judge:
    """A judge without a bound: what is beyond it is taken as it is."""

    def lenient(name: str, value: Any) -> Any:  # noqa: ANN401
        return value if any(value is one for one in values) else judge(name, value)

    return lenient
