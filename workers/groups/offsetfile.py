"""`config/consumerOffset.json` as RocketMQ reads and writes it (store-format.md section 12)."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from gantrymq.shm import layout
from gantrymq.shm.configfile import by_number, read_config, write_config
from gantrymq.shm.properties import HALF_TOPIC, OP_TOPIC
from gantrymq.shm.storage import Storage, is_disk_full
from gantrymq.shm.valueranges import is_offset, is_small
from gantrymq.workers.groups.ledger import GroupProgress, Ledger
from gantrymq.workers.groups.progress import UNSET

if TYPE_CHECKING:
    from gantrymq.shm.board import Board

FILE: Final = "consumerOffset.json"
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


def read_offsets(storage: Storage) -> Offsets:
    """Offsets of the file, or of its backup; none if there is neither. Raises OSError."""
    value: Any = read_config(storage, FILE)
    table: Mapping[str, Any] = value.get("offsetTable") or {} if isinstance(value, dict) else {}
    found: Offsets = {}
    for name, queues in table.items():
        topic, separator, group = name.partition("@")
        if separator and isinstance(queues, dict):
            numbers = by_number(queues).items()
            kept = {q: n for q, n in numbers if is_small(q) and is_offset(n)}
            found[topic, group] = kept
    return found


def write_offsets(storage: Storage, offsets: Offsets) -> None:
    """Save all offsets. Raises OSError."""
    groups: dict[str, list[str]] = {}
    for topic, group in sorted(offsets):
        groups.setdefault(group, []).append(topic)
    value = {
        "dataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 0},  # it never told (SF-105)
        "groupTopicMap": groups,
        "offsetTable": {f"{topic}@{group}": queues for (topic, group), queues in offsets.items()},
    }
    write_config(storage, FILE, value)


def checksum_of(offsets: Offsets) -> int:
    """The same number for the same offsets, whatever file said them."""
    rows = sorted((*key, sorted(queues.items())) for key, queues in offsets.items())
    return zlib.crc32(json.dumps(rows).encode())


def import_offsets(ledger: Ledger) -> None:
    """Offsets of a RocketMQ that had this store: where the ledger has none, or that came later.

    A file that we did not write ourselves was written by another broker since (SF-105: its version
    does not tell).
    """
    offsets = read_offsets(ledger.storage)
    if checksum_of(offsets) in ledger.exports:
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

    def write(self) -> bool:
        """Save the offsets if they are new; False if the disk is full. Raises OSError."""
        ledger = self._ledger
        offsets = offsets_of(ledger.groups) | self._of_transactions()
        checksum = checksum_of(offsets)
        if checksum == self._written:
            return True
        ledger.exported(checksum)  # first, so that our own file is never taken for another's
        if not ledger.flush_if_room():
            return False
        ledger.sync()
        try:
            write_offsets(ledger.storage, offsets)
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
        kept = read_offsets(self._ledger.storage)
        return {key: value for key, value in kept.items() if key[1] == TRANSACTIONS_GROUP}
