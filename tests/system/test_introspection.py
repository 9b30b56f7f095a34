"""Public names as people look at them: help, signatures, types, what an object shows of itself."""

from __future__ import annotations

import inspect
import pydoc
import re
import typing
from datetime import timedelta

import pytest

import gantrymq
from gantrymq import (
    Broker,
    Client,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
)
from tests.support.callrecipes import RECIPES
from tests.support.faces import callables, hints_of
from tests.support.push import FIRST, PATIENCE_S
from tests.support.tree import ROOT
from tests.support.trials import mends

NAMES = sorted(callables())
CLASSES = [name for name in gantrymq.__all__ if isinstance(getattr(gantrymq, name), type)]


@mends("A11.1")
@pytest.mark.parametrize("name", CLASSES)
def test_help_of_every_public_class(name: str) -> None:
    text = pydoc.plain(pydoc.render_doc(getattr(gantrymq, name)))
    assert name in text
    assert inspect.getdoc(getattr(gantrymq, name))


@mends("A11.1")
@pytest.mark.parametrize("name", NAMES)
def test_signature_types_and_text_of_every_public_callable(name: str) -> None:
    function = callables()[name]
    assert inspect.getdoc(function), "no docstring"
    if not typing.is_typeddict(function):
        inspect.signature(function)
    typing.get_type_hints(function)
    if isinstance(function, type):
        typing.get_type_hints(function.__init__)  # type: ignore[misc]


@mends("A11.1")
def test_options_are_in_the_help_of_the_push_consumer() -> None:
    text = pydoc.plain(pydoc.render_doc(PushConsumer))
    for option in typing.get_type_hints(PushOptions):
        assert f"`{option}`" in text, option


#: What public arguments of numbers and times count.
UNITS = {
    "timeout": "seconds",
    "consume_timeout": "seconds",
    "seconds": "seconds",
    "delay": "seconds",
    "delivery_timestamp": "Unix ms",
    "begin": "Unix ms",
    "end": "Unix ms",
    "moment": "Unix ms",
    "scan_bytes": "bytes",
}
#: Numbers of things, which have no unit.
COUNTS = {
    "max_messages", "limit", "before", "row", "count", "queue_id", "to", "delay_level",
    "concurrency", "max_attempts", "default_topic_queue_nums",
}  # fmt: skip


@mends("A12.12")
def test_each_public_argument_that_is_a_time_or_a_size_says_its_unit() -> None:
    """In its name, in the text of its callable, or where the argument is explained for all."""
    unsaid = []
    for name in RECIPES:
        for argument, hint in hints_of(name, callables()[name]).items():
            if any(kind in (hint, *typing.get_args(hint)) for kind in (int, float, timedelta)):
                assert (argument in UNITS) != (argument in COUNTS), f"say what {argument} counts"
                if argument in UNITS and not says_unit(name, argument, UNITS[argument]):
                    unsaid.append(f"{name}({argument})")
    assert unsaid == []
    assert not says_unit("Producer.flush", "timeout", "fortnights")


def says_unit(name: str, argument: str, unit: str) -> bool:
    own = inspect.getdoc(callables()[name]) or ""
    if unit in argument.split("_") or unit in own:
        return True
    owner = getattr(gantrymq, name.partition(".")[0])
    explained = [
        *(inspect.getdoc(item) or "" for item in (owner, owner.__init__, Message)),
        (ROOT / "docs" / "clients.md").read_text(encoding="utf-8"),
    ]
    said = re.compile(rf"`{argument}=?`[^.`]*\b{unit}\b")
    return any(said.search(text) for text in explained)


@mends("A11.2")
def test_objects_show_what_they_are(broker: Broker, topic: str) -> None:
    """Of what they work on; nothing of an address, nothing that waits for the broker."""
    group = f"g-{topic}"
    with Producer(broker.home, producer_group=group) as producer, Client(broker.home) as client:
        producer.send(topic, b"x")
        with (
            PullConsumer(group, {topic: "a || b"}, home=broker.home, consume_from=FIRST) as pull,
            PullConsumer("a" + group, [topic], home=broker.home, consume_from=FIRST) as every,
        ):
            push = PushConsumer(group, [topic], print, home=broker.home)
            batch = every.poll(timeout=PATIENCE_S)
            shown = {
                repr(broker): [str(broker.home), "running"],
                repr(producer): [str(broker.home), group, "open"],
                repr(client): [str(broker.home)],
                repr(pull): [group, f"{topic}: a || b", "4 queues"],
                repr(push): [group, f"{topic}: *", "not started"],
                repr(batch): ["1 message", topic],
            }
        assert "closed" in repr(pull)
    assert "closed" in repr(producer)
    for text, parts in shown.items():
        assert " object at 0x" not in text
        for part in parts:
            assert part in text


@mends("A11.2")
def test_a_message_shows_the_beginning_of_its_body() -> None:
    sent = Message("orders", b"x" * 1000, tag="paid", keys=["42"])
    received = ReceivedMessage("orders", b"y" * 1000, message_id="ID", queue_offset=7)
    assert repr(sent) == (
        f"Message('orders', {b'x' * 32!r}... (1000 bytes), tag='paid', keys=['42'])"
    )
    assert repr(received).startswith(f"ReceivedMessage('orders', {b'y' * 32!r}... (1000 bytes)")
    for part in ("message_id='ID'", "queue_offset=7"):
        assert part in repr(received)
    assert len(repr(Message("orders", b"short"))) < 40
    assert repr(MessageQueue("orders", 1)) == "MessageQueue(topic='orders', queue_id=1)"
