"""The job that keeps a table equal to a log: step by step, each of them whole or not at all.

A step takes some ranges behind the table's position, has them written aside by
whoever runs the tasks (Spark, or this process), and commits them; then the pin moves. The position
is in the manifest only. So a step that was killed anywhere is done again, and no message is in the
table twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from gantrymq.clients.spark.continuity import proof_at, require_same
from gantrymq.clients.spark.options import BAD_TYPES, COLUMN_TYPES, ReadOptions
from gantrymq.clients.spark.planning import SegmentRange, Survey, survey, unread_bytes
from gantrymq.clients.spark.table.commit import Table
from gantrymq.clients.spark.table.compact import Merged, MergeTask, merge, mergeable
from gantrymq.clients.spark.table.files import TableFiles
from gantrymq.clients.spark.table.manifest import LAYOUT, VERSION, Manifest
from gantrymq.clients.spark.table.pin import Pin
from gantrymq.clients.spark.table.writing import RangeTask, Written, types_of, write_range
from gantrymq.clients.spark.topics import require_topics
from gantrymq.shm.errors import Incompatible, SettingIllegal, StoreFailed
from gantrymq.shm.storeplace import require_outside_stores

#: Ranges of 64 MiB of one step: what is done again after a kill, and waited for by a clean stop.
#: The first step of a run has one, each later one twice as many: whatever kills a run every few
#: seconds, each leaves something.
RANGES_MAX: Final = 8
#: Partitions that are built anew in one step.
_MERGES_MAX: Final = 16

#: Calls a function with each task, somewhere, and returns the results in order.
Run = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]


def run_here(function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
    """Run tasks in this process, one behind the other."""
    return [function(task) for task in tasks]


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """What is read, the table's folder, and the pin in the store: its name and when it yields."""

    read: ReadOptions
    out: str
    name: str
    until_ratio: int = 100
    report_data_loss: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did. `event` is commit, gap or compact; sizes are bytes of the log.

    `rows` were added, `bad_rows` of them with `crc_ok` false; a gap has the bytes that are gone.
    `lag_bytes` are there to be read behind `position`.
    """

    event: str
    generation: int
    position: int
    lag_bytes: int
    bytes: int
    segments: int
    rows: int
    bad_rows: int
    files: int
    seconds: float


class Ingest:
    """One table and its log. Raises SettingIllegal, Rejected, StoreBusy, StoreFailed, OSError."""

    def __init__(
        self, options: IngestOptions, run: Run = run_here, files: TableFiles | None = None
    ) -> None:
        require_outside_stores(Path(options.out), "table")
        self._options = options
        self._read = options.read
        self._run = run
        self._ranges = 1
        self._pin = Pin(options.read.store, options.name, options.out, options.until_ratio)
        sealed = replace(self._read, include_active=False)  # to walk that takes its time
        look = survey(sealed, durable_only=True)  # a wrong store leaves no folder
        require_topics(self._read)
        self._table = Table(files or TableFiles(options.out))
        try:
            self._begin(look)
        except BaseException:
            self._table.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._table.close()

    @property
    def manifest(self) -> Manifest:
        """The table as it is."""
        assert self._table.manifest is not None, "_begin makes one"
        return self._table.manifest

    def _begin(self, look: Survey) -> None:
        read, known = self._read, self._table.manifest
        topics = tuple(sorted(read.topics))
        if known is None:
            self._pin.move(0)
            look = survey(look.options, durable_only=True)  # retention may have gone on before
            low, proof = look.low, proof_at(look, look.low)
            asked = (topics, read.include_system, read.filter)
            columns = types_of(read, LAYOUT)
            made = Manifest(VERSION, 1, low, low, *asked, columns, proof, LAYOUT)
            self._table.commit(made)
        else:
            self._require_same(known, look, topics)
            if known.layout == 1 and not known.files:
                self._commit(layout=LAYOUT)
            columns = types_of(read, self.manifest.layout)
            grown = known.columns | columns
            changed: dict[str, Any] = {"columns": grown} if grown != known.columns else {}
            if known.proof.says_nothing:
                whole = survey(read, durable_only=True)
                changed["proof"] = proof_at(whole, known.position)
            if changed:
                self._commit(**changed)
        self._pin.move(self.manifest.position)

    def _require_same(self, known: Manifest, look: Survey, topics: tuple[str, ...]) -> None:
        asked = (topics, self._read.include_system, self._read.filter)
        if (known.topics, known.system, known.filter) != asked:
            words = ", ".join(known.topics) or "all topics"
            words += f", of what passes the filter {known.filter}" if known.filter else ""
            text = f"{self._options.out} is a table of {words}: ask for the same, or another folder"
            raise SettingIllegal(text)
        known_types = COLUMN_TYPES | BAD_TYPES
        for name, kind in known.columns.items():
            if known_types.get(name, kind) != kind:
                raise Incompatible(f"column {name} of {self._options.out} is {kind}")
        self._require_log(look, known)

    def _require_log(self, found: Survey, known: Manifest) -> None:
        """Raise Incompatible unless the log is the one that the table was made of."""
        remedy = "ingest this one into another folder (--out)"
        require_same(found, known.proof, known.position, self._options.out, remedy)

    def _looked(self) -> Survey:
        """The log behind the table's position. Raises Incompatible if it is another one by now.

        The store may be put back, or made anew, between two steps of one job.
        """
        known = self.manifest
        found = survey(self._read, known.position, durable_only=True)
        self._require_log(found, known)
        self._pin.follow(known.position)
        return found

    def step(self) -> Step | None:
        """Add the next ranges of the log to the table; None if it has all that may be read.

        Raises Corrupt for a damaged record and StoreFailed for a part of the log that is gone,
        unless the options say that they be reported; Incompatible if it is another log by now.
        """
        started = time.monotonic()
        position = self.manifest.position
        found = self._looked()
        gaps = found.gaps(position, max(found.high, found.low))
        if gaps and gaps[0][0] == position:
            return self._pass_gap(gaps[0], found, started)
        high = gaps[0][0] if gaps else found.high
        if high <= position:
            return None
        most = self._ranges
        parts = list(islice(found.ranges(position, high), most + 1))
        end = parts[most].base + parts[most].start if parts[most:] else high
        with self._table.aside() as aside:
            try:
                written = self._write(parts[:most], found, aside)
            except StoreFailed:
                if self._options.report_data_loss and self._is_gone(position):
                    return self.step()
                raise
            self._require_log(found, self.manifest)  # nor was it another one while it was read
            files = tuple(one.file for one in written)
            moves = [one.move for one in written]
            proof = proof_at(found, end, self.manifest.proof)
            self._commit(moves=moves, position=end, proof=proof, files=self.manifest.files + files)
        self._ranges = min(2 * most, RANGES_MAX)
        bases = {part.base for part in parts[:most]}
        done = self._step("commit", started, found, size=end - position)
        bad = sum(one.bad for one in written)
        rows = sum(file.rows for file in files)
        return replace(done, rows=rows, bad_rows=bad, files=len(files), segments=len(bases))

    def _write(self, parts: list[SegmentRange], found: Survey, aside: str) -> list[Written]:
        if not parts:
            return []
        ends = {piece.segment.base: piece.end for piece in found.pieces}
        tasks = [
            RangeTask(
                self._read,
                part,
                part.base + part.start,
                ends[part.base] if part.end is None else part.base + part.end,
                self._table.files.root,
                aside,
                self.manifest.layout,
            )
            for part in parts
        ]
        results = self._run(write_range, tasks)
        self._table.files.sync_directory(aside)
        return [one for result in results for one in result]

    def _is_gone(self, position: int) -> bool:
        return survey(self._read, position).low > position

    def _pass_gap(self, gap: tuple[int, int], found: Survey, started: float) -> Step:
        if not self._options.report_data_loss:
            raise StoreFailed(
                f"the log of {self._read.store} has lost positions {gap[0]} to {gap[1]} before"
                f" {self._options.out} had them: retention or the disk rule removed them; go on"
                " behind them with --on-data-loss report",
                path=self._read.store,
                position=gap[0],
            )
        proof = proof_at(found, gap[1], self.manifest.proof)
        self._commit(position=gap[1], proof=proof, gaps=(*self.manifest.gaps, gap))
        return self._step("gap", started, found, size=gap[1] - gap[0])

    def left_out(self) -> int:
        """Bytes of the log behind the table's position that are written, and may not be read yet.

        They are not durable, or nobody says so, or the segment they are in was not asked for.
        """
        return unread_bytes(self._read, self.manifest.position)

    def compact(self) -> Step | None:
        """Merge small files; None if there is nothing to gain."""
        started = time.monotonic()
        known = self.manifest
        groups = mergeable(known.files)[:_MERGES_MAX]
        if not groups:
            return None
        root = self._table.files.root
        with self._table.aside() as aside:
            tasks = [MergeTask(root, aside, group, known.columns) for group in groups]
            merged: list[Merged] = self._run(merge, tasks)
            old = {file.path for one in merged for file in one.files}
            files = [file for file in known.files if file.path not in old]
            files += [one.file for one in merged]
            files.sort(key=lambda file: (file.start, file.path))
            self._commit(swaps=[one.swap for one in merged], files=tuple(files))
        found = survey(self._read, known.position, durable_only=True)
        return replace(self._step("compact", started, found, size=0), files=len(merged))

    def _commit(self, moves: Any = (), swaps: Any = (), **changed: Any) -> None:  # noqa: ANN401
        known = self.manifest
        manifest = msgspec.structs.replace(known, generation=known.generation + 1, **changed)
        self._table.commit(manifest, moves, swaps)
        if manifest.position != known.position:
            self._pin.move(manifest.position)

    def _step(self, event: str, started: float, found: Survey, size: int) -> Step:
        known = self.manifest
        lag = max(found.high - known.position, 0)
        seconds = time.monotonic() - started
        return Step(event, known.generation, known.position, lag, size, 0, 0, 0, 0, seconds)
