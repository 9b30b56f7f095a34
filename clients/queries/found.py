"""Messages that were looked for, and the pages in which they come."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

from gantrymq.clients.arguments import judged
from gantrymq.clients.message import (
    GROUP_PROPERTY,
    BrokersProperties,
    ReceivedMessage,
    as_sent,
    attempt_of,
)
from gantrymq.clients.stored_body import plain_body
from gantrymq.shm import layout
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.layout import SYS_COMPRESSED
from gantrymq.shm.messageid import format_host
from gantrymq.shm.properties import DLQ_PREFIX

if TYPE_CHECKING:
    from gantrymq.shm.record import Record

_TRAILER: Final = layout.TRAILER_KEY.decode()


class FoundMessage(ReceivedMessage, frozen=True, kw_only=True, gc=False):
    """A message of the store; it was not delivered by that, and `delivery_attempt` is the next."""

    position: int  # of its record in the log; an inner batch is one record
    offset_msg_id: str


def message_of(record: Record) -> FoundMessage:
    """A record as a message. Raises Corrupt if its body cannot be unpacked."""
    stored = record.property_map()
    tag, keys = stored.pop("TAGS", None), stored.pop("KEYS", "")
    unique, group = stored.pop("UNIQ_KEY", ""), stored.pop(GROUP_PROPERTY, None)
    if record.topic.startswith(DLQ_PREFIX):  # what a dead letter is told of by
        stored.pop(_TRAILER, None)
        stored = BrokersProperties(stored)
    else:
        stored = as_sent(record.topic, stored)[1]
    return FoundMessage(
        topic=record.topic,
        body=_body(record),
        tag=tag,
        keys=tuple(keys.split()),
        properties=stored,
        queue_id=record.queue_id,
        message_group=group,
        message_id=unique or record.offset_message_id,
        queue_offset=record.queue_offset,
        born_timestamp=record.born_timestamp,
        store_timestamp=record.store_timestamp,
        born_host=format_host(record.born_host),
        delivery_attempt=attempt_of(record.topic, record.reconsume_times),
        position=record.physical_offset,
        offset_msg_id=record.offset_message_id,
    )


def _body(record: Record) -> bytes:
    if not record.sys_flag & SYS_COMPRESSED:
        return record.body
    try:
        return plain_body(record.body, record.sys_flag)
    except ValueError as error:
        require_ours(error)
        raise Corrupt(
            f"the body of the message at log position {record.physical_offset} cannot be unpacked:"
            f" {error}. Its checksum holds: so it was sent",
            path="commitlog",
            position=record.physical_offset,
        ) from error


class Results(Protocol):
    """What a search gives: records, newest first, and what it left out."""

    @property
    def unsearched(self) -> list[tuple[int, int]]: ...
    @property
    def reasons(self) -> list[str]: ...

    def __iter__(self) -> Iterator[Record]: ...

    def __next__(self) -> Record:
        """The next older record. Raises Corrupt."""


class HandedOut(Results, Protocol):
    """A search that knows where in the log it is."""

    @property
    def before(self) -> int | None: ...


class Found:
    """Messages, newest first, read as they are asked for: iterate, or take pages.

    After Corrupt the next call goes on behind the damaged message. A call that ends by anything
    else, an exception of a signal handler too, has handed nothing out: the next one searches anew
    from where the last message was.
    """

    def __init__(self, search: Callable[[int | None], HandedOut], limit: int | None) -> None:
        """`search` is given `before`, and begins there."""
        self._search = search
        self._results = search(None)
        self._left = sys.maxsize if limit is None else limit
        self._before: int | None = None
        self._damage: Corrupt | None = None  # behind what was handed out
        self._is_amid = False  # a call has begun, and not ended
        self._earlier: list[HandedOut] = []  # searches that were broken off

    def __iter__(self) -> Iterator[FoundMessage]:
        return self

    def __next__(self) -> FoundMessage:
        """The next older message. Raises Corrupt."""
        for message in self._take(1):
            return message
        raise StopIteration

    def page(self, count: int = 32) -> list[FoundMessage]:
        """The next messages, at most so many; empty at the end. Raises Corrupt.

        What comes before a damaged message is a page by itself, and the next call raises.
        """
        (count,) = judged("Found.page", count)
        return self._take(count)

    def _take(self, count: int) -> list[FoundMessage]:
        taken: list[FoundMessage] = []
        while True:
            if self._is_amid:
                self._earlier.append(self._results)
                self._results, self._damage = self._search(self._before), None
            results, self._is_amid = self._results, True
            damage, before = self._damage, self._before
            try:
                while len(taken) < min(count, self._left) and damage is None:
                    taken.append(message_of(next(results)))
                    before = results.before
            except StopIteration:
                pass
            except Corrupt as error:
                damage = error
            behind, left = results.before, self._left - len(taken)
            # From here on no signal handler comes until all is noted: nothing is called.
            if results is self._results:  # none has gone on meanwhile
                break
            taken.clear()
        self._left, self._is_amid = left, False
        if damage is None or taken:
            self._before, self._damage = before, damage
            return taken
        self._before, self._damage = behind, None
        raise damage

    @property
    def before(self) -> int | None:
        """Where in the log the last message handed out begins: `query(..., before=)` goes on there.

        Its position, or, of a message of an inner batch, its place amid that; None at first.
        """
        return self._before

    @property
    def unsearched(self) -> tuple[tuple[int, int], ...]:
        """Stretches [start, end) of the log that the answer so far leaves out."""
        every = [one for search in self._searches() for one in search.unsearched]
        return tuple(dict.fromkeys(every))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why messages may be missing; empty: none are."""
        return tuple(dict.fromkeys(why for search in self._searches() for why in search.reasons))

    def _searches(self) -> list[HandedOut]:
        return [*self._earlier, self._results]
