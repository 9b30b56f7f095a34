"""How fast a store is verified, recovered after a kill, and dispatched by a late reader."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.crew import BenchError, Crew, Phase
from bench.harness import Bench
from bench.measure import Measurement
from bench.ours import Serving, make_topic, scratch, serving, stop_hard
from bench.sizes import PIPELINE_COMMANDS

if TYPE_CHECKING:
    from gantrymq.brokerd.config import Configuration
    from gantrymq.shm.board import Board
    from gantrymq.workers.session import Attached, Detached

#: One segment holds the whole log, so that recovery has to scan all of it.
_ONE_SEGMENT: Final = {"mapped_file_size_commit_log": 1 << 31}

_RECORD_BYTES = 230
"""About what a body of 100 bytes takes in the log; it only plans the fill."""


def verify(bench: Bench) -> Measurement:
    """`gantrymq store verify` of a cleanly stopped store, the start of the command included."""
    with scratch(bench) as directory:
        with serving(directory, {}, bench.sizes.timeout_s) as server:
            log_bytes = fill(bench, server)
        command = [sys.executable, "-m", "gantrymq", "store", "verify", str(server.home / "store")]
        started = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - started
        if done.returncode:
            raise BenchError(f"store verify: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return Measurement(values={"mb_s": log_bytes / 1e6 / seconds}, note=f"{log_bytes} bytes")


def recovery(bench: Bench) -> Measurement:
    """Recovery of a store whose broker was killed, by scanning the whole log.

    As a start on the same boot does it: the killed broker's board is there.
    """
    with scratch(bench) as directory:
        with serving(directory, _ONE_SEGMENT, bench.sizes.timeout_s) as server:
            fill(bench, server)
            stop_hard(server)
        seconds, log_bytes = _recover(server.home)
    return Measurement(values={"mb_s": log_bytes / 1e6 / seconds}, note=f"{log_bytes} bytes")


def _recover(home: Path) -> tuple[float, int]:
    """Seconds of `recover` and the log's bytes; kernels are loaded before."""
    from gantrymq.brokerd import recovery as code
    from gantrymq.brokerd.epoch import find_old_board
    from gantrymq.clients.home import store_of
    from gantrymq.shm import jit
    from gantrymq.shm.board import unlink_board
    from gantrymq.shm.storage import PosixStorage

    storage = PosixStorage(str(store_of(home)))
    settings = _configuration(storage).settings
    jit.warm()
    board = find_old_board(home)
    if board is None:
        raise BenchError("recovery: the killed broker has left no board")
    try:
        started = time.monotonic()
        found = code.recover(storage, settings, board)
        return time.monotonic() - started, found.appended - found.low
    finally:
        unlink_board(board.name)


def dispatch(bench: Bench, queues: int) -> Measurement:
    """The reader alone, in this process, on a log that nobody has dispatched."""
    with scratch(bench) as directory:
        with serving(directory, {}, bench.sizes.timeout_s) as server:
            make_topic(server, queues)
            fill(bench, server)
        deadline = time.monotonic() + bench.sizes.timeout_s
        records, seconds, _indexed = dispatch_log(server.home, deadline)
    return Measurement(values={"rate": records / seconds}, count=records)


def dispatch_log(home: Path, deadline: float, *, index: bool = False) -> tuple[int, float, float]:
    """Forget all units, then let a reader make them, and with `index` all keys' entries.

    Returns records, seconds until all can be consumed, and until all is done.
    """
    from gantrymq.brokerd.checkpoint import read_checkpoint
    from gantrymq.brokerd.metadata import Metadata
    from gantrymq.brokerd.recovered import Recovered
    from gantrymq.clients.home import store_of
    from gantrymq.shm import jit, layout
    from gantrymq.shm.clock import SystemClock
    from gantrymq.shm.storage import PosixStorage
    from gantrymq.workers.agent import Bells
    from gantrymq.workers.housekeeper.indexer import Indexer
    from gantrymq.workers.reader.agent import Reader

    store = store_of(home)
    storage = PosixStorage(str(store))
    checkpoint = read_checkpoint(storage)
    if checkpoint is None:
        raise BenchError("dispatch: the store has no checkpoint")
    # Aside rather than deleted: ext4 looks for a free inode past all that were freed of late.
    (store / "consumequeue").rename(Path(tempfile.mkdtemp(dir=home.parent)) / "consumequeue")
    end, clock = checkpoint.durable, SystemClock()
    settings = _configuration(storage).settings
    board = _plain_board(_configuration(storage))
    metadata = Metadata(storage, settings, clock)
    metadata.load()
    metadata.publish(board, Recovered(appended=end, durable=end))
    bells = Bells.each(_Silent)
    reader = Reader(storage, clock, board, _Nobody(), bells, settings)
    parts: list[Reader | Indexer] = [reader]
    if index:
        parts.append(Indexer(storage, clock, board, _Nobody(), settings))
    jit.warm()
    started = time.monotonic()
    spent = []
    for word in (layout.BOARD_DISPATCHED, *([layout.BOARD_INDEXED] if index else [])):
        while board.word(word) < end:
            work = sum(part.do_work(clock.monotonic_ns()) for part in parts)
            if not work and time.monotonic() > deadline:
                raise BenchError(f"dispatch: stopped at {board.word(layout.BOARD_DISPATCHED)}")
        spent.append(time.monotonic() - started)
    for part in parts:
        part.close()
    units = sum(
        board.queue(topic.queue_base + queue)["written"]
        for topic in board.topics()
        for queue in range(topic.queue_count)
    )
    return units, spent[0], spent[-1]


def _configuration(storage: object) -> Configuration:
    """The settings that the store's files have."""
    from gantrymq.brokerd.config import load
    from gantrymq.brokerd.dump.settings import load_settings

    sizes = load_settings(storage)  # type: ignore[arg-type] # a PosixStorage
    given = {
        "mapped_file_size_commit_log": sizes.number("mappedFileSizeCommitLog"),
        "mapped_file_size_consume_queue": sizes.queue_file_bytes,
    }
    return load(given=given, environment={})


def _plain_board(configuration: Configuration) -> Board:
    """A board that no other process sees."""
    from gantrymq.shm import layout
    from gantrymq.shm.board import Board, format_board

    settings = configuration.settings
    size = layout.board_bytes(settings.topics_max, settings.board_queues_max)
    memory = memoryview(bytearray(size))
    format_board(
        memory, epoch=1, boot_id=bytes(16), topics_max=settings.topics_max,
        queues_max=settings.board_queues_max, segment_bytes=settings.mapped_file_size_commit_log,
        cq_bytes=settings.mapped_file_size_consume_queue, started_ms=0, wall_ahead_ns=0,
    )  # fmt: skip
    return Board(memory)


class _Silent:
    """A bell that nobody waits on."""

    def ring(self) -> None:
        """Wake nobody."""

    def clear(self) -> None:
        """Nothing was rung."""


class _Nobody:
    """A session table without sessions, for an agent that runs alone."""

    def poll(self) -> Sequence[Attached | Detached]:
        """Nobody comes or goes."""
        return ()

    def stopping(self) -> bool:
        """Go on."""
        return False

    def cut_off(self, session: int, why: str) -> None:
        """There is none."""
        raise BenchError(f"session {session}: {why}")

    def failed(self, errno: int, what: str) -> None:
        """End the measurement."""
        raise BenchError(f"the agent failed ({errno}): {what}")

    def note(self, level: str, event: str, **fields: object) -> None:
        """Say nothing."""


def fill(bench: Bench, server: Serving) -> int:
    """Send until the log holds about `store_bytes`; return how many it holds."""
    from bench.our_jobs import FillSends

    count = bench.sizes.store_bytes // _RECORD_BYTES // PIPELINE_COMMANDS * PIPELINE_COMMANDS
    with Crew(bench.sizes.timeout_s) as crew:
        crew.start("producer", FillSends, str(server.home))
        return crew.run(Phase(max(count, PIPELINE_COMMANDS)))["producer"].checksum
