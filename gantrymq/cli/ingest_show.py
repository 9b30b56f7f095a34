"""What `gantrymq ingest` prints: a bar on a terminal, lines of JSON for programs, one line else.

One that follows the log and has no terminal says once a minute how far it is: a journal shows it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self, TextIO

if TYPE_CHECKING:
    from gantrymq.clients.spark.table.job import Step
    from gantrymq.clients.spark.table.manifest import Manifest

_MIB = 1 << 20
_NOT_DURABLE = (
    "they are not durable yet, or a RocketMQ writes it, which does not say what is; a later run, or"
    " one after its stop, reads them"
)
#: Seconds after which one that follows the log says how far it is.
TOLD_S = 60.0


class Progress:
    """Steps of one run as they are done; sizes are bytes of the log.

    `follows` if the run has no end of its own. `clock` returns seconds.
    """

    def __init__(
        self,
        out: TextIO,
        terminal: TextIO,
        *,
        as_json: bool,
        follows: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = out
        self._as_json = as_json
        self._clock = clock
        self._started = self._told = clock()
        self._told_rows = 0
        self._rows = self._bytes = self._segments = self._bad = 0
        self._lost = 0
        self._bar = _bar(terminal) if terminal.isatty() and not as_json else None
        self._task: Any = None
        self._tells = follows and self._bar is None

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("looking at the log", total=None)
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, manifest: Manifest) -> None:
        """From here on this run adds."""
        self._line("begin", position=manifest.position, rows=manifest.rows)

    def step(self, done: Step) -> None:
        """One more step."""
        self._rows += done.rows
        self._segments += done.segments
        self._bad += done.bad_rows
        if done.event == "gap":
            self._lost += done.bytes
        else:
            self._bytes += done.bytes
        shown = asdict(done)
        rate = done.bytes / _MIB / max(done.seconds, 1e-9)
        self._line(shown.pop("event"), **shown, mib_per_s=round(rate, 1))
        if self._bar is not None:
            self._bar.update(
                self._task,
                description=f"{self._segments} segments, {self._rows:,} rows",
                total=self._bytes + done.lag_bytes,
                completed=self._bytes,
            )

    def look(self, manifest: Manifest, lag_bytes: int) -> None:
        """How far a run that follows is, if it is time to say so; as JSON, if no step did."""
        seconds = self._clock() - self._told
        if not self._tells or seconds < TOLD_S:
            return
        table = {"table_rows": manifest.rows, "table_files": len(manifest.files)}
        self._line("look", position=manifest.position, lag_bytes=lag_bytes, **table)
        if not self._as_json:
            self._out.write(
                f"{self._rows - self._told_rows:,} messages in {seconds:.0f} s; the table has"
                f" {manifest.rows:,}, up to position {manifest.position}; {lag_bytes:,} bytes of"
                " the log are to be read\n"
            )
            self._out.flush()
            self._told, self._told_rows = self._clock(), self._rows

    def end(self, manifest: Manifest, left_out: int = 0, *, active: bool = True) -> None:
        """The last line: what this run did and what the table is.

        `left_out` bytes are behind its position; `active` if the segment being written was read.
        """
        seconds = self._clock() - self._started
        rate = self._bytes / _MIB / max(seconds, 1e-9)
        if self._as_json:
            table = {"table_rows": manifest.rows, "table_files": len(manifest.files)}
            lost = {"bad_rows": self._bad, "gap_bytes": self._lost, "seconds": seconds}
            lost["left_out_bytes"] = left_out
            self._line("end", position=manifest.position, rows=self._rows, **table, **lost)
            return
        self._out.write(
            f"{self._rows:,} messages in {seconds:.1f} s ({rate:.1f} MiB/s of the log);"
            f" the table has {manifest.rows:,} in {len(manifest.files)} files,"
            f" up to position {manifest.position}\n"
        )
        if self._bad:
            self._out.write(f"{self._bad} damaged records are rows with crc_ok = false\n")
        if self._lost:
            self._out.write(f"{self._lost} bytes of the log were gone: see gaps of the manifest\n")
        if left_out:
            why = _NOT_DURABLE if active else "--active reads what is durable of it"
            self._out.write(
                f"{left_out} bytes of the segment that is being written were left out: {why}\n"
            )

    def _line(self, event: str, **values: object) -> None:
        if self._as_json:
            self._out.write(json.dumps({"event": event, **values}) + "\n")
            self._out.flush()
            self._told = self._clock()


def _bar(terminal: TextIO) -> Any:  # noqa: ANN401 - rich.progress.Progress, not loaded for types
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),  # read of what there is: the rest is the lag
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(file=terminal),
        transient=True,
    )
