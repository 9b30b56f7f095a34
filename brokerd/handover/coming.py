"""`gantrymq adopt`: a RocketMQ's store, stopped or killed, becomes one of ours (ADR 0017).

A start would do the same; this refuses what cannot be carried, counts what can, and tells it.
Positions that the RocketMQ saved are lower bounds only and are not looked at: the log decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gantrymq.brokerd import config, epoch, lock
from gantrymq.shm.errors import Incompatible
from gantrymq.shm.properties import DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC
from gantrymq.shm.storage import PosixStorage
from gantrymq.workers.groups.deadletternote import locked

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from gantrymq.brokerd.config import Settings
    from gantrymq.brokerd.handover.pending import Pending, Progress
    from gantrymq.shm.board import Board
    from gantrymq.shm.storage import Storage


@dataclass(slots=True)
class Adopted:
    """What was found. `levels`: level -> waiting; `foreign`: records that another broker wrote."""

    store: str
    dry_run: bool = False
    end: int = 0
    records: int = 0
    foreign: int = 0
    timers: int = 0
    levels: dict[int, int] = field(default_factory=dict)
    retries: int = 0
    dead_letters: int = 0
    recalls: int = 0
    open_halves: int = 0
    given_up: int = 0
    topics: int = 0
    groups: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        levels = "".join(f"; {level}: {count}" for level, count in self.levels.items())
        return "\n".join(
            [
                f"{self.store}: {'can be' if self.dry_run else 'is'} adopted: {self.records}"
                f" records ({self.foreign} of another broker) up to {self.end},"
                f" {self.topics} topics",
                f"timers: {self.timers}; recalled: {self.recalls}",
                f"delay levels: {sum(self.levels.values())}{levels}",
                f"retries among them: {self.retries}; dead letters: {self.dead_letters}",
                f"open half messages: {self.open_halves}; given up: {self.given_up}",
                f"groups: {len(self.groups)}{''.join(f'; {group}' for group in self.groups)}",
            ]
        )


def adopt(
    root: Path, *, given: Mapping[str, object] | None = None, dry_run: bool = False,
    progress: Progress | None = None,
) -> Adopted:  # fmt: skip
    """Take the store over whose root this is; `dry_run` only looks.

    What its RocketMQ was set to otherwise than by default, as delay levels, has to be `given`, if
    not in the home's gantrymq.toml.

    Raises StoreBusy, Incompatible (what cannot be carried), Corrupt, StoreFailed, OSError.
    """
    if not (root / "commitlog").is_dir():
        raise Incompatible(f"{root} has no commitlog/: name the root of a store", store=str(root))
    with lock.acquire(root, 0.0):
        storage = PosixStorage(str(root))
        home = root.resolve().parent
        settings = epoch.settle_sizes(storage, config.load(home, given)).settings
        done = Adopted(str(root), dry_run)
        take_over(storage, settings, done, epoch.find_old_board(home), progress, locked(root))
        return done


def take_over(
    storage: Storage, settings: Settings, done: Adopted, board: Board | None,
    progress: Progress | None = None, alone: AbstractContextManager[None] | None = None,
) -> None:  # fmt: skip
    """Look, refuse, and unless it is a dry run, take over. The store's lock is held."""
    from gantrymq.shm import jit

    jit.warm()
    from gantrymq.brokerd.handover.adoption import import_foreign
    from gantrymq.brokerd.handover.reading import read_unrecovered
    from gantrymq.brokerd.handover.refusals import require_carriable
    from gantrymq.brokerd.rebuild import bring_up_to_date

    segment_bytes = settings.mapped_file_size_commit_log
    pending = read_unrecovered(storage, segment_bytes, board, progress)
    require_carriable(storage, settings, pending)
    if not done.dry_run:
        found = bring_up_to_date(storage, settings, board, progress)
        ends = found.low, found.appended
        pending = import_foreign(storage, segment_bytes, *ends, alone=alone) or pending
        if storage.exists(epoch.ABORT_NAME):
            storage.unlink(epoch.ABORT_NAME)
            storage.sync_directory("")
    _tell(storage, settings, pending, done)


def _tell(storage: Storage, settings: Settings, pending: Pending, done: Adopted) -> None:
    from gantrymq.brokerd.handover.groupfiles import topic_queues
    from gantrymq.brokerd.handover.pending import messages
    from gantrymq.workers.groups.offsetfile import read_offsets

    segment_bytes = settings.mapped_file_size_commit_log
    done.end, done.records, done.foreign = pending.end, pending.records, pending.foreign
    done.recalls = pending.recalls
    parked = pending.transactions.parked
    done.open_halves = len(parked.pending) if parked else 0
    done.given_up = pending.transactions.given_up
    done.topics = len(topic_queues(storage))
    done.groups = sorted({group for _topic, group in read_offsets(storage)})
    done.timers = sum(len(records) for _queue, records in pending.waiting(TIMER_TOPIC))
    for queue_id, records in pending.waiting(SCHEDULE_TOPIC):
        if len(records):
            done.levels[queue_id + 1] = len(records)
    for topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
        for _queue, records in pending.waiting(topic):
            for properties in messages(storage, segment_bytes, records):
                done.retries += properties.get("REAL_TOPIC", "").startswith(RETRY_PREFIX)
    done.dead_letters = sum(
        following - first
        for (topic, _queue), (first, following) in pending.queues.items()
        if topic.startswith(DLQ_PREFIX)
    )
