"""Batches the Python way: what the native put leaves to it, and its futures."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from gantrymq.clients.arguments import judged
from gantrymq.clients.batches import BatchFuture, LaidOut, Wished, lay_out
from gantrymq.clients.sends import BATCH, DURABLE, RECEIPT, URGENT
from gantrymq.shm.codes import Level

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gantrymq.clients.backlog import Put
    from gantrymq.clients.message import Message
    from gantrymq.clients.receipts import Page
    from gantrymq.clients.sends import Sends


class BatchSends:
    """The batches of one producer."""

    def __init__(self, sends: Sends) -> None:
        self._sends = sends
        self._link = sends.link

    def asynchronous(
        self,
        messages: Iterable[Message] | str,
        bodies: Iterable[Any] | None = None,
        *,
        durability: str | None = None,
        timeout: float | None = None,
        **parts: Any,  # noqa: ANN401
    ) -> BatchFuture:
        """What the native put leaves to Python; done at once if there are no messages."""
        if timeout is not None:
            durability, timeout = judged("Producer.send", durability, timeout)
        wished = Wished(messages, bodies, parts)
        if not wished.items:
            return self._send(wished, durability, 0, timeout)

        def put(seconds: float, wished: Wished = wished) -> BatchFuture:
            return self._send(wished, durability, 0, seconds)

        def keep() -> tuple[Put, str, int]:
            kept = [self._sends.kept(item) for item in wished.messages()]
            items = [item for item, _size in kept]
            size = sum(size for _item, size in kept)
            return partial(put, wished=Wished(items, None, {})), wished.topic, size

        future = self._link.soon(put, keep, BatchFuture, timeout)
        assert future is not None, "batches have futures"
        return future

    def urgent(
        self,
        messages: Iterable[Message] | str,
        bodies: Iterable[Any] | None = None,
        *,
        durability: str | None = None,
        timeout: float | None = None,
        **parts: Any,  # noqa: ANN401
    ) -> BatchFuture:
        """The same for a sender who waits."""
        return self._send(Wished(messages, bodies, parts), durability, URGENT, timeout)

    def _send(
        self, wished: Wished, durability: str | None, flags: int, timeout: float | None
    ) -> BatchFuture:
        if not wished.items:
            self._link.require_open()
            return BatchFuture.of_nothing()
        self._link.backlog.wait(self._link.deadline(timeout))
        level = self._sends.known_level(wished.topic, durability)
        if level is None:
            level = self._sends.level_of(wished.topic, durability, timeout)
        flags |= BATCH | RECEIPT | (DURABLE if level == Level.DURABLE else 0)
        link = self._link
        deadline = link.deadline(timeout)
        link.know(wished.topic, deadline)
        with link.lock:
            pages: list[Page] = []
            last = self._put(wished, flags, deadline, pages)
            future = BatchFuture.of(pages, last, len(wished.items), (wished.topic, level))
        link.look_now_and_then(last, len(wished.items))
        return future

    def _put_plain(self, wished: Wished, flags: int) -> int:
        """Try the native put: the last seq, 0 if it does not serve this batch, or FULL."""
        fast = self._link.fast
        if fast is None or not wished.is_plain:
            return 0
        return int(fast.batch(wished.items, wished.common_topic, wished.tag, flags))

    def _put(self, wished: Wished, flags: int, deadline: int, pages: list[Page]) -> int:
        """Put a batch as soon as there is room; its last seq, and its pages. The lock is held."""
        link, count = self._link, len(wished.items)
        link.require_open()
        laid: LaidOut | None = None

        def attempt() -> int:
            nonlocal laid
            session = link.living(deadline)
            last = link.claim(partial(self._put_plain, wished, flags), count, pages)
            if last:
                return last
            if laid is None:
                laid = lay_out(wished.messages(), link.routes, session)
            form = self._sends.form(flags, 0, laid.queue_id)
            put = partial(link.lane.put_batch, form, laid.payload, laid.lengths)
            return link.claim(put, count, pages)

        last = link.put_until_room(attempt, deadline, lambda: laid.entry_bytes if laid else 0)
        link.require_taken()
        if laid is not None:
            for tag in laid.tags:
                self._sends.teach(wished.topic, tag)
        return last
