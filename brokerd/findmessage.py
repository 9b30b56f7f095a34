"""A message by any of its ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shm.errors import Corrupt, GantryError, Rejected
from shm.storereader import StoreReader, is_position, position_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shm.record import Record
    from workers.indexreader import IndexReader


def find_message(
    reader: StoreReader, index: Callable[[], IndexReader], text: str, topics: Iterable[str]
) -> Record:
    """The record whose offset message id is `text`, or the newest whose UNIQ_KEY, or a position's.

    Both kinds of id may have 32 hex digits: the record says which it is. Keys are looked up in
    `topics`. Raises Rejected if there is none, Corrupt if it is damaged.
    """
    missed: GantryError
    try:
        found = reader.record(position_of(text))
        if is_position(text) or found.offset_message_id == text.upper():
            return found
        missed = Rejected(f"the record at its position has the id {found.offset_message_id}")
    except (Rejected, Corrupt) as error:
        if is_position(text):
            raise
        missed = error
    files = index()
    keyed = (r for topic in topics for r in _newest_of_key(reader, files, topic, text))
    newest = max(keyed, key=lambda record: record.physical_offset, default=None)
    if newest is not None:
        return newest
    if isinstance(missed, Corrupt):
        raise missed
    raise Rejected(
        f"no message has the id {text}: {missed}; and the key index does not have it"
        " (what is in there is half a second behind)"
    )


def _newest_of_key(
    reader: StoreReader, index: IndexReader, topic: str, key: str
) -> Iterator[Record]:
    """The newest record of a topic with that UNIQ_KEY; other keys may have its hash."""
    for position in index.positions(topic, key):
        try:
            record = reader.record(position)
        except Rejected:
            continue  # expired
        if record.topic == topic and record.property_map().get("UNIQ_KEY") == key:
            yield record
            return
