"""What a txn-checker that starts, or whose writer was replaced, learns from the log.

The note says what was settled when it was written; behind that, op records tell what is decided,
commit copies what was about to be. Whoever finds a commit copy finishes its transaction. All that
it says is on the disk before anybody hears of it: a power cut must not take back what was told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import layout
from gantrymq.shm.properties import HALF_TOPIC, NOTES_TOPIC, OP_TOPIC
from gantrymq.shm.transactionwire import COMMIT, COMMITTED, GIVEN_UP, OUTCOMES, RECHECK, ROLLBACK
from gantrymq.workers.groups.offsetfile import TRANSACTIONS_GROUP, read_offsets
from gantrymq.workers.origins import CommitScan
from gantrymq.workers.scheduler.othersettled import OtherSettled
from gantrymq.workers.transactions import records as transactionnotes
from gantrymq.workers.transactions.bindings import Bindings, transactions_at
from gantrymq.workers.transactions.decision import MOVED, Decision
from gantrymq.workers.transactions.identity import transaction_at, transaction_of, unique_at
from gantrymq.workers.transactions.note import BEFORE_NOTE, Note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gantrymq.shm.board import Board
    from gantrymq.shm.record import Record
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.logviews import LogViews
    from gantrymq.workers.logwindow import LogWindow
    from gantrymq.workers.transactions.decision import Half
    from gantrymq.workers.transactions.decisions import Decisions
    from gantrymq.workers.transactions.givenup import GivenUp
    from gantrymq.workers.transactions.halves import Halves

Words = NDArray[np.int64]
_NONE: Final = np.zeros((0, 3), np.int64)
NOTES_AT_ONCE: Final = 4096
#: Halves that room is made for before they are read: to grow the table page by page takes longer.
RESERVED_MAX: Final = 1 << 20
#: Who has settled what nobody's name was kept for: a full disk has taken the record.
NOBODY: Final = "(not recorded)"
#: Halves that one op record names.
NAMED_MAX: Final = 1024


class Restart:
    """Steps from a note to a table that says what the log says up to `target`."""

    def __init__(
        self, storage: Storage, board: Board, views: LogViews, note: Note, target: int
    ) -> None:
        self._board = board
        self._note = note
        self._target = target
        low = board.word(layout.BOARD_LOW)
        #: Where the first commit copy may lie whose op record is missing.
        self.scanned_from = max(low, note.scanned)
        self._scan = CommitScan(board, views, self.scanned_from, target)
        self._ops: list[Words] = [_NONE]
        offsets = read_offsets(storage).get((HALF_TOPIC, TRANSACTIONS_GROUP), {})
        # A power cut may have taken halves that another broker had counted: behind the end that
        # recovery has left are others.
        self._progress = min(offsets.get(0, 0), board.recovered_end(HALF_TOPIC, 0))
        self._op_next = -1
        self._read = False
        self._learned = False  # of halves and what was given up, too
        self._others = OtherSettled(storage)
        self._notes_next = note.notes_next
        self._notes_end = -1
        #: Committed by an operator, of whom there is no record: half, its transaction.
        self._unnoted: list[tuple[int, str]] = []
        self._bindings = Bindings(note.begun)
        self._joined: list[tuple[int, int]] = []  # newer records stand for these

    @property
    def waits(self) -> bool:
        """Whether queues do not show yet what the log has, or the disk lacks what was read.

        Those who put it may have died before they heard of the disk, and so told nobody; what is
        learned of it is told to whoever asks.
        """
        if self._board.word(layout.BOARD_DISPATCHED) < self._target:
            return True
        return self._learned and self._board.word(layout.BOARD_DURABLE) < self._target

    def step(
        self, halves: Halves, given_up: GivenUp, decisions: Decisions, now: tuple[int, int]
    ) -> bool:
        """One short step; True when nothing is left. Raises Corrupt, OSError."""
        if not self._scan.finished:
            self._scan.step()
            return False
        if self._op_next < 0:
            decisions.window.name_damaged(self._scan.damaged())
            self._op_next = max(self._note.ops_next, halves.lowest(OP_TOPIC))
            self._begin(halves, given_up, now)
            return False
        end = halves.written(OP_TOPIC)
        if self._op_next < end:
            self._op_next, rows = halves.read_ops(self._op_next, end)
            self._ops.append(rows.copy())
            return False
        if not self._read:
            halves.ops_next = max(halves.ops_next, end)
            self._learn_ops(halves)
            self._read = True
            return False
        if halves.read(*now) or given_up.read(lambda _tx: None):
            return False
        self._learned = True
        return not self.waits and self._read_notes(halves, given_up, decisions)

    # ------------------------------------------------------------------------------ halves and ops

    def _begin(self, halves: Halves, given_up: GivenUp, now: tuple[int, int]) -> None:
        """Rows that the note lists."""
        note, low = self._note, self._board.word(layout.BOARD_LOW)
        halves.others, imported = self._others, self._others.imported
        # Nobody's progress passes an open half: further than our note says is another broker's.
        halves.next = max(note.halves_next, halves.lowest(), self._progress)
        alive = [
            row
            for row in note.open
            if row[1] >= low
            and row[0] >= self._progress
            and not imported.is_settled(HALF_TOPIC, 0, row[0])
        ]
        listed = np.array(alive, np.int64).reshape(-1, 4)
        if len(listed):
            rows = halves.rows_of(np.ascontiguousarray(listed[:, 1:3]), *now)
            checks = dict(zip(listed[:, 0].tolist(), listed[:, 3].tolist(), strict=True))
            # A row that names another half than lies there tells nothing of it.
            rows["checks"] = [checks.get(offset, 0) for offset in rows["offset"].tolist()]
            halves.table.add(rows)
        if note.op_progress < note.ops_next:
            halves.expect_ops(note.op_progress, note.halves_next - 1)
        halves.table.reserve(min(halves.written() - halves.next, RESERVED_MAX))
        given_up.next = note.given_next
        for offset, position, size, half in note.given_up:
            if position >= low:
                given_up.list_again(half, (offset, position, size))

    def _learn_ops(self, halves: Halves) -> None:
        """What op records name is decided."""
        ops = np.concatenate(self._ops)
        if not len(ops):
            return
        numbers, starts = np.unique(ops[:, 1], return_index=True)
        self._bindings.learn_ops(ops)
        highest = np.maximum.reduceat(ops[:, 0], starts)
        ones = [1] * len(numbers)
        halves.note_ops(list(zip(numbers.tolist(), ones, highest.tolist(), strict=True)))
        kept = ~np.isin(halves.table.rows["offset"], ops[:, 0])
        halves.table.keep_only(kept)
        named = ops[:, 0]
        for offset in named[named >= halves.next].tolist():
            halves.done.add(offset)
            halves.take(offset)

    # ------------------------------------------------------------------------------------- notes

    def _read_notes(self, halves: Halves, given_up: GivenUp, decisions: Decisions) -> bool:
        if self._notes_end < 0:
            self._notes_end = halves.written(NOTES_TOPIC)
            self._notes_next = max(self._notes_next, halves.lowest(NOTES_TOPIC))
        if self._notes_next >= self._notes_end:
            self._find_carried_out(halves, given_up)
            self._bindings.bind(halves, given_up, decisions.window, self._scan.origins())
            return True
        self._notes_next = max(self._notes_next, halves.lowest(NOTES_TOPIC))
        most = min(self._notes_end, self._notes_next + NOTES_AT_ONCE)
        if self._notes_next >= most:
            return False
        first, units = halves.units(NOTES_TOPIC, self._notes_next, most)
        for position in units[0::2].tolist():
            record = decisions.window.record(position)
            if record is not None:
                self._learn_note(record, halves, given_up)
        self._notes_next = first + len(units) // 2
        return False

    def _find_carried_out(self, halves: Halves, given_up: GivenUp) -> None:
        """Settlements of which the copy is in the log: of these the record may be missing.

        And the other way: a full disk may have taken the copy, and not the record. Then the half
        is listed still, for nobody was told that it is settled.
        """
        if not given_up.unsettled:
            return
        end = halves.next
        first = max(self._note.halves_next - BEFORE_NOTE, halves.lowest())
        while first < end:
            _first, units = halves.units(HALF_TOPIC, first, end)
            halves.rows_of(units.reshape(-1, 2), 0, 0)  # these tell where they come from
            first += len(units) // 2
        committed = given_up.unsettled.keys() & set(self._scan.origins().tolist())
        for half in sorted(committed):
            halves.remember(half, COMMITTED)
            tx = given_up.transaction(half)
            self._bindings.settled(half, tx, COMMITTED)
            self._unnoted.append((half, tx))
        for half in committed | (given_up.unsettled.keys() & halves.aliases.keys()):
            given_up.is_settled(half, self._target)

    def _learn_note(self, record: Record, halves: Halves, given_up: GivenUp) -> None:
        counts, settled = transactionnotes.read_record(record.body)
        for offset, count in counts.items():
            index = halves.table.find(offset)
            if index >= 0:
                halves.table.rows["checks"][index] = count
        if settled is not None:
            tx = transaction_of(record.property_map())
            self._bindings.settled(settled[0], tx, OUTCOMES.get(settled[1], ""))
            # Below `scanned` all of a settlement is in the log; behind it copies tell.
            if settled[1] == ROLLBACK or record.physical_offset < self._note.scanned:
                given_up.is_settled(settled[0], record.physical_offset)
            index = halves.table.at_position(settled[0])
            if index >= 0 and settled[1] == RECHECK:
                halves.table.rows["checks"][index] = 0

    # --------------------------------------------------------------------------------- unfinished

    def unfinished(self, halves: Halves, decisions: Decisions, given_up: GivenUp) -> list[Decision]:
        """Decisions that somebody has begun: commit copies or op records that are missing."""
        copied = self._join_copies(halves, self._scan.origins(), decisions.window)
        rows = halves.table.rows
        have = np.isin(rows["position"], copied) & (rows["live"] != 0)
        # Of a copy that an op record names the transaction is over, whatever else is open of it.
        begun = rows["position"][have].astype(np.int64)
        found: list[Decision] = []
        durable = bool(decisions.durables)
        found += _in_pieces(MOVED, self._joined, durable)
        found += _in_pieces(
            COMMITTED, [(int(row["position"]), int(row["offset"])) for row in rows[have]], durable
        )
        parked = np.isin(rows["position"], list(given_up.unsettled)) & (rows["live"] != 0) & ~have
        found += _in_pieces(
            GIVEN_UP, [(int(row["position"]), int(row["offset"])) for row in rows[parked]], durable
        )
        have |= parked
        for row in self._siblings(rows[(rows["live"] != 0) & ~have], begun, decisions):
            found.append(Decision(COMMITTED, [(int(row["position"]), int(row["offset"]))], []))
        now_ms, slots = self._board.word(layout.BOARD_STORE_MS), decisions.slots
        for half in self._unnoted:
            note = transactionnotes.settled(slots, half, COMMIT, NOBODY, now_ms)
            found.append(Decision("", [], [], copies=[note], named=False))
        return found + self._owed(halves, copied, decisions)

    def _join_copies(self, halves: Halves, copied: Words, window: LogWindow) -> Words:
        """Of records with the same UNIQ_KEY only the newest counts (TX-32, HO-41).

        Returns `copied` with the newest of those of which an older one has its commit copy.
        """
        rows = halves.table.rows
        if not _has_twins(rows["key"]):
            return copied
        more: list[int] = []
        for older, newer in _twins(rows, window):
            position = int(rows["position"][older])
            newest = int(rows["position"][newer]), int(rows["offset"][newer])
            halves.aliases[position] = newest
            self._joined.append((position, int(rows["offset"][older])))
            if position in copied or position in more:
                more.append(newest[0])
            halves.table.remove(older)
        return np.concatenate((copied, np.array(more, np.int64)))

    def _siblings(
        self, rows: NDArray[np.void], begun: Words, decisions: Decisions
    ) -> Iterator[NDArray[np.void]]:
        """Which rows are of the same transactions as halves at the positions `begun`.

        Hashes find them, ids tell: another producer's transaction is not to be committed.
        """
        positions, hashes = transactions_at(decisions.window, begun)
        near = rows[np.isin(rows["tx"], hashes) & (rows["tx"] != 0)]
        if not len(near):
            return
        window = decisions.window
        of_near = positions[np.isin(hashes, near["tx"])].tolist()
        ids = {transaction_at(window, position) for position in of_near} - {""}
        for row in near:
            if transaction_at(window, int(row["position"])) in ids:
                yield row

    def _owed(self, halves: Halves, copied: Words, decisions: Decisions) -> list[Decision]:
        """Halves that an op record calls committed, without a commit copy: the disk was full."""
        ops = np.concatenate(self._ops)
        ops = ops[ops[:, 2] == 1]
        found: list[Decision] = []
        for offset, number, _committed in ops.tolist():
            _first, op = halves.units(OP_TOPIC, number, number + 1)
            if int(op[0]) < max(self._note.scanned, self._board.word(layout.BOARD_LOW)):
                continue
            if offset < halves.lowest():
                continue  # the half is gone, and with it what its copy is made of
            _first, unit = halves.units(HALF_TOPIC, offset, offset + 1)
            position = int(unit[0])
            if position not in copied:
                said = decisions.window.record(int(op[0]))
                decided_ms = said.store_timestamp if said else None
                copy = decisions.copy_again((position, offset), decided_ms)
                if copy is not None:  # a full disk may have taken the half since
                    found.append(Decision("", [], [], copies=[copy], named=False))
        return found


def _twins(rows: NDArray[np.void], window: LogWindow) -> Iterator[tuple[int, int]]:
    """Pairs of rows with one UNIQ_KEY, an older one and the next; hashes find them, keys tell."""
    order = np.argsort(rows["key"], kind="stable")
    keys = rows["key"][order]
    starts = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1))
    for first, end in zip(starts.tolist(), [*starts.tolist()[1:], len(keys)], strict=True):
        newest: dict[str, int] = {}
        for index in order[first:end].tolist() if end - first > 1 and keys[first] else ():
            key = unique_at(window, int(rows["position"][index]))
            if key and key in newest:
                yield newest[key], index
            newest[key] = index


def _has_twins(keys: Words) -> bool:
    """Whether two of them are the same, and not 0 (a sort alone is much faster than an argsort)."""
    ordered = np.sort(keys)
    return bool(((ordered[1:] == ordered[:-1]) & (ordered[1:] != 0)).any())


def _in_pieces(outcome: str, halves: list[Half], durable: bool) -> list[Decision]:
    """Decisions whose op records find room in the ring."""
    pieces = [halves[at : at + NAMED_MAX] for at in range(0, len(halves), NAMED_MAX)]
    return [Decision(outcome, piece, [], copies=[], durable=durable) for piece in pieces]
