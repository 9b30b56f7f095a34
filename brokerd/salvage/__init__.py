"""`store verify --salvage`: a new store of all that is sound in a damaged one (ADR 0014).

Records keep their log positions and queue offsets. The old store is read only; the new one is made
under another name beside its place and renamed when it is whole.
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gantrymq.brokerd import config, lock
from gantrymq.brokerd.batchqueues import batch_topics_of
from gantrymq.brokerd.checkpoint import read_checkpoint
from gantrymq.brokerd.epoch import LEVELS, SIZES, settings_of_store
from gantrymq.brokerd.misplaced import FilesOnly
from gantrymq.brokerd.salvage.copying import copy_config, copy_range, copy_timer, write_own_files
from gantrymq.brokerd.salvage.losses import Claim, Losses, claims_of_units
from gantrymq.brokerd.salvage.plan import Part, fill, marker, place_unclaimed, split
from gantrymq.brokerd.synctree import rename_durably
from gantrymq.brokerd.verify import Report, find_scope, sizes_of, with_ranges
from gantrymq.brokerd.verify.log import LogCheck, SegmentRecords, Takers
from gantrymq.shm import jit, layout
from gantrymq.shm.errors import StoreBusy
from gantrymq.shm.lognames import DIRECTORY, segment_name
from gantrymq.shm.storage import PosixStorage
from gantrymq.shm.storelock import is_held
from gantrymq.shm.storeplace import require_outside_stores, require_store

if TYPE_CHECKING:
    from os import PathLike

    from gantrymq.brokerd.dump.settings import StoreSettings
    from gantrymq.brokerd.verify import Progress, Scope
    from gantrymq.shm.storage import Storage

PARTIAL_SUFFIX = ".partial"


@dataclass(slots=True)
class Lost:
    """Log positions [start, end) that held no sound record, and which records were there.

    `queues`: "topic@queue id" -> ranges [first, last] of queue offsets; a marker is at each now.
    """

    path: str
    start: int
    end: int
    records: int = 0
    queues: dict[str, list[list[int]]] = field(default_factory=dict)

    def add(self, topic: str, queue_id: int, offset: int) -> None:
        """Note a record."""
        self.records += 1
        ranges = self.queues.setdefault(f"{topic}@{queue_id}", [])
        if ranges and ranges[-1][1] == offset - 1:
            ranges[-1][1] = offset
        else:
            ranges.append([offset, offset])

    def __str__(self) -> str:
        text = f"{self.path}: log positions {self.start} to {self.end}, {self.records} records lost"
        rows = [
            f"{name}: " + ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in ranges)
            for name, ranges in sorted(self.queues.items())
        ]
        return text + (" (" + "; ".join(rows) + ")" if rows else "")


@dataclass(slots=True)
class Salvaged:
    """What was saved and what was not. `unplaced`: lost queue offsets that no marker is for."""

    store: str
    target: str
    ours: bool
    log_start: int = 0
    log_end: int = 0
    records: int = 0
    lost: list[Lost] = field(default_factory=list)
    unplaced: int = 0
    files: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [str(lost) for lost in self.lost]
        lines += [f"{path}: {what}" for path, what in sorted(self.files.items())]
        count = sum(lost.records for lost in self.lost)
        lines.append(
            f"{self.target}: {self.records} records from {self.log_start} to {self.log_end} saved"
            f" of {self.store}; {count} known to be lost"
        )
        return "\n".join(lines)


def salvage(
    root: str | PathLike[str],
    target: str | PathLike[str],
    settings: Path | None = None,
    progress: Progress | None = None,
) -> Salvaged:
    """Make a new store at `target`, which may not exist yet, of what is sound below `root`.

    Raises StoreBusy, Rejected, FileExistsError, SettingIllegal, OSError.
    """
    old, new = Path(root), Path(target)
    require_store(old)
    partial = new.with_name(new.name + PARTIAL_SUFFIX)
    for path in (new, partial):
        if os.path.lexists(path):
            raise FileExistsError(f"{path} is there already: name a directory that is not")
    require_outside_stores(new, "new store")
    if is_held(old):
        raise StoreBusy(f"a broker holds {old}: stop it first", store=str(old))
    jit.warm()
    source = FilesOnly(str(old))
    partial.mkdir(mode=0o700, parents=True)
    with lock.acquire(partial, 0.0):
        try:
            done = _Salvage(source, PosixStorage(str(partial)), old, settings, progress).run()
            done.target = str(new)
            rename_durably(partial, new)
        except BaseException:
            shutil.rmtree(partial)
            raise
        return done


class _Salvage:
    """One run."""

    def __init__(
        self, source: Storage, target: Storage, root: Path, settings: Path | None,
        progress: Progress | None,
    ) -> None:  # fmt: skip
        self._source = source
        self._target = target
        self._progress = progress
        report = Report(str(root))
        scope = find_scope(source, root)
        self._sizes: StoreSettings = sizes_of(source, settings, scope, report)
        self._bytes = self._sizes.number("mappedFileSizeCommitLog")
        self._scope = _whole(with_ranges(scope, source, self._bytes, report), source)
        self._report = report
        self._log = LogCheck(source, self._bytes, self._scope, report, progress, any_length=True)
        self._losses = Losses(self._log, batch_topics_of(source))
        self._ends: dict[int, int] = {}
        self._done = Salvaged(str(root), "", scope.ours)

    def run(self) -> Salvaged:
        """Walk, plan, copy, and let the new store be built of its log."""
        self._log.run(Takers(self._losses.take, self._note_end))
        done, report = self._done, self._report
        done.records, done.log_start = self._losses.records, report.log_start
        if report.log_start:
            self._losses.forget_heads()
        lost = self._lost_ranges()
        claims, parts = self._plan(lost)
        done.unplaced = place_unclaimed(self._losses, claims, parts)
        done.log_end = self._log_end(claims, parts)
        self._write_log(lost, claims, parts)
        self._tell(lost, claims, parts)
        copy_config(self._source, self._target, done)
        copy_timer(self._source, self._target)
        if self._scope.ours:
            self._finish_own()
        return done

    def _note_end(self, segment: SegmentRecords) -> None:
        self._ends[segment.base] = segment.end + layout.FILLER.size

    # --------------------------------------------------------------------------------------- plan

    def _lost_ranges(self) -> list[tuple[int, int]]:
        """Damage in the order of the log, each range within one segment."""
        step = self._bytes
        pieces = [
            (max(start, base), min(end, base + step))
            for start, end in self._log.lost
            for base in range(start // step * step, end, step)
        ]
        merged: list[tuple[int, int]] = []
        for start, end in sorted(pieces):
            if merged and start < merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        return merged

    def _plan(self, lost: list[tuple[int, int]]) -> tuple[list[Claim], list[Part]]:
        found = claims_of_units(self._source, self._losses, lost)
        behind = max((end for end, _ms in self._losses.times), default=0)
        behind = max([behind, *(claim.end for claim in found)])
        claims: list[Claim] = []
        parts: list[Part] = []
        for start, end in lost:
            inside = [claim for claim in found if start <= claim.position < end]
            last = end >= behind and not any(other >= end for other, _stop in lost)
            kept, free = split(start, end, inside, at_end=end % self._bytes == 0, last=last)
            claims += kept
            parts += free
        return claims, parts

    def _log_end(self, claims: list[Claim], parts: list[Part]) -> int:
        """Behind the last record, sound or known of; a filler's segment counts whole."""
        ends = [self._report.log_start, *(end for end, _ms in self._losses.times)]
        ends += [claim.end for claim in claims]
        ends += [base + self._bytes for base in self._ends]
        ends += [p.start + p.used if p.last else p.end for p in parts if p.queued or not p.last]
        return max(ends)

    # ---------------------------------------------------------------------------------------- log

    def _write_log(
        self, lost: list[tuple[int, int]], claims: list[Claim], parts: list[Part]
    ) -> None:
        end = self._done.log_end
        for base in range(self._report.log_start, max(end, 1), self._bytes):
            file = self._target.create(segment_name(base))
            with closing(file):
                file.truncate(self._bytes)
            if self._source.exists(segment_name(base)):
                self._copy_sound(base, [span for span in lost if span[0] // self._bytes == base // self._bytes])  # noqa: E501  # fmt: skip
        for claim in claims:
            ms = self._losses.time_before(claim.position)
            data = marker(claim.key, claim.offset, claim.position, claim.size, ms)
            self._put(claim.position, data)
        for part in parts:
            if part.start < end:
                for piece in fill(part, self._losses.time_before(part.start)):
                    self._put(piece.position, piece.data)
        for name in self._target.list(DIRECTORY):
            with closing(self._target.open(f"{DIRECTORY}/{name}", write=True)) as file:
                file.sync()

    def _copy_sound(self, base: int, lost: list[tuple[int, int]]) -> None:
        size = self._source.size_of(segment_name(base))
        stop = min(self._ends.get(base, base + self._bytes), self._done.log_end, base + size)
        at = base
        for start, end in [*lost, (stop, stop)]:
            if at < min(start, stop):
                copy_range(self._source, self._target, base, at, min(start, stop))
            at = max(at, end)

    def _put(self, position: int, data: bytes) -> None:
        base = position // self._bytes * self._bytes
        with closing(self._target.open(segment_name(base), write=True)) as file:
            file.write_at(data, position - base)

    # --------------------------------------------------------------------------------------- rest

    def _tell(self, lost: list[tuple[int, int]], claims: list[Claim], parts: list[Part]) -> None:
        for start, end in lost:
            found = Lost(segment_name(start // self._bytes * self._bytes), start, end)
            known = [(c.key, c.offset) for c in claims if start <= c.position < end]
            for part in parts:
                if start <= part.start < end:
                    known += part.queued
            for (topic, queue_id), offset in sorted(known):
                found.add(topic, queue_id, offset)
            if known or start < self._done.log_end:
                self._done.lost.append(found)

    def _finish_own(self) -> None:
        """Truth of `gantry/`, and everything derived by the code that starts use."""
        from gantrymq.brokerd.rebuild import Rebuilt, make_again

        sizes = dict(zip(SIZES, (self._bytes, self._sizes.queue_file_bytes), strict=True))
        kept = sizes | {LEVELS: self._sizes.text("messageDelayLevel")}
        end = (self._done.log_end, self._losses.time_before(self._done.log_end))
        write_own_files(self._source, self._target, kept, end, self._done)
        home = Path(self._source.root).resolve().parent
        settings = replace(
            settings_of_store(self._target, config.load(home)),
            max_hash_slot_num=self._sizes.number("maxHashSlotNum"),
            max_index_num=self._sizes.number("maxIndexNum"),
        )
        make_again(self._target, settings, Rebuilt(""), self._progress)


def _whole(scope: Scope, source: Storage) -> Scope:
    """Judge everything: also of a store that was killed no record may be passed over."""
    checkpoint = read_checkpoint(source)
    durable = checkpoint.durable if checkpoint and scope.ours else 0
    sure = max(scope.sure, durable)
    return replace(scope, state="stopped", log_end=None, units_end=None, sure=sure)


__all__ = ["Lost", "Salvaged", "salvage"]
