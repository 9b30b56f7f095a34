"""What a client gives and gets: messages, receipts, queues, and the rules that sends keep to."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from numbers import Real
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypedDict

import msgspec

from gantrymq.clients.push.consumeresult import ConsumeResult, wish_delay
from gantrymq.shm import limits
from gantrymq.shm.codes import Level
from gantrymq.shm.errors import ArgumentIllegal, MessageIllegal, Rejected, shown
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.properties import DLQ_PREFIX, LOST_TAG, RETRY_PREFIX, encode_properties

if TYPE_CHECKING:
    from typing_extensions import Buffer
elif sys.version_info >= (3, 12):
    from collections.abc import Buffer
else:
    Buffer = bytes | bytearray | memoryview

#: What a body may be: bytes, or whatever has memory of plain values.
Body = Buffer
#: Where RocketMQ's clients keep what orders messages.
GROUP_PROPERTY: Final = "__SHARDINGKEY"
#: So much of a body is in the repr of its message.
BODY_SHOWN_BYTES: Final = 32
#: Of parts that can be compared with their default.
_PLAIN_TEXTS: Final = frozenset({str, type(None)})
_PLAIN: Final = (str, int, float, tuple, Mapping)
#: Bodies up to here need no look at limits.
SMALL_BODY_BYTES: Final = 65_536
#: What a message survives once its send has returned: `written` all processes, `durable` power.
Durability = Literal["written", "durable"]
LEVELS: Final = {"written": Level.WRITTEN, "durable": Level.DURABLE}


class Texts(Protocol):
    """A list, tuple or other sequence of texts; no `str`, which is a sequence of texts as well.

    A type checker tells them apart by `in`, which a `str` takes texts for only.
    """

    def __contains__(self, value: object, /) -> bool:
        """Whether it has such a text."""

    def __iter__(self) -> Iterator[str]:
        """Its texts in order."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, number: int, /) -> str:
        """The text of a number."""

    def count(self, value: Any, /) -> int:  # noqa: ANN401 - as `Sequence` has it; no mapping does
        """How often it has such a text."""


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


class MessageQueue(msgspec.Struct, frozen=True, order=True, gc=False):
    """One queue of a topic."""

    topic: str
    queue_id: int


class _Content(msgspec.Struct, frozen=True, gc=False):
    """What every message has; these two may be given by place."""

    topic: str
    body: Buffer


def _shown_body(body: object) -> str:
    """The beginning of a body, as a message shows it."""
    try:
        view = memoryview(body)  # type: ignore[arg-type] # judged when it is sent
    except (TypeError, ValueError, BufferError) as error:
        require_ours(error)
        return shown(body)
    if view.nbytes <= BODY_SHOWN_BYTES:
        return repr(bytes(view))
    return f"{view.tobytes()[:BODY_SHOWN_BYTES]!r}... ({view.nbytes} bytes)"


# No dataclass: a frozen one takes about 2 us to make in Python, this takes 0.1 us in C, and every
# message sent in a batch or received one by one is one. Each field costs some 5 ns more, given or
# not: what only a received message has is in a class of its own. No message is part of a cycle, so
# that the collector need not look at those that an application keeps.
class Message(_Content, frozen=True, kw_only=True, gc=False):
    """A message to send; one that was received is a `ReceivedMessage`, which has all the rest.

    `body` is bytes or another buffer of plain values; it is judged, as all of it, when it is sent.

    Messages of one `message_group` go to one queue, in order. At most one of: `delivery_timestamp`
    (Unix ms), `delay` (a timedelta, or seconds), `delay_level` (of message_delay_level, from 1).
    """

    tag: str | None = None
    keys: Texts = ()
    properties: Mapping[str, str] = NO_PROPERTIES
    queue_id: int | None = None
    message_group: str | None = None
    delivery_timestamp: int | None = None
    delay: timedelta | float | None = None
    delay_level: int | None = None

    def __repr__(self) -> str:
        shown_parts = [repr(self.topic), _shown_body(self.body)]
        for part in msgspec.structs.fields(self)[2:]:
            value = getattr(self, part.name)
            if value is not part.default and not (
                isinstance(value, _PLAIN) and value == part.default
            ):
                shown_parts.append(f"{part.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown_parts)})"

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
        thread, ArgumentIllegal for what is no time from now to 1,000 years ahead.
        """
        is_number = isinstance(seconds, Real) and not isinstance(seconds, bool)
        if not is_number or not 0 <= seconds <= limits.RETRY_AFTER_MAX_MS / 1000:
            raise ArgumentIllegal(
                f"retry_after takes seconds, 0 to 1,000 years of them, not {shown(seconds)}",
                argument="seconds",
            )
        if not wish_delay(self, max(1, round(seconds * 1000))):
            raise Rejected("retry_after is for a push consumer's listener, in its own thread")
        return ConsumeResult.FAILURE


if TYPE_CHECKING:

    class _Received(Message, frozen=True, gc=False):
        body: bytes

else:
    _Received = Message


class ReceivedMessage(_Received, frozen=True, kw_only=True, gc=False):
    """A message as a consumer gets it: the lower fields are filled in by the broker.

    Sent again it is a new message: its queue, and properties that are the broker's, stay behind.
    """

    if TYPE_CHECKING:
        keys: tuple[str, ...] = ()
        queue_id: int = 0

    #: Unique among all messages.
    message_id: str = ""
    #: Ordinal in its queue.
    queue_offset: int = 0
    #: When it was sent, Unix ms.
    born_timestamp: int = 0
    #: When it was stored, Unix ms.
    store_timestamp: int = 0
    #: Address of its sender.
    born_host: str = ""
    #: How often it was delivered, this time included; of a dead letter, before it became one.
    delivery_attempt: int = 1


class BrokersProperties(dict[str, str]):
    """Properties of a dead letter: those of the broker among them are left out by a send."""

    __slots__ = ()


def attempt_of(topic: str, reconsume_times: int) -> int:
    """`delivery_attempt` of a record: a copy in a dead-letter queue counts its deliveries."""
    is_dead = reconsume_times > 0 and topic.startswith(DLQ_PREFIX)
    return reconsume_times if is_dead else reconsume_times + 1


def plain(text: str) -> str:
    """A text as `str` itself: numpy's and enums' are subclasses, whose methods may be anything."""
    return str.__str__(text)


def as_new(message: Message) -> Message:
    """What a send takes of a message: of a received one, or a dead letter, what its sender gave.

    Texts by which it is looked up are plain.
    """
    texts = (type(message.topic), type(message.tag), type(message.message_group))
    if not _PLAIN_TEXTS.issuperset(texts):
        parts = ("topic", "tag", "message_group")
        given = {part: getattr(message, part) for part in parts}
        plainly = {part: plain(text) for part, text in given.items() if isinstance(text, str)}
        message = msgspec.structs.replace(message, **plainly)
    if not isinstance(message, ReceivedMessage):
        return message
    is_dead = isinstance(message.topic, str) and message.topic.startswith(DLQ_PREFIX)
    return Message(
        (is_dead and origin_of(message.properties)) or message.topic,
        message.body,
        tag=message.tag,
        keys=message.keys,
        properties=_without_reserved(message.properties) or NO_PROPERTIES,
        message_group=message.message_group,
        delivery_timestamp=message.delivery_timestamp,
        delay=message.delay,
        delay_level=message.delay_level,
    )


def origin_of(properties: Mapping[str, str]) -> str | None:
    """The topic that a dead letter was sent to (RD-16, RD-20)."""
    if not isinstance(properties, Mapping):
        return None  # refused with the rest
    return properties.get("DLQ_ORIGIN_TOPIC") or properties.get("RETRY_TOPIC")


def _without_reserved(properties: Mapping[str, str]) -> Mapping[str, str]:
    if not isinstance(properties, Mapping):
        return properties  # refused with the rest
    return {name: text for name, text in properties.items() if name not in limits.RESERVED_KEYS}


class MessageParts(TypedDict, total=False):
    """What `send` takes besides a topic and a body: see `Message`."""

    tag: str | None
    keys: Texts
    properties: Mapping[str, str]
    queue_id: int | None
    message_group: str | None
    delivery_timestamp: int | None
    delay: timedelta | float | None
    delay_level: int | None


class BatchParts(TypedDict, total=False):
    """What `send_batch` takes besides a topic and bodies, for all of these: see `Message`."""

    tag: str | None
    keys: Texts
    properties: Mapping[str, str]
    queue_id: int | None
    message_group: str | None


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


def message_of(message: object, body: object, parts: Mapping[str, Any]) -> Message:
    """What `send` was given, as a message. Raises MessageIllegal."""
    if isinstance(message, Message):
        if body is not None or parts:
            raise MessageIllegal("give a Message, or topic and body, not both")
        return as_new(message)
    if not isinstance(message, str):
        kind = type(message).__name__
        raise MessageIllegal(f"message is {kind}: give a Message, or a topic's name and a body")
    if body is None:
        raise MessageIllegal("a message needs a body: send(topic, body, ...)", topic=message)
    return as_new(Message(message, body, **parts))  # type: ignore[arg-type] # judged when it is sent


def as_sent(topic: str, stored: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Topic and properties as the sender gave them (RD-40, LW-36)."""
    if topic.startswith(RETRY_PREFIX):
        topic = stored.get("RETRY_TOPIC", topic)
    return topic, {
        name: value for name, value in stored.items() if name not in limits.RESERVED_KEYS
    }


def check_topic(topic: object, what: str = "topic") -> None:
    """Names of topics (CQ-100, SF-35, SF-36). Raises MessageIllegal."""
    if not isinstance(topic, str) or not is_name(plain(topic)):
        raise MessageIllegal(
            f"{what} is {shown(topic)}, which is no topic name: letters, digits and _-%| only",
            topic=topic,
        )
    topic = plain(topic)
    derived = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    most = limits.RETRY_TOPIC_BYTES_MAX if derived else limits.TOPIC_BYTES_MAX
    if len(topic) > most:
        raise MessageIllegal(
            f"{what}: the name has {len(topic)} bytes, {most} are allowed", topic=topic
        )


def is_name(text: str) -> bool:
    """True for letters, digits and `_-%|`, at least one (CQ-100)."""
    return bool(text) and text.isascii() and all(c.isalnum() or c in "_-%|" for c in text)


def check_body(body: Buffer, body_bytes_max: int = limits.BODY_BYTES_MAX) -> memoryview:
    """The bytes of a body, not copied if they are contiguous. Raises MessageIllegal (SF-18)."""
    try:
        if isinstance(body, str):  # numpy's have memory of their own kind
            raise TypeError(body)
        view = memoryview(body)
        if "O" in view.format:
            raise MessageIllegal(
                f"body is a {type(body).__name__} of Python objects: its memory holds addresses,"
                " not values. Give bytes, such as json.dumps(list(values)).encode(), or an array of"
                " numbers or of fixed-size texts"
            )
        view = _plain_bytes(view)
    except (TypeError, ValueError, BufferError) as error:
        require_ours(error)
        if isinstance(error, MessageIllegal):
            raise
        raise MessageIllegal(
            f"body is {type(body).__name__}, which is not bytes-like: text has .encode()"
        ) from None
    if view.nbytes > body_bytes_max:
        raise MessageIllegal(f"body has {view.nbytes} bytes, {body_bytes_max} are allowed")
    return view


def _plain_bytes(view: memoryview) -> memoryview:
    """The same memory as bytes; a copy where it lies in pieces, or Python cannot cast it."""
    if view.c_contiguous:
        try:
            return view.cast("B")
        except (
            TypeError,
            ValueError,
        ) as error:  # another byte order; several dimensions without an item
            require_ours(error)
    return memoryview(view.tobytes())


def tag_block(tag: str | None) -> bytes:
    """Stored form of a tag; empty without one. Raises MessageIllegal (FL-1, FL-2)."""
    if tag is None:
        return b""
    if not isinstance(tag, str):
        raise MessageIllegal(f"tag is {type(tag).__name__}, not str")
    tag = _check_text("tag", tag)
    if tag != tag.strip() or not tag or "||" in tag:
        raise MessageIllegal(
            f"tag {tag!r} could never match a subscription: no blanks around it, no ||", tag=tag
        )
    if tag == LOST_TAG:
        raise MessageIllegal(f"tag {tag!r} marks messages that were lost: choose another", tag=tag)
    return encode_properties({"TAGS": tag})


def extra_block(
    keys: Iterable[str] = (),
    properties: Mapping[str, str] = NO_PROPERTIES,
    message_group: str | None = None,
) -> bytes:
    """Stored form of keys, user properties and group. Raises MessageIllegal (SF-27 to SF-30)."""
    stored: dict[str, str] = {}
    words = () if type(keys) is tuple and not keys else _words(keys)
    if words:
        stored["KEYS"] = " ".join(words)
    if properties is not NO_PROPERTIES:
        if type(properties) is BrokersProperties:
            properties = _without_reserved(properties)
        _add_properties(stored, properties)
    if message_group is not None:
        stored[GROUP_PROPERTY] = _check_text("message_group", message_group)
    return encode_properties(stored)


def items_of(value: Any) -> Iterator[Any] | None:  # noqa: ANN401 - of any kind
    """What an argument that is to be several things has; None for one text, a mapping, or no items.

    An array of numpy without a dimension says that it can be iterated, and cannot.
    """
    if isinstance(value, str | bytes | bytearray | Mapping) or not isinstance(value, Iterable):
        return None
    try:
        return iter(value)
    except TypeError as error:
        require_ours(error)
        return None


def _words(keys: Iterable[str]) -> list[str]:
    """Keys that may stand in a list of them."""
    if isinstance(keys, str):
        raise MessageIllegal("keys is a sequence of texts, not one text", keys=keys)
    given = items_of(keys)
    if given is None:
        raise MessageIllegal(f"keys is a sequence of texts, not {type(keys).__name__}")
    words = [_check_text("keys: a key", key) for key in given]
    for key in words:
        if not key:
            raise MessageIllegal("keys: a key is empty: leave it out", key=key)
        if key.split() != [key]:
            raise MessageIllegal(
                f"keys: blanks separate keys, none may be in one: {shown(key)}", key=key
            )
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
    if not isinstance(properties, Mapping):
        what = type(properties).__name__
        raise MessageIllegal(f"properties is a mapping of names to texts, not {what}")
    for name, value in properties.items():
        text = _check_text("properties: a name", name)
        stored[text] = _check_text(f"properties: the value of {text!r:.60}", value)
        _check_property(text, stored[text])


def _check_property(name: str, value: str) -> None:
    if not name or not value:
        raise MessageIllegal(
            f"properties: {name!r} has an empty name or value, which is lost on reading"
        )
    if name in limits.RESERVED_KEYS:
        raise MessageIllegal(
            f"properties: {name!r} belongs to the broker; leave it out", property=name
        )


def _check_text(what: str, text: str) -> str:
    """The text, plain. Raises MessageIllegal."""
    if not isinstance(text, str):
        raise MessageIllegal(f"{what} is {type(text).__name__}, not str")
    text = plain(text)
    if any(separator in text for separator in "\x00\x01\x02"):
        raise MessageIllegal(
            f"{what} is {shown(text)}, which holds a byte that separates properties (0, 1 or 2)"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        require_ours(error)
        raise MessageIllegal(f"{what} is {shown(text)}, which is no Unicode text") from None
    return text


def check_properties_bytes(block_bytes: int, extra_bytes: int) -> None:
    """All properties together, with what the broker adds. Raises MessageIllegal (SF-18)."""
    total = limits.UNIQ_KEY_PROPERTY_BYTES + block_bytes + extra_bytes + limits.TRAILER_BYTES
    if total > limits.PROPERTIES_BYTES_MAX:
        raise MessageIllegal(
            f"properties take {total} bytes, {limits.PROPERTIES_BYTES_MAX} are allowed"
        )


def level_of(durability: object, what: str = "durability") -> Level:
    """The level that a sender names. Raises MessageIllegal."""
    level = LEVELS.get(plain(durability)) if isinstance(durability, str) else None
    if level is None:
        raise MessageIllegal(f"{what} is {shown(durability)}: it is 'written' or 'durable'")
    return level
