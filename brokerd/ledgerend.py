"""Whether the groups' ledger is whole: asked where its end is known, before anything is changed.

After a clean stop it ends with the entry of that stop, so nothing of it can be a torn tail: one
that lacks that entry has lost commits that were acknowledged. While a broker works, or after a
kill, only entries tell what of it was durable (`ledgerentries.judge_tail`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.brokerd.checkpoint import read_checkpoint
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.jsontext import parse_object
from gantrymq.shm.lineage import FILE as STORE_FILE
from gantrymq.shm.storage import read_file
from gantrymq.workers.groups.ledgerentries import NAME, closed_epoch, judge_tail, sound_part

if TYPE_CHECKING:
    from gantrymq.shm.storage import Storage

#: Version of `store.json` since which a clean stop ends the ledger with a closing entry.
CLOSED_SINCE: Final = 2
_MEND: Final = (
    "bring the file back from a back-up, or make a new store of what is sound with `gantrymq store"
    " verify --salvage DEST`; nothing has been changed"
)


def require_whole(storage: Storage) -> None:
    """Raise Corrupt if the store was stopped cleanly, and its ledger is not as it was then.

    Raises Incompatible for an entry of a kind that only a newer program knows.
    """
    last = read_checkpoint(storage)
    # Life 0 is of back-ups, whose ledger is that of a broker at work.
    if last is None or not last.clean or last.ledger_open or not last.epoch:
        return
    if version_of(storage) < CLOSED_SINCE:
        return
    if not storage.exists(NAME):
        raise Corrupt(
            f"{NAME} is missing, which the clean stop of this store had left: {_MEND}",
            path=NAME,
            position=0,
        )
    data = read_file(storage, NAME)
    end, _durable = sound_part(data)
    if end < len(data) or closed_epoch(data) != last.epoch:
        raise Corrupt(
            f"{NAME} is damaged at byte {end}: its entries do not go on to that of the clean stop"
            f" of this store: {_MEND}",
            path=NAME,
            position=end,
        )


def require_readable(data: bytes) -> None:
    """Raise Corrupt for a ledger that a start on it would refuse, whoever writes it now."""
    judge_tail(data, *sound_part(data))


def version_of(storage: Storage) -> int:
    """`version` of store.json; 0 if it does not say, which is told by who reads all of it."""
    try:
        return int(parse_object(read_file(storage, STORE_FILE)).get("version", 0))
    except (FileNotFoundError, ValueError, TypeError) as error:
        require_ours(error)
        return 0
