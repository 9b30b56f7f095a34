"""A message by any of its ids."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gantrymq.clients.queries.inner import parts
from gantrymq.clients.queries.request import check_key
from gantrymq.clients.queries.search import SCAN_BYTES, Search, Wanted
from gantrymq.clients.queries.view import no_topic
from gantrymq.shm.errors import Corrupt, GantryError, Rejected
from gantrymq.shm.innerbatch import is_inner_batch
from gantrymq.shm.properties import index_hash
from gantrymq.shm.storereader import StoreReader, is_position, position_of

if TYPE_CHECKING:
    from gantrymq.clients.queries.view import StoreView
    from gantrymq.shm.record import Record

#: Both kinds of id have as many digits (SF-31, SF-32).
_ID: Final = re.compile(r"[0-9a-fA-F]{32}|[0-9a-fA-F]{56}")


def find_message(
    view: StoreView, text: str, topic: str | None = None, scan_bytes: int = SCAN_BYTES
) -> Record:
    """The record whose offset message id is `text`, or the newest whose UNIQ_KEY, or a position's.

    Both kinds of id may have 32 hex digits: the record says which it is. Keys are looked up in
    `topic`, or in all. Of an inner batch the message with that UNIQ_KEY; the first one for what
    names the batch itself. Raises Rejected if there is none, Corrupt if it is damaged,
    TopicNotFound.
    """
    topics = view.topics()
    if topic is not None and topic not in topics:
        raise no_topic(topic)
    missed: GantryError
    try:
        named = StoreReader(view.storage).record(position_of(text))
    except (Rejected, Corrupt) as error:
        if is_position(text):
            raise
        missed = error
    else:
        if is_position(text) or named.offset_message_id == text.upper():
            return _shown(view, named, text)
        missed = Rejected(f"the record at its position has the id {named.offset_message_id}")
    check_key("message id", text)
    search = _Search(view, text, topics if topic is None else [topic], scan_bytes)
    newest = search.newest()
    if newest is not None:
        return newest
    if isinstance(missed, Corrupt):
        raise missed
    where = "" if topic is None else f" in topic {topic}"
    doubts = f" (not sure: {'; '.join(search.reasons)})" if search.reasons else ""
    is_id = _ID.fullmatch(text) is not None
    why = "neither as a message_id nor as a place in the log" if is_id else str(missed)
    raise Rejected(f"no message has the id {text}{where}{doubts}: {why}")


def _shown(view: StoreView, record: Record, text: str) -> Record:
    """A record's first message. Raises Rejected if it is a batch of none, or is not shown yet."""
    if not view.shows(record):
        raise Rejected(f"{text} is not durable yet, as its topic wants it: ask again")
    found = parts(record)
    if not found:
        raise Rejected(f"the inner batch at {record.physical_offset} holds no message")
    return found[0].record


class _Search:
    """For a UNIQ_KEY: first by the index, then through batches, whose messages that lacks."""

    def __init__(self, view: StoreView, text: str, topics: list[str], scan_bytes: int) -> None:
        self.reasons: list[str] = []
        self._view = view
        self._text = text
        self._topics = topics
        self._wanted = set(topics)
        self._scan_bytes = scan_bytes

    def newest(self) -> Record | None:
        """The message, None if there is none. Raises Corrupt if one that may be it is damaged."""
        codes = sorted({index_hash(topic, self._text) for topic in self._topics})
        damaged: list[Corrupt] = []
        found = self._first(Wanted(codes, self._matches), damaged)
        found = found or self._first(Wanted([], self._matches, topics=self._topics), damaged)
        if found is None and damaged:
            raise damaged[0]
        return found

    def _first(self, wanted: Wanted, damaged: list[Corrupt]) -> Record | None:
        """What is damaged and no hash points to it is noted: another record may have the id."""
        search = Search(self._view, wanted, self._scan_bytes)
        while True:
            try:
                record = next(search, None)
            except Corrupt as error:
                if wanted.codes:
                    raise
                damaged.append(error)
                continue
            if record is None:
                self.reasons += search.reasons
                return None
            try:
                found = parts(record, self._has)
            except Corrupt as error:
                damaged.append(error)
                continue
            if found:
                return found[0].record

    def _matches(self, record: Record) -> bool:
        return record.topic in self._wanted and (
            is_inner_batch(record.sys_flag) or self._has(record)
        )

    def _has(self, record: Record) -> bool:
        return record.property_map().get("UNIQ_KEY") == self._text
