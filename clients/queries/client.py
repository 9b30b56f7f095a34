"""`Client`: messages by key, id and time; offsets by time. Of a running broker or a stopped store.

It reads the store's files and takes part in nothing: no group, no session, no offset moves.
"""

from __future__ import annotations

import os
from datetime import datetime
from functools import partial
from typing import Final, Self, TypedDict, Unpack

from gantrymq.clients.arguments import judged, require_known
from gantrymq.clients.closing import Closing, OfOneProcess
from gantrymq.clients.home import find_home
from gantrymq.clients.message import MessageQueue
from gantrymq.clients.queries.found import Found, FoundMessage, message_of
from gantrymq.clients.queries.ids import find_message
from gantrymq.clients.queries.request import Request
from gantrymq.clients.queries.search import SCAN_BYTES
from gantrymq.clients.queries.view import RunningStore, Span, StoreView, look
from gantrymq.shm.errors import Closed, Rejected
from gantrymq.shm.indexnote import Shape
from gantrymq.shm.indexreader import EVER_MS


class QueryParts(TypedDict, total=False):
    """What `query` takes besides a topic and a key."""

    message_id: str | None
    begin: datetime | int | None
    end: datetime | int | None
    before: int | None
    scan_bytes: int
    index: bool


_PARTS: Final = (
    ("message_id", None), ("begin", None), ("end", None), ("before", None),
    ("scan_bytes", SCAN_BYTES), ("index", True),
)  # fmt: skip


class Client(Closing, OfOneProcess):
    """Looks at the store of a home directory. Threads may share it, and forked children use it."""

    def __init__(
        self, home: str | os.PathLike[str] | None = None, *, index_shape: Shape | None = None
    ) -> None:
        """Raises BrokerGone where there is neither a broker nor a store.

        `index_shape`: slots and entries of the index files of a RocketMQ's stopped store, if they
        are not the defaults.
        """
        home, self._shape = judged("Client", home, index_shape)
        self.home = find_home(home)
        self._view: StoreView | None = None
        self._is_closed = False
        self._look()

    def query(
        self,
        topic: str,
        key: str | None = None,
        *,
        limit: int | None = None,
        **parts: Unpack[QueryParts],
    ) -> Found:
        """A topic's messages, newest first: those with a key, with a `message_id`, or all.

        `begin` and `end` are times of storing (a datetime, or Unix ms), both count; `before` goes
        on below a log position (`Found.before`). Of inner batches their messages come. Where the
        key index does not reach (yet) up to `scan_bytes` of the log are looked through; without
        `index` the log alone. Raises Rejected for what no message can have, TopicNotFound;
        TypeError for a part that does not exist.
        """
        require_known("Client.query", QueryParts.__annotations__, parts)
        topic, key, limit, message_id, begin, end, before, scan_bytes, index = judged(
            "Client.query", topic, key, limit, *(parts.get(*part) for part in _PARTS)
        )
        request = Request(
            topic=topic,
            key=key,
            message_id=message_id,
            begin_ms=-EVER_MS if begin is None else begin,
            end_ms=EVER_MS if end is None else end,
            before=before,
            scan_bytes=scan_bytes,
            index=index,
        )
        return Found(partial(request.results, self._look()), limit)

    def get(self, message_id: str, topic: str | None = None) -> FoundMessage:
        """The message with an id of either kind, or at a log position given as text.

        Of an inner batch the first message for what names the batch: its own id or its place.
        Raises Rejected if there is none, Corrupt if it is damaged.
        """
        message_id, topic = judged("Client.get", message_id, topic)
        return message_of(find_message(self._look(), message_id, topic))

    # ------------------------------------------------------------------------------------ queues

    def queues(self, topic: str) -> list[MessageQueue]:
        """The topic's queues. Raises TopicNotFound."""
        (topic,) = judged("Client.queues", topic)
        return [span.queue for span in self._look().spans(topic)]

    def min_offset(self, queue: MessageQueue) -> int:
        """Offset of the first message that is there. Raises TopicNotFound, Rejected."""
        (queue,) = judged("Client.min_offset", queue)
        return self._span(queue).first

    def max_offset(self, queue: MessageQueue) -> int:
        """Offset behind the last message. Raises TopicNotFound, Rejected."""
        (queue,) = judged("Client.max_offset", queue)
        return self._span(queue).end

    def search_offset(
        self, queue: MessageQueue, moment: datetime | int, boundary: str = "lower"
    ) -> int:
        """The offset that a time of storing means (a datetime, or Unix ms), whatever the clock did.

        `lower`: the first message stored then or later, behind the last if there is none; `upper`:
        the last one stored then or earlier, the first of all if there is none (CQ-62). Raises
        TopicNotFound, Rejected.
        """
        from gantrymq.clients.queries.bytime import Boundary, offset_in

        queue, time_ms, boundary = judged("Client.search_offset", queue, moment, boundary)
        view = self._look()
        span = self._span(queue, view)
        return offset_in(view, span, time_ms, Boundary(boundary))

    def _span(self, queue: MessageQueue, view: StoreView | None = None) -> Span:
        spans = (view or self._look()).spans(queue.topic)
        for span in spans:
            if span.queue == queue:
                return span
        there = f"queues 0 to {spans[-1].queue.queue_id}" if spans else "no queue with messages yet"
        raise Rejected(f"topic {queue.topic} has {there}, not {queue.queue_id}")

    def _look(self) -> StoreView:
        """The store as it is now: brokers come and go. Raises Closed."""
        if self._is_closed:
            raise Closed("this client is closed: make another one")
        view = self._view
        if not isinstance(view, RunningStore) or not view.is_current():
            view = self._view = look(self.home, self._shape)
        return view

    # --------------------------------------------------------------------------------------- end

    def __repr__(self) -> str:
        return f"<Client at {self.home}{', closed' * self._is_closed}>"

    def close(self) -> None:
        """Give the board's map back. Safe to call twice."""
        self._is_closed = True
        self._view = None

    def __enter__(self) -> Self:
        self._look()
        return self
