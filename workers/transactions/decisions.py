"""Decisions on their way into the log: commit copies, and behind them the op record that ends them.

All decisions of one step share an op record, whose `flag` is 1 + the number of committed halves:
its body names these first. So the log tells what was decided by the op record alone; a copy that
the writer refused while it took the op record (the disk got room in between) is put again. Halves
that were given up, or appended again, have op records with `flag` 0: other records tell of these.

Copies that do not fit into the ring with their op record go up in parts, the op record with the
last one; nothing else is put between them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import layout
from gantrymq.shm.codes import EntryFlag, Status
from gantrymq.shm.errors import StoreFailed
from gantrymq.shm.kernels import decide, ends, frames
from gantrymq.shm.kernels.decide import publish_decisions
from gantrymq.shm.kernels.ends import publish_ends
from gantrymq.shm.kernels.words import store_word
from gantrymq.shm.lookout import Lookout, address_of
from gantrymq.shm.marks import mark
from gantrymq.shm.properties import OP_TOPIC
from gantrymq.shm.transactionwire import DISK_FULL, UNSTORABLE
from gantrymq.workers.transactions.batch import Batch
from gantrymq.workers.transactions.ends import Ends, EndStaging
from gantrymq.workers.transactions.flights import (
    Flight,
    behind,
    is_told_by_writer,
    join,
    place_of,
    row_of,
    wants_place,
)
from gantrymq.workers.transactions.staging import LATER

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.workers.logwindow import LogWindow
    from gantrymq.workers.outlet import Outlet
    from gantrymq.workers.transactions.decision import Decision
    from gantrymq.workers.transactions.delayedcommit import Delays
    from gantrymq.workers.transactions.desk import Peer
    from gantrymq.workers.transactions.halves import Halves

RETRY_NS: Final = 100_000_000
#: What is refused so often is not put again, if it is not for a full disk.
REFUSALS_MAX: Final = 3
_RECEIPT: Final = int(EntryFlag.RECEIPT | EntryFlag.URGENT)
_DURABLE: Final = int(EntryFlag.DURABLE)


class Decisions(EndStaging):
    """Only user of the txn-checker's outlet."""

    def __init__(self, board: Board, window: LogWindow, outlet: Outlet, delays: Delays) -> None:
        super().__init__(board, window, outlet, delays)
        #: Of op records that were answered: queue offset of the first of some, how many these
        #: are, and the highest offset that they name.
        self.ops: list[tuple[int, int, int]] = []
        self.end = 0  # behind the last record that was answered
        self._outlet = outlet
        tail_at = outlet.session.plan.writer.control + layout.LANE_DOWN_TAIL
        self._tail_address = address_of(self._arena, tail_at)
        self._durable_address = address_of(self._words, layout.BOARD_DURABLE)
        self._op = np.zeros(decide.OP_WORDS, np.int64)
        self._op_view = self._op.data
        self._flights: deque[Flight] = deque()
        self._first_seq = self._next_seq = int(self._lane[frames.SEQ]) + 1
        #: Where the log ended before the first part went up of what goes up in parts, or -1.
        self._part_at = -1
        self._refused: dict[int, int] = {}
        self._early: NDArray[np.int64] | None = None  # answers of a flight that is not all in
        self.undurable: list[Decision] = []  # in the log, and waiting for the disk
        self._durable_seen = 0
        self._again: list[Decision] = []
        self._begun: list[Decision] = []  # of these something is missing in the log
        self._retry_ns = 0

    # ------------------------------------------------------------------------------------- state

    @property
    def flying(self) -> int:
        """Batches without an answer."""
        return len(self._flights)

    @property
    def waits(self) -> bool:
        """Whether something is not settled that has no bell of its own."""
        return bool(self._is_expecting or self.undurable or self._again or self.hand)

    @property
    def _is_expecting(self) -> bool:
        """Whether the writer owes answers."""
        return bool(self._flights) or self._part_at >= 0

    @property
    def may_go_in_parts(self) -> bool:
        """Whether what is being staged has the ring for itself."""
        return not (self.batch.decisions or self._flights)

    @property
    def is_settling(self) -> bool:
        """Whether something that was given up is being settled, and is not durable yet."""
        flying = [one for flight in self._flights for one in flight.decisions]
        return any(one.given_up >= 0 for one in (*flying, *self.undurable, *self._again))

    @property
    def unsettled(self) -> list[int]:
        """Queue offsets of halves that are open still, though the log may have their op record."""
        waiting = (*self.undurable, *self._begun)
        return [offset for one in waiting for _position, offset in one.halves]

    @property
    def are_told(self) -> bool:
        """Whether nobody waits for an answer of ours: the writer tells who is on the way."""
        if self.undurable or self._again or self._part_at >= 0:
            return False
        return all(map(is_told_by_writer, self._flights))

    @property
    def is_clean(self) -> bool:
        """Whether nothing is staged."""
        return not (self.batch.decisions or self.hand) and self._view[frames.SEQ] < self._first_seq

    @property
    def sure_to(self) -> int:
        """Log position below which each commit copy has its op record."""
        appended = self._board.word(layout.BOARD_APPENDED)
        if self._flights:
            appended = self._flights[0].appended
        elif self._part_at >= 0:
            appended = self._part_at
        return min([appended, *(one.begun_at for one in self._begun)])

    def lost(self) -> list[Decision]:
        """The writer was replaced: decisions without an answer, as if nobody had asked yet."""
        waiting = [one for flight in self._flights for one in flight.decisions]
        waiting += [*self.batch.decisions, *self.undurable, *self._again]
        waiting += [self.hand] if self.hand is not None else []
        self.hand = self._early = None
        for queue in (self._flights, self.undurable, self._again, self._begun):
            queue.clear()
        self.batch, self._in_parts, self._part_at = Batch(), None, -1
        self._refused.clear()
        self._lane, self._view = self._outlet.words, self._outlet.words.data
        self._first_seq = self._next_seq = int(self._lane[frames.SEQ]) + 1
        return [part for one in waiting for part in one.parts()]

    def owe(self, decision: Decision, begun_at: int) -> None:
        """Something of it is in the log behind a position: a start looks there until all is."""
        decision.begun_at = begun_at
        self._begun.append(decision)

    def disown(self, decision: Decision) -> None:
        """Nothing more of it will be in the log than there is."""
        if decision.begun_at >= 0:
            self._begun = [other for other in self._begun if other is not decision]

    # --------------------------------------------------------------------------------- going up

    def flush(self, now_ms: int) -> bool:
        """Publish all that was staged, with its op record; whether anything went up."""
        if self.hand is not None:
            hand = self.hand
            seq, appended = self._publish_ends(hand.words, len(hand.halves), hand.durable, now_ms)
            if seq < 0:
                return False
            self.hand = None
            self._took_off(seq, appended, [hand])
            return True
        batch, op = self.batch, self._op_view
        if not batch.decisions and self._view[frames.SEQ] < self._next_seq:
            return False
        body, op[decide.OP_FLAG] = batch.op_record()
        op[decide.OP_SESSION], op[decide.OP_SERIAL] = batch.listener()
        op[decide.OP_SINCE] = self._first_seq
        appended = self._before_put(_RECEIPT | (_DURABLE if batch.is_durable else 0), now_ms)
        seq = publish_decisions(self._arena, self._lane, self._op, np.frombuffer(body, np.uint8))
        if seq < 0:
            return False
        self._outlet.ring_if_asked()
        self._took_off(seq, appended, batch.decisions)
        self.batch = Batch()
        return True

    def go_up(self, now_ms: int) -> Ends:
        """Publish the ENDs that were staged; without room for their op record they stay in hand."""
        durable = self.ends_durable()
        count = self._ask_view[ends.COUNT]
        seq, appended = self._publish_ends(self._end_rows, count, durable, now_ms)
        taken = self.take_up(durable)
        if seq < 0:
            self.hand = taken
        else:
            self._took_off(seq, appended, [taken])
        return taken

    def serve(
        self, peer: Peer, halves: Halves, now_ms: int, lookout: Lookout, rounds: int
    ) -> Ends | None:
        """Publish ENDs of a lone session, and look out for more; those that went up, if any."""
        self._set_ops(now_ms, _RECEIPT, rounds)
        appended = self._log_end(peer.lane.has_more)
        count = self.serve_ends(
            peer.lane, peer.session.session, halves.next, halves.taken, halves.taken_end, lookout
        )
        if not count:
            return None
        self._outlet.ring_if_asked()
        served = self.take_served(count)
        self._took_off(served.op_seqs[-1], appended, [served])
        return served

    def _before_put(self, flags: int, now_ms: int) -> int:
        """Fill the form of the op record; where the log ends before."""
        op = self._op_view
        op[decide.OP_TOPIC] = self.slots.get(OP_TOPIC, -1)
        op[decide.OP_BORN_MS], op[decide.OP_FLAGS] = now_ms, flags
        return self._log_end(True)

    def _log_end(self, puts: bool) -> int:
        """Where the log ends before something is put; perhaps nothing is."""
        appended = self._board.word(layout.BOARD_APPENDED)
        if puts:
            mark("txn_checker.before_put")
        return appended

    def _publish_ends(
        self, rows: NDArray[np.int64], count: int, durable: bool, now_ms: int
    ) -> tuple[int, int]:
        """Seq of their op record, or FULL; where the log ended before."""
        appended = self._before_put(_RECEIPT | (_DURABLE if durable else 0), now_ms)
        seq = publish_ends(self._arena, self._lane, self._op, rows, count, self._text)
        if seq >= 0:
            self._outlet.ring_if_asked()
        return seq, appended

    def _took_off(self, seq: int, appended: int, decisions: list[Decision]) -> None:
        """What was staged is on its way, with the op record of a seq (0: none).

        Without decisions it is a part of one, of which the op record comes with the rest.
        """
        mark("txn_checker.after_put")
        last = seq or self._view[frames.SEQ]
        self._next_seq = last + 1
        if self._part_at < 0:
            self._part_at = appended
        if decisions:
            self._flights.append(Flight(self._first_seq, last, seq, self._part_at, decisions))
            self._first_seq, self._part_at = self._next_seq, -1

    def watch(self, lookout: Lookout) -> None:
        """Look out for the writer's answers, and for a sync that decisions wait for."""
        if self._is_expecting:
            lookout.add(self._tail_address, self._view[frames.DOWN_CURSOR])
        if self.undurable:
            lookout.add(self._durable_address, self._durable_seen)

    # ------------------------------------------------------------------------------------ answers

    def take(self, now_ns: int) -> list[Decision]:
        """Decisions that are settled: in the log, durable where asked for, or refused."""
        settled: list[Decision] = []
        if self._is_expecting:
            answers = join(self._early, self._outlet.poll_rows())
            if len(answers):
                self._hear(answers, settled)
        if self.undurable:
            durable = self._durable_seen = self._board.word(layout.BOARD_DURABLE)
            settled += [one for one in self.undurable if one.end <= durable]
            self.undurable = [one for one in self.undurable if one.end > durable]
        if self._again and (now_ns >= self._retry_ns or self._in_parts is self._again[0]):
            self._put_again(now_ns, settled)
        return settled

    def _hear(self, answers: NDArray[np.int64], settled: list[Decision]) -> None:
        if self._view[frames.BAD]:
            self._note_refusals(answers)
        newest = answers[-1].tolist()
        last = newest[frames.OUT_SEQ]
        flights = self._flights
        while flights and flights[0].last_seq <= last:
            flight = flights.popleft()
            row = newest if flight.last_seq == last else row_of(answers, flight.last_seq)
            end = int(row[frames.OUT_END])
            if self._refused:
                self._mend(flight, answers, settled)
            else:
                flight.note_places(answers)
                if flight.op_seq:
                    self.ops.append(flight.note_op(int(row[frames.OUT_OFFSET])))
                for one in flight.decisions:
                    self._finish(one, end, settled)
            self.end = max(self.end, end)
        first = flights[0].first_seq if flights else self._first_seq
        self._early = behind(answers, first) if first <= last else None

    def _finish(self, one: Decision, end: int, settled: list[Decision]) -> None:
        self.disown(one)
        one.end = max(one.end, end)
        if one.durable and self._board.word(layout.BOARD_DURABLE) < one.end:
            self.undurable.append(one)
            store_word(self._arena, layout.ARENA_DURABLE_WANTED, self.undurable[-1].end)
        else:
            settled.append(one)

    def _note_refusals(self, answers: NDArray[np.int64]) -> None:
        for row in answers[answers[:, frames.OUT_STATUS] > Status.DUPLICATE].tolist():
            if row[frames.OUT_STATUS] == Status.STORE_FAILED:
                raise StoreFailed("the writer's store has failed", errno=0)
            self._refused[row[frames.OUT_SEQ]] = row[frames.OUT_STATUS]

    def _mend(self, flight: Flight, answers: NDArray[np.int64], settled: list[Decision]) -> None:
        """Some entries were refused: what is in the log decides what is left to be done."""
        refused, self._refused = self._refused, {}
        self._refused = {seq: why for seq, why in refused.items() if seq > flight.last_seq}
        for part in flight.by_op():
            self._mend_flight(part, refused, answers, settled)

    def _mend_flight(
        self, flight: Flight, refused: dict[int, int], answers: NDArray[np.int64],
        settled: list[Decision],
    ) -> None:  # fmt: skip
        op_stored = bool(flight.op_seq) and flight.op_seq not in refused
        if op_stored:
            row = row_of(answers, flight.op_seq)
            self.ops.append(flight.note_op(int(row[frames.OUT_OFFSET])))
        ends = answers[answers[:, frames.OUT_STATUS] <= Status.DUPLICATE, frames.OUT_END]
        end = int(ends.max(initial=0))
        seq = flight.first_copy
        for one in flight.decisions:
            seqs = range(seq, seq + one.puts)
            seq += one.puts
            if wants_place(one) and seqs[one.tells] not in refused:
                one.place = place_of(answers, seqs[one.tells])
            missing = [number for number, it in enumerate(seqs) if it in refused]
            whys = {refused[it] for it in seqs if it in refused}
            self._mend_one(one, missing, whys, end, settled, flight)

    def _mend_one(
        self, one: Decision, missing: list[int], whys: set[int], end: int,
        settled: list[Decision], flight: Flight,
    ) -> None:  # fmt: skip
        done = one.op_named or not one.named
        if done and not missing:
            self._finish(one, end, settled)
            return
        if not one.op_named and len(missing) == one.puts and one.begun_at < 0:  # nothing is there
            one.error = UNSTORABLE if whys - {int(Status.DISK_FULL)} else DISK_FULL
            one.staged = 0
            settled.append(one)
            return
        if one.begun_at < 0:
            self.owe(one, flight.appended)
        one.refusals += bool(whys - {int(Status.DISK_FULL)})
        if one.refusals == REFUSALS_MAX:
            one.error = UNSTORABLE
            self.disown(one)
            settled.append(one)
            return
        self.leave_only(one, missing)
        if one.copies or one.named:
            self._again.append(one)
        else:  # a full disk has taken the half meanwhile
            self._finish(one, end, settled)

    def _put_again(self, now_ns: int, settled: list[Decision]) -> None:
        """Copies or op records that are owed; a full disk is waited for."""
        again, self._again = self._again, []
        self._retry_ns = now_ns + RETRY_NS
        for number, one in enumerate(again):
            self.leave_out_gone(one)
            if not (one.copies or one.named):
                self._finish(one, one.end, settled)
                continue
            one.error = self.stage(one, "", "", 0)
            if one.error is LATER:
                one.error, self._again = "", again[number:]
                break
            if one.error:
                self.disown(one)
                settled.append(one)

    # ----------------------------------------------------------------------------------- sleeping

    def arm(self, now_ns: int) -> int:
        """Nanoseconds to sleep at most; 0 if an answer is there."""
        if self._is_expecting and not self._outlet.arm():
            return 0
        if self.undurable:
            wanted = self.undurable[0].end
            store_word(self._arena, layout.ARENA_DURABLE_WANTED, wanted)
            if self._board.word(layout.BOARD_DURABLE) >= wanted:
                return 0
        return max(1, self._retry_ns - now_ns) if self._again else 1 << 62

    def disarm(self) -> None:
        """Awake."""
        self._outlet.disarm()
