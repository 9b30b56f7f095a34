"""The reader: turns the log into ConsumeQueues and says what consumers may see.

Units first, `written` next, `max_offset` last: at once for topics of level `written`, for level
`durable` when the record is on the disk. It syncs nothing but bits of filters that it adds later:
what makes queues durable, seals and indexes is the housekeeper.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import layout, limits
from gantrymq.shm.bitmapnote import write_covered
from gantrymq.shm.codes import Role, Stop
from gantrymq.shm.errors import StoreFailed
from gantrymq.shm.kernels import dispatch
from gantrymq.shm.kernels.dispatch import advance, dispatch_log
from gantrymq.shm.kernels.scan import CHECK_PLACE, ROW_WORDS
from gantrymq.shm.kernels.visible import arm_reader
from gantrymq.shm.kernels.words import store_half
from gantrymq.shm.lognames import segment_name
from gantrymq.shm.marks import is_asked, mark
from gantrymq.shm.properties import SCHEDULE_TOPIC, parse_delay_levels
from gantrymq.shm.storage import is_disk_full, is_shortage, map_file
from gantrymq.workers.agent import is_busy
from gantrymq.workers.failure import declare_failed, unfit_record
from gantrymq.workers.inhand import DEATHS_MAX, InHand
from gantrymq.workers.reader.catchup import CatchUp
from gantrymq.workers.reader.extensions import Extensions
from gantrymq.workers.reader.queues import QueueFiles
from gantrymq.workers.reader.visibility import Visibility
from gantrymq.workers.topicindex import TopicIndex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gantrymq.shm.board import Board
    from gantrymq.shm.clock import Clock
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.session import SessionTable

IDLE_NS = 1_000_000_000
SPACE_RETRY_NS = 1_000_000_000
#: What is in hand while filters are compiled or asked, in place of a session.
FILTERS = 1
_GO_ON = (dispatch.DONE, dispatch.LIMIT)


class Reader:
    """Agent; only writer of ConsumeQueues, their extensions, `dispatched`, `written`, `max_offset`.

    A cycle is short of work for Python: kernels are bound to their arrays (`_bind`), and what they
    leave in `form` is read by a memoryview, whose items are ints.
    """

    name = "reader"

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        board: Board,
        sessions: SessionTable,
        bells: Any,  # noqa: ANN401 - workers.agent.Bells
        settings: Any,  # noqa: ANN401 - brokerd.config.Settings
    ) -> None:
        self._storage = storage
        self._board = board
        self._words = board.array()
        self._table = sessions
        room = limits.DISPATCH_RECORDS_MAX
        self._form = _first_form(board)
        self._out = self._form.data
        self._marks = np.zeros(board.queues_max, np.int64)
        self._touched = np.zeros(room * dispatch.TOUCH_WORDS, np.int64)
        self._notes = np.zeros(room * dispatch.NOTE_WORDS, np.int64)
        self._units = np.zeros(room * layout.CQ_UNIT_BYTES, np.uint8)
        self._touched_words, self._unit_bytes = self._touched.data, self._units.data
        self._units_at = self._units.ctypes.data
        self._row = np.zeros(ROW_WORDS, np.int64)
        self._delays = np.array(parse_delay_levels(settings.message_delay_level), np.int64)
        self._index = TopicIndex(board)
        self._view: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._view.flags.writeable = False
        self._queues = QueueFiles(storage, board)
        self._visible = Visibility(board, self._form, self._touched)
        self._hand = InHand(board, Role.READER)
        self._extensions: Extensions | None = None
        self.catch_up: CatchUp | None = None
        if settings.enable_consume_queue_ext:
            self._open_extensions(settings)
        self._seen_durable = -1
        self._busy = self._flood = False
        self._work_ns = self._napped_ns = 0
        self._space_ns = 0
        self._failed = False
        self._stopped = False
        self._arm = partial(arm_reader, self._words, self._form)
        self._advance = partial(advance, self._words, self._form)
        self._disarm = partial(store_half, self._words, layout.BOARD_READER_ARMED, 0)
        self._bind()
        self._visible.recover()

    @property
    def _dispatched(self) -> int:
        """Log position that all is dispatched up to."""
        return self._out[dispatch.DISPATCHED]

    def _open_extensions(self, settings: Any) -> None:  # noqa: ANN401 - brokerd.config.Settings
        """Without filters, if they have ended readers before: bitmaps only save work."""
        is_poison = self._hand.is_poison(FILTERS, 0)
        with self._filters_in_hand():
            self._extensions = Extensions(self._storage, self._board, settings, not is_poison)
            self._extensions.refresh(self._dispatched)
        if self._extensions.filters is not None:
            self.catch_up = CatchUp(self._storage, self._board, self._extensions)
        elif settings.enable_calc_filter_bit_map:
            write_covered(self._storage, ())
            self._board.count_change(layout.BOARD_BITMAP_CHANGES)
            self._table.note("error", "filters_set_aside", deaths=DEATHS_MAX)

    @contextmanager
    def _filters_in_hand(self) -> Iterator[None]:
        """Clients' words are compiled or asked: a reader that dies of it is to leave a trace."""
        self._hand.take(FILTERS)
        try:
            yield
        except (OSError, StoreFailed):
            self._hand.drop()  # the disk's fault
            raise
        self._hand.drop()

    # ------------------------------------------------------------------------------- duty cycle

    def do_work(self, now_ns: int) -> int:
        """Dispatch what was appended, show what became durable."""
        events = self._table.poll()
        if events:
            self._visible.follow(events)
        if self._failed or self._stopped or now_ns < self._space_ns:
            return 0
        try:
            work = self._cycle(now_ns)
        except OSError as error:
            if is_shortage(error):
                raise
            if is_disk_full(error):
                self._wait_for_space(now_ns)
            else:
                self._fail(error.errno or 0, f"units at {self._dispatched}: {error}")
            return 0
        except StoreFailed as error:
            self._fail(error.fields.get("errno") or 0, str(error))
            return 0
        if not work and self._table.stopping():
            self._stopped = True
        return work

    def _cycle(self, now_ns: int) -> int:
        if self._extensions is not None:
            with self._filters_in_hand():
                self._extensions.refresh(self._dispatched, now_ns)
        work = self._dispatch()
        if work:
            since_ns = now_ns - self._work_ns - self._napped_ns
            self._busy = self._busy or is_busy(work, since_ns)
            self._flood = work >= limits.FLOOD_RECORDS
            self._work_ns = now_ns
        if self._visible.waits():
            work += self._follow_durable()
        if self.catch_up is not None and not self._table.stopping():
            with self._filters_in_hand():
                work += self.catch_up.step(now_ns, busy=work > 0)
        return work

    def arm(self, now_ns: int) -> int:
        """Sleep until `appended` or `durable` grows."""
        if self._failed or self._stopped:
            return IDLE_NS
        if now_ns < self._space_ns:
            return self._space_ns - now_ns
        if self._busy:
            # More is on its way: a batch of it costs less than a wake-up for each piece.
            self._busy = False
            self._napped_ns = self._nap_ns(now_ns)
            return self._napped_ns
        self._napped_ns = 0
        return IDLE_NS if self._arm(self._seen_durable if self._visible.waits() else -1) else 0

    def _nap_ns(self, now_ns: int) -> int:
        if self._flood:
            return limits.FLOOD_NAP_NS
        wanted = limits.NAP_CYCLES * (now_ns - self._work_ns)
        return min(limits.FLOOD_NAP_NS, max(limits.NAP_NS, wanted))

    def disarm(self) -> None:
        """Awake."""
        self._disarm()

    def close(self) -> None:
        """Give files back."""
        if self._extensions is not None:
            self._extensions.close()
        self._queues.close()

    def _follow_durable(self) -> int:
        """Show what is on the disk by now."""
        self._seen_durable = self._board.word(layout.BOARD_DURABLE)
        return self._visible.show_durable(self._seen_durable)

    # --------------------------------------------------------------------------------- dispatch

    def _bind(self) -> None:
        """Bind the kernel to the arrays of now."""
        self._dispatch_log = partial(
            dispatch_log,
            self._view, self._form, self._words, self._index.words, self._delays, self._marks,
            self._touched, self._notes, self._units, self._row,
        )  # fmt: skip

    def _dispatch(self) -> int:
        """Units for one batch of records; returns how many records were passed."""
        stop = self._dispatch_log()
        while stop < dispatch.IDLE:
            self._renew(stop)
            stop = self._dispatch_log()
        if stop == dispatch.IDLE:
            return 0
        out = self._out
        base, records = out[dispatch.BASE], out[dispatch.RECORDS]
        following = base + out[dispatch.AT]
        if out[dispatch.UNITS]:
            if not self._extend(base, records):
                return 1
            self._write_units(out[dispatch.TOUCHED])
            self._visible.publish(following)
        passed = records
        if stop == dispatch.FILLER:
            following = base + out[dispatch.SEGMENT_BYTES]
            passed += 1
        elif stop not in _GO_ON and not (stop == dispatch.UNKNOWN_TOPIC and records):
            self._refuse(Stop(stop), base)
        mark("reader.before_dispatched")
        self._advance(following)
        mark("reader.after_dispatched")
        return passed

    def _extend(self, base: int, records: int) -> bool:
        """Make the units' extensions; False if the next call has to take fewer records."""
        extensions = self._extensions
        if extensions is None:
            return True
        unbounded = extensions.room == limits.DISPATCH_RECORDS_MAX
        touched = self._out[dispatch.TOUCHED]
        with self._filters_in_hand():
            within = extensions.make(self._view, base, self._touched, touched, self._units, records)
        if unbounded and not within:
            self._table.note("info", "filters_take_long", position=self._dispatched)
        self._out[dispatch.ROOM_MAX] = extensions.room
        return within

    def _renew(self, what: int) -> None:
        """Make anew what the kernel asks for before it begins."""
        if what == dispatch.NEW_TOPICS:
            self._read_topics()
        else:
            self._enter_segment()
        self._bind()

    def _read_topics(self) -> None:
        covered = self._board.word(layout.BOARD_APPENDED)  # before topics are looked at
        self._index.follow()
        self._visible.set_levels(self._board.topics())
        if self._extensions is not None:
            self._extensions.take_topics()
        schedule = self._board.topic_named(SCHEDULE_TOPIC)
        self._form[dispatch.SCHEDULE] = schedule.slot if schedule else -1
        self._form[dispatch.TOPIC_COUNT] = self._index.count
        self._form[dispatch.TOPIC_CHANGES] = self._index.changes
        self._form[dispatch.COVERED] = covered

    def _enter_segment(self) -> None:
        """Map the segment that the next record is in."""
        size = self._board.segment_bytes
        base = self._dispatched // size * size
        self._view = map_file(self._storage, segment_name(base))
        self._form[dispatch.BASE] = base

    def _refuse(self, stop: Stop, base: int) -> None:
        """A record that was appended can't be read: stop rather than skip it (LW-5)."""
        position = base + self._out[dispatch.CULPRIT]
        raise unfit_record("dispatched", position, base, stop)

    def _write_units(self, count: int) -> None:
        """One write per touched queue; the kernel leaves to Python what is not at hand."""
        mark("reader.before_units")
        if self._extensions is not None:
            self._extensions.write()
        done = 0
        while True:
            if not is_asked():
                done = self._queues.write_many(self._touched, done, count, self._units_at)
            if done == count:
                break
            self._write_queue(done)
            done += 1
            mark("reader.between_queues")
        if self._extensions is not None:
            self._extensions.advance()
        mark("reader.after_units")

    def _write_queue(self, place: int) -> None:
        """Units of a touched queue."""
        at = place * dispatch.TOUCH_WORDS
        queue, first, units, end = self._touched_words[at : at + dispatch.TOUCH_WORDS]
        self._queues.write(queue, first, self._unit_bytes[end - units * layout.CQ_UNIT_BYTES : end])

    # -------------------------------------------------------------------------- stop and failure

    def _wait_for_space(self, now_ns: int) -> None:
        """A full disk is no failure: nothing was passed over, and all is tried again from there."""
        self._space_ns = now_ns + SPACE_RETRY_NS
        self._table.note("warning", "no_space_for_queues", position=self._dispatched)

    def _fail(self, errno: int, what: str) -> None:
        self._failed = True
        declare_failed(self._board, self._table, self._visible.sessions(), errno, what)


def _first_form(board: Board) -> NDArray[np.int64]:
    """The kernels' words before anything is dispatched."""
    form = np.zeros(dispatch.FORM_WORDS, np.int64)
    form[dispatch.CHECKS] = CHECK_PLACE
    form[dispatch.QUEUES_AT] = board.queues_at
    form[dispatch.SCHEDULE] = -1
    form[dispatch.SEGMENT_BYTES] = board.segment_bytes
    form[dispatch.BASE] = -board.segment_bytes  # in no segment yet
    form[dispatch.DISPATCHED] = board.word(layout.BOARD_DISPATCHED)
    form[dispatch.TOPIC_COUNT] = -1
    form[dispatch.ROOM] = limits.DISPATCH_RECORDS
    form[dispatch.PROCESS] = board.process_at(Role.READER)
    return form
