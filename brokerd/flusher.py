"""The flusher: makes the log durable and says how far.

It syncs back to back while somebody waits for a position, else every flush interval. A failed sync
is final: what the kernel has thrown away by then is unknown, so nothing is tried again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gantrymq.brokerd.checkpoint import CheckpointFile
from gantrymq.brokerd.commitlog import OF_FLUSHER, SPARE, SpareSegment
from gantrymq.brokerd.pagecache import PageCache
from gantrymq.shm import layout
from gantrymq.shm.codes import BrokerState, Role
from gantrymq.shm.kernels.ring import arm, publish_and_check, wants_durable
from gantrymq.shm.kernels.words import load_word, store_half
from gantrymq.shm.lognames import DIRECTORY, segment_name
from gantrymq.shm.marks import mark
from gantrymq.shm.storage import is_disk_full, is_shortage
from gantrymq.workers.failure import declare_failed
from gantrymq.workers.session import Session, follow

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.shm.clock import Clock
    from gantrymq.shm.storage import File, Storage
    from gantrymq.workers.session import SessionTable

IDLE_NS = 100_000_000
#: After so long without room it is tried again, or told again.
NO_ROOM_NS = 1_000_000_000


class Flusher:
    """Agent; only writer of `durable` and of gantry/checkpoint. Keeps the spare segment ready."""

    name = "flusher"

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
        self._bells = bells
        self._clients: dict[int, Session] = {}
        self._interval_ns: int = settings.flush_interval_commit_log * 1_000_000
        self._durable = board.word(layout.BOARD_DURABLE)
        self._segment_base = -1
        self._segment: File | None = None
        self._checkpoint = CheckpointFile(storage, board.boot_id, board.epoch)
        self._kept_base = -1  # the segment in which the last checkpoint was kept
        self._pages = PageCache(
            storage, board, settings.log_page_cache, indexed=settings.message_index_enable
        )
        self._last_ns = clock.monotonic_ns()
        self._spare = SpareSegment(storage, board.segment_bytes, OF_FLUSHER)
        self._spare_base = -1  # the segment behind which there is a spare one
        self._spare_ns = 0
        self._told_ns = 0  # when want of room for the checkpoint is told again
        self._failed = False
        self._stopped = False
        self._cycles = 0
        self._syncs = 0

    def do_work(self, now_ns: int) -> int:
        """Sync if it is due, let go of pages, and make a piece of the spare segment."""
        self._cycles += 1
        follow(self._table, self._clients)
        if self._failed or self._stopped:
            return 0
        appended = self._board.word(layout.BOARD_APPENDED)
        if self._is_due(appended, now_ns):
            self._publish_counters()  # it may be due each time, for as long as others send
            self._sync(appended, now_ns)
            self._let_go()
            self._keep_spare(appended, now_ns)
            return 1
        if self._table.stopping():
            self._finish_stop(now_ns)
            return 0
        self._publish_counters()
        return self._let_go() or self._keep_spare(appended, now_ns)

    def arm(self, now_ns: int) -> int:
        """Sleep until a position is wanted or the interval is over."""
        if self._failed or self._stopped:
            return 10 * IDLE_NS
        wanted = self._board.word(layout.BOARD_DURABLE_WANTED)
        still = arm(self._words, layout.BOARD_FLUSHER_ARMED, 1, layout.BOARD_DURABLE_WANTED, wanted)
        if not still or self._is_wanted():
            return 0
        return min(IDLE_NS, max(1, self._last_ns + self._interval_ns - now_ns))

    def disarm(self) -> None:
        """Awake."""
        store_half(self._words, layout.BOARD_FLUSHER_ARMED, 0)

    def close(self) -> None:
        """Give files back."""
        if self._segment is not None:
            self._segment.close()
        self._spare.close()
        self._checkpoint.close()

    def _is_due(self, appended: int, now_ns: int) -> bool:
        if appended <= self._durable:
            self._last_ns = now_ns
            return False
        wanted = self._is_wanted()
        waited = now_ns - self._last_ns >= self._interval_ns
        # Agents that stop before this one wait for what they have counted to be durable.
        stopping = self._board.half(layout.BOARD_STATE) == BrokerState.STOPPING
        return wanted or waited or stopping or self._table.stopping()

    def _is_wanted(self) -> bool:
        """Whether the writer, for who waits for a receipt, or another agent asks for a sync."""
        if self._board.word(layout.BOARD_DURABLE_WANTED) > self._durable:
            return True
        return any(
            load_word(session.arena, layout.ARENA_DURABLE_WANTED) > self._durable
            for session in self._clients.values()
            if session.owner
        )

    def _sync(self, appended: int, now_ns: int) -> None:
        """Make everything up to `appended` durable, then say so."""
        mark("flusher.before_sync")
        store_ms = self._board.word(layout.BOARD_STORE_MS)
        try:
            self._sync_segments(appended)
        except OSError as error:
            self._fail(error)
            return
        mark("flusher.after_sync")
        self._durable = appended
        self._last_ns = now_ns
        self._syncs += 1
        reader_armed = publish_and_check(
            self._words, layout.BOARD_DURABLE, appended, self._words, layout.BOARD_READER_ARMED
        )
        mark("flusher.after_durable")
        if reader_armed:
            self._bells.reader.ring()
        for session in self._clients.values():
            if wants_durable(session.arena, appended):
                session.bell.ring()
        self._save_checkpoint(store_ms, now_ns)
        mark("flusher.after_checkpoint")

    def _sync_segments(self, appended: int) -> None:
        """Every segment that holds bytes between `durable` and `appended`; new names as well."""
        size = self._board.segment_bytes
        first = self._durable // size * size
        last = max(first, (appended - 1) // size * size)
        for base in range(first, last + size, size):
            if base != self._segment_base:
                if self._segment is not None:
                    self._segment.close()
                self._segment = self._storage.open(segment_name(base), write=True)
                self._segment_base = base
                self._storage.sync_directory(DIRECTORY)
            if self._segment is not None:
                self._segment.sync()

    def _let_go(self) -> int:
        """Let go of pages behind; 1 if any. That it cannot be done is no failure."""
        hurried = self._board.word(layout.BOARD_DURABLE_WANTED) > self._durable
        try:
            return int(self._pages.follow(self._durable, hurried=hurried) > 0)
        except OSError as error:
            self._pages.keep_all()
            self._table.note("warning", "log_stays_in_memory", why=str(error))
            return 0

    def _keep_spare(self, appended: int, now_ns: int) -> int:
        """Make a piece of the next segment once the active one is half full; 1 if one was made.

        Also amid syncs back to back: the writer waits for it, or makes one itself, and all wait.
        No room is no error yet.
        """
        if self._failed or now_ns < self._spare_ns or not self._wants_spare(appended):
            return 0
        try:
            if self._spare.step():
                self._spare_base = self._base_of(appended)
        except OSError as error:
            if not is_disk_full(error):
                self._fail(error)
                return 0
            self._spare_ns = now_ns + NO_ROOM_NS
            self._table.note(
                "warning", "no_space_for_next_segment", bytes=self._board.segment_bytes
            )
            return 0
        return 1

    def _wants_spare(self, appended: int) -> bool:
        if self._spare.is_begun:
            return True
        base = self._base_of(appended)
        if base == self._spare_base or 2 * (appended - base) < self._board.segment_bytes:
            return False
        if self._storage.exists(SPARE):
            self._spare_base = base
            return False
        return True

    def _base_of(self, position: int) -> int:
        return position - position % self._board.segment_bytes

    def _fail(self, error: OSError) -> None:
        """A sync error is final (the kernel may have dropped the pages it could not write).

        Raises what is no fault of the store: a successor goes on.
        """
        if is_shortage(error):
            raise error
        self._failed = True
        what = f"sync at {self._durable}: {error}"
        declare_failed(self._board, self._table, self._clients.values(), error.errno or 0, what)

    def _save_checkpoint(self, store_ms: int, now_ns: int) -> None:
        """Note D for recovery; without room an older D does, for what is below it is less.

        That is tried with each sync, and told once a second.
        """
        dispatched = self._board.word(layout.BOARD_DISPATCHED)
        try:
            self._checkpoint.write(self._durable, store_ms, dispatched)
            if self._segment_base != self._kept_base:
                self._checkpoint.keep()
                self._kept_base = self._segment_base
        except OSError as error:
            if not is_disk_full(error):
                self._fail(error)
            elif now_ns >= self._told_ns:
                self._told_ns = now_ns + NO_ROOM_NS
                self._table.note("warning", "no_space_for_checkpoint", durable=self._durable)

    def _finish_stop(self, now_ns: int) -> None:
        self._save_checkpoint(self._board.word(layout.BOARD_STORE_MS), now_ns)
        try:
            self._spare.drop()
            if self._storage.exists(SPARE):
                self._storage.unlink(SPARE)
        except OSError as error:
            self._fail(error)
        self._stopped = True

    def _publish_counters(self) -> None:
        at = self._board.process_at(Role.FLUSHER)
        self._board.set_word(at + layout.PROCESS_HEARTBEAT, self._cycles)
        self._board.set_word(at + layout.PROCESS.offset("work"), self._syncs)
