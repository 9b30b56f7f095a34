"""`config/consumerOffset.json` as RocketMQ reads and writes it (store-format.md section 12)."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from gantrymq.shm import layout
from gantrymq.shm.configfile import by_number, is_of_another, map_in, read_config, write_config
from gantrymq.shm.properties import HALF_TOPIC, OP_TOPIC
from gantrymq.shm.storage import Storage, is_disk_full
from gantrymq.shm.valueranges import is_offset, is_small
from gantrymq.workers.groups.ledger import Ledger
from gantrymq.workers.groups.offsettext import OffsetText
from gantrymq.workers.groups.progress import UNSET, GroupProgress

if TYPE_CHECKING:
    from gantrymq.shm.board import Board

FILE: Final = "consumerOffset.json"
#: Queues that a step looks at: some ms if all of them have moved.
STEP_QUEUES: Final = 1024
#: RocketMQ's progress in half and op queue (HO-40).
TRANSACTIONS_GROUP: Final = "CID_RMQ_SYS_TRANS"

#: (topic, group) -> queue id -> next offset to consume
Offsets = dict[tuple[str, str], dict[int, int]]


def offsets_of(groups: Mapping[str, GroupProgress]) -> Offsets:
    """All committed offsets of a ledger's groups."""
    table: Offsets = {}
    for group, progress in groups.items():
        for (topic, queue_id), queue in progress.queues.items():
            if queue.committed != UNSET:
                table.setdefault((topic, group), {})[queue_id] = queue.committed
    return table


def _offsets_in(group: GroupProgress | None, topic: str) -> dict[int, int]:
    """Committed offsets in one topic."""
    if group is None:
        return {}
    found = ((number, group.queues[topic, number]) for number in group.ids.get(topic, ()))
    return {number: queue.committed for number, queue in found if queue.committed != UNSET}


def read_offsets(storage: Storage) -> Offsets:
    """Offsets of the file, or of its backup; none if there is neither. Raises OSError."""
    found: Offsets = {}
    for name, queues in map_in(read_config(storage, FILE), "offsetTable").items():
        topic, separator, group = name.partition("@")
        if separator and isinstance(queues, dict):
            numbers = by_number(queues).items()
            kept = {q: n for q, n in numbers if is_small(q) and is_offset(n)}
            found[topic, group] = kept
    return found


def write_offsets(storage: Storage, offsets: Offsets) -> None:
    """Save all offsets. Raises OSError."""
    text = OffsetText()
    for key in sorted(offsets):
        text.put(key, offsets[key])
    write_config(storage, FILE, text.value())


def checksum_of(offsets: Offsets) -> int:
    """The same number for the same offsets, whatever file said them."""
    rows = sorted((*key, sorted(queues.items())) for key, queues in offsets.items())
    return zlib.crc32(json.dumps(rows).encode())


def import_offsets(ledger: Ledger) -> None:
    """Offsets of a RocketMQ that had this store: where the ledger has none, or that came later.

    A file that we did not write ourselves was written by another broker since (SF-105: its version
    does not tell). It may say what we wrote long ago, for it has set a group back: ours are those
    with our checksum, and the last one, that of a hand-over has none.
    """
    offsets = read_offsets(ledger.storage)
    exports, checksum = ledger.exports, checksum_of(offsets)
    is_last = bool(exports) and checksum == exports[-1]
    if checksum in exports and (is_last or not is_of_another(ledger.storage, FILE)):
        return  # the ledger had all of it before, and may have forgotten some since
    newer = bool(ledger.exports)
    for (topic, group), queues in offsets.items():
        if group == TRANSACTIONS_GROUP:
            continue  # the txn-checker's own note and queues say more
        for queue_id, offset in queues.items():
            if newer or ledger.group(group).queue((topic, queue_id)).committed == UNSET:
                ledger.commit(
                    group, (topic, queue_id), offset, session=1
                )  # somebody had got so far


class Exports:
    """Writes the file when offsets have changed; the ledger knows the files that are ours."""

    def __init__(self, ledger: Ledger, board: Board | None = None) -> None:
        """With `board` the txn-checker's progress goes along."""
        self._ledger = ledger
        self._board = board
        self._written = 0
        self._text = OffsetText()
        self._kept: Offsets | None = None  # of the txn-checker, as the file had it
        self._walk: Iterator[int] | None = None
        self._is_saved = True

    @property
    def under_way(self) -> bool:
        """Whether a `step` has left something to the next."""
        return self._walk is not None

    def write(self) -> bool:
        """Save the offsets of now if they are new; False if the disk is full. Raises OSError."""
        self._walk = None
        while (is_saved := self.step()) is None:
            pass
        return is_saved

    def step(self, queues_max: int = STEP_QUEUES) -> bool | None:
        """Look at so many queues more, save all in the end, as `write`; None: there are more."""
        if self._walk is None:
            self._walk = self._save_all()
        for looked_at in self._walk:
            queues_max -= looked_at
            if queues_max <= 0:
                return None
        self._walk = None
        return self._is_saved

    def _save_all(self) -> Iterator[int]:
        """Pieces of work, which leave what is to be known in `_is_saved`; how large each was."""
        self._is_saved = True
        yield from self._follow()
        checksum = self._text.checksum()
        yield len(self._text.rows)
        if checksum != self._written:
            value = self._text.value()
            yield len(self._text.rows)
            self._is_saved = self._save(checksum, value)

    def _follow(self) -> Iterator[int]:
        """Bring the text up to date; how many queues each piece had."""
        groups = self._ledger.groups
        seen: set[tuple[str, str]] = set()
        for name in list(groups):
            yield 1
            for topic in list(groups[name].ids) if name in groups else ():
                queues = _offsets_in(groups.get(name), topic)
                if queues:  # it is there yet
                    self._text.put((topic, name), queues)
                    seen.add((topic, name))
                yield 1 + len(queues)
        for key, queues in self._of_transactions().items():
            self._text.put(key, queues)
            seen.add(key)
        for key in [key for key in self._text.rows if key not in seen]:
            self._text.remove(key)
            yield 1
        while self._text.settle():
            yield 1

    def _save(self, checksum: int, value: dict[str, Any]) -> bool:
        ledger = self._ledger
        ledger.exported(checksum)  # first, so that our own file is never taken for another's
        if not ledger.flush_if_room():
            return False
        ledger.sync()
        try:
            write_config(ledger.storage, FILE, value)
        except OSError as error:
            if not is_disk_full(error):
                raise
            # What is still there must not drop out of the last few, however often this is tried.
            ledger.exported(checksum_of(read_offsets(ledger.storage)))
            return False
        self._written = checksum
        return True

    def _of_transactions(self) -> Offsets:
        """What the txn-checker shows on the board; as the file has it before it does."""
        words = {HALF_TOPIC: layout.BOARD_HALF_PROGRESS, OP_TOPIC: layout.BOARD_OP_PROGRESS}
        shown = {
            (topic, TRANSACTIONS_GROUP): {0: self._board.word(word)}
            for topic, word in words.items()
            if self._board is not None and self._board.word(word) >= 0
        }
        if shown:
            return shown
        if self._kept is None:
            read = read_offsets(self._ledger.storage)
            self._kept = {key: row for key, row in read.items() if key[1] == TRANSACTIONS_GROUP}
        return self._kept
