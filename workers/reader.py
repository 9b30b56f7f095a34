"""The reader: turns the log into ConsumeQueues and says what consumers may see.

Units first, `written` next, `max_offset` last: at once for topics of level `written`, for level
`durable` when the record is on the disk. When a segment is rolled and durable it is sealed: queues
synced, sidecar written, progress saved.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shm import layout, limits
from shm.bell import give_way
from shm.codes import Level, Role, Stop
from shm.errors import Corrupt, StoreFailed
from shm.kernels import dispatch
from shm.kernels.dispatch import (
    dispatch_log,
    index_topics,
    is_interested,
    publish_units,
    publish_visible,
)
from shm.kernels.ring import arm
from shm.kernels.scan import CHECK_PLACE, ROW_WORDS
from shm.kernels.words import store_half, store_word
from shm.marks import mark
from shm.properties import parse_delay_levels
from shm.storage import is_disk_full, replace_file
from workers.agent import is_busy
from workers.failure import declare_failed
from workers.indexnote import safe_time
from workers.queues import QueueFiles, save_progress
from workers.sealing import Collector
from workers.session import Session, follow

if TYPE_CHECKING:
    from shm.board import Board
    from shm.clock import Clock
    from shm.storage import Storage
    from workers.session import SessionTable

IDLE_NS = 1_000_000_000
SPACE_RETRY_NS = 1_000_000_000
CHECKPOINT_FILE = "checkpoint"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"


class Reader:
    """Agent; only writer of ConsumeQueues, `dispatched`, `max_offset`, sidecars, `checkpoint`."""

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
        self._clients: dict[int, Session] = {}
        self._queues = QueueFiles(storage, board)
        room = limits.DISPATCH_RECORDS_MAX
        self._form = np.zeros(dispatch.FORM_WORDS, np.int64)
        self._form[dispatch.CHECKS] = CHECK_PLACE
        self._form[dispatch.QUEUES_AT] = board.queues_at
        self._marks = np.zeros(board.queues_max, np.int64)
        self._stamps = np.zeros(board.queues_max, np.int64)
        self._durable_level = np.zeros(board.queues_max, np.int64)
        self._stamp = 0
        self._touched = np.zeros(room * dispatch.TOUCH_WORDS, np.int64)
        self._notes = np.zeros(room * dispatch.NOTE_WORDS, np.int64)
        self._units = np.zeros(room * layout.CQ_UNIT_BYTES, np.uint8)
        self._passed = np.zeros(room, np.int64)
        self._batch = self._passed[: limits.DISPATCH_RECORDS]
        self._row = np.zeros(ROW_WORDS, np.int64)
        self._delays = np.array(parse_delay_levels(settings.message_delay_level), np.int64)
        self._topics = (0, 0)
        self._index = np.zeros(16, np.int64)
        self._dispatched = board.word(layout.BOARD_DISPATCHED)
        self._view_base = -1
        self._view: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._sealing = Collector(self._dispatched, board.segment_bytes)
        self._unsealed: deque[int] = deque()
        self._waiting: deque[tuple[int, NDArray[np.int64]]] = deque()
        self._seen_durable = -1
        self._busy = self._flood = False
        self._work_ns = 0
        self._space_ns = 0
        self._failed = False
        self._stopped = False
        self._cycles = self._records = 0
        self._recover()

    def _recover(self) -> None:
        """Show what a reader that died had written but not shown; find segments not sealed yet."""
        pairs = []
        for topic in self._board.topics():
            for queue in range(topic.queue_base, topic.queue_base + topic.queue_count):
                at = self._board.queue_at(queue)
                written = self._board.word(at + layout.QUEUE_WRITTEN)
                if written > self._board.word(at + layout.QUEUE_MAX_OFFSET):
                    pairs.append((queue, written, topic.level == Level.DURABLE))
        table = np.array(pairs, np.int64).reshape(-1, 3)
        self._show(table[table[:, 2] == 0, :2].reshape(-1))
        held = table[table[:, 2] == 1, :2].reshape(-1)
        if held.size:
            # The records of these units may end anywhere up to `appended`.
            self._waiting.append((self._board.word(layout.BOARD_APPENDED), held))
        size = self._board.segment_bytes
        sealed = set(self._storage.list("gantry/segments"))
        for base in range(self._board.word(layout.BOARD_LOW), self._dispatched - size + 1, size):
            if f"{base:020d}" not in sealed:
                self._unsealed.append(base)

    # ------------------------------------------------------------------------------- duty cycle

    def do_work(self, now_ns: int) -> int:
        """Dispatch what was appended, show what became durable, seal what was rolled."""
        self._cycles += 1
        follow(self._table, self._clients)
        if self._failed or self._stopped or now_ns < self._space_ns:
            return 0
        try:
            work = self._dispatch()
            if work:
                self._busy = self._busy or is_busy(work, now_ns - self._work_ns)
                self._flood = work >= limits.FLOOD_RECORDS
                self._work_ns = now_ns
            work += self._show_durable()
            if not work:
                work += self._seal()
        except OSError as error:
            if is_disk_full(error):
                self._wait_for_space(now_ns)
            else:
                self._fail(error.errno or 0, f"units at {self._dispatched}: {error}")
            return 0
        except StoreFailed as error:
            self._fail(error.fields.get("errno") or 0, str(error))
            return 0
        if not work and self._table.stopping():
            self._finish_stop()
        self._publish_counters()
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
            return limits.FLOOD_NAP_NS if self._flood else limits.NAP_NS
        flag = layout.BOARD_READER_ARMED
        still = arm(self._words, flag, 1, layout.BOARD_APPENDED, self._dispatched)
        if self._waiting or self._unsealed:
            durable = layout.BOARD_DURABLE
            still = still and arm(self._words, flag, 1, durable, self._seen_durable)
        return IDLE_NS if still else 0

    def disarm(self) -> None:
        """Awake."""
        store_half(self._words, layout.BOARD_READER_ARMED, 0)

    def close(self) -> None:
        """Give files back."""
        self._queues.close()

    # --------------------------------------------------------------------------------- dispatch

    def _dispatch(self) -> int:
        """Units for one batch of records; returns how many records were passed."""
        appended = self._board.word(layout.BOARD_APPENDED)
        if self._dispatched >= appended:
            return 0
        size = self._board.segment_bytes
        base = self._dispatched // size * size
        self._map(base)
        form = self._form
        form[dispatch.AT] = self._dispatched - base
        form[dispatch.BASE] = base
        form[dispatch.END_AT] = min(appended - base, size)
        stop = self._collect()
        records = int(form[dispatch.RECORDS])
        if form[dispatch.UNITS]:
            self._write_units()
        self._sealing.add(base, self._passed[:records], self._dispatched == base)
        following = base + int(form[dispatch.AT])
        if stop == Stop.FILLER:
            following = base + size
            self._unsealed.append(base)
        elif stop not in (Stop.DONE, Stop.LIMIT):
            self._refuse(stop, base + int(form[dispatch.CULPRIT]))
        self._advance(following, records)
        return records + (stop == Stop.FILLER)

    def _collect(self) -> Stop:
        """Run the kernel, after reading the board's topics again if it meets a new one."""
        for _ in range(2):
            count = self._board.half(layout.BOARD_TOPIC_COUNT)
            changes = self._board.half(layout.BOARD_TOPIC_CHANGES)
            if (count, changes) != self._topics:
                self._read_topics(count)
                self._topics = (count, changes)
            stop = Stop(
                dispatch_log(
                    self._view, self._form, self._words, self._index, self._delays, self._marks,
                    self._touched, self._notes, self._units, self._batch, self._row,
                )
            )  # fmt: skip
            if stop != Stop.UNKNOWN_TOPIC or self._form[dispatch.RECORDS]:
                break
        if stop == Stop.UNKNOWN_TOPIC and self._form[dispatch.RECORDS]:
            return Stop.LIMIT
        return stop

    def _read_topics(self, count: int) -> None:
        room = 16
        while room < 4 * count:
            room *= 2
        self._index = np.zeros(room, np.int64)
        index_topics(self._words, count, self._index)
        self._form[dispatch.SCHEDULE] = -1
        for topic in self._board.topics():
            queues = slice(topic.queue_base, topic.queue_base + topic.queue_count)
            self._durable_level[queues] = topic.level == Level.DURABLE
            if topic.name == SCHEDULE_TOPIC:
                self._form[dispatch.SCHEDULE] = topic.slot

    def _refuse(self, stop: Stop, position: int) -> None:
        """A record that was appended can't be read: stop rather than skip it (LW-5)."""
        raise Corrupt(
            f"record at {position} of the commit log can't be dispatched ({stop.name}); stop the"
            " broker and run `gantrymq store verify`",
            path=f"commitlog/{self._view_base:020d}",
            position=position,
        )

    def _map(self, base: int) -> None:
        if base != self._view_base:
            file = self._storage.open(f"commitlog/{base:020d}")
            self._view = file.view()
            file.close()
            self._view_base = base

    def _write_units(self) -> None:
        """One write per touched queue, then `written`, then what may be shown at once."""
        count = int(self._form[dispatch.TOUCHED])
        table = self._touched[: count * dispatch.TOUCH_WORDS].reshape(-1, dispatch.TOUCH_WORDS)
        units = self._units.data
        mark("reader.before_units")
        room = max(limits.DISPATCH_RECORDS, count * limits.DISPATCH_RECORDS_PER_QUEUE)
        self._batch = self._passed[:room]
        start = 0
        for queue, first, _units, end in table.tolist():
            self._queues.write(queue, first, units[start:end])
            start = end
            mark("reader.between_queues")
        mark("reader.after_units")
        self._stamp += 1
        held = publish_units(
            self._words, self._form, self._touched, self._durable_level, self._stamps, self._stamp
        )
        if held < count:
            self._ring_interested()
        if held:
            end_position = self._view_base + int(self._form[dispatch.AT])
            self._waiting.append((end_position, self._touched[: 2 * held].copy()))

    def _advance(self, following: int, records: int) -> None:
        mark("reader.before_dispatched")
        self._dispatched = following
        self._records += records
        store_word(self._words, layout.BOARD_DISPATCHED, following)
        mark("reader.after_dispatched")

    # ------------------------------------------------------------------------------- visibility

    def _show(self, pairs: NDArray[np.int64]) -> None:
        """Move `max_offset` of queues, pairs of (queue, offset)."""
        self._stamp += 1
        publish_visible(self._words, pairs, self._board.queues_at, self._stamps, self._stamp)
        self._ring_interested()

    def _ring_interested(self) -> None:
        """Wake the sessions that wait for a queue of the newest stamp."""
        rung = False
        for session in self._clients.values():
            if is_interested(session.arena, self._stamps, self._stamp):
                session.bell.ring()
                rung = True
        if rung:
            give_way()

    def _show_durable(self) -> int:
        """Show units of durable topics whose records are on the disk by now."""
        durable = self._board.word(layout.BOARD_DURABLE)
        self._seen_durable = durable
        shown = 0
        while self._waiting and self._waiting[0][0] <= durable:
            self._show(self._waiting.popleft()[1])
            shown += 1
        return shown

    # --------------------------------------------------------------------------- seal and stop

    def _seal(self) -> int:
        """Write the sidecar of a rolled segment once it is durable, and save progress."""
        size = self._board.segment_bytes
        if not self._unsealed or self._seen_durable < self._unsealed[0] + size:
            return 0
        base = self._unsealed[0]
        self._queues.sync()
        self._map(base)
        names = [topic.name for topic in self._board.topics()]
        data = self._sealing.finish(base, self._view, names)
        replace_file(self._storage, f"gantry/segments/{base:020d}", data)
        self._unsealed.popleft()
        mark("reader.after_sidecar")
        self._save_progress()
        return 1

    def _save_progress(self) -> None:
        """Units of all queues are on the disk up to here: where recovery may start from."""
        self._queues.sync()
        queues: dict[tuple[str, int], int] = {}
        for topic in self._board.topics():
            for queue_id in range(topic.queue_count):
                at = self._board.queue_at(topic.queue_base + queue_id)
                written = self._board.word(at + layout.QUEUE_WRITTEN)
                if written:
                    queues[topic.name, queue_id] = written
        save_progress(self._storage, self._dispatched, queues)
        self._save_checkpoint()

    def _save_checkpoint(self) -> None:
        """RocketMQ's file (SF-84): all messages up to these times are in log and queues, synced."""
        durable = self._board.word(layout.BOARD_DURABLE)
        if self._dispatched > durable:
            return
        last_ms = int(self._form[dispatch.LAST_MS]) or self._board.word(layout.BOARD_STORE_MS)
        data = layout.CHECKPOINT.pack(
            physic_msg_timestamp=last_ms,
            logics_msg_timestamp=last_ms,
            index_msg_timestamp=safe_time(self._storage),
            master_flushed_offset=durable,
        )
        padded = data + bytes(layout.CHECKPOINT_FILE_BYTES - len(data))
        if self._storage.exists(CHECKPOINT_FILE):
            file = self._storage.open(CHECKPOINT_FILE, write=True)
        else:
            file = self._storage.create(CHECKPOINT_FILE)
        file.write_at(padded, 0)
        file.sync()
        file.close()

    def _finish_stop(self) -> None:
        self._save_progress()
        self._stopped = True

    def _wait_for_space(self, now_ns: int) -> None:
        """A full disk is no failure: nothing was passed over, and all is tried again from there."""
        self._space_ns = now_ns + SPACE_RETRY_NS
        self._table.note("warning", "no_space_for_queues", position=self._dispatched)

    def _fail(self, errno: int, what: str) -> None:
        self._failed = True
        declare_failed(self._board, self._table, self._clients.values(), errno, what)

    def _publish_counters(self) -> None:
        at = self._board.process_at(Role.READER)
        self._board.set_word(at + layout.PROCESS_HEARTBEAT, self._cycles)
        self._board.set_word(at + layout.PROCESS.offset("work"), self._records)


def open_reader(
    storage: Storage,
    clock: Clock,
    board: Board,
    sessions: SessionTable,
    bells: Any,  # noqa: ANN401 - workers.agent.Bells
    settings: Any,  # noqa: ANN401 - brokerd.config.Settings
) -> Reader:
    """A reader that goes on from the board's dispatched position."""
    return Reader(storage, clock, board, sessions, bells, settings)
