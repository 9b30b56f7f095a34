"""`gantrymq handover`: a stopped store becomes one that a RocketMQ goes on with (ADR 0017).

The order is HO-72's: recover, finish the queues, append what transactions lack and finish them
again, then `timerlog/`, then `config/`, then what would mislead goes, `abort` last. Only op records
and copies of what is committed change the log (HO-45), so a hand-over that was killed is simply run
again, and so is one that has become too old. GantryMQ itself reads none of what is
written here but group offsets, and starts on the store as before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gantrymq.brokerd import config, epoch, lock
from gantrymq.brokerd.handover import groupfiles, timerfiles
from gantrymq.brokerd.handover.names import HALVES, OPS, TIMERS
from gantrymq.brokerd.handover.timerfiles import TimerForm, timer_of
from gantrymq.clients.home import board_file, store_of
from gantrymq.shm.bitmapnote import DIRECTORY as EXTENSIONS
from gantrymq.shm.errors import Incompatible
from gantrymq.shm.properties import (
    DLQ_PREFIX,
    GANTRY_TX_DELAY,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from gantrymq.shm.storage import PosixStorage
from gantrymq.workers.groups.offsetfile import TRANSACTIONS_GROUP
from gantrymq.workers.scheduler.note import write_level_offsets

if TYPE_CHECKING:
    from gantrymq.brokerd.config import Settings
    from gantrymq.brokerd.handover.pending import Pending, Progress
    from gantrymq.brokerd.handover.timerfiles import Timer
    from gantrymq.brokerd.recovered import Recovered
    from gantrymq.shm.board import Board
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.groups.offsetfile import Offsets

_WHEEL: Final = "timerwheel"


@dataclass(slots=True)
class HandedOver:
    """What a RocketMQ finds to do. `levels`: level -> (waiting, next offset); times are Unix ms."""

    store: str
    dry_run: bool = False
    end: int = 0
    timers: int = 0
    overdue: int = 0
    rolled: int = 0
    levels: dict[int, tuple[int, int]] = field(default_factory=dict)
    repeated: int = 0  # served out of order: they come again, or what waits before them is lost
    done_ahead: int = 0  # groups are done with them, but not with one before: they come again
    retries: int = 0
    dead_letters: int = 0
    recalls: int = 0
    open_halves: int = 0
    delayed_halves: list[str] = field(default_factory=list)  # ids: RocketMQ knows no such delay
    given_up: int = 0
    finished: int = 0  # committed transactions' halves that got their message now
    named: int = 0  # settled halves that got into an op record now
    groups: dict[str, int] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    start_before_ms: int = 0

    def __str__(self) -> str:
        waiting = sum(count for count, _next in self.levels.values())
        lines = [
            f"{self.store}: {'would be' if self.dry_run else 'is'} handed over at log position"
            f" {self.end}",
            f"timers: {self.timers} ({self.overdue} overdue, {self.rolled} far ahead);"
            f" recalled: {self.recalls}",
            f"delay levels: {waiting}"
            + "".join(f"; {level}: {n} from {at}" for level, (n, at) in self.levels.items()),
            f"retries among them: {self.retries}; dead letters: {self.dead_letters}",
            f"open half messages: {self.open_halves}; given up: {self.given_up}; finished now:"
            f" {self.finished}; settled ones named in op records now: {self.named}",
            f"groups: {len(self.groups)}"
            + "".join(f"; {group}: {count} queues" for group, count in self.groups.items()),
        ]
        if self.delayed_halves:
            lines.append(
                f"{len(self.delayed_halves)} open half messages have a delay, which a RocketMQ does"
                f" not know: it delivers them at their commit: {', '.join(self.delayed_halves)}"
            )
        if self.repeated:
            lines.append(f"{self.repeated} delayed messages that were delivered come again")
        if self.done_ahead:
            lines.append(
                f"{self.done_ahead} messages that groups are done with come again, for one before"
                " them is not done with"
            )
        lines.append("The RocketMQ must have these settings:")
        lines += [f"  {name}={value}" for name, value in self.settings.items()]
        lines.append(
            f"Start it before {_when(self.start_before_ms)}, or run this again: it never looks at"
            " timers that are older."
        )
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Target:
    """Of the RocketMQ that is to come; None: as GantryMQ's own setting."""

    now_ms: int
    precision_ms: int | None = None
    window_slots: int = timerfiles.WINDOW_SLOTS
    timer_log_bytes: int = timerfiles.FILE_BYTES

    def form(self, settings: Settings) -> TimerForm:
        """What the timer's files look like."""
        precision = self.precision_ms or settings.timer_precision_ms
        return TimerForm(self.now_ms, precision, self.timer_log_bytes, self.window_slots)


def handover(
    home: Path, target: Target, *, given: Mapping[str, object] | None = None,
    dry_run: bool = False, progress: Progress | None = None,
) -> HandedOver:  # fmt: skip
    """Hand over the stopped store below a home; `dry_run` only tells and changes nothing.

    Settings are those of the store's last life, and `given` ones.

    Raises StoreBusy, Incompatible (no store, or what waits in delay levels that are not in the
    settings), Corrupt, StoreFailed, OSError.
    """
    root = store_of(home)
    if not root.is_dir():
        raise Incompatible(f"{root} is no store: name the broker's home", store=str(root))
    with lock.acquire(root, 0.0):
        storage = PosixStorage(str(root))
        settings = epoch.settings_of_store(storage, config.load(home, given))
        old_board = epoch.find_old_board(home)
        done = HandedOver(str(root), dry_run)
        if dry_run:
            look(storage, settings, target, done, old_board)
        else:
            make(storage, settings, target, done, old_board, progress)
            epoch.forget_old_boards(home, "")
            board_file(home).unlink(missing_ok=True)
        return done


def look(
    storage: Storage, settings: Settings, target: Target, done: HandedOver, board: Board | None
) -> None:
    """Fill `done` without changing anything. Raises Incompatible, Corrupt, OSError."""
    from gantrymq.shm import jit

    jit.warm()
    from gantrymq.brokerd.handover.finishing import count
    from gantrymq.brokerd.handover.reading import read_unrecovered
    from gantrymq.brokerd.handover.refusals import require_levels

    pending = read_unrecovered(storage, settings.mapped_file_size_commit_log, board)
    require_levels(settings, pending)
    form = target.form(settings)
    done.finished, done.named = count(storage, pending.transactions)
    for _timer in _timers(storage, settings, pending, form, done):
        pass  # it counts
    _tell(storage, settings, pending, form, done)


def make(
    storage: Storage, settings: Settings, target: Target, done: HandedOver, board: Board | None,
    progress: Progress | None = None,
) -> None:  # fmt: skip
    """Carry it out; the store's lock is held.

    Raises Incompatible, Corrupt, StoreFailed, OSError.
    """
    from gantrymq.shm import jit

    jit.warm()
    from gantrymq.brokerd.handover.finishing import finish
    from gantrymq.brokerd.handover.pending import read_pending
    from gantrymq.brokerd.handover.reading import read_unrecovered
    from gantrymq.brokerd.handover.refusals import require_levels
    from gantrymq.brokerd.rebuild import bring_up_to_date
    from gantrymq.shm.ranges import Ranges, read_ranges

    def read(known: Pending | None) -> tuple[Recovered, Pending]:
        found = bring_up_to_date(storage, own, board, progress)
        if known is not None and known.end == found.appended:
            return found, known
        ranges = read_ranges(storage) or Ranges()
        pending = read_pending(storage, segment_bytes, ranges, found.appended, progress)
        require_levels(settings, pending)
        return found, pending

    segment_bytes = settings.mapped_file_size_commit_log
    own = epoch.with_own_levels(storage, settings)
    seen = read_unrecovered(storage, segment_bytes, board, progress)
    require_levels(settings, seen)
    found, pending = read(seen)
    done.finished, done.named = finish(
        storage, settings, found, pending.transactions, target.now_ms
    )
    if done.named:
        board = None  # what it knows of ends before what was appended
        found, pending = read(None)
    for key, (following, _units, first) in found.queues.items():
        pending.queues[key] = (first, following)  # also of queues whose records are all gone
    form = target.form(settings)
    timers = _timers(storage, settings, pending, form, done)
    stream = timerfiles.units(timers, _closing(pending), form)
    timerfiles.write_timer_log(storage, stream, form)
    timerfiles.write_timer_checkpoint(storage, pending.queues.get(TIMERS, (0, 0))[1], form)
    _tell(storage, settings, pending, form, done)
    levels = {level: following for level, (_count, following) in done.levels.items()}
    write_level_offsets(storage, levels, 0)
    offsets = _group_offsets(storage, pending)
    groupfiles.write_group_offsets(storage, offsets, pending.end)
    groupfiles.complete_tables(storage)
    groupfiles.settle_filters(storage, settings, target.now_ms)
    _remove_misleading(storage)


def _group_offsets(storage: Storage, pending: Pending) -> Offsets:
    """Offsets of all groups; that of transactions is the log's, whoever saved another (HO-40)."""
    offsets = groupfiles.read_group_offsets(storage, pending.queues, pending.visit)
    for key, offset in (
        (HALVES, pending.transactions.half_offset), (OPS, pending.transactions.op_offset)
    ):  # fmt: skip
        offsets.pop((key[0], TRANSACTIONS_GROUP), None)
        if key in pending.queues:
            offsets[key[0], TRANSACTIONS_GROUP] = {key[1]: offset}
    return offsets


def _remove_misleading(storage: Storage) -> None:
    for name in storage.list(""):
        if name.startswith(_WHEEL):
            storage.unlink(name)
    groupfiles.remove_leftovers(storage)
    storage.sync_directory("")
    if storage.exists(epoch.ABORT_NAME):
        storage.unlink(epoch.ABORT_NAME)
        storage.sync_directory("")


def _timers(
    storage: Storage, settings: Settings, pending: Pending, form: TimerForm, done: HandedOver
) -> Iterator[Timer]:
    """Pending timers in order of parking; counted as they pass."""
    from gantrymq.brokerd.handover.pending import messages

    for _queue, records in pending.waiting(TIMER_TOPIC):
        rows = records[["position", "size", "store_ms"]].tolist()
        found = messages(storage, settings.mapped_file_size_commit_log, records)
        for row, properties in zip(rows, found, strict=True):
            timer = timer_of(properties, row)
            _slot, rolled = timerfiles.slot_of(timer, form)
            done.timers += 1
            done.overdue += timer.out_ms < form.read_ms
            done.rolled += rolled
            done.retries += timer.topic.startswith(RETRY_PREFIX)
            yield timer


def _closing(pending: Pending) -> tuple[int, int] | None:
    """The timer queue's newest record, unless it waits itself (HO-14)."""
    parked = pending.parked.get(TIMERS)
    if parked is None or not parked.settled[-1]:
        return None
    last = parked.records[-1]
    return int(last["position"]), int(last["size"])


def _tell(
    storage: Storage, settings: Settings, pending: Pending, form: TimerForm, done: HandedOver
) -> None:
    """Everything but the timers, which are counted where they pass."""
    from gantrymq.brokerd.batchunits import file_bytes_of
    from gantrymq.brokerd.handover.pending import messages

    done.end, done.recalls = pending.end, pending.recalls
    _tell_transactions(storage, settings, pending, done)
    done.start_before_ms = form.start_before_ms
    for (topic, queue_id), (first, following) in sorted(pending.queues.items()):
        parked = pending.parked.get((topic, queue_id))
        if topic == SCHEDULE_TOPIC and following:
            at = parked.next_offset if parked else following
            done.levels[queue_id + 1] = (len(parked.pending) if parked else 0, at)
            done.repeated += parked.out_of_order if parked else 0
        elif topic.startswith(DLQ_PREFIX):
            done.dead_letters += following - first
    for _queue, records in pending.waiting(SCHEDULE_TOPIC):
        for properties in messages(storage, settings.mapped_file_size_commit_log, records):
            done.retries += properties.get("REAL_TOPIC", "").startswith(RETRY_PREFIX)
    offsets = _group_offsets(storage, pending)
    counts = Counter[str]()
    for (_topic, group), queues in offsets.items():
        counts[group] += len(queues)
    done.groups = dict(sorted(counts.items()))
    done.done_ahead = groupfiles.done_ahead(storage)
    extended, batch_bytes = bool(storage.list(EXTENSIONS)), file_bytes_of(storage)
    done.settings = settings_of(settings, form, extended=extended, batch_bytes=batch_bytes)


def _tell_transactions(
    storage: Storage, settings: Settings, pending: Pending, done: HandedOver
) -> None:
    from gantrymq.brokerd.handover.pending import messages

    left = pending.transactions
    parked = left.parked.pending if left.parked else left.waiting
    done.open_halves, done.given_up = len(parked), left.given_up
    done.delayed_halves = [
        properties.get("UNIQ_KEY", f"at {position}")
        for position, properties in zip(
            parked["position"].tolist(),
            messages(storage, settings.mapped_file_size_commit_log, parked),
            strict=True,
        )
        if GANTRY_TX_DELAY in properties
    ]


def settings_of(
    settings: Settings, form: TimerForm, *, extended: bool = False, batch_bytes: int = 0
) -> dict[str, str]:
    """What a RocketMQ's broker.conf must say, for nothing in the store does (HO-73).

    `extended`: units have addresses of extensions, which it would take for tag codes;
    `batch_bytes`: length of the queue files of topics of type BatchCQ, 0 without any.
    """
    values: dict[str, Any] = {
        "brokerName": settings.broker_name,
        "brokerClusterName": settings.broker_cluster_name,
        "mappedFileSizeCommitLog": settings.mapped_file_size_commit_log,
        "mappedFileSizeConsumeQueue": settings.mapped_file_size_consume_queue,
        "mappedFileSizeConsumeQueueExt": settings.mapped_file_size_consume_queue_ext,
        "enableConsumeQueueExt": str(settings.enable_consume_queue_ext or extended).lower(),
        "enableCalcFilterBitMap": str(settings.enable_calc_filter_bit_map).lower(),
        "maxErrorRateOfBloomFilter": settings.max_error_rate_of_bloom_filter,
        "expectConsumerNumUseFilter": settings.expect_consumer_num_use_filter,
        "maxHashSlotNum": settings.max_hash_slot_num,
        "maxIndexNum": settings.max_index_num,
        "mappedFileSizeTimerLog": form.file_bytes,
        "timerPrecisionMs": form.precision_ms,
        "timerRollWindowSlot": form.window_slots,
        "messageDelayLevel": settings.message_delay_level,
    }
    if batch_bytes:
        values["mapperFileSizeBatchConsumeQueue"] = batch_bytes
    return {name: str(value) for name, value in values.items()}


def _when(ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
