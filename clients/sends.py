"""How messages go into the writer's ring the Python way: their routes, levels and entries."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from gantrymq.clients import message as rules
from gantrymq.clients.arguments import QUEUE_ID
from gantrymq.clients.delays import NOW
from gantrymq.clients.writerlink import WriterLink
from gantrymq.shm.codes import EntryFlag, Level

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

    from gantrymq.clients.delays import Due
    from gantrymq.clients.message import Message
    from gantrymq.clients.receipts import Page

RECEIPT: Final = int(EntryFlag.RECEIPT)
DURABLE: Final = int(EntryFlag.DURABLE)
URGENT: Final = int(EntryFlag.URGENT)
BATCH: Final = int(EntryFlag.BATCH)
_NONE: Final = np.frombuffer(b"", np.uint8)


class Sends:
    """What all sends of one producer share: the link to the writer, and the level they wait for."""

    def __init__(
        self, home: str | os.PathLike[str] | None, timeout: float, durability: str | None
    ) -> None:
        """`timeout` in seconds and `durability` are those of sends that do not say."""
        self.link = WriterLink(home, timeout)
        self._level = None if durability is None else rules.level_of(durability)

    def known_level(self, topic: str, durability: str | None) -> Level | None:
        """What a receipt waits for; None for a topic that is not known yet."""
        if durability is not None or self._level is not None:
            return self._wished_level(durability)
        link = self.link
        link.follow_topics()
        return link.routes.known_level(topic)

    def level_of(self, topic: str, durability: str | None, timeout: float | None = None) -> Level:
        """What a receipt waits for. Raises TopicNotFound, or what a session raises."""
        level = self._wished_level(durability)
        if level is not None:
            return level
        link = self.link
        deadline = link.deadline(timeout)
        link.know(topic, deadline)
        with link.lock:
            link.require_open()
            return link.routes.level_asked(link.living(deadline), topic)

    def _wished_level(self, durability: str | None) -> Level | None:
        return self._level if durability is None else rules.level_of(durability)

    def teach(self, topic: str, tag: str | None) -> None:
        """Let the native put know a route, if it is one that it can use."""
        link = self.link
        if link.fast is not None:
            with link.lock:
                route, block = link.routes.number(link.session, topic, tag)
                level = self.known_level(topic, None)
                if not block and level is not None:
                    link.fast.learn(topic, tag, route, level)

    def put(
        self, wished: Message, flags: int, timeout: float | None, due: Due, half: bytes = b""
    ) -> tuple[Page, int]:
        """As `submit`, for a receipt: where its completion will be, and its seq."""
        pages: list[Page] = []
        seq = self.submit(wished, flags, timeout, due, pages, half=half)
        return pages[0], seq

    def submit(
        self, wished: Message, flags: int, timeout: float | None, due: Due,
        pages: list[Page] | None = None, *, half: bytes = b"",
    ) -> int:  # fmt: skip
        """Put a message, or one of a transaction, whose properties `half` is then; its seq.

        `pages` becomes the page of its receipt.
        """
        body = np.frombuffer(rules.check_body(wished.body).toreadonly(), np.uint8)
        extra = rules.extra_block(wished.keys, wished.properties, wished.message_group)
        link = self.link
        deadline = link.deadline(timeout)
        link.backlog.wait(deadline)
        link.know(wished.topic, deadline)
        with link.lock:
            link.require_open()
            session = link.living(deadline)
            route, block = link.routes.number(session, wished.topic, wished.tag)
            queue_id = link.routes.queue_of(session, wished)
            extra = half + block + extra
            rules.check_properties_bytes(0, len(extra))
            form = self.form(flags, route, queue_id, due)
            extra_array = np.frombuffer(extra, np.uint8) if extra else _NONE

            def put() -> int:
                return link.lane.put(form, body, extra_array)

            attempt = put if pages is None else partial(link.claim, put, 1, pages)
            seq = link.put_until_room(attempt, deadline, lambda: len(body))
            link.require_taken()
        return seq

    def kept(self, wished: Message) -> tuple[Message, int]:
        """A message as it is now, to be sent later, and its bytes. Raises MessageIllegal."""
        rules.check_topic(wished.topic)
        rules.tag_block(wished.tag)
        rules.extra_block(wished.keys, wished.properties, wished.message_group)
        body = rules.check_body(wished.body).tobytes()
        return msgspec.structs.replace(wished, body=body), len(body)

    def form(
        self, flags: int, route: int, queue_id: int | None, due: Due = NOW
    ) -> NDArray[np.int64]:
        """The form of an entry, as the lane puts it. The link's lock is held.

        Raises MessageIllegal for a queue id that is none.
        """
        if queue_id is not None:
            queue_id = QUEUE_ID("queue_id", queue_id)
        # A new one each time: a signal handler may send, too, before this one is put.
        form = (
            flags, route, -1 if queue_id is None else queue_id, time.time_ns() // 1_000_000, 0, 0,
            *due,
        )  # fmt: skip
        return np.array(form, np.int64)
