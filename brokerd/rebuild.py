"""`store rebuild`: delete what is derived and make it again, by the code that a start uses (P14).

For a store that was stopped cleanly; log, ledger and `config/` stay as they are. The first files
that go are `gantry/queues.json` and `gantry/index.json`: without them a start makes all queues and
all index files from the log, so a kill at any step leaves a store that the next start, or the next
rebuild, brings to the same. Index files get new names: these are times of their making.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gantrymq.brokerd import config, epoch, lock
from gantrymq.brokerd.checkpoint import CheckpointFile, read_checkpoint
from gantrymq.brokerd.ledgerend import require_whole
from gantrymq.brokerd.metadata import Metadata
from gantrymq.brokerd.producers import FILE as PRODUCERS_FILE
from gantrymq.shm import jit, layout
from gantrymq.shm.bitmapnote import DIRECTORY as EXTENSIONS
from gantrymq.shm.bitmapnote import FILE as BITMAPS
from gantrymq.shm.board import Board, format_board
from gantrymq.shm.clock import SystemClock
from gantrymq.shm.codes import Role
from gantrymq.shm.errors import Incompatible, StoreFailed
from gantrymq.shm.indexnote import DIRECTORY as INDEX
from gantrymq.shm.indexnote import NOTE_FILE as INDEX_FILE
from gantrymq.shm.queuenames import DIRECTORY as QUEUES
from gantrymq.shm.queuenames import MEMBERS
from gantrymq.shm.sidecar import DIRECTORY as SIDECARS
from gantrymq.shm.storage import PosixStorage
from gantrymq.shm.storeplace import require_store
from gantrymq.workers.agent import Bells
from gantrymq.workers.groups.ledgerentries import is_closed
from gantrymq.workers.housekeeper.progress import PROGRESS_FILE
from gantrymq.workers.scheduler.note import FILE as SCHEDULE_FILE
from gantrymq.workers.scheduler.timerbuckets import DIRECTORY as TIMERS
from gantrymq.workers.transactions.note import FILE as TRANSACTIONS_FILE

if TYPE_CHECKING:
    from gantrymq.brokerd.config import Settings
    from gantrymq.brokerd.recovered import Recovered
    from gantrymq.brokerd.recovery import Progress
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.session import Attached, Detached

#: In the order in which they go. Directories: all files below.
DERIVED: Final = (
    PROGRESS_FILE, INDEX_FILE, PRODUCERS_FILE, SCHEDULE_FILE, TRANSACTIONS_FILE, TIMERS, SIDECARS,
    QUEUES, MEMBERS, EXTENSIONS, INDEX, BITMAPS,
)  # fmt: skip
#: Removed durably, each before anything that it speaks of.
_FIRST: Final = frozenset(
    {PROGRESS_FILE, INDEX_FILE, PRODUCERS_FILE, SCHEDULE_FILE, TRANSACTIONS_FILE}
)
#: How events begin that tell of a full disk; the rest of the name is what found no room.
_NO_SPACE: Final = "no_space_for_"
_PATIENCE_S: Final = 1_000_000


@dataclass(slots=True)
class Rebuilt:
    """What was done. `deleted` are files, by path from the store's root."""

    store: str
    dry_run: bool = False
    deleted: list[str] = field(default_factory=list)
    records_to: int = 0
    queues: int = 0
    sidecars: int = 0
    index_files: int = 0

    def __str__(self) -> str:
        if self.dry_run:
            lines = [*self.deleted, f"{self.store}: {len(self.deleted)} files would be made again"]
            return "\n".join(lines)
        return (
            f"{self.store}: {len(self.deleted)} files deleted; {self.queues} queues,"
            f" {self.sidecars} sidecars and {self.index_files} index files made of the log up to"
            f" {self.records_to}"
        )


class _Nobody:
    """The sessions of a store that has none, and is to stop when all is done."""

    def __init__(self) -> None:
        self.failure: tuple[int, str] | None = None

    def poll(self) -> Sequence[Attached | Detached]:
        return ()

    def stopping(self) -> bool:
        return True

    def cut_off(self, session: int, why: str) -> None:
        raise AssertionError(f"session {session} does not exist: {why}")

    def failed(self, errno: int, what: str) -> None:
        self.failure = (errno, what)

    def note(self, level: str, event: str, **fields: object) -> None:
        """An agent that a running broker would have try again is not asked again here."""
        if event.startswith(_NO_SPACE):
            what = event.removeprefix(_NO_SPACE)
            self.failure = (errno.ENOSPC, f"no space for {what}: make room, then do that again")
        elif event == "sealing_cannot_look":
            self.failure = (errno.EIO, f"sealing cannot read a file: {fields['error']}")


class _NoBell:
    """Nobody sleeps while a store is rebuilt."""

    def ring(self) -> None:
        """Wakes nobody."""

    def clear(self) -> None:
        """Nothing was rung."""


def rebuild(root: Path, *, dry_run: bool = False, progress: Progress | None = None) -> Rebuilt:
    """Make everything derived below a store's root again; `dry_run` only lists it.

    Raises StoreBusy, Incompatible (another broker's store, or one that was not stopped cleanly),
    Corrupt (before anything is deleted), StoreFailed, OSError.
    """
    require_store(root)
    with lock.acquire(root, 0.0):
        storage = PosixStorage(str(root))
        _require_stopped(storage, root)
        done = Rebuilt(str(root), dry_run, list(derived_files(storage)))
        if not dry_run:
            from gantrymq.brokerd.recovery import require_sound  # it has kernels

            settings = _settings(storage, root)
            require_sound(storage, settings.mapped_file_size_commit_log, progress)
            make_again(storage, settings, done, progress)
        return done


def make_again(
    storage: Storage, settings: Settings, done: Rebuilt, progress: Progress | None = None
) -> None:
    """Delete what `done` lists and build it of the log. The store's lock is held."""
    jit.warm()
    _delete(storage, done.deleted)
    found = bring_up_to_date(storage, settings, None, progress)
    done.records_to = found.appended
    done.queues = sum(1 for _ in _folders(storage))
    done.sidecars = len(storage.list(SIDECARS))
    done.index_files = len(storage.list(INDEX))


def bring_up_to_date(
    storage: Storage, settings: Settings, old_board: Board | None, progress: Progress | None = None
) -> Recovered:
    """Recover a store, make of its log what is missing, and leave it as a clean stop does.

    `old_board`: of a life that a kill has ended. Kernels are loaded, the store's lock is held.
    """
    require_whole(storage)
    found, board = _recovered(storage, settings, old_board, progress)
    last = read_checkpoint(storage)
    life = last.epoch if last else 0
    _dispatch(storage, settings, board)
    _save_producers(storage, board, found)
    file = CheckpointFile(storage, last.boot_id if last else bytes(16), life)
    try:
        file.write(
            found.appended, found.store_ms, found.appended, clean=True,
            ledger_open=not is_closed(storage, life),
        )  # fmt: skip
    finally:
        file.close()
    return found


def _require_stopped(storage: Storage, root: Path) -> None:
    if not storage.exists(epoch.STORE_FILE):
        raise Incompatible(
            f"{root} is another broker's store: delete its consumequeue/ and index/ instead, and"
            " it makes them again",
            store=str(root),
        )
    if storage.exists(epoch.ABORT_NAME):
        raise Incompatible(
            f"{root} was not stopped cleanly: start its broker and stop it, then rebuild",
            store=str(root),
        )


def _settings(storage: Storage, root: Path) -> Settings:
    """What the store was written with, its sizes and delay levels, and its home's settings."""
    return epoch.settings_of_store(storage, config.load(root.resolve().parent))


def derived_files(storage: Storage) -> Sequence[str]:
    """All files that can be made of the log, in the order in which they go."""
    return _files(storage, DERIVED)


def _files(storage: Storage, names: Sequence[str]) -> Sequence[str]:
    """Files among these names and below them."""
    found: list[str] = []
    for name in names:
        if storage.is_directory(name):
            found += _files(storage, [f"{name}/{inner}" for inner in storage.list(name)])
        elif storage.exists(name):
            found.append(name)
    return found


def _folders(storage: Storage) -> Sequence[str]:
    return [
        f"{root}/{topic}/{queue}"
        for root in (QUEUES, MEMBERS)
        for topic in storage.list(root)
        for queue in storage.list(f"{root}/{topic}")
    ]


def _delete(storage: Storage, names: Sequence[str]) -> None:
    """Remove files; those durably that tell a start what others hold."""
    for name in names:
        storage.unlink(name)
        if name in _FIRST:
            storage.sync_directory("gantry")


def _recovered(
    storage: Storage, settings: Settings, old_board: Board | None, progress: Progress | None
) -> tuple[Recovered, Board]:
    """What a start finds, on a board that nobody else sees."""
    from gantrymq.brokerd.recovery import recover

    found = recover(storage, settings, old_board, progress)
    clock = SystemClock()
    size = layout.board_bytes(settings.topics_max, settings.board_queues_max)
    memory = memoryview(mmap.mmap(-1, size))
    format_board(
        memory,
        epoch=0,
        boot_id=bytes(16),
        topics_max=settings.topics_max,
        queues_max=settings.board_queues_max,
        segment_bytes=settings.mapped_file_size_commit_log,
        cq_bytes=settings.mapped_file_size_consume_queue,
        started_ms=clock.wall_ms(),
        wall_ahead_ns=epoch.wall_ahead_ns(clock, old_board),
    )
    board = Board(memory, "rebuild")
    metadata = Metadata(storage, settings, clock)
    metadata.load()
    metadata.publish(board, found)
    return found, board


def _dispatch(storage: Storage, settings: Settings, board: Board) -> None:
    """Let the reader and the housekeeper do all that is left, and stop."""
    from gantrymq.brokerd.agents import AgentEnv, build

    nobody, clock = _Nobody(), SystemClock()
    patient = replace(settings, stop_timeout=_PATIENCE_S)  # nobody waits for the stop's end
    bells = Bells.each(_NoBell)
    env = AgentEnv(storage, clock, board, bells, patient, nobody)
    for role in (Role.READER, Role.HOUSEKEEPER):
        agent = build(role, env)
        try:
            while agent.do_work(clock.monotonic_ns()):
                pass  # the last call has stopped it, or failed
        finally:
            agent.close()
    if nobody.failure:
        number, what = nobody.failure
        raise StoreFailed(what, errno=number)


def _save_producers(storage: Storage, board: Board, found: Recovered) -> None:
    from gantrymq.brokerd.resume import learn_from_log

    table = learn_from_log(storage, board, found.appended)
    table.save(storage, found.appended, found.store_ms)
