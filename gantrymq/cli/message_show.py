"""What `gantrymq get` prints. Needs no parser of options."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from brokerd.findmessage import find_message
from clients.home import store_of
from gantrymq.cli.output import home_of, print_json
from gantrymq.cli.records import message_of, print_fields
from shm.errors import BrokerGone
from shm.storage import PosixStorage
from shm.storereader import StoreReader

if TYPE_CHECKING:
    from pathlib import Path

    from workers.indexreader import IndexReader


def show_message(
    message: str, *, home: Path | None, as_json: bool, topic: str | None = None
) -> None:
    """Print the message with an id, or at a position; keys of one topic only, if it is given."""
    where = home_of(home)
    storage = PosixStorage(str(store_of(where)))
    topics = storage.list("consumequeue") if topic is None else [topic]
    index = partial(_index, storage, where)
    found = message_of(find_message(StoreReader(storage), index, message, topics))
    if as_json:
        print_json(found)
    else:
        print_fields(found)


def _index(storage: PosixStorage, home: Path) -> IndexReader:
    """The index has the sizes that are noted; before the first note, those of the settings."""
    from workers.indexreader import IndexReader
    from workers.reader.indexnote import Shape, read_note

    known = read_note(storage)
    return IndexReader(storage, known[0] if known else Shape(*_sizes(home)))


def _sizes(home: Path) -> tuple[int, int]:
    """Slots and entries of index files, as the running broker has them, else by gantrymq.toml."""
    from brokerd.config import load
    from clients.control import look_at
    from shm import wire

    try:
        with look_at(home) as control:
            shown = control.request(wire.ShowSettings(), wire.Settings).values
    except BrokerGone:
        settings = load(home).settings
        return settings.max_hash_slot_num, settings.max_index_num
    return int(shown["max_hash_slot_num"]), int(shown["max_index_num"])
