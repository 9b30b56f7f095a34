"""What the public callables take: one table of their arguments, and what each may be.

Each is judged where the caller hands it over, once, before anything is done. A judge returns the
value as the code behind it wants it (whole numbers as int, seconds as float), or raises the
argument's error, which names the argument, what was given and what may be given.

Not in the table: what sends take is judged where entries are made of it (clients/message.py,
clients/delays.py), for the native put takes the common case before anybody could look; a `Message`
and a `MessageQueue` are judged when they are used.
"""

from __future__ import annotations

import inspect
import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from numbers import Real
from typing import Any, Final

from gantrymq.clients.home import find_home
from gantrymq.clients.message import (
    MessageQueue,
    check_topic,
    is_name,
    items_of,
    level_of,
    plain,
)
from gantrymq.clients.push.messagemodel import MessageModel
from gantrymq.clients.queries.moments import milliseconds
from gantrymq.clients.subscription import check_group, is_unicode, parse_subscription
from gantrymq.shm import limits
from gantrymq.shm.errors import ArgumentIllegal, GroupIllegal, MessageIllegal, shown
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.groupwire import ASSIGNMENTS, ConsumeFrom
from gantrymq.shm.indexnote import Shape
from gantrymq.shm.indexreader import EVER_MS

#: Of an argument's name and value; raises, or returns the value to use.
Judge = Callable[[str, Any], Any]
#: What a client waits by default.
TIMEOUT_S: Final = 10.0
#: Waits that are longer have no end.
SECONDS_MAX: Final = 10 * 365 * 86_400.0
CONCURRENCY_MAX: Final = 1000
INSTANCE_MAX: Final = 200
_OFFSET_MAX: Final = (1 << 63) - 1
_PATH_BYTES_MAX: Final = 4000  # PATH_MAX, with room for what is below a home


def judged(call: str, *values: Any) -> list[Any]:  # noqa: ANN401 - of any kind
    """The arguments of a public callable, in the table's order, as they are to be used."""
    rows = TABLE[call]
    assert len(values) == len(rows), call  # none goes by unjudged
    return list(map(operator.call, rows.values(), rows, values))  # for each message: be quick


def require_known(call: str, known: Iterable[str], given: Iterable[str]) -> None:
    """Raise TypeError, as Python does, for a keyword argument that a callable does not have."""
    for name in set(given).difference(known):
        raise TypeError(f"{call}() has no argument {name!r}: there are {', '.join(known)}")


def refused(
    name: str,
    value: object,
    allowed: str,
    kind: type[ArgumentIllegal] = ArgumentIllegal,
) -> ArgumentIllegal:
    """The error of an argument."""
    return kind(f"{name} is {shown(value)}: give {allowed}", argument=name)


# ------------------------------------------------------------------------------------ the judges


def whole(
    low: int, high: int, allowed: str, kind: type[ArgumentIllegal] = ArgumentIllegal
) -> Judge:
    """Judge whole numbers: whatever has `__index__`, numpy's too, but no bool."""

    def judge(name: str, value: Any) -> int:  # noqa: ANN401
        if type(value) is not int:
            if isinstance(value, bool) or not hasattr(type(value), "__index__"):
                raise refused(name, value, allowed, kind)
            try:
                value = operator.index(value)
            except TypeError as error:  # an array of several numbers
                require_ours(error)
                raise refused(name, value, allowed, kind) from None
        if not low <= value <= high:
            raise refused(name, value, allowed, kind)
        return value  # type: ignore[no-any-return]

    return judge


def seconds(
    allowed: str = "seconds as a number, math.inf for ever, None for the client's default",
    *,
    optional: bool = True,
) -> Judge:
    """Judge how long to wait: less than 0 is 0, beyond ten years is for ever."""

    def judge(name: str, value: Any) -> float | None:  # noqa: ANN401
        if value is None and optional:
            return None
        found: float = value if type(value) is float else _as_seconds(name, value, allowed)
        if 0.0 <= found <= SECONDS_MAX:
            return found
        if math.isnan(found):
            raise refused(name, value, allowed)
        return 0.0 if found < 0.0 else math.inf

    return judge


def _as_seconds(name: str, value: Any, allowed: str) -> float:  # noqa: ANN401
    if isinstance(value, timedelta):
        raise refused(name, value, f"{allowed}: a timedelta has total_seconds()")
    if isinstance(value, bool) or not isinstance(value, Real):
        raise refused(name, value, allowed)
    try:
        return float(value)
    except OverflowError as error:
        require_ours(error)
        return math.inf if not value < 0 else 0.0


def bounded_seconds(allowed: str) -> Judge:
    """Judge a span that is more than 0, and has an end."""
    judge_any = seconds(allowed, optional=False)

    def judge(name: str, value: Any) -> float:  # noqa: ANN401
        found: float = _as_group(partial(judge_any, name), value)
        if not 0 < found <= SECONDS_MAX:
            raise refused(name, value, allowed, GroupIllegal)
        return found

    return judge


def flag(kind: type[ArgumentIllegal] = ArgumentIllegal) -> Judge:
    """Judge True and False."""

    def judge(name: str, value: Any) -> bool:  # noqa: ANN401
        if not isinstance(value, bool):
            raise refused(name, value, "True or False", kind)
        return value

    return judge


def member(enum: type[Enum], kind: type[ArgumentIllegal] = GroupIllegal) -> Judge:
    """Judge members of an enum."""
    allowed = " or ".join(f"{enum.__name__}.{item.name}" for item in enum)

    def judge(name: str, value: Any) -> object:  # noqa: ANN401
        if not isinstance(value, enum):
            raise refused(name, value, allowed, kind)
        return value

    return judge


def choice(choices: Iterable[str], kind: type[ArgumentIllegal] = ArgumentIllegal) -> Judge:
    """Judge texts of which there are a few."""
    known = tuple(choices)
    allowed = " or ".join(map(repr, known))

    def judge(name: str, value: Any) -> str:  # noqa: ANN401
        if not isinstance(value, str) or plain(value) not in known:
            raise refused(name, value, allowed, kind)
        return plain(value)

    return judge


def optional(inner: Judge) -> Judge:
    """Judge what may be left out."""
    return lambda name, value: None if value is None else inner(name, value)


def text(allowed: str, kind: type[ArgumentIllegal] = ArgumentIllegal) -> Judge:
    """Judge texts that can be stored and sent."""

    def judge(name: str, value: Any) -> str:  # noqa: ANN401
        if not isinstance(value, str) or not is_unicode(plain(value)):
            raise refused(name, value, allowed, kind)
        return plain(value)

    return judge


def home(name: str, value: Any) -> Any:  # noqa: ANN401
    """Judge a directory: a text or a path."""
    try:
        path = None if value is None else os.fspath(value)
        if path is not None and not isinstance(path, str):
            raise TypeError(type(path))
        if path and (len(os.fsencode(find_home(path))) > _PATH_BYTES_MAX or "\0" in path):
            raise ValueError(path)
    except (TypeError, ValueError, RuntimeError) as error:  # no path; no bytes for it; no such user
        require_ours(error)
        raise refused(
            name, value, "a directory as a text or a Path, None for the default"
        ) from None
    return value


def topic(name: str, value: Any) -> str:  # noqa: ANN401
    """Judge the name of a topic."""
    check_topic(value, name)
    return plain(value)


def group(name: str, value: Any) -> str:  # noqa: ANN401
    """Judge the name of a group."""
    check_group(value, name)
    return plain(value)


def durability(name: str, value: Any) -> Any:  # noqa: ANN401
    """Judge the name of a level."""
    level_of(value, name)
    return value


def queue(name: str, value: Any) -> MessageQueue:  # noqa: ANN401
    """Judge a queue, and what it is made of."""
    if not isinstance(value, MessageQueue):
        raise refused(name, value, "a MessageQueue(topic, queue_id)", GroupIllegal)
    try:
        given = topic("topic", value.topic)
        number = QUEUE_ID("queue_id", value.queue_id)
    except ArgumentIllegal as error:
        raise GroupIllegal(f"{name} is {shown(value)}: {error}", argument=name) from None
    is_same = number is value.queue_id and given is value.topic
    is_plain = is_same and type(value) is MessageQueue  # a subclass's equals none of these
    return value if is_plain else MessageQueue(given, number)


def queues(name: str, value: Any) -> list[MessageQueue]:  # noqa: ANN401
    """Judge several queues."""
    given = items_of(value)
    if given is None:
        raise refused(name, value, "a list of MessageQueue objects", GroupIllegal)
    return [queue(name, item) for item in given]


def moment(name: str, value: Any) -> Any:  # noqa: ANN401
    """Judge a time of storing: a datetime, or Unix ms; it is Unix ms then."""
    if isinstance(value, datetime):
        return _milliseconds(name, value)
    return _UNIX_MS(name, value)


def place(name: str, value: Any) -> Any:  # noqa: ANN401
    """Judge where to seek to."""
    if isinstance(value, datetime):
        _milliseconds(name, value)
        return value
    if isinstance(value, str) and plain(value) in ("begin", "end"):
        return plain(value)
    return _PLACE(name, value)


def timestamp(name: str, value: Any) -> Any:  # noqa: ANN401
    """Judge where a group begins by time."""
    if value is not None and not isinstance(value, datetime):
        raise refused(name, value, "a datetime, or None", GroupIllegal)
    if value is not None:
        _milliseconds(name, value)
    return value


def _milliseconds(name: str, value: datetime) -> int:
    try:
        return milliseconds(value)
    except ArgumentIllegal as error:
        raise ArgumentIllegal(f"{name}: {error}", argument=name) from None


def listener(name: str, value: Any) -> Any:  # noqa: ANN401
    """Judge a listener: no coroutine function, whose calls would do nothing."""
    if not callable(value):
        raise refused(name, value, "a function of one message", GroupIllegal)
    if is_async(value):
        raise refused(
            name,
            value,
            "a plain function: an `async def` is not awaited here. Hand the message to your loop"
            " and wait, as `lambda message: asyncio.run_coroutine_threadsafe(handle(message),"
            " loop).result()` does",
            GroupIllegal,
        )
    return value


def is_async(function: Any) -> bool:  # noqa: ANN401
    """Whether calling it makes a coroutine or an asynchronous generator."""
    while isinstance(function, partial):
        function = function.func
    for candidate in (function, getattr(function, "__call__", None)):  # noqa: B004 - an object's
        if inspect.iscoroutinefunction(candidate) or inspect.isasyncgenfunction(candidate):
            return True
    return False


def checker(name: str, value: Any) -> Any:  # noqa: ANN401
    """Judge a `transaction_checker`."""
    allowed = "a function of one message that returns a TransactionResolution, or None"
    if value is not None and (not callable(value) or is_async(value)):
        raise refused(name, value, allowed, GroupIllegal)
    return value


def subscription(name: str, value: Any) -> Any:  # noqa: ANN401
    """Judge topics and filters; they are a filter for each topic then."""
    return parse_subscription(value, name)


def shape(name: str, value: Any) -> Any:  # noqa: ANN401
    """Judge slots and entries of index files."""
    if not isinstance(value, Shape):
        raise refused(name, value, "the Shape of a store's index files, or None")
    return value


def callback(name: str, value: Any) -> Any:  # noqa: ANN401
    """Judge a function that is called back."""
    if not callable(value):
        raise refused(name, value, "a function")
    return value


def _instance(name: str, value: Any) -> str:  # noqa: ANN401
    if not isinstance(value, str) or not is_name(plain(value)) or len(plain(value)) > INSTANCE_MAX:
        allowed = f"up to {INSTANCE_MAX} letters, digits and _-%|"
        raise refused(name, value, allowed, GroupIllegal)
    return plain(value)


def _as_group(judge: Callable[[Any], Any], value: Any) -> Any:  # noqa: ANN401
    """Let a judge's error be one of a group's settings."""
    try:
        return judge(value)
    except ArgumentIllegal as error:
        raise GroupIllegal(str(error), **error.fields) from None


def check_start(consume_from: ConsumeFrom, consume_timestamp: datetime | None) -> None:
    """Raise GroupIllegal unless a time is given for TIMESTAMP, and for that only."""
    if consume_from is ConsumeFrom.TIMESTAMP and consume_timestamp is None:
        raise GroupIllegal("consume_from is ConsumeFrom.TIMESTAMP: give consume_timestamp with it")
    if consume_from is not ConsumeFrom.TIMESTAMP and consume_timestamp is not None:
        raise GroupIllegal(
            f"consume_timestamp is {shown(consume_timestamp)}, which counts with"
            " consume_from=ConsumeFrom.TIMESTAMP only: give both, or leave it out"
        )


# -------------------------------------------------------------------------------------- the table

QUEUE_ID: Final = whole(
    0,
    limits.QUEUES_PER_TOPIC_MAX - 1,
    f"a whole number, 0 to {limits.QUEUES_PER_TOPIC_MAX - 1}: queues count from 0",
    MessageIllegal,
)
SECONDS: Final = seconds()
BOOLEAN: Final = flag()
#: Messages of one poll, whatever it asks for: more come with the next one.
MESSAGES_MAX: Final = 1 << 20
_COUNT: Final = whole(1, _OFFSET_MAX, "how many messages, 1 or more")
_UNIX_MS: Final = whole(-EVER_MS, EVER_MS, "a datetime, or Unix milliseconds as a whole number")
_PLACE: Final = whole(0, _OFFSET_MAX, "an offset, a datetime, 'begin' or 'end'", ArgumentIllegal)
_POSITION: Final = whole(0, _OFFSET_MAX, "a log position, 0 or more")
_KEY: Final = text("a text")
_CONSUMER: Final[dict[str, Judge]] = {
    "consume_from": member(ConsumeFrom),
    "consume_timestamp": timestamp,
    "assignment": choice(ASSIGNMENTS, GroupIllegal),
}

#: Public callable -> its arguments, in order.
TABLE: Final[Mapping[str, Mapping[str, Judge]]] = {
    "Producer": {
        "home": home,
        "durability": optional(durability),
        "timeout": SECONDS,
        "producer_group": optional(group),
        "transaction_checker": checker,
    },
    "Producer.send": {"durability": optional(durability), "timeout": SECONDS},
    "Producer.flush": {"timeout": SECONDS},
    "Producer.recall_message": {
        "topic": topic,
        "recall_handle": text("the `recall_handle` of a receipt", MessageIllegal),
        "timeout": SECONDS,
    },
    "Transaction.commit": {"timeout": SECONDS},
    "Transaction.rollback": {"timeout": SECONDS},
    "ReceiptFuture.result": {"timeout": SECONDS},
    "ReceiptFuture.add_done_callback": {"fn": callback},
    "PullConsumer": {
        "group": group,
        "subscription": subscription,
        "home": home,
        "auto_commit": flag(GroupIllegal),
        "timeout": SECONDS,
        **_CONSUMER,
    },
    "PullConsumer.poll": {"max_messages": _COUNT, "timeout": SECONDS},
    "PullConsumer.assign": {"queues": optional(queues)},
    "PullConsumer.position": {"queue": queue},
    "PullConsumer.seek": {"queue": queue, "to": place},
    "PullConsumer.pause": {"queues": queues},
    "PullConsumer.resume": {"queues": queues},
    "PullConsumer.close": {"commit": BOOLEAN},
    "PushConsumer": {
        "group": group,
        "subscription": subscription,
        "listener": listener,
        "home": home,
    },
    #: The keyword arguments of PushConsumer.
    "PushOptions": {
        "concurrency": whole(
            1, CONCURRENCY_MAX, f"a number of threads, 1 to {CONCURRENCY_MAX}", GroupIllegal
        ),
        "orderly": flag(GroupIllegal),
        "model": member(MessageModel),
        "max_attempts": whole(
            1,
            limits.DELIVERIES_MAX,
            f"deliveries in all, 1 to {limits.DELIVERIES_MAX}",
            GroupIllegal,
        ),
        "consume_timeout": bounded_seconds("seconds above 0, up to ten years"),
        "instance": _instance,
        **_CONSUMER,
    },
    "PushConsumer.stop": {"timeout": SECONDS},
    "MessageBatch.message_at": {"row": whole(0, _OFFSET_MAX, "the number of a row, from 0 on")},
    "Client": {"home": home, "index_shape": optional(shape)},
    "Client.query": {
        "topic": topic,
        "key": optional(_KEY),
        "limit": optional(whole(0, _OFFSET_MAX, "how many messages at most, 0 or more, or None")),
        "message_id": optional(_KEY),
        "begin": optional(moment),
        "end": optional(moment),
        "before": optional(_POSITION),
        "scan_bytes": whole(0, _OFFSET_MAX, "how many bytes to look through, 0 or more"),
        "index": BOOLEAN,
    },
    "Client.get": {"message_id": _KEY, "topic": optional(topic)},
    "Client.queues": {"topic": topic},
    "Client.min_offset": {"queue": queue},
    "Client.max_offset": {"queue": queue},
    "Client.search_offset": {
        "queue": queue,
        "moment": moment,
        "boundary": choice(("lower", "upper")),
    },
    "Found.page": {"count": whole(0, _OFFSET_MAX, "how many messages at most, 0 or more")},
}
