"""All-or-nothing batches: laid out for one put, their receipts made when looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from clients import message as rules
from clients.message import Message, SendReceipt
from clients.receipts import PAGE_BITS, PAGE_ROWS, Page, Pages, ReceiptFuture
from clients.routes import Routes
from clients.session import Session
from shm.codes import Level, Status
from shm.kernels import frames


def lay_out(
    wished: list[Message], routes: Routes, session: Session
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Payload and lengths as `ring.put_batch` takes them. Raises MessageIllegal, TopicNotFound."""
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
    return np.frombuffer(b"".join(parts), np.uint8), np.array(lengths + numbers, np.int64)


def pages_of(pages: Pages, first: int, last: int) -> dict[int, Page]:
    """The pages that completions of these seqs go to, by number; holding them keeps them."""
    numbers = range(first >> PAGE_BITS, (last >> PAGE_BITS) + 1)
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
