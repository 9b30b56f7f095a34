"""A message by any of its ids."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from clients.queries.request import check_key
from clients.queries.search import SCAN_BYTES, Search, Wanted
from clients.queries.view import no_topic
from shm.errors import Corrupt, GantryError, Rejected
from shm.properties import index_hash
from shm.storereader import StoreReader, is_position, position_of

if TYPE_CHECKING:
    from clients.queries.view import StoreView
    from shm.record import Record

#: Both kinds of id have as many digits (SF-31, SF-32).
_ID: Final = re.compile(r"[0-9a-fA-F]{32}|[0-9a-fA-F]{56}")


def find_message(
    view: StoreView, text: str, topic: str | None = None, scan_bytes: int = SCAN_BYTES
) -> Record:
    """The record whose offset message id is `text`, or the newest whose UNIQ_KEY, or a position's.

    Both kinds of id may have 32 hex digits: the record says which it is. Keys are looked up in
    `topic`, or in all. Raises Rejected if there is none, Corrupt if it is damaged, TopicNotFound.
    """
    topics = view.topics()
    if topic is not None and topic not in topics:
        raise no_topic(topic)
    missed: GantryError
    try:
        found = StoreReader(view.storage).record(position_of(text))
        if is_position(text) or found.offset_message_id == text.upper():
            return found
        missed = Rejected(f"the record at its position has the id {found.offset_message_id}")
    except (Rejected, Corrupt) as error:
        if is_position(text):
            raise
        missed = error
    check_key("message id", text)
    search = _by_key(view, text, topics if topic is None else [topic], scan_bytes)
    newest = next(search, None)
    if newest is not None:
        return newest
    if isinstance(missed, Corrupt):
        raise missed
    where = "" if topic is None else f" in topic {topic}"
    doubts = f" (not sure: {'; '.join(search.reasons)})" if search.reasons else ""
    is_id = _ID.fullmatch(text) is not None
    why = "neither as a message_id nor as a place in the log" if is_id else str(missed)
    raise Rejected(f"no message has the id {text}{where}{doubts}: {why}")


def _by_key(view: StoreView, text: str, topics: list[str], scan_bytes: int) -> Search:
    wanted = set(topics)

    def matches(record: Record) -> bool:
        return record.topic in wanted and record.property_map().get("UNIQ_KEY") == text

    codes = sorted({index_hash(topic, text) for topic in topics})
    return Search(view, Wanted(codes, matches), scan_bytes)
