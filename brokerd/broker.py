"""The state of a running broker, and the steps that bring it up.

lock -> sizes -> kernels -> recovery -> board -> topics. Nothing is read before the lock is held,
and nobody can attach before all of it is done.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gantrymq.brokerd import agents, epoch, lock, reserve
from gantrymq.brokerd.agents import AgentEnv
from gantrymq.brokerd.bells import make_bell
from gantrymq.brokerd.checkpoint import CheckpointFile, read_checkpoint
from gantrymq.brokerd.config import Configuration, Settings
from gantrymq.brokerd.epoch import Life
from gantrymq.brokerd.ledgerend import require_whole
from gantrymq.brokerd.log import Log
from gantrymq.brokerd.metadata import TOPICS_FILE, Metadata
from gantrymq.brokerd.recovered import Recovered
from gantrymq.brokerd.sessions import Sessions
from gantrymq.brokerd.storelost import StoreWatch, is_locked_by, require_alone
from gantrymq.brokerd.subscriptions import GROUPS_FILE
from gantrymq.clients.home import board_file, read_board_file, run_of, store_of
from gantrymq.shm import layout, ownfiles
from gantrymq.shm.bell import EventBell
from gantrymq.shm.board import Board, unlink_board
from gantrymq.shm.clock import SystemClock
from gantrymq.shm.codes import BrokerState
from gantrymq.shm.configfile import what_is_wrong
from gantrymq.shm.errors import STORE_LOST, Corrupt, StoreBusy
from gantrymq.shm.held import Descriptor
from gantrymq.shm.indexnote import forget_note
from gantrymq.shm.storage import PosixStorage, is_disk_full
from gantrymq.workers.agent import Bells
from gantrymq.workers.groups.ledgerentries import is_closed

#: Called with (done, total, what) while something takes long.
Progress = Callable[[int, int, str], None]


@dataclass(slots=True)
class Broker:
    """What one life of the broker owns."""

    home: Path
    configuration: Configuration
    log: Log
    lock: Descriptor
    life: Life
    board: Board
    metadata: Metadata
    sessions: Sessions
    env: AgentEnv

    @property
    def bells(self) -> tuple[EventBell, ...]:
        """The agents' bells in the order of their roles."""
        return tuple(agents.bell_of(self.env.bells, role) for role in agents.CONSTRUCTORS)

    @property
    def state(self) -> BrokerState:
        """As on the board, where any agent may have set FAILED."""
        return BrokerState(self.board.half(layout.BOARD_STATE))

    def ring_all(self) -> None:
        """Wake every agent: one that has died may have owed any of them a ring."""
        for bell in self.bells:
            bell.ring()

    def begin(self) -> None:
        """Before the first agent: name the board, and have the store say that it is in use.

        From here on it is one whose broker was killed, until `close`. Raises StoreBusy, OSError.
        """
        epoch.forget_old_boards(self.home, self.board.name)
        epoch.mark_running(self.env.storage, self.life, self.board.word(layout.BOARD_APPENDED))
        epoch.announce(self.home, self.life, self.board)
        lock.mark_board(self.lock)

    def set_state(self, state: BrokerState) -> None:
        """Publish a state. FAILED is never taken back."""
        if self.state != BrokerState.FAILED:
            self.board.set_half(layout.BOARD_STATE, state)

    def close(self, *, clean: bool) -> None:
        """Give everything back: nothing but the store is left. Raises OSError, StoreBusy."""
        for bell in self.bells:
            bell.close()
        with contextlib.closing(self.lock):
            # After a failure the next start scans from the checkpoint as after a power cut.
            is_told = clean or self._tells_of_failed_files()
            try:
                if clean:
                    self._end_clean()
            finally:
                if is_told:
                    unlink_board(self.board.name)
                    self._withdraw()

    def _end_clean(self) -> None:
        """Say that the stop was clean; StoreBusy if what is said is said of another store."""
        self._require_its_store()
        try:
            self._complete_batch_units()
            self._say_clean()
        finally:
            self._require_its_store()

    def _tells_of_failed_files(self) -> bool:
        """Whether the store tells the next start of a failed write or sync, if there was one.

        Its key index is made again then, since its files may be other than the page cache has them.
        If it can't be told so, it is told by this board, as if the supervisor had been killed.
        """
        failed = self.state == BrokerState.FAILED
        if not failed or self.board.half(layout.BOARD_FAILED_ERRNO) == STORE_LOST:
            return True
        if not self._has_its_store():
            return False
        try:
            forget_note(self.env.storage)
        except OSError as error:
            self.log.error("failed", error=type(error).__name__, why=str(error))
            return False
        return True

    def _withdraw(self) -> None:
        """Take back what names the board. What does not is of a killed life, for the next start."""
        with contextlib.suppress(FileNotFoundError):
            names_it = read_board_file(self.home).get("board") == self.board.name
            if names_it and self._has_its_store():
                board_file(self.home).unlink(missing_ok=True)

    def _has_its_store(self) -> bool:
        """Whether the store was not moved away from under this broker.

        Else the store in its place, and the board that is named, may be another broker's.
        """
        with contextlib.suppress(OSError):
            return is_locked_by(store_of(self.home), self.lock.number)
        return False

    def _require_its_store(self) -> None:
        """Raise StoreBusy if another store is in its place by now."""
        if why := StoreWatch(self.home, self.lock.number).why_lost():
            raise StoreBusy(why, store=str(store_of(self.home)))

    def _say_clean(self) -> None:
        storage, durable = self.env.storage, self.board.word(layout.BOARD_DURABLE)

        def say() -> None:
            self._write_clean_checkpoint()
            epoch.mark_stopped(storage, durable)

        if reserve.with_room(storage, say):
            self.log.warning("reserve_given_back", bytes=reserve.RESERVE_BYTES)

    def _complete_batch_units(self) -> None:
        """For a RocketMQ; on a full disk the next start or hand-over does it."""
        from gantrymq.brokerd.batchunits import complete_of_board

        try:
            complete_of_board(self.env.storage, self.board)
        except OSError as error:
            if not is_disk_full(error):
                raise
            self.log.warning("no_space_for_queues", position=self.board.word(layout.BOARD_DURABLE))

    def _write_clean_checkpoint(self) -> None:
        """Say that the log ends at `durable`: every agent has finished, this is the last word."""
        board = self.board
        checkpoint = CheckpointFile(self.env.storage, board.boot_id, board.epoch)
        try:
            checkpoint.write(
                board.word(layout.BOARD_DURABLE),
                board.word(layout.BOARD_STORE_MS),
                board.word(layout.BOARD_DISPATCHED),
                clean=True,
                ledger_open=not is_closed(self.env.storage, board.epoch),
            )
        finally:
            checkpoint.close()


def make_directories(home: Path) -> None:
    """Make home, store and run directory, or see that they are this user's own.

    Raises NotPermitted, OSError.
    """
    ownfiles.make_home(home)
    ownfiles.make_store(store_of(home))
    ownfiles.make_private(run_of(home))


def open_broker(
    home: Path,
    configuration: Configuration,
    log: Log,
    progress: Progress,
    hold_signals: Callable[[], object],
) -> Broker:
    """Bring a store up to the point where agents can start. Raises what exitcode.py knows.

    Store and run directory say what they said before, until `begin`. No handler may raise once
    `hold_signals` was called: somebody has to `close` what this returns.
    """
    make_directories(home)
    timeout_s = configuration.settings.lock_timeout
    held = lock.acquire(store_of(home), timeout_s)
    try:
        require_alone(home, timeout_s)
        return _open_locked(home, configuration, log, progress, held, hold_signals)
    except BaseException:
        held.close()
        raise


def _open_locked(
    home: Path, configuration: Configuration, log: Log, progress: Progress, held: Descriptor,
    hold_signals: Callable[[], object],
) -> Broker:  # fmt: skip
    store = store_of(home)
    if not ownfiles.is_private(store):  # another broker's, perhaps
        ownfiles.make_all_private(store)
    storage = PosixStorage(str(store))
    clock = SystemClock()
    if reserve.give_back(storage):
        log.warning("reserve_given_back", bytes=reserve.RESERVE_BYTES)
    require_whole(storage)
    life, configuration = epoch.begin(storage, configuration)
    settings = configuration.settings
    if life.levels_before:
        log.warning(
            "delay_levels_changed", before=life.levels_before, now=settings.message_delay_level
        )
    _warm(progress)  # before any module of kernels is imported: they are loaded then
    agents.load_all()
    from gantrymq.brokerd.recovery import recover

    last = read_checkpoint(storage)
    progress(0, 1, "checking the log")
    try:
        old_board = epoch.find_old_board(home)
        found = recover(storage, settings, old_board, progress)
    except Corrupt:
        epoch.take_back(storage, life)
        raise
    if last is not None:
        log.info("recovered", clean=last.clean, low=found.low, appended=found.appended)
    _settle_others(storage, settings, found, log, progress)
    _tell_of_config(storage, log)
    metadata = Metadata(storage, settings, clock)
    metadata.load()
    metadata.add_parking_topics()
    hold_signals()
    board = epoch.create_board(home, life, settings, clock, old_board)
    try:
        metadata.publish(board, found)
        reserve.keep(storage)
        env = AgentEnv(storage, clock, board, Bells.each(make_bell), settings)
        sessions = Sessions(life.epoch, settings.session_memory_max, settings.sessions_max)
        for role in agents.SENDERS:
            sessions.open_own(role, agents.bell_of(env.bells, role), board.segment_bytes)
    except BaseException:
        unlink_board(board.name)
        raise
    return Broker(home, configuration, log, held, life, board, metadata, sessions, env)


def _warm(progress: Progress) -> None:
    from gantrymq.shm import jit

    jit.warm(progress)


def _tell_of_config(storage: PosixStorage, log: Log) -> None:
    """Before what is read in place of a damaged file is written there."""
    from gantrymq.workers.groups.offsetfile import FILE as OFFSETS_FILE

    for name in (TOPICS_FILE, GROUPS_FILE, OFFSETS_FILE):
        wrong = what_is_wrong(storage, name)
        if wrong is not None:
            log.warning("config_damaged", path=f"config/{name}", **wrong)


def _settle_others(
    storage: PosixStorage, settings: Settings, found: Recovered, log: Log, progress: Progress
) -> None:
    """Take over what another broker did here, and tell of segments that somebody took away."""
    from gantrymq.brokerd.foreign import is_visited
    from gantrymq.brokerd.handover.adoption import import_foreign
    from gantrymq.brokerd.missingsegments import find_missing
    from gantrymq.workers.groups.deadletternote import locked

    missing = [] if is_visited(storage) else find_missing(storage, found.low)
    segment_bytes = settings.mapped_file_size_commit_log
    alone = locked(Path(storage.root))
    theirs = import_foreign(storage, segment_bytes, found.low, found.appended, progress, alone)
    if theirs is not None:
        log.info("imported", records=theirs.foreign, end=theirs.end)
        ownfiles.make_all_private(Path(storage.root))
    elif missing:
        log.error("segments_missing", first=missing[0], count=len(missing), low=found.low)
