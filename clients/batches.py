"""All-or-nothing batches: laid out for one put, their receipts made when looked at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, overload

import numpy as np
from numpy.typing import NDArray

from clients import message as rules
from clients.message import Message, SendReceipt
from clients.receipts import PAGE_BITS, PAGE_ROWS, Page, Pages, Pending, ReceiptFuture
from clients.routes import Routes
from clients.session import Session
from shm import layout, limits
from shm.codes import Level, Status
from shm.errors import MessageIllegal
from shm.kernels import frames

#: All receipts of a batch must fit into the ring that they come through.
BATCH_MAX: Final = limits.WRITER_DOWN_BYTES // layout.COMPLETION_BYTES - 1


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

    @classmethod
    def of(
        cls, messages: Iterable[Message] | str, bodies: Iterable[Any] | None, parts: dict[str, Any]
    ) -> Self:
        """Raises MessageIllegal for what is neither, and for too many."""
        wished = cls()
        wished._parts = parts
        wished.tag = parts.get("tag")
        if isinstance(messages, str):
            if bodies is None:
                raise MessageIllegal("a batch needs bodies: send_batch(topic, bodies, ...)")
            wished.items = bodies if type(bodies) is list else list(bodies)
            wished.topic = wished.common_topic = messages
            wished.is_plain = not parts or (len(parts) == 1 and "tag" in parts)
        else:
            if bodies is not None or parts:
                raise MessageIllegal("give messages, or topic and bodies, not both")
            wished.items = messages if type(messages) is list else list(messages)
            wished.topic = wished.items[0].topic if wished.items else ""
            wished.common_topic = None
            wished.is_plain = True
        if len(wished.items) > BATCH_MAX:
            raise MessageIllegal(
                f"a batch of {len(wished.items)} messages: {BATCH_MAX} are allowed"
            )
        return wished

    def messages(self) -> list[Message]:
        """All as messages. Raises MessageIllegal if they have several topics or queues (RD-61)."""
        if self.common_topic is not None:
            return [Message(self.topic, body, **self._parts) for body in self.items]
        queue_id = self.items[0].queue_id
        if any(item.topic != self.topic or item.queue_id != queue_id for item in self.items):
            raise MessageIllegal("the messages of a batch have one topic and one queue id (RD-61)")
        return self.items


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
        route = plain.get(item.tag)
        simple = route is not None and not item.keys and not item.properties
        if simple and isinstance(body, bytes) and len(body) <= rules.SMALL_BODY_BYTES:
            parts.append(body)
            lengths += (len(body), 0)
        else:
            view = rules.check_body(body)
            route, block = routes.number(session, item.topic, item.tag)
            extra = block + rules.extra_block(item.keys, item.properties)
            rules.check_properties_bytes(0, len(extra))
            parts += (view, extra)
            lengths += (view.nbytes, len(extra))
            if not block:
                plain[item.tag] = route
        numbers.append(route or 0)
    return LaidOut(
        np.frombuffer(b"".join(parts), np.uint8),
        np.array(lengths + numbers, np.int64),
        wished[0].queue_id,
        set(plain),
    )


def pages_of(pages: Pages, seqs: range) -> dict[int, Page]:
    """The pages that completions of these seqs go to, by number; holding them keeps them."""
    numbers = range(seqs[0] >> PAGE_BITS, (seqs[-1] >> PAGE_BITS) + 1)
    return {number: pages.page_of(number * PAGE_ROWS) for number in numbers}


class BatchReceipts(Sequence[SendReceipt]):
    """Receipts of a batch that is stored, in the order of its messages."""

    def __init__(self, pages: dict[int, Page], seqs: range, topic: str, level: Level) -> None:
        self._pages = pages
        self._seqs = seqs
        self._topic = topic
        self._level = level

    def __len__(self) -> int:
        return len(self._seqs)

    @overload
    def __getitem__(self, index: int) -> SendReceipt: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SendReceipt]: ...
    def __getitem__(self, index: int | slice) -> SendReceipt | Sequence[SendReceipt]:
        if isinstance(index, slice):
            return BatchReceipts(self._pages, self._seqs[index], self._topic, self._level)
        return self.future(self._seqs[index]).result()

    def future(self, seq: int) -> ReceiptFuture:
        """The receipt of one seq, which may not have come yet."""
        return ReceiptFuture.of(self._pages[seq >> PAGE_BITS], seq, self._topic, self._level)

    def cause(self) -> BaseException | None:
        """Of a batch that was refused: why, told by the member that is to blame."""
        for seq in self._seqs:
            row = self._pages[seq >> PAGE_BITS].rows[seq & (PAGE_ROWS - 1)]
            if row[frames.OUT_STATUS] != Status.BATCH_REFUSED:
                return self.future(seq).exception()
        return None


class BatchFuture(Pending[Sequence[SendReceipt]]):
    """`concurrent.futures.Future` of a batch's receipts.

    Completions come in order, and all members end alike: the last one decides.
    """

    _receipts: BatchReceipts

    @classmethod
    def of(cls, pages: dict[int, Page], seqs: range, topic: str, level: Level) -> BatchFuture:
        """The receipts of members with these seqs, which wait for a level."""
        future = cls()
        future._seq, future._topic = seqs[-1], topic
        future._page = pages[future._seq >> PAGE_BITS]
        future._receipts = BatchReceipts(pages, seqs, topic, level)
        if level:
            future._level = level
        return future

    def _outcome(self, row: list[int]) -> Sequence[SendReceipt]:
        return self._receipts

    def _refusal(self, status: Status) -> BaseException:
        return self._receipts.cause() or super()._refusal(status)
