"""Known bugs of the txn-checker that can be put into a run, as those of tests.sim.plants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gantrymq.brokerd.halvesholder import HalvesHolder
from gantrymq.shm import layout
from gantrymq.shm import transactionwire as wire
from gantrymq.workers.transactions import progress
from gantrymq.workers.transactions.batch import Batch
from gantrymq.workers.transactions.desk import Desk
from gantrymq.workers.transactions.endings import Endings
from gantrymq.workers.transactions.halfmove import HalfMove
from gantrymq.workers.transactions.halves import Halves
from gantrymq.workers.transactions.kin import Kin
from gantrymq.workers.transactions.note import write_note
from gantrymq.workers.transactions.restart import Restart
from tests.sim.plants import put_over


def ended_before_stored() -> None:
    """Who asks is answered before the decision is in the log."""
    stage = Endings._stage

    def hasty(endings: Endings, decision: Any, *how: Any) -> None:  # noqa: ANN401
        stage(endings, decision, *how)
        asked = [] if decision.error else decision.asked
        for session, serial, request in asked:
            if isinstance(request, wire.End):
                endings._desk.tell(session, wire.Ended(serial, decision.outcome))
        decision.own &= decision.asked is not asked  # nobody asks for it any more
        asked.clear()

    put_over(Endings, "_stage", hasty)


def told_of_the_next() -> None:
    """The writer tells who asked that the END behind it is decided."""
    listener = Batch.listener

    def careless(batch: Batch) -> tuple[int, int]:
        session, serial = listener(batch)
        return session, serial + 1

    put_over(Batch, "listener", careless)


def op_records_unread() -> None:
    """A start does not heed what op records name: what was committed is open again."""
    put_over(Restart, "_learn_ops", lambda *_: None)


def carried_out_again() -> None:
    """An END that comes again is carried out again, whatever was decided (TX-14)."""
    put_over(Halves, "outcome_at", lambda *_: None)
    put_over(Halves, "is_open", lambda *_: True)


def told_what_was_read() -> None:
    """A start tells what it has read of the log, which the disk may lack."""

    def waits(start: Restart) -> bool:
        return start._board.word(layout.BOARD_DISPATCHED) < start._target

    put_over(Restart, "waits", property(waits))


def counted_unheard() -> None:
    """A check counts while no producer of the group is there (TX-35)."""
    member, ask = Desk.member, Desk.ask
    put_over(Desk, "has_member", lambda *_: True)
    put_over(Desk, "member", lambda desk, group: max(0, member(desk, group)))
    put_over(Desk, "ask", lambda desk, session, check: not session or ask(desk, session, check))


def open_halves_removed() -> None:
    """Retention does not ask what transactions need."""
    put_over(HalvesHolder, "lowest_position", lambda *_: None)


def given_up_unlisted() -> None:
    """The note counts the give-up queue as read, and lists nothing of it."""
    put_over(
        progress,
        "write_note",
        lambda storage, note: write_note(storage, replace(note, given_up=[])),
    )


def parked_again_once() -> None:
    """A copy that was parked again is waited for, for ever."""
    put_over(
        HalfMove,
        "parked",
        lambda move, decision, _now_ns: decision.halves[0][0] in move._parking,
    )


def each_half_by_itself() -> None:
    """Who decides a half leaves the others of its transaction to whoever is asked about them."""
    put_over(Kin, "others", lambda *_: [])
    put_over(Kin, "enter", lambda *_: None)
    put_over(Kin, "outcome", lambda *_: None)


def latecomers_are_asked_about() -> None:
    """A half that comes after its transaction was decided is as any other."""
    put_over(Kin, "enter", lambda *_: None)
    put_over(Kin, "outcome", lambda *_: None)


PLANTS: dict[str, Callable[[], None]] = {
    plant.__name__: plant
    for plant in (
        ended_before_stored,
        told_of_the_next,
        op_records_unread,
        carried_out_again,
        told_what_was_read,
        counted_unheard,
        open_halves_removed,
        given_up_unlisted,
        parked_again_once,
        each_half_by_itself,
        latecomers_are_asked_about,
    )
}
