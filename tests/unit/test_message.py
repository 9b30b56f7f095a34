"""What may be sent, and how it is stored."""

from __future__ import annotations

import numpy as np
import pytest

from gantrymq.clients.message import (
    Message,
    check_body,
    check_properties_bytes,
    check_topic,
    extra_block,
    tag_block,
)
from gantrymq.shm import limits
from gantrymq.shm.errors import MessageIllegal
from gantrymq.shm.properties import LOST_TAG, parse_properties


@pytest.mark.parametrize("topic", ["orders", "a" * 127, "%RETRY%" + "g" * 248, "a_b-c%d|e"])
def test_good_topic_names(topic: str) -> None:
    """CQ-100, SF-35, SF-36."""
    check_topic(topic)


@pytest.mark.parametrize(
    "topic", ["", "a b", "a" * 128, "%RETRY%" + "g" * 249, "ä", "a/b", "a\x01", "..", "٣"]
)
def test_bad_topic_names(topic: str) -> None:
    with pytest.raises(MessageIllegal):
        check_topic(topic)


def test_bodies_are_anything_with_bytes() -> None:
    words = np.frombuffer(b"abcd", "<u4").data
    for body in (b"abcd", bytearray(b"abcd"), memoryview(b"abcd"), words):
        assert bytes(check_body(body)) == b"abcd"
    assert bytes(check_body(memoryview(b"a.b.c.")[::2])) == b"abc"
    assert check_body(bytes(10), 10).nbytes == 10
    with pytest.raises(MessageIllegal, match="11 bytes, 10"):
        check_body(bytes(11), 10)
    with pytest.raises(MessageIllegal, match="body is str"):
        check_body("text")  # type: ignore[arg-type]


def test_tags_and_properties_come_back() -> None:
    block = tag_block("paid") + extra_block(["k1", "k2"], {"region": "eu", "umlaut": "ä = b"})
    assert parse_properties(block) == {
        "TAGS": "paid",
        "KEYS": "k1 k2",
        "region": "eu",
        "umlaut": "ä = b",
    }
    assert tag_block(None) == extra_block() == b""


@pytest.mark.parametrize("tag", [LOST_TAG, "", " a", "a ", "a||b", "a\x01", "a\x02", "\ud800"])
def test_tags_that_could_never_match(tag: str) -> None:
    """FL-1, FL-2, SF-27."""
    with pytest.raises(MessageIllegal):
        tag_block(tag)


@pytest.mark.parametrize("separator", ["\x00", "\x01", "\x02"])
def test_separators_in_properties_are_refused(separator: str) -> None:
    """SF-27: they would make other properties of it, or end one early."""
    for properties in ({f"a{separator}": "b"}, {"a": f"b{separator}c"}):
        with pytest.raises(MessageIllegal):
            extra_block(properties=properties)
    with pytest.raises(MessageIllegal):
        extra_block([f"k{separator}"])


@pytest.mark.parametrize("properties", [{"": "a"}, {"a": ""}, {"a": 1}])
def test_properties_that_would_get_lost_are_refused(properties: dict[str, str]) -> None:
    """SF-28."""
    with pytest.raises(MessageIllegal):
        extra_block(properties=properties)


@pytest.mark.parametrize("name", sorted(limits.RESERVED_KEYS))
def test_the_brokers_properties_are_reserved(name: str) -> None:
    """SF-30."""
    with pytest.raises(MessageIllegal, match="belongs to the broker"):
        extra_block(properties={name: "x"})


def test_keys_are_words() -> None:
    for keys in (["a b"], [""], ["a\t"], "text"):
        with pytest.raises(MessageIllegal):
            extra_block(keys)


def test_all_properties_together_have_a_limit() -> None:
    """SF-18: UNIQ_KEY and trailer count."""
    room = 32_767 - 42 - 20
    check_properties_bytes(10, room - 10)
    with pytest.raises(MessageIllegal, match="32768 bytes"):
        check_properties_bytes(10, room - 9)


def test_messages_do_not_change() -> None:
    message = Message("orders", b"x", tag="a")
    with pytest.raises(AttributeError):
        message.tag = "b"  # type: ignore[misc]
    assert message == Message("orders", b"x", tag="a")
    assert message.keys == ()
    assert message.properties == {}
