"""Whether a log is still the one that somebody has read up to a position.

Beside each position its owner keeps the store's id (shm/lineage.py), and where the last record
before it lies, with a checksum. The record decides: a store that was made anew, or an older back-up
that has grown otherwise since, has another one there. Where retention has removed it, or there was
none, the ids do.
"""

from __future__ import annotations

import logging
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from gantrymq.shm.errors import Incompatible
from gantrymq.shm.lineage import lineage_of
from gantrymq.shm.lognames import bases_of, segment_name
from gantrymq.shm.storage import PosixStorage
from gantrymq.shm.valueranges import Count, Digest, Offset

if TYPE_CHECKING:
    from gantrymq.clients.spark.planning import Survey

_log = logging.getLogger(__name__)
#: `record` of a proof without one.
_NONE: Final = -1


class Proof(msgspec.Struct, frozen=True):
    """What tells a log from others: the id of its store ("": none), and a record's place and CRC.

    The record has the `size` bytes from position `record` on; -1: none is known.
    """

    store: str = ""
    record: Offset = _NONE
    size: Count = 0
    crc: Digest = 0

    @property
    def says_nothing(self) -> bool:
        """True for one of a version that kept none."""
        return not self.store and self.record == _NONE


def proof_at(found: Survey, position: int, before: Proof | None = None) -> Proof:
    """What to keep beside a position of a log; `before`: what stands if no record is found."""
    storage = PosixStorage(found.options.store)
    store = lineage_of(storage).store
    place = found.record_before(position)
    crc = _crc(storage, *place) if place is not None else None
    if place is None or crc is None:
        return msgspec.structs.replace(before, store=store) if before else Proof(store)
    return Proof(store, place[0], place[1], crc)


def require_same(found: Survey, known: Proof, position: int, owner: str, remedy: str) -> None:
    """Raise Incompatible unless this is the log that `owner` has read up to `position`.

    `remedy` ends the text. Raises Corrupt if the store's id cannot be read.
    """
    root = found.options.store
    storage = PosixStorage(root)
    lineage = lineage_of(storage)
    of = f" of store {known.store}" if known.store else ""
    names = f"{owner} has read the log{of} up to position {position}"
    here = f"{root} is store {lineage.store}" if lineage.store else f"{root} has no id"
    if position > found.log_end:
        raise Incompatible(
            f"{names}, and {here}, whose log ends at {found.log_end}: it is another store, was made"
            f" anew, or was put back from a back-up; {remedy}",
            store=known.store, here=lineage.store, position=position,
        )  # fmt: skip
    if known.says_nothing:
        if position:
            _tell_taken(owner, here)
        return
    crc = _crc(storage, known.record, known.size) if known.record != _NONE else None
    if crc is not None and crc != known.crc:
        raise Incompatible(
            f"{names}, and {here}, with another record at position {known.record}: it is another"
            " store, was made anew, or was put back from a back-up (or the record is damaged);"
            f" {remedy}",
            store=known.store, here=lineage.store, position=position,
        )  # fmt: skip
    if crc is None and known.store != lineage.store and not lineage.holds(known.store, position):
        raise Incompatible(
            f"{names}, and {here}: another store, made anew, or put back from a back-up; {remedy}",
            store=known.store, here=lineage.store, position=position,
        )  # fmt: skip


@lru_cache  # a job asks with each step
def _tell_taken(owner: str, here: str) -> None:
    _log.warning(f"{owner} does not say of which store it is: it is taken for {here}")


def _crc(storage: PosixStorage, at: int, size: int) -> int | None:
    """Checksum of bytes of one segment as they are now; None if they are not there any more.

    A log that ends before them has others.
    """
    bases = bases_of(storage)
    base = max((base for base in bases if base <= at), default=None)
    if base is None:
        return None
    name = segment_name(base)
    try:
        file = storage.open(name)
    except FileNotFoundError:
        return None
    try:
        view = file.still_view()
    finally:
        file.close()
    if base + len(view) <= at and base < max(bases):
        return None  # a segment in the middle is missing
    found = zlib.crc32(view[at - base : at - base + size].data)
    return found if storage.exists(name) else None  # it leaves its name before its bytes change
