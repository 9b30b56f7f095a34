"""A copy of a store that another broker can start on, made while the broker runs.

Only truth is copied: the log up to a durable position D, `config/`, the groups' ledger and what
else brokerd/storefiles.py says is truth, and what says whose the log is. Derived files
(ConsumeQueues, sidecars, producers) are made again by the first start. The copy looks like a store
whose broker was stopped cleanly at D.

Order: the ledger, then config, then D where it covers all that was visible by then. So no group is
ahead of the copied log, and each topic that the ledger knows is there. Topics and deleted topics
are those of one moment: a topic that neither names would be there again, with all its messages.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gantrymq.brokerd import config, lock, storefiles, temporaryhome
from gantrymq.brokerd.backuplog import LogCopy, copy_starts, first_segment, goes_on_behind
from gantrymq.brokerd.backupplace import require_free, require_outside
from gantrymq.brokerd.checkpoint import CheckpointFile, read_checkpoint
from gantrymq.brokerd.epoch import STORE_FILE, read_store_file, settle_sizes
from gantrymq.brokerd.ledgerend import require_readable, require_whole
from gantrymq.brokerd.queuestarts import FILE as STARTS
from gantrymq.brokerd.synctree import rename_durably
from gantrymq.clients.home import no_broker, store_of
from gantrymq.clients.running import find_board
from gantrymq.shm import layout, ownfiles, topicfiles
from gantrymq.shm.codes import BrokerState
from gantrymq.shm.configfile import BACKUP_SUFFIX, parse_config
from gantrymq.shm.errors import DiskFull, GantryError, Incompatible, Rejected, StoreFailed, Timeout
from gantrymq.shm.jsonsum import with_sum, without_sum
from gantrymq.shm.lineage import COPIED_AT
from gantrymq.shm.lognames import DIRECTORY
from gantrymq.shm.ranges import EVERYTHING, read_ranges, write_ranges
from gantrymq.shm.storage import PosixStorage, is_disk_full, read_file
from gantrymq.shm.storelock import is_held
from gantrymq.shm.storeplace import require_store
from gantrymq.workers.groups.ledgerentries import NAME as LEDGER

if TYPE_CHECKING:
    from gantrymq.shm.board import Board

_CONFIG: Final = "config"
#: The flusher makes all durable at its interval, a minute at most; then the disk hangs.
_DURABLE_S: Final = 90.0
_PAUSE_S: Final = 0.01
#: A file of `config/` is written in place: it may take that many looks to find it whole.
_LOOKS: Final = 50

#: Truth that is copied once `config/` is; where queues begin is noted of the copied log.
_BEHIND_CONFIG: Final = tuple(
    path
    for path in map(storefiles.path_of, (*storefiles.TRUTH, *storefiles.OF_THE_LOG))
    if path not in (LEDGER, STARTS, topicfiles.DELETED)
)

#: By which a back-up knows what another one has left behind.
_WORD: Final = "an unfinished back-up"

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Copied:
    """What a backup holds: the log in [low, durable), and bytes copied."""

    home: str
    low: int
    durable: int
    segments: int
    bytes: int


def backup(home: Path, destination: Path, progress: Progress | None = None) -> Copied:
    """Copy the store of `home`; `destination` becomes a home of its own.

    It must not exist, nor lie in a store. Until all is there and synced it is called
    `<destination>.partial`, which is removed if the copy fails; what a killed one has left, the
    next call replaces. Raises Rejected, StoreBusy if one is at work, StoreFailed, Timeout, OSError.
    """
    source = store_of(home)
    require_outside(home, destination)
    require_free(destination)
    try:
        require_store(source)
    except FileNotFoundError as error:
        raise Rejected(str(error)) from None
    partial = destination.with_name(destination.name + ".partial")
    temporaryhome.remove_left(partial, _WORD)
    if os.path.lexists(partial):
        raise Rejected(f"{partial} is there, and no back-up that was broken off: remove it first")
    run = _Run(PosixStorage(str(source)), PosixStorage(str(store_of(partial))), progress)
    try:
        with temporaryhome.making(partial, _WORD):
            require_free(destination)  # nobody else makes it from here on
            low, durable, segments = _write(home, partial, run)
            rename_durably(partial, destination)
            (destination / temporaryhome.MARKER).unlink()
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise DiskFull(
            f"no room for the back-up at {destination}: the disk was full after {run.bytes} bytes,"
            " and nothing is left of it; name a directory on another one"
        ) from error
    return Copied(str(destination), low, durable, segments, run.bytes)


def _write(home: Path, partial: Path, run: _Run) -> tuple[int, int, int]:
    """Lowest position, durable position, segments."""
    store_of(partial).mkdir(mode=0o700)
    written = _copy(home, run)
    if (home / config.FILE_NAME).exists():
        given = ownfiles.read_given(home / config.FILE_NAME)
        ownfiles.replace_whole(partial / config.FILE_NAME, given)
    return written


def _copy(home: Path, run: _Run) -> tuple[int, int, int]:
    """Lowest position, durable position, segments."""
    source = store_of(home)
    if is_held(source):
        board = find_board(home)
        if board is None:
            raise no_broker(home, f"the broker at {home} has just ended: try again")
        return run.from_running(board)
    with lock.acquire(source, 0, to_write=False):
        return run.from_stopped(home)


class _Run:
    """One backup from a store's files into an empty directory."""

    def __init__(
        self, source: PosixStorage, target: PosixStorage, progress: Progress | None
    ) -> None:
        self._source = source
        self._target = target
        self._progress = progress
        self.bytes = 0

    def from_running(self, board: Board) -> tuple[int, int, int]:
        """Lowest position, durable position, segments."""
        self._copy_ledger()
        self._copy_config()
        self._copy(*_BEHIND_CONFIG)
        durable = _durable_now(board)
        self._put_identity(board.segment_bytes, durable, board.word(layout.BOARD_STORE_MS))
        low, segments = self._copy_log(board.segment_bytes, durable)
        copy_starts(self._source, self._target, board, low)
        if board.half(layout.BOARD_STATE) == BrokerState.FAILED:
            raise StoreFailed("the store failed during the backup: it was thrown away")
        return low, durable, segments

    def from_stopped(self, home: Path) -> tuple[int, int, int]:
        """The same of a store that was stopped cleanly; its lock is held."""
        last = read_checkpoint(self._source)
        if last is None or not last.clean or self._source.exists("abort"):
            raise Rejected(
                f"the store of {home} was not stopped cleanly by a GantryMQ: start its broker once,"
                " or copy the whole directory as it is"
            )
        if goes_on_behind(self._source, last.durable):
            raise Rejected(
                f"another broker has gone on with the store of {home} behind {last.durable}, where"
                " GantryMQ had stopped it: start its broker once, which takes that over, or copy"
                " the whole directory as it is"
            )
        require_whole(self._source)
        given = config.load(home)
        size = settle_sizes(self._source, given).settings.mapped_file_size_commit_log
        self._copy_ledger()
        self._copy_config()
        self._copy(*_BEHIND_CONFIG, STARTS)
        self._put_identity(size, last.durable, last.store_ms)
        low, segments = self._copy_log(size, last.durable)
        return low, last.durable, segments

    def _copy_config(self) -> None:
        """JSON that parses; of a file that is being written its backup counts, or the next look.

        Others are a RocketMQ's (`timercheck`, which `handover` leaves too): no broker of ours
        writes one. Brokers have no folders there: one that somebody has made is not their truth.
        """
        self._target.make_directory(_CONFIG)
        for path in self._config_files():
            self._put(path, self._read_whole(path) if path.endswith(".json") else self._read(path))
        topics, deleted = topicfiles.of_one_moment(
            lambda: self._read_whole(topicfiles.TOPICS), lambda: self._read(topicfiles.DELETED)
        )
        self._put(topicfiles.TOPICS, topics)
        self._put(topicfiles.DELETED, deleted)

    def _config_files(self) -> list[str]:
        """All but the topics. For a moment there may be only the backup of one."""
        paths = [f"{_CONFIG}/{name}" for name in self._source.list(_CONFIG)]
        files = [path for path in paths if not self._source.is_directory(path)]
        return sorted({path.removesuffix(BACKUP_SUFFIX) for path in files} - {topicfiles.TOPICS})

    def _read_whole(self, path: str) -> bytes | None:
        """A JSON file, or its backup; None if there is neither. Raises Incompatible."""
        names = (path, path + BACKUP_SUFFIX)
        for _ in range(_LOOKS):
            for name in names:
                try:
                    data = read_file(self._source, name)
                    parse_config(data.decode())
                except (FileNotFoundError, ValueError):
                    continue
                return data
            time.sleep(_PAUSE_S)
        if not any(map(self._source.exists, names)):
            return None
        raise Incompatible(f"{path} is no JSON, and its backup neither: mend it", path=path)

    def _copy_ledger(self) -> None:
        """One that a start would refuse replaces no good copy. Raises Corrupt, Incompatible."""
        data = self._read(LEDGER)
        if data is not None:
            require_readable(data)
            self._put(LEDGER, data)

    def _copy(self, *names: str) -> None:
        """Append only, or replaced whole: what an open file shows is a state of it."""
        for name in names:
            self._put(name, self._read(name))

    def _read(self, name: str) -> bytes | None:
        """All of a file; None without it."""
        try:
            return read_file(self._source, name)
        except FileNotFoundError:
            return None

    def _put_identity(self, segment_bytes: int, durable: int, store_ms: int) -> None:
        """Sizes, ranges closed at D, and a checkpoint that says so."""
        if segment_bytes <= 0:
            raise GantryError("a board without a segment size")
        self._put(STORE_FILE, self._copied_store_file(durable))
        known = read_ranges(self._source) or EVERYTHING
        write_ranges(self._target, known.ended(durable))
        checkpoint = CheckpointFile(self._target, uuid.uuid4().bytes, 0)
        try:
            low = first_segment(self._source)
            checkpoint.write(durable, store_ms, min(low, durable), clean=True)
        finally:
            checkpoint.close()

    def _copied_store_file(self, durable: int) -> bytes:
        """`store.json` with where the copy's own log will begin (shm/lineage.py)."""
        content = without_sum(read_store_file(self._source))
        return with_sum(json.dumps({**content, COPIED_AT: durable})).encode()

    def _copy_log(self, segment_bytes: int, durable: int) -> tuple[int, int]:
        """Where the copy begins, and of how many segments it is."""
        low = LogCopy(self._source, self._target, segment_bytes, durable, self._told).run()
        return low, len(self._target.list(DIRECTORY))

    def _told(self, moved: int, done: int, total: int) -> None:
        self.bytes += moved
        if self._progress:
            self._progress(done, total, "copying the log")

    def _put(self, name: str, data: bytes | None) -> None:
        """Write a file that the source has."""
        if data is None:
            return
        file = self._target.create(name)
        try:
            file.write_at(data, 0)
        finally:
            file.close()
        self.bytes += len(data)


def _durable_now(board: Board) -> int:
    """A durable position at or above all that is appended now. Raises Timeout, StoreFailed."""
    wanted = board.word(layout.BOARD_APPENDED)
    deadline = time.monotonic() + _DURABLE_S
    while (durable := board.word(layout.BOARD_DURABLE)) < wanted:
        if board.half(layout.BOARD_STATE) == BrokerState.FAILED:
            raise StoreFailed("the store has failed: restart the broker, then try again")
        if time.monotonic() > deadline:
            raise Timeout(f"the log was not durable up to {wanted} after {_DURABLE_S:.0f} s")
        time.sleep(_PAUSE_S)
    return durable
