"""Sealing: a full and durable segment gets its sidecar, and the queues' files are synced.

In this order: the units of the segment are on the disk, its sidecar is, and then `queues.json`
says so. Wherever that ends, the next life does what is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gantrymq.shm import layout, sidecar
from gantrymq.shm.errors import StoreFailed
from gantrymq.shm.indexnote import CHECKPOINT_FILE, safe_time
from gantrymq.shm.marks import mark
from gantrymq.shm.storage import is_disk_full, is_failed_change, made_anew
from gantrymq.workers.failure import declare_failed
from gantrymq.workers.housekeeper.progress import save_progress
from gantrymq.workers.housekeeper.queuesync import QueueSync
from gantrymq.workers.housekeeper.sidecars import SidecarWriter

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.housekeeper.queuesync import Steps, Synced
    from gantrymq.workers.session import SessionTable

IDLE_NS: Final = 1_000_000_000
AGAIN_NS: Final = 1_000_000_000
#: Between two looks whether the log has become durable.
_DURABLE_NS: Final = 5_000_000


class Sealer:
    """Second half of the housekeeper; only writer of sidecars, `gantry/queues.json`, `checkpoint`.

    `do_work` makes a short step, as an agent's.
    """

    name = "sealer"

    def __init__(
        self,
        storage: Storage,
        board: Board,
        sessions: SessionTable,
        settings: Any,  # noqa: ANN401 - brokerd.config.Settings
    ) -> None:
        self._storage = storage
        self._board = board
        self._table = sessions
        #: What the flusher leaves to the kernel, and is not to be in memory for a sidecar's sake.
        keep: int = settings.log_page_cache
        self._cold_below = board.word(layout.BOARD_APPENDED) - keep if keep else 0
        self._queues = QueueSync(storage, board)
        size = board.segment_bytes
        self._sealed = set(storage.list(sidecar.DIRECTORY))
        self._next = board.word(layout.BOARD_LOW) // size * size
        self._job: Steps | None = None
        self._job_ns = 0
        self._patience_ns = settings.stop_timeout * 1_000_000_000 // 2
        self._stop_ns = 0
        self._finishing = self._failed = self._stopped = False

    @property
    def position(self) -> int:
        """Log position up to which there is nothing to seal."""
        done = self._job is None and not self._is_due()
        return self._board.word(layout.BOARD_APPENDED) if done else self._next

    # ------------------------------------------------------------------------------- duty cycle

    def do_work(self, now_ns: int) -> int:
        """One short step; 0 if there is nothing to do now. While it stops, 0 once it has."""
        if self._failed or self._stopped:
            return 0
        stopping = self._table.stopping()
        if stopping and not self._stop_ns:
            self._stop_ns = now_ns + self._patience_ns
        if now_ns < self._job_ns and not stopping:
            return 0
        try:
            return self._step(now_ns) or int(stopping and not self._stopped)
        except StoreFailed as error:
            self._fail(error.fields.get("errno") or 0, str(error))
        except OSError as error:
            self._heed(error, now_ns)
            self._stopped = stopping  # the next life does the job again
        return 0

    def arm(self, now_ns: int) -> int:
        """How long there is nothing to do."""
        if self._failed or self._stopped:
            return IDLE_NS
        if self._job is not None or self._job_ns > now_ns:
            return max(0, self._job_ns - now_ns)
        return 0 if self._is_due() else IDLE_NS

    def close(self) -> None:
        """Leave a job as it is: the next life does it again."""
        if self._job is not None:
            self._job.close()

    def _step(self, now_ns: int) -> int:
        if self._job is None:
            self._job = self._next_job(now_ns)
            if self._job is None:
                return 0
        try:
            wait_ns = next(self._job)
        except StopIteration:
            self._job = None
            self._stopped = self._finishing
            return 1
        self._job_ns = now_ns + wait_ns
        return 0 if wait_ns else 1

    def _next_job(self, now_ns: int) -> Steps | None:
        late = self._stop_ns and now_ns >= self._stop_ns
        if self._is_due() and not late:
            return self._seal(self._next) if self._is_full(self._next) else self._sync()
        if not self._table.stopping():
            return None
        self._finishing = True
        return self._finish()

    def _is_due(self) -> bool:
        """Whether a full segment has no sidecar, or units of one are not synced."""
        self._pass_sealed()
        synced = self._queues.position // self._board.segment_bytes * self._board.segment_bytes
        return self._is_full(self._next) or self._is_full(synced)

    def _is_full(self, base: int) -> bool:
        """Whether all of a segment is durable and dispatched."""
        word, end = self._board.word, base + self._board.segment_bytes
        return end <= word(layout.BOARD_DURABLE) and end <= word(layout.BOARD_DISPATCHED)

    def _pass_sealed(self) -> None:
        size = self._board.segment_bytes
        self._next = max(self._next, self._board.word(layout.BOARD_LOW) // size * size)
        while f"{self._next:020d}" in self._sealed:
            self._sealed.discard(f"{self._next:020d}")
            self._next += size

    # -------------------------------------------------------------------------------------- jobs

    def _seal(self, base: int) -> Steps:
        size = self._board.segment_bytes
        synced = yield from self._queues.round()
        writer = SidecarWriter(self._storage, self._board, base)
        yield from writer.steps(cold=base + size <= self._cold_below)
        self._sealed.add(f"{base:020d}")
        mark("housekeeper.after_sidecar")
        yield 0
        yield from self._save(synced, writer.last_ms or None)

    def _sync(self) -> Steps:
        """Units that a start has had made anew, of segments that were sealed before."""
        yield from self._save((yield from self._queues.round()), None)

    def _finish(self) -> Steps:
        """A clean stop: the writer, the flusher and the reader have nothing left."""
        synced = yield from self._queues.round()
        at_rest = synced.position == synced.end
        yield from self._save(synced, self._board.word(layout.BOARD_STORE_MS) if at_rest else None)

    def _save(self, synced: Synced, last_ms: int | None) -> Steps:
        """Say so, once no power cut can take the records of units that count.

        `last_ms`: the time of the last message (0: the log has none); None: not known.
        """
        while self._board.word(layout.BOARD_DURABLE) < synced.end:
            yield _DURABLE_NS
        save_progress(self._storage, synced.position, synced.written)
        self._queues.position = synced.position
        mark("housekeeper.after_progress")
        yield 0
        if last_ms is not None:
            self._save_checkpoint(last_ms)

    def _save_checkpoint(self, last_ms: int) -> None:
        """RocketMQ's file (SF-84): all messages up to these times are in log and queues, synced."""
        data = layout.CHECKPOINT.pack(
            physic_msg_timestamp=last_ms,
            logics_msg_timestamp=last_ms,
            index_msg_timestamp=safe_time(self._storage),
            master_flushed_offset=self._board.word(layout.BOARD_DURABLE),
        )
        padded = data + bytes(layout.CHECKPOINT_FILE_BYTES - len(data))
        if self._storage.exists(CHECKPOINT_FILE):
            file = self._storage.open(CHECKPOINT_FILE, write=True)
        else:
            file = self._storage.create(CHECKPOINT_FILE)
        try:
            file.write_at(padded, 0)
            with made_anew():
                file.sync()
        finally:
            file.close()

    # ----------------------------------------------------------------------------------- failure

    def _heed(self, error: OSError, now_ns: int) -> None:
        """A change that failed is final; else nothing was lost, and the job is done again."""
        table, where, why = self._table, self._next, str(error)
        self._job, self._finishing, self._job_ns = None, False, now_ns + AGAIN_NS
        if is_disk_full(error):
            table.note("warning", "no_space_for_sealing", position=where, error=why)
        elif not is_failed_change(error):
            table.note("warning", "sealing_cannot_look", position=where, error=why)
        else:
            self._fail(error.errno or 0, f"sealing at {where}: {error}")

    def _fail(self, errno: int, what: str) -> None:
        self._failed = True
        declare_failed(self._board, self._table, (), errno, what)
