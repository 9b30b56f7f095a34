"""Each public callable with wrong arguments: it refuses them by name, and goes on as before.

The callables are found by inspection. One without a recipe here fails the test, and so does a
parameter that the recipe's callable has not: nothing public goes untried.
"""

from __future__ import annotations

import enum
import math
import os
import typing
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gantrymq
from gantrymq import (
    Broker,
    ConsumeFrom,
    GantryError,
    Message,
    MessageQueue,
    PullConsumer,
    PushConsumer,
)
from gantrymq.clients.arguments import TABLE
from gantrymq.shm.errors import (
    ArgumentIllegal,
    BrokerGone,
    NotPermitted,
    QueueFull,
    Rejected,
    Timeout,
    TopicNotFound,
    TransactionInDoubt,
)
from tests.support.callrecipes import RECIPES, Call, Scene, a_scene, listen
from tests.support.faces import callables, conforms, hints_of
from tests.support.push import PATIENCE_S
from tests.support.trials import mends


class Colour(enum.Enum):
    RED = 1


class Number(enum.IntEnum):
    ONE = 1


#: By what a failure shows.
WRONG: dict[str, Any] = {
    "None": None, "True": True, "False": False, "-1": -1, "0": 0, "1": 1, "5": 5, "1000": 1000,
    "2**31": 1 << 31, "2**63": 1 << 63, "2**64": 1 << 64, "-2**63-1": -(1 << 63) - 1,
    "10**5000": 10**5000, "1.5": 1.5, "-0.5": -0.5, "nan": math.nan, "inf": math.inf,
    "-inf": -math.inf, "1e300": 1e300, "complex": 1j, "empty text": "", "text": "x",
    "blank": "a b", "surrogate": "a\ud800", "NUL": "a\0b", "70,000 letters": "x" * 70_000,
    "umlaut": "ü", "bytes": b"x", "bytearray": bytearray(b"x"), "list": ["x"],
    "list of None": [None], "empty list": [], "dict": {"x": "y"}, "dict of None": {"x": None},
    "dict of ints": {1: 2},
    "set": {"x"}, "tuple": ("x", 1), "np.int64": np.int64(3), "np.float32": np.float32(1.5),
    "np.bool": np.bool_(True), "np.str_": np.str_("x"), "array": np.arange(3),
    "object array": np.array(["a", "b"], object), 
    "datetime array": np.array(["2026-01-01"], "M8[s]"),
    "Decimal": Decimal("1.5"), "Decimal nan": Decimal("nan"), "Fraction": Fraction(3, 2),
    "timedelta": timedelta(seconds=1), "timedelta.max": timedelta.max,
    "naive": datetime(2026, 1, 1), "aware": datetime(2026, 1, 1, tzinfo=UTC),
    "datetime.min": datetime.min, "datetime.max": datetime.max, "enum": Colour.RED,
    "IntEnum": Number.ONE, "object": object(), "class": int, "Path": Path("x"),
    "memoryview": memoryview(b"abcd").cast("I"), "ellipsis": ..., "iterator": iter(()),
    "queue": MessageQueue("x", 0), "bad queue": MessageQueue(5, "x"),  # type: ignore[arg-type]
    "message": Message("x", b"x"), "a message, and None": [Message("x", b"x"), None],
    "a queue, and None": [MessageQueue("x", 0), None], "a text, and None": ["x", None],
    "bytes, and None": [b"x", None], "dict of a text, and None": {"x": "y", None: None},
}  # fmt: skip

#: Public, but not for users: what they get is made by other callables.
OURS = {
    "Broker": "made by Broker.temporary",
    "MessageBatch": "made by poll",
    "MessageBatch.prepare": "a hint of the push consumer's, without arguments that can be wrong",
    "Transaction": "made by Producer.transaction",
    "Transaction.block": "what the producer's sends call",
    "Transaction.require_taking": "the same",
    "Transaction.take_back": "the same",
    "Transaction.add": "the same",
    "Transaction.fail": "the same",
    "Transaction.settled_places": "what commits call",
    "Transaction.end_now": "the same",
    "Transaction.end_by": "the same",
    "Transaction.places": "the same",
    "Transaction.in_doubt": "the same",
    "Found": "made by Client.query",
    "FoundMessage": "made by Client.get",
    "FoundMessage.retry_after": "of all messages",
    "ReceivedMessage": "made by consumers",
    "ReceivedMessage.retry_after": "of all messages",
    "SendReceipt": "made by sends",
    "ReceiptFuture": "made by send_async",
    "ReceiptFuture.of": "what sends call",
    "ReceiptFuture.settle": "what waits call",
    "ReceiptFuture.set_exception": "what decides receipts calls",
    "MessageQueue": "a value, judged where it is used",
    "Message": "a value, judged where it is sent",
    "PushOptions": "a type",
    "MessageParts": "a type",
    "BatchParts": "a type",
    "QueryParts": "a type",
}
#: What an error may name in place of a parameter: a part of what was given for it.
PARTS = {
    "message": ("message", "topic"),
    "messages": ("messages", "topic"),
    "bodies": ("bodies", "body"),
    "handle": ("recall_handle",),
    "fn": ("fn",),
    "default_topic_queue_nums": ("default_topic_queue_nums",),
}
#: Errors of a value that may be right, but is not here.
ELSEWHERE = (TopicNotFound, BrokerGone, NotPermitted, QueueFull, Timeout, TransactionInDoubt)


def is_well_told(error: BaseException, parameter: str) -> bool:
    """A refusal that names the argument."""
    names = PARTS.get(parameter, (parameter,))
    said = str(error)
    return isinstance(error, ArgumentIllegal) and any(name in said for name in names)


@pytest.fixture(name="scene", scope="module")
def scene_fixture(broker: Broker) -> Iterator[Scene]:
    with a_scene(broker, f"arguments-{os.getpid()}") as scene:
        yield scene


def test_each_public_callable_has_a_recipe() -> None:
    public = set(callables())
    assert public - set(RECIPES) - set(OURS) == set(), "give them a recipe"
    assert set(RECIPES) - public == set(), "no such callable"
    assert set(OURS) - public - {"BatchParts", "QueryParts"} == set(), "no such callable"


def test_the_table_has_each_argument() -> None:
    """What the table names are callables and their parameters, all of them."""
    found = callables()
    for name, rows in TABLE.items():
        if name == "PushOptions":
            assert set(rows) == set(typing.get_type_hints(gantrymq.PushOptions))
            continue
        parameters = set(hints_of(name, found[name]))
        if name == "Producer.send":
            assert set(rows) <= parameters
        elif name == "PushConsumer":
            assert set(rows) | set(TABLE["PushOptions"]) == parameters
        else:
            assert set(rows) == parameters, name


@mends(
    "A10.1", "A10.2", "A10.3", "A10.4", "A10.5", "A10.6", "A10.7", "A10.8", "A10.9", "A10.10",
    "A10.11", "A10.12", "A10.13", "A10.14", "A10.15", "H16",
)  # fmt: skip
@pytest.mark.parametrize("name", sorted(RECIPES))
def test_wrong_arguments_are_refused_by_name_and_harm_nothing(scene: Scene, name: str) -> None:
    call, good = RECIPES[name](scene)
    call(**good)
    faults: list[str] = []
    for parameter, hint in hints_of(name, callables()[name]).items():
        for what, wrong in WRONG.items():
            fault = try_one(scene, (call, good), (parameter, hint), wrong)
            if fault:
                faults.append(f"{name}({parameter}={what}): {fault}")
        call, good = RECIPES[name](scene)
        call(**good)  # no later call fails for it
    assert not faults, "\n".join(faults)


@mends("S124")
@pytest.mark.parametrize("name", sorted(RECIPES))
def test_an_argument_that_does_not_exist_is_refused_by_name(scene: Scene, name: str) -> None:
    call, good = RECIPES[name](scene)
    with pytest.raises((TypeError, gantrymq.SettingIllegal), match="no_such_argument"):
        call(**good, no_such_argument=1)
    call(**good)


def try_one(
    scene: Scene,
    recipe: tuple[Call, dict[str, object]],
    parameter: tuple[str, object],
    wrong: object,
) -> str:
    """Call it; what is wrong with the outcome, or nothing."""
    (call, good), (name, hint) = recipe, parameter
    fits = conforms(wrong, hint)
    try:
        call(**good | {name: wrong})
        scene.producer.flush()
    except GantryError as error:
        elsewhere = isinstance(error, (*ELSEWHERE, ArgumentIllegal)) or type(error) is Rejected
        if is_well_told(error, name) or (fits and elsewhere):
            return ""
        return f"{type(error).__name__}: {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "" if fits else "accepted"


def in_transaction(scene: Scene, message: Message) -> None:
    transaction = scene.producer.begin_transaction()
    try:
        scene.producer.send(message, transaction=transaction)
    finally:
        transaction.rollback()


#: Fields of a message that a send takes apart, and what it is sent by.
FIELDS = list(Message.__struct_fields__)
SENDS: dict[str, Callable[[Scene, Message], object]] = {
    "send": lambda s, m: s.producer.send(m),
    "send_async": lambda s, m: s.producer.send_async(m).result(PATIENCE_S),
    "send_oneway": lambda s, m: s.producer.send_oneway(m),
    "send_batch": lambda s, m: s.producer.send_batch([m]),
    "send_batch behind others": lambda s, m: s.producer.send_batch([Message(s.topic, b"x"), m]),
    "send_batch_async": lambda s, m: s.producer.send_batch_async([m]).result(PATIENCE_S),
    "in a transaction": in_transaction,
}


@mends("A10.7", "A10.8", "A10.9", "A10.16")
@pytest.mark.parametrize("way", SENDS)
@pytest.mark.parametrize("name", FIELDS)
def test_wrong_parts_of_a_message_are_refused_when_it_is_sent(
    scene: Scene, name: str, way: str
) -> None:
    hint = hints_of("Message", Message)[name]
    faults = []
    for what, wrong in WRONG.items():
        message = Message(**{"topic": scene.topic, "body": b"x"} | {name: wrong})
        fits = conforms(wrong, hint)
        try:
            SENDS[way](scene, message)
            scene.producer.flush()
        except GantryError as error:
            if not (is_well_told(error, name) or (fits and isinstance(error, ArgumentIllegal))):
                faults.append(f"{what}: {type(error).__name__}: {error}")
        except BaseException as error:
            faults.append(f"{what}: {type(error).__name__}: {error}")
        else:
            if not fits:
                faults.append(f"{what}: accepted")
    SENDS[way](scene, Message(scene.topic, b"x"))
    assert not faults, "\n".join(faults)


@mends("A10.16")
@pytest.mark.parametrize("view", [False, True])
def test_an_array_of_objects_is_no_body(scene: Scene, view: bool) -> None:
    """Its memory holds addresses; the text says what to do."""
    values: Any = np.array(["a", "b"], object)
    body: Any = memoryview(values) if view else values
    for send in (scene.producer.send, scene.producer.send_oneway, scene.producer.send_async):
        with pytest.raises(gantrymq.MessageIllegal, match=r"addresses, not values.*json.dumps"):
            send(scene.topic, body)
    arrays: tuple[Any, ...] = (
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.arange(6)[::2],
        np.zeros((0, 3)),
    )
    for numbers in arrays:
        scene.producer.send_oneway(scene.topic, numbers)
    scene.producer.flush()


@mends("A10.3")
def test_a_time_to_begin_at_counts_with_timestamp_only(scene: Scene) -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    for start, at in ((ConsumeFrom.TIMESTAMP, None), (ConsumeFrom.FIRST_OFFSET, moment)):
        with pytest.raises(gantrymq.GroupIllegal, match="consume_timestamp"):
            PullConsumer(scene.fresh(), ["x"], consume_from=start, consume_timestamp=at)
        with pytest.raises(gantrymq.GroupIllegal, match="consume_timestamp"):
            PushConsumer(scene.fresh(), ["x"], listen, consume_from=start, consume_timestamp=at)


@mends("A12.11")
@pytest.mark.parametrize(
    "kind",
    [
        gantrymq.MessageIllegal, gantrymq.GroupIllegal, gantrymq.SettingIllegal,
        gantrymq.FilterSyntaxError, gantrymq.ArgumentIllegal,
    ],
)  # fmt: skip
def test_errors_of_arguments_are_value_errors(kind: type[GantryError]) -> None:
    assert issubclass(kind, ValueError)
    assert issubclass(kind, gantrymq.Rejected)


class OddText(str):
    """A text whose own methods say something else."""

    def __eq__(self, other: object) -> bool:
        return not str.__eq__(self, other)

    def __hash__(self) -> int:
        return id(self)

    def encode(self, *_given: object) -> bytes:
        return b"odd"


def test_texts_of_a_class_of_their_own_are_taken_as_texts(scene: Scene) -> None:
    """numpy's and enums' are such; what the methods of one do is no business of a send."""
    topic = OddText(scene.topic)
    parts: Any = {"tag": OddText("t"), "message_group": OddText("g")}
    properties: Any = {OddText("a"): OddText("b")}
    message = Message(topic, b"x", keys=[OddText("k")], properties=properties, **parts)
    level: Any = OddText("written")
    for way in ("send", "send_async", "send_oneway", "send_batch", "send_batch_async"):
        SENDS[way](scene, message)
    scene.producer.send_batch(topic, [b"x"], **parts)
    scene.producer.send(topic, b"x", durability=level, **parts)
    queue = MessageQueue(topic, 0)
    while scene.queue not in scene.pull.assignment():
        scene.pull.poll(timeout=0.1)
    scene.pull.seek(queue, OddText("begin"))  # type: ignore[arg-type]
    assert scene.pull.position(queue) == scene.client.min_offset(queue)
    with pytest.raises(gantrymq.ArgumentIllegal, match="to is"):
        scene.pull.seek(queue, OddText("x"))  # type: ignore[arg-type]


class OwnQueue(MessageQueue, frozen=True):
    """A queue that equals none of the broker's."""


@mends("S152")
def test_queues_of_a_class_of_their_own_are_taken_as_queues(scene: Scene) -> None:
    queue, own = MessageQueue(scene.topic, 0), OwnQueue(scene.topic, 0)
    scene.producer.send(scene.topic, b"x")
    for ask in (scene.client.min_offset, scene.client.max_offset):
        assert ask(own) == ask(queue)
    assert scene.client.search_offset(own, 0) == scene.client.search_offset(queue, 0)
