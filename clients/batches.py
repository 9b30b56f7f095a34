"""All-or-nothing batches: laid out for one put, their receipts made when looked at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, overload

import numpy as np
from numpy.typing import NDArray

from gantrymq.clients import message as rules
from gantrymq.clients.arguments import QUEUE_ID
from gantrymq.clients.delays import DELAY_PARTS, is_delayed
from gantrymq.clients.message import Message, SendReceipt
from gantrymq.clients.receipts import PAGE_BITS, Page, Pending, ReceiptFuture
from gantrymq.clients.routes import Routes
from gantrymq.clients.session import Session
from gantrymq.clients.transactions.transaction import Transaction
from gantrymq.shm import layout, limits
from gantrymq.shm.codes import Status
from gantrymq.shm.errors import MessageIllegal, shown
from gantrymq.shm.kernels import frames

#: All receipts of a batch must fit into the ring that they come through.
BATCH_MAX: Final = limits.WRITER_DOWN_BYTES // layout.COMPLETION_BYTES - 1

_TAG: Final = {"tag"}
_NO_KEYS: Final = Message("", b"").keys
#: A batch's topic, and the level that its receipts wait for.
Facts = tuple[str, int]


class Wished:
    """What `send_batch` was given: messages, or bodies and what is the same for all of them.

    `is_plain` says that the native put may look at it. `common_topic` is None for messages.
    """

    __slots__ = ("_parts", "common_topic", "is_plain", "items", "tag", "topic")

    items: list[Any]
    topic: str
    common_topic: str | None
    tag: str | None
    is_plain: bool
    _parts: dict[str, Any]

    def __init__(
        self, messages: Iterable[Message] | str, bodies: Iterable[Any] | None, parts: dict[str, Any]
    ) -> None:
        """Raises MessageIllegal for what is neither, and for too many."""
        if "transaction" in parts or isinstance(bodies, Transaction):
            raise MessageIllegal("no batch in a transaction: send its messages one by one")
        self._parts = parts
        self.is_plain = True
        self.tag = self.common_topic = None
        if isinstance(messages, str):
            if bodies is None:
                raise MessageIllegal("a batch needs bodies: send_batch(topic, bodies, ...)")
            self.items = _listed("bodies", bodies)
            self.topic = self.common_topic = rules.plain(messages)
            if parts:
                tag = parts.get("tag")
                self.tag = rules.plain(tag) if isinstance(tag, str) else tag
                self.is_plain = parts.keys() == _TAG
        else:
            if bodies is not None or parts:
                raise MessageIllegal("give messages, or topic and bodies, not both")
            self.items = _listed("messages", messages)
            self.topic = _message(0, self.items[0]).topic if self.items else ""
        if len(self.items) > BATCH_MAX:
            raise MessageIllegal(f"a batch of {len(self.items)} messages: {BATCH_MAX} are allowed")

    def messages(self) -> list[Message]:
        """All as messages. Raises MessageIllegal if they have delays, or several queues (RD-61)."""
        if self.common_topic is not None:
            items = [rules.as_new(Message(self.topic, body, **self._parts)) for body in self.items]
        else:
            items = [_message(number, item) for number, item in enumerate(self.items)]
        first = _message(0, items[0])
        place = (self.topic, first.queue_id, first.message_group)
        for number, item in enumerate(items):
            if is_delayed(item):
                named = [name for name in sorted(DELAY_PARTS) if getattr(item, name) is not None]
                raise MessageIllegal(
                    f"messages: number {number} has {' and '.join(named)}: a batch is delivered at"
                    " once, send delayed messages one by one",
                    topic=self.topic,
                )
            if (item.topic, item.queue_id, item.message_group) != place:
                raise MessageIllegal(
                    "the messages of a batch have one topic and one queue_id or message_group"
                )
        return items


def _listed(name: str, given: Any) -> list[Any]:  # noqa: ANN401 - of any kind
    """Items of what a batch was given, as it is now: its caller may change it, in a thread as well.

    Raises MessageIllegal.
    """
    what = "bytes-like bodies" if name == "bodies" else "Message objects, or a topic and bodies"
    items = rules.items_of(given)
    if items is None:
        raise MessageIllegal(f"{name} is {shown(given)}: give an iterable of {what}")
    return list(items)


def _message(number: int, item: Any) -> Message:  # noqa: ANN401
    """An item of a batch. Raises MessageIllegal if it is no message, or of no one place."""
    if not isinstance(item, Message):
        raise MessageIllegal(f"messages: number {number} is {shown(item)}, not a Message")
    message = rules.as_new(item)
    rules.check_topic(message.topic)
    if message.queue_id is not None:
        QUEUE_ID("queue_id", message.queue_id)
    if message.message_group is not None:
        rules.check_message_group(message.message_group, message.queue_id)
    return message


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A batch as `ring.put_batch` takes it, and what else is known of it by then."""

    payload: NDArray[np.uint8]
    lengths: NDArray[np.int64]
    queue_id: int | None
    tags: set[str | None]

    @property
    def entry_bytes(self) -> int:
        """How many bytes of the ring it takes, or some more."""
        return self.payload.size + len(self.lengths) // 3 * (layout.ENTRY_BYTES + 8)


def lay_out(wished: list[Message], routes: Routes, session: Session) -> LaidOut:
    """Raises MessageIllegal, TopicNotFound."""
    parts: list[Any] = []
    lengths: list[int] = []
    numbers: list[int] = []
    plain: dict[str | None, int] = {}  # routes of messages that are a body and a tag
    for item in wished:
        body = item.body
        route = plain.get(item.tag) if item.tag is None or isinstance(item.tag, str) else None
        simple = (
            route is not None
            and item.keys is _NO_KEYS
            and item.properties is rules.NO_PROPERTIES
            and item.message_group is None
        )
        if simple and isinstance(body, bytes) and len(body) <= rules.SMALL_BODY_BYTES:
            parts.append(body)
            lengths += (len(body), 0)
        else:
            view = rules.check_body(body)
            route, block = routes.number(session, item.topic, item.tag)
            extra = block + rules.extra_block(item.keys, item.properties, item.message_group)
            rules.check_properties_bytes(0, len(extra))
            parts += (view, extra)
            lengths += (view.nbytes, len(extra))
            if not block:
                plain[item.tag] = route
        numbers.append(route or 0)
    return LaidOut(
        np.frombuffer(b"".join(parts), np.uint8),
        np.array(lengths + numbers, np.int64),
        routes.queue_of(session, wished[0]),
        set(plain),
    )


class BatchReceipts(Sequence[SendReceipt]):
    """Receipts of a batch that is stored, in the order of its messages."""

    __slots__ = ("_level", "_newest", "_pages", "_seqs", "_topic")

    def __init__(self, pages: tuple[Page, ...], seqs: range, newest: int, facts: Facts) -> None:
        """`pages` end with the one of seq `newest`."""
        self._pages = pages
        self._seqs = seqs
        self._newest = newest
        self._topic, self._level = facts

    def __len__(self) -> int:
        return len(self._seqs)

    def __reduce__(self) -> tuple[type[tuple[SendReceipt, ...]], tuple[list[SendReceipt]]]:
        return tuple, (list(self),)  # to another process go the receipts alone

    @overload
    def __getitem__(self, index: int) -> SendReceipt: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SendReceipt]: ...
    def __getitem__(self, index: int | slice) -> SendReceipt | Sequence[SendReceipt]:
        if isinstance(index, slice):
            facts = self._topic, self._level
            return BatchReceipts(self._pages, self._seqs[index], self._newest, facts)
        return self._future(self._seqs[index]).result()

    def _future(self, seq: int) -> ReceiptFuture:
        return ReceiptFuture.of(self._page_of(seq), seq, self._topic, self._level)

    def _page_of(self, seq: int) -> Page:
        return self._pages[(seq >> PAGE_BITS) - (self._newest >> PAGE_BITS) - 1]

    def cause(self) -> BaseException | None:
        """Of a batch that was refused: why, told by the member that is to blame."""
        for seq in self._seqs:
            if self._page_of(seq).row(seq)[frames.OUT_STATUS] != Status.BATCH_REFUSED:
                return self._future(seq).exception()
        return None


class BatchFuture(Pending[Sequence[SendReceipt]]):
    """`concurrent.futures.Future` of a batch's receipts.

    Completions come in order, and all members end alike: the last one decides.
    """

    # As in Pending: the native put sets `_count` too. `_before` are the pages of earlier members.
    _count: int
    _before: tuple[Page, ...] = ()

    @classmethod
    def of(cls, pages: Sequence[Page], last: int, count: int, facts: Facts) -> BatchFuture:
        """The receipts of `count` seqs up to `last`, whose pages these are."""
        future = cls()
        *before, future._page = pages
        future._seq, future._count = last, count
        future._topic, level = facts
        if before:
            future._before = tuple(before)
        if level:
            future._level = level
        return future

    @classmethod
    def of_nothing(cls) -> BatchFuture:
        """Done: the receipts of a batch without messages."""
        future = cls()
        future._finish([])
        return future

    def _outcome(self) -> BatchReceipts:
        last = self._seq
        seqs = range(last - self._count + 1, last + 1)
        return BatchReceipts((*self._before, self._page), seqs, last, (self._topic, self._level))

    def _refusal(self, status: Status) -> BaseException:
        return self._outcome().cause() or super()._refusal(status)
