"""Routes of a session: (topic, tag) checked and encoded once, then a number in every entry."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.clients import message as rules
from gantrymq.clients.session import Session
from gantrymq.shm import layout, limits, wire
from gantrymq.shm.codes import Level
from gantrymq.shm.errors import MessageIllegal, TopicNotFound
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.properties import java_hash

if TYPE_CHECKING:
    from gantrymq.clients.message import Message

#: Slots with a tag, at most: the others are for topics, whose tags go with each message then.
_TAGGED_MAX: Final = limits.ROUTES_MAX // 2
#: Pairs of topic and tag that are remembered; there may be a tag for each customer.
_KNOWN_MAX: Final = 4 * limits.ROUTES_MAX

_hash_of = lru_cache(maxsize=4096)(java_hash)


class Routes:
    """Numbers given so far; a slot of the arena each. A new session gets them all again."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str | None], tuple[int, bytes]] = {}
        self._slots: list[tuple[str, bytes]] = []
        self._gone: set[int] = set()  # numbers whose topic was not there at the last attach
        self._levels: dict[str, Level] = {}

    def attach(self, session: Session, first: int = 0) -> int:
        """Write all routes from a number on into a new session's arena; how many it has then.

        A topic that was deleted is not made anew by that: what waits for it is refused, and who
        sends to it next asks for it, and for another number: the writer may have refused this one.
        """
        number = first
        while number < len(self._slots):
            topic, block = self._slots[number]
            try:
                self._write(session, number, session.open_topic(topic, create=False), block)
                self._gone.discard(number)
            except TopicNotFound:
                self._forget(number)
            number += 1
        return number

    def _forget(self, number: int) -> None:
        """Give the number to nobody any more."""
        self._gone.add(number)
        self._levels.pop(self._slots[number][0], None)
        for pair, (given, _inline) in list(self._numbers.items()):
            if given == number:
                del self._numbers[pair]

    def number(self, session: Session, topic: str, tag: str | None) -> tuple[int, bytes]:
        """A route, and properties that do not fit into it and go with each message."""
        try:
            found = self._numbers.get((topic, tag))
        except (TypeError, ValueError) as error:  # one of them is no text, refused below
            require_ours(error)
            found = None
        if found is None:
            rules.check_topic(topic)
            block = rules.tag_block(tag)
            inline = b""
            if len(block) > limits.ROUTE_BLOCK_BYTES_MAX or len(self._slots) >= _TAGGED_MAX:
                block, inline = b"", block
            found = (self._slot(session, topic, block), inline)
            if len(self._numbers) < _KNOWN_MAX:
                self._numbers[topic, tag] = found
        return found

    def queue_of(self, session: Session, message: Message) -> int | None:
        """The queue that a message names, or its group's; None if any will do.

        A group's queue is that of RocketMQ's SelectMessageQueueByHash, so that producers of both
        agree. Raises MessageIllegal.
        """
        group = message.message_group
        if group is None:
            return message.queue_id
        rules.check_message_group(group, message.queue_id)
        hashed = _hash_of(group)
        queues = session.open_topic(message.topic).write_queues
        return abs(hashed) % queues  # Java's remainder of a negative number is negative

    def _slot(self, session: Session, topic: str, block: bytes) -> int:
        """The slot of a topic with that property block; blocks without a tag share one."""
        opened = session.open_topic(topic)
        # A signal handler may come between any of these: it finds the slot, and fills it, too.
        number = self._find(topic, block)
        if number is None and len(self._slots) >= limits.ROUTES_MAX:
            raise MessageIllegal(
                f"a producer sends to {limits.ROUTES_MAX} topics at most: use another one",
                topic=topic,
            )
        if number is None:
            self._slots.append((topic, block))
            number = self._find(topic, block)  # a handler's may be behind it by now
            assert number is not None, "it was added just now"
        self._write(session, number, opened, block)
        return number

    def _find(self, topic: str, block: bytes) -> int | None:
        wanted = topic, block
        numbers = (n for n, slot in enumerate(self._slots) if slot == wanted)
        return next((number for number in numbers if number not in self._gone), None)

    def _write(self, session: Session, number: int, opened: wire.TopicOpened, block: bytes) -> None:
        """Fill a slot that is not filled yet: the writer may look at any other at any time.

        A signal handler may fill the same slot, and send by it, amid this: `ready` is set alone.
        """
        self._levels[opened.name] = Level(opened.level)
        arena, at = session.arena, layout.ROUTES_AT + number * layout.ROUTE_BYTES
        ready_at = at + layout.ROUTE_READY
        if arena[ready_at]:
            return
        slot = layout.ROUTE.pack(topic=opened.slot, block_bytes=len(block), block=block)
        arena[at + layout.ROUTE_TOPIC : at + len(slot)] = np.frombuffer(
            slot, np.uint8, offset=layout.ROUTE_TOPIC
        )
        arena[ready_at] = 1

    def follow(self, session: Session) -> None:
        """Know the levels of topics as the session knows them."""
        for topic in list(self._levels):
            if session.knows(topic):
                self._levels[topic] = Level(session.open_topic(topic).level)

    def topic_of(self, number: int) -> str | None:
        """The topic of a route, if it is one that was given."""
        return self._slots[number][0] if 0 <= number < len(self._slots) else None

    def known_level(self, topic: str) -> Level | None:
        """Level of a topic that was asked for before. Raises MessageIllegal for what is none."""
        if not isinstance(topic, str):
            rules.check_topic(topic)
        return self._levels.get(topic)

    def level_asked(self, session: Session, topic: str) -> Level:
        """Level of any topic."""
        if not isinstance(topic, str):
            rules.check_topic(topic)
        if topic not in self._levels:
            rules.check_topic(topic)
            self._levels[topic] = Level(session.open_topic(topic).level)
        return self._levels[topic]
