"""ENDs in their common form: one half each, of which nothing is known; kernels do the work.

What `shm.kernels.ends` takes at one time is one `Decision` here, on the same way as others. If the
writer refused something of it, it falls apart into decisions of one half each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm.codes import Stop
from gantrymq.shm.kernels import ends as kernels
from gantrymq.shm.kernels import halfform
from gantrymq.shm.kernels.decide import OP_BORN_MS
from gantrymq.shm.kernels.decide import OP_TOPIC as OP_TOPIC_WORD
from gantrymq.shm.properties import OP_TOPIC
from gantrymq.shm.transactionwire import COMMITTED, ROLLED_BACK, End
from gantrymq.workers.transactions.decision import Decision
from gantrymq.workers.transactions.staging import Staging

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.shm.controllane import ControlLane
    from gantrymq.shm.lookout import Lookout
    from gantrymq.workers.logwindow import LogWindow
    from gantrymq.workers.outlet import Outlet
    from gantrymq.workers.transactions.delayedcommit import Delays


#: So many are published by one call before they are kept in mind: 15 ms or so of one producer.
BURST: Final = 256


@dataclass(slots=True, eq=False)
class Ends(Decision):
    """Decisions that went up together; `words` are rows as kernels have them.

    There may be ten thousand in a second: what is asked of all of them is asked of columns.
    """

    words: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    apart: dict[int, Decision] = field(default_factory=dict)  # by position, once it fell apart
    op_seqs: list[int] = field(default_factory=list)  # of `serve_ends`: op records of their own
    by_writer: bool = False  # who asked hears of it from the writer

    def column(self, word: int) -> list[int]:
        """A word of each row."""
        found: list[int] = self.words[word :: kernels.END_WORDS].tolist()
        return found

    @property
    def rows(self) -> list[list[int]]:
        """All words of each row."""
        found: list[list[int]] = self.words.reshape(-1, kernels.END_WORDS).tolist()
        return found

    @property
    def puts(self) -> int:
        """How many copies it puts."""
        return sum(self.column(kernels.IS_COMMIT))

    def of(self, position: int) -> Decision:
        """The decision of one of the halves."""
        return self.apart.get(position, self)

    def parts(self) -> list[Decision]:
        """A decision for each half, with who waits for it."""
        for row in self.rows:
            half = (row[halfform.POSITION], row[halfform.OFFSET])
            commit = bool(row[kernels.IS_COMMIT])
            request = End(row[kernels.SERIAL], "", "", commit, [half])
            self.apart[half[0]] = Decision(
                COMMITTED if commit else ROLLED_BACK,
                [half],
                [(row[kernels.SESSION], row[kernels.SERIAL], request)],
                durable=self.durable,
            )
        for asked in self.asked:
            end = asked[2]
            assert isinstance(end, End), "nothing else waits for them"
            for position, _offset in end.halves:
                if position in self.apart:
                    self.apart[position].asked.append(asked)
                    break
        return list(self.apart.values())


class EndStaging(Staging):
    """Takes ENDs in their common form out of sessions' rings."""

    def __init__(self, board: Board, window: LogWindow, outlet: Outlet, delays: Delays) -> None:
        super().__init__(board, window, outlet, delays)
        #: Staged, and not published with its op record yet.
        self.hand: Ends | None = None
        self.mixed = False  # requests of another form are waiting behind some
        self._ask = np.zeros(kernels.ASK_WORDS, np.int64)
        self._ask_view = self._ask.data
        self._ask_view[kernels.ROOM] = kernels.ENDS_MAX
        self._end_rows = np.zeros(kernels.ENDS_MAX * kernels.END_WORDS, np.int64)
        self._end_view = self._end_rows.data
        self._ask_view[kernels.BURST] = BURST
        self._scratch = np.zeros(kernels.SCRATCH_ROOM, np.uint8)
        self._text = self._scratch[kernels.TEXT_AT :]

    def differs(self, decision: Decision) -> bool:
        """Whether it needs an op record of another kind than what is in hand has."""
        return self.hand is not None or super().differs(decision)

    def stage_ends(self, lane: ControlLane, session: int, open_from: int, taken: NDArray[np.uint8],
                   open_end: int) -> int:  # fmt: skip
        """Take what is of the common form, put its copies; how many are in hand now."""
        ask, form, window = self._ask_view, self._form_view, self.window
        self._name(session, open_from, open_end)
        while True:
            window.show_in(form)
            stop = kernels.take_ends(
                window.view, self._form, self._ask, self._end_rows, self._words, self._index.words,
                self._arena, self._lane, lane.arena, lane.words, self._scratch, taken,
            )  # fmt: skip
            if stop != Stop.ROLL or not window.enter(ask[kernels.NEED]):
                break
        self._took(lane, stop)
        return ask[kernels.COUNT]

    def serve_ends(self, lane: ControlLane, session: int, open_from: int, taken: NDArray[np.uint8],
                   open_end: int, lookout: Lookout) -> int:  # fmt: skip
        """Take what is of the common form, publish it, look out for more for ROUNDS.

        How many were published; the words of op records are there. Others may be in hand as well.
        """
        ask, form, window = self._ask_view, self._form_view, self.window
        self._name(session, open_from, open_end)
        ask[kernels.WATCHED] = lookout.count
        while True:
            window.show_in(form)
            stop = kernels.serve_ends(
                window.view, self._form, self._ask, self._end_rows, self._words, self._index.words,
                self._arena, self._lane, lane.arena, lane.words, self._scratch, taken,
                lookout.table,
            )  # fmt: skip
            if stop != Stop.ROLL or ask[kernels.COUNT] or not window.enter(ask[kernels.NEED]):
                break
        self._took(lane, stop)
        return ask[kernels.PUBLISHED]

    def _set_ops(self, now_ms: int, flags: int, rounds: int) -> None:
        """What op records of `serve_ends` have in common."""
        ask = self._ask_view
        ask[kernels.OP_AT + OP_TOPIC_WORD] = self.slots.get(OP_TOPIC, -1)
        ask[kernels.OP_AT + OP_BORN_MS] = now_ms
        ask[kernels.FLAGS], ask[kernels.ROUNDS] = flags, rounds

    def _name(self, session: int, open_from: int, open_end: int) -> None:
        ask = self._ask_view
        ask[kernels.WHO], ask[kernels.OPEN_FROM], ask[kernels.OPEN_END] = (
            session, open_from, open_end,
        )  # fmt: skip

    def _took(self, lane: ControlLane, stop: int) -> None:
        self.mixed = self.mixed or stop != Stop.DONE
        self._expected = ("", "none yet")  # its words are in the form no more
        lane.follow()

    def ends_durable(self) -> bool:
        """Whether a topic of what was staged asks for the disk."""
        durables, view = self.durables, self._end_view
        if not durables:
            return False
        end = self._ask_view[kernels.COUNT] * kernels.END_WORDS
        return any(view[at] in durables for at in range(halfform.TOPIC, end, kernels.END_WORDS))

    @property
    def in_hand(self) -> int:
        """ENDs of the common form that were staged."""
        return self._ask_view[kernels.COUNT]

    def take_served(self, count: int) -> Ends:
        """What `serve_ends` has published as one decision; what is in hand stays there."""
        ask, rows = self._ask_view, self._end_rows
        left = ask[kernels.COUNT] - count
        ask[kernels.COUNT] = count
        served = self.take_up(bool(ask[kernels.MUST_WAIT]))
        served.op_seqs = sorted(set(served.column(kernels.OP_SEQ)))
        served.by_writer = (
            not served.durable
            and len(served.op_seqs) == count
            and all(served.column(kernels.IS_ALONE))
        )
        start = count * kernels.END_WORDS
        rows[: left * kernels.END_WORDS] = rows[start : start + left * kernels.END_WORDS].copy()
        ask[kernels.COUNT] = left
        return served

    def take_up(self, durable: bool) -> Ends:
        """What was staged as one decision."""
        count = self._ask_view[kernels.COUNT]
        self._ask_view[kernels.COUNT] = 0
        taken = Ends(
            COMMITTED, [], [], durable=durable,
            words=self._end_rows[: count * kernels.END_WORDS].copy(),
        )  # fmt: skip
        taken.halves = list(
            zip(taken.column(halfform.POSITION), taken.column(halfform.OFFSET), strict=True)
        )
        return taken
