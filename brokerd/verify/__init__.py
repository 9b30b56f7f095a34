"""`store verify`: every record of the log, and every derived file against it. Changes nothing.

A stopped store has to hold as a whole. Of a running one what is dispatched is judged, of one whose
broker was killed what was durable: the next start makes good what lies behind.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gantrymq.brokerd.batchqueues import batch_topics_of
from gantrymq.brokerd.dump.settings import load_settings, measured_settings
from gantrymq.brokerd.misplaced import FilesOnly
from gantrymq.brokerd.verify.bitmaps import BitmapCheck
from gantrymq.brokerd.verify.config import store_file_is_sound
from gantrymq.brokerd.verify.files import FileCheck, Found
from gantrymq.brokerd.verify.index import IndexCheck
from gantrymq.brokerd.verify.log import LogCheck, Progress, Records, Takers
from gantrymq.brokerd.verify.queues import QueueCheck
from gantrymq.brokerd.verify.report import Finding, Report
from gantrymq.brokerd.verify.scope import STORE_FILE, Scope, find_scope, with_ranges
from gantrymq.brokerd.verify.sidecars import SidecarCheck
from gantrymq.brokerd.verify.timers import TimerCheck
from gantrymq.shm import jit
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.storeplace import require_store
from gantrymq.shm.topicfiles import TOPICS

if TYPE_CHECKING:
    from os import PathLike

    from gantrymq.brokerd.dump.settings import StoreSettings
    from gantrymq.shm.storage import Storage

__all__ = [
    "Finding",
    "Progress",
    "Report",
    "Scope",
    "find_scope",
    "sizes_of",
    "verify",
    "with_ranges",
]


def verify(
    storage_root: str | PathLike[str],
    settings: Path | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check the store below `storage_root`, ours or a RocketMQ's.

    `settings` is a file of `key=value` lines with RocketMQ's names, for a RocketMQ's store whose
    sizes and delay levels are not the default; ours has them in `gantry/store.json`. `progress`
    gets bytes done, bytes in all and what is being done. Raises StoreBusy, SettingIllegal, OSError;
    FileNotFoundError if there is no store.
    """
    root = Path(storage_root)
    require_store(root)
    storage = FilesOnly(str(root))
    scope = find_scope(storage, root)
    jit.warm()
    report = Report(str(root), scope.state, scope.ours)
    for path in sorted(storage.misplaced):
        report.add(path, None, "a directory in place of a file")
    sizes = sizes_of(storage, settings, scope, report)
    segment_bytes = sizes.number("mappedFileSizeCommitLog")
    scope = with_ranges(scope, storage, segment_bytes, report)
    log = LogCheck(storage, segment_bytes, scope, report, progress)
    batch_topics = _batch_topics(storage, report)
    queues = QueueCheck(storage, sizes, scope, report, log, batch_topics)
    sidecars = SidecarCheck(storage, scope, report, log)
    index = IndexCheck(storage, sizes, scope, report, log)

    def take(records: Records) -> None:
        queues.take(records)
        index.take(records)

    log.run(Takers(take, sidecars.take, queues.begin_anew))
    queues.finish()
    lengths = (segment_bytes, sizes.queue_file_bytes)
    end = min(report.judged_to, scope.sure) if scope.passed_on else report.judged_to
    BitmapCheck(storage, report, lengths, end, scope.low).run(queues.queues.values())
    index.finish()
    sidecars.finish(whole=scope.whole, lost=log.lost)
    found = Found(
        report.log_end,
        log.last_ms,
        frozenset(log.names),
        tuple(queues.queues.values()),
        bool(log.lost),
        _is_all_ours(scope, report),
    )
    FileCheck(storage, scope, report, found).run()
    TimerCheck(storage, report).run()
    report.drop_below(scope.low())
    return report


def sizes_of(
    storage: Storage, settings: Path | None, scope: Scope, report: Report
) -> StoreSettings:
    """The sizes that a store was made with; from its files if `store.json` can't be believed."""
    if settings is None and scope.ours and not store_file_is_sound(storage, STORE_FILE, report):
        return measured_settings(storage)
    return load_settings(storage, settings)


def _is_all_ours(scope: Scope, report: Report) -> bool:
    stretch = scope.written.stretch(report.log_start)
    return stretch.ours and report.log_end <= stretch.end


def _batch_topics(storage: Storage, report: Report) -> frozenset[str]:
    """Topics of type BatchCQ; none, and a finding, where the file says what no topic can have."""
    try:
        return batch_topics_of(storage)
    except Corrupt as error:
        report.add(TOPICS, 0, "an entry that no topic has", found=str(error))
        return frozenset()
