"""What a client gives and gets: messages, receipts, queues, and the rules that sends keep to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypedDict

import msgspec

from clients.push.consumeresult import ConsumeResult, wish_delay
from shm import limits
from shm.codes import Level
from shm.errors import MessageIllegal, Rejected
from shm.properties import DLQ_PREFIX, LOST_TAG, RETRY_PREFIX, encode_properties

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Where RocketMQ's clients keep what orders messages.
GROUP_PROPERTY: Final = "__SHARDINGKEY"
#: Bodies up to here need no look at limits.
SMALL_BODY_BYTES: Final = 65_536
LEVELS: Final = {"written": Level.WRITTEN, "durable": Level.DURABLE}


class _NoProperties(Mapping[str, str]):
    """An empty mapping that is itself again in another process: a mappingproxy is not pickled."""

    __slots__ = ()

    def __getitem__(self, name: str) -> str:
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "{}"

    def __reduce__(self) -> str:
        return "NO_PROPERTIES"


NO_PROPERTIES: Final[Mapping[str, str]] = _NoProperties()


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic."""

    topic: str
    queue_id: int


class _Content(msgspec.Struct, frozen=True, gc=False):
    """What every message has; these two may be given by place."""

    topic: str
    body: Buffer


# No dataclass: a frozen one takes about 2 us to make in Python, this takes 0.1 us in C, and every
# message sent in a batch or received one by one is one. Each field costs some 5 ns more, given or
# not: what only a received message has is in a class of its own. No message is part of a cycle, so
# that the collector need not look at those that an application keeps.
class Message(_Content, frozen=True, kw_only=True, gc=False):
    """A message to send; one that was received is a `ReceivedMessage`, which has all the rest.

    Messages of one `message_group` go to one queue, in order. At most one of: `delivery_timestamp`
    (Unix ms), `delay` (a timedelta, or seconds), `delay_level` (of message_delay_level, from 1).
    """

    tag: str | None = None
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = NO_PROPERTIES
    queue_id: int | None = None
    message_group: str | None = None
    delivery_timestamp: int | None = None
    delay: timedelta | float | None = None
    delay_level: int | None = None

    @property
    def message_id(self) -> str | None:
        """Unique among all messages; None before it is sent, as all below."""
        return None

    @property
    def queue_offset(self) -> int | None:
        """Ordinal in its queue."""
        return None

    @property
    def born_timestamp(self) -> int | None:
        """When it was sent, Unix ms."""
        return None

    @property
    def store_timestamp(self) -> int | None:
        """When it was stored, Unix ms."""
        return None

    @property
    def born_host(self) -> str | None:
        """Address of its sender."""
        return None

    @property
    def delivery_attempt(self) -> int | None:
        """How often it was delivered, this time included."""
        return None

    def retry_after(self, seconds: float) -> ConsumeResult:
        """In a listener: if this delivery fails, the next one comes after so long.

        Instead of RocketMQ's ladder; in ordered consumption instead of a pause of 1 s. Returns
        FAILURE, for `return message.retry_after(30)`. Raises Rejected outside of the listener's
        thread, or for what is no time from now to 1,000 years ahead.
        """
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not is_number or not 0 <= seconds <= limits.RETRY_AFTER_MAX_MS / 1000:
            raise Rejected(f"retry_after takes seconds, 0 to 1,000 years of them, not {seconds!r}")
        if not wish_delay(self, max(1, round(seconds * 1000))):
            raise Rejected("retry_after is for a push consumer's listener, in its own thread")
        return ConsumeResult.FAILURE


class ReceivedMessage(Message, frozen=True, kw_only=True, gc=False):
    """A message as a consumer gets it: the lower fields are filled in by the broker."""

    message_id: str | None = None
    queue_offset: int | None = None
    born_timestamp: int | None = None
    store_timestamp: int | None = None
    born_host: str | None = None
    delivery_attempt: int | None = None


class MessageParts(TypedDict, total=False):
    """What `send` takes besides a topic and a body: see `Message`."""

    tag: str | None
    keys: Sequence[str]
    properties: Mapping[str, str]
    queue_id: int | None
    message_group: str | None
    delivery_timestamp: int | None
    delay: timedelta | float | None
    delay_level: int | None


class SendReceipt(msgspec.Struct, frozen=True, gc=False):
    """Where a message is now; `durability` says what it survives: written or durable.

    One that waits for its time is in a topic of the broker's until then. `recall_handle` cancels it
    meanwhile; None of one that waits by a level, or does not wait.
    """

    message_id: str
    offset_msg_id: str
    message_queue: MessageQueue
    queue_offset: int
    durability: str
    recall_handle: str | None = None


def message_of(message: Message | str, body: Buffer | None, parts: MessageParts) -> Message:
    """What `send` was given, as a message. Raises MessageIllegal."""
    if isinstance(message, Message):
        if body is not None or parts:
            raise MessageIllegal("give a Message, or topic and body, not both")
        return message
    if body is None:
        raise MessageIllegal("a message needs a body: send(topic, body, ...)", topic=message)
    return Message(message, body, **parts)  # type: ignore[arg-type] # keys of any kind


def as_sent(topic: str, stored: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Topic and properties as the sender gave them (RD-40, LW-36)."""
    if topic.startswith(RETRY_PREFIX):
        topic = stored.get("RETRY_TOPIC", topic)
    return topic, {
        name: value for name, value in stored.items() if name not in limits.RESERVED_KEYS
    }


def check_topic(topic: str) -> None:
    """Names of topics (CQ-100, SF-35, SF-36). Raises MessageIllegal."""
    if not isinstance(topic, str) or not is_name(topic):
        raise MessageIllegal(
            f"{topic!r} is no topic name: letters, digits and _-%| only (CQ-100)", topic=topic
        )
    derived = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    most = limits.RETRY_TOPIC_BYTES_MAX if derived else limits.TOPIC_BYTES_MAX
    if len(topic) > most:
        raise MessageIllegal(f"topic name has {len(topic)} bytes, {most} are allowed", topic=topic)


def is_name(text: str) -> bool:
    """True for letters, digits and `_-%|`, at least one (CQ-100)."""
    return bool(text) and text.isascii() and all(c.isalnum() or c in "_-%|" for c in text)


def check_body(body: Buffer, body_bytes_max: int = limits.BODY_BYTES_MAX) -> memoryview:
    """The bytes of a body, not copied if they are contiguous. Raises MessageIllegal (SF-18)."""
    try:
        view = memoryview(body)
    except TypeError:
        raise MessageIllegal(f"a body is bytes-like, not {type(body).__name__}") from None
    view = view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
    if view.nbytes > body_bytes_max:
        raise MessageIllegal(f"body has {view.nbytes} bytes, {body_bytes_max} are allowed")
    return view


def tag_block(tag: str | None) -> bytes:
    """Stored form of a tag; empty without one. Raises MessageIllegal (FL-1, FL-2)."""
    if tag is None:
        return b""
    if not isinstance(tag, str):
        raise MessageIllegal(f"tag is {type(tag).__name__}, not str")
    if tag != tag.strip() or not tag or "||" in tag:
        raise MessageIllegal(
            f"tag {tag!r} could never match a subscription: no blanks around it, no ||", tag=tag
        )
    if tag == LOST_TAG:
        raise MessageIllegal(f"tag {tag} marks messages that were lost: choose another", tag=tag)
    _check_text("tag", tag)
    return encode_properties({"TAGS": tag})


def extra_block(
    keys: Iterable[str] = (),
    properties: Mapping[str, str] = NO_PROPERTIES,
    message_group: str | None = None,
) -> bytes:
    """Stored form of keys, user properties and group. Raises MessageIllegal (SF-27 to SF-30)."""
    stored: dict[str, str] = {}
    words = _words(keys)
    if words:
        stored["KEYS"] = " ".join(words)
    if properties:
        _add_properties(stored, properties)
    if message_group is not None:
        stored[GROUP_PROPERTY] = message_group
    return encode_properties(stored)


def _words(keys: Iterable[str]) -> list[str]:
    """Keys that may stand in a list of them."""
    if isinstance(keys, str):
        raise MessageIllegal("keys is a sequence of texts, not one text", keys=keys)
    try:
        words = list(keys)
    except TypeError:
        kind = type(keys).__name__
        raise MessageIllegal(f"keys is a sequence of texts, not {kind}") from None
    for key in words:
        _check_text("key", key)
        if not key:
            raise MessageIllegal("a key is empty: leave it out", key=key)
        if key.split() != [key]:
            raise MessageIllegal(f"key {key!r}: blanks separate keys, none may be in one", key=key)
    return words


def check_message_group(message_group: str, queue_id: int | None) -> None:
    """Raise MessageIllegal unless a message may have that group."""
    _check_text("message_group", message_group)
    if not message_group:
        raise MessageIllegal("message_group is empty: leave it out for a message without one")
    if queue_id is not None:
        raise MessageIllegal(
            f"message_group {message_group!r} has its queue: give no queue_id with it",
            message_group=message_group,
        )


def _add_properties(stored: dict[str, str], properties: Mapping[str, str]) -> None:
    try:
        pairs = properties.items()
    except AttributeError:
        what = type(properties).__name__
        raise MessageIllegal(f"properties is a mapping of names to texts, not {what}") from None
    for name, value in pairs:
        _check_property(name, value)
        stored[name] = value


def _check_property(name: str, value: str) -> None:
    _check_text("property", name)
    _check_text(f"value of property {name!r}", value)
    if not name or not value:
        raise MessageIllegal(
            f"property {name!r}: an empty name or value is lost on reading (SF-28)"
        )
    if name in limits.RESERVED_KEYS:
        raise MessageIllegal(f"property {name!r} belongs to the broker (SF-30)", property=name)


def _check_text(what: str, text: str) -> None:
    if not isinstance(text, str):
        raise MessageIllegal(f"{what} is {type(text).__name__}, not str")
    if any(separator in text for separator in "\x00\x01\x02"):
        raise MessageIllegal(f"{what} {text!r} holds a byte that separates properties (SF-27)")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MessageIllegal(f"{what} {text!r} is no Unicode text") from None


def check_properties_bytes(block_bytes: int, extra_bytes: int) -> None:
    """All properties together, with what the broker adds. Raises MessageIllegal (SF-18)."""
    total = limits.UNIQ_KEY_PROPERTY_BYTES + block_bytes + extra_bytes + limits.TRAILER_BYTES
    if total > limits.PROPERTIES_BYTES_MAX:
        raise MessageIllegal(
            f"properties take {total} bytes, {limits.PROPERTIES_BYTES_MAX} are allowed"
        )


def level_of(durability: str) -> Level:
    """The level that a sender names. Raises MessageIllegal."""
    try:
        return LEVELS[durability]
    except KeyError:
        raise MessageIllegal(f"durability {durability!r}: it is 'written' or 'durable'") from None
