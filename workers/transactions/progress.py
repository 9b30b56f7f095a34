"""When the txn-checker's progress is written down, and what of it may be.

A picture is taken of the table; it becomes the note once the disk has all that it counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.shm import layout
from gantrymq.shm.marks import mark
from gantrymq.shm.properties import NOTES_TOPIC
from gantrymq.workers.transactions.note import LISTED_MAX, Note, read_note, write_note

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.transactions.decisions import Decisions
    from gantrymq.workers.transactions.givenup import GivenUp
    from gantrymq.workers.transactions.halves import Halves

#: How often; simulated machines do it more often.
interval_ns = 5_000_000_000
FIRST_NS: Final = 1_000_000_000


class TransactionProgress:
    """Writes `gantry/transactions.json` and the board's words of transactions."""

    def __init__(self, storage: Storage, board: Board) -> None:
        self._storage = storage
        self._board = board
        found = read_note(storage)
        self.found = found or Note()
        if found is not None:
            board.set_word(layout.BOARD_HALF_PROGRESS, found.half_progress)
            board.set_word(layout.BOARD_OP_PROGRESS, found.op_progress)
        self._written: Note | None = None
        self._picture: tuple[Note, int] | None = None
        self._next_ns = 0

    def keep(self, now_ns: int, parts: tuple[Halves, Decisions, GivenUp]) -> int:
        """Take a picture when it is time, write it down when it holds; whether it was written."""
        if not self._next_ns:
            self._next_ns = now_ns + min(FIRST_NS, interval_ns)
        is_due = self._picture is None and now_ns >= self._next_ns
        # A settlement is told once it is durable: no note may say otherwise until then.
        if is_due and not parts[1].is_settling:
            self._next_ns = now_ns + interval_ns
            self._take_picture(*parts)
        return int(self._write_if_sure())

    def write_last(self, parts: tuple[Halves, Decisions, GivenUp]) -> bool:
        """At a clean stop; False as long as the disk has not all that is counted."""
        if self._picture is None:
            self._take_picture(*parts)
        self._write_if_sure()
        return self._picture is None

    def _take_picture(self, halves: Halves, decisions: Decisions, given_up: GivenUp) -> None:
        table, sure_to = halves.table, decisions.sure_to
        first = halves.first_open()
        listed = len(table) <= LISTED_MAX
        start = halves.next if listed else first
        # Behind a half that is listed its op record is read again, if there is one already.
        known = min([start, *decisions.unsettled])
        parked = list(given_up.unsettled.items())
        names = len(parked) <= LISTED_MAX
        note = Note(
            scanned=sure_to,
            halves_next=start,
            ops_next=halves.first_op(known),
            notes_next=halves.written(NOTES_TOPIC) if listed and names else 0,
            open=[
                [int(row[name]) for name in ("offset", "position", "size", "checks")]
                for row in (table.live() if listed else ())
            ],
            given_next=given_up.next if names else min(place[0] for _half, place in parked),
            given_up=[[*place, half] for half, place in parked] if names else [],
            begun=given_up.begun.rows(),
            half_progress=first,
            op_progress=halves.first_op(first),
        )
        self._picture = (note, self._board.word(layout.BOARD_APPENDED))

    def show(self, halves: Halves, given_up: GivenUp) -> None:
        """Numbers for whoever looks at the board."""
        table, board = halves.table, self._board
        at = table.first()
        oldest = int(table.rows["stored_ms"][at]) if at >= 0 else 0
        board.set_word(layout.BOARD_OPEN_HALVES, len(table))
        board.set_word(layout.BOARD_OLDEST_HALF_MS, oldest)
        board.set_word(layout.BOARD_GIVEN_UP, len(given_up.unsettled))

    def _write_if_sure(self) -> bool:
        if self._picture is None or self._board.word(layout.BOARD_DURABLE) < self._picture[1]:
            return False
        note = self._picture[0]
        self._picture = None
        if not note.says_more_than(self._written):
            return False
        mark("txn_checker.before_note")
        write_note(self._storage, note)
        mark("txn_checker.after_note")
        self._written = self.found = note
        self._board.set_word(layout.BOARD_HALF_PROGRESS, note.half_progress)
        self._board.set_word(layout.BOARD_OP_PROGRESS, note.op_progress)
        return True

    def wait_ns(self, now_ns: int) -> int:
        """How long nothing is to be written."""
        if self._picture is not None:
            return 10_000_000
        return max(1, self._next_ns - now_ns)
