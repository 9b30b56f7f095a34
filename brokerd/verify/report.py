"""What a verification found, and how much it looked at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gantrymq.shm import lognames, sidecar

#: Findings that are listed; more are counted.
LISTED_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be. `position` is a byte of the file `path`."""

    path: str
    position: int | None
    what: str
    expected: str = ""
    found: str = ""

    def __str__(self) -> str:
        place = self.path if self.position is None else f"{self.path} at {self.position}"
        parts = [f"expected {self.expected}"] if self.expected else []
        parts += [f"found {self.found}"] if self.found else []
        return f"{place}: {self.what}" + (": " + ", ".join(parts) if parts else "")


@dataclass(slots=True)
class Report:
    """The outcome. `state` is the store's: stopped, killed or running; log positions are bytes.

    `judged_to` is the log position up to which records had to be sound: all of a stopped store,
    what was durable before a kill, what is dispatched of a running one.
    """

    store: str
    state: str = "stopped"
    ours: bool = True
    log_start: int = 0
    log_end: int = 0
    judged_to: int = 0
    segments: int = 0
    records: int = 0
    lost: int = 0  # of these, what only stands for lost ones (ADR 0014)
    queues: int = 0
    units: int = 0
    sidecars: int = 0
    index_files: int = 0
    index_entries: int = 0
    findings: list[Finding] = field(default_factory=list)
    more: int = 0

    @property
    def ok(self) -> bool:
        """True if nothing was found."""
        return not self.findings

    def add(
        self, path: str, position: int | None, what: str, expected: str = "", found: str = ""
    ) -> None:
        """Note a finding; beyond LISTED_MAX it is only counted."""
        if len(self.findings) < LISTED_MAX:
            self.findings.append(Finding(path, position, what, expected, found))
        else:
            self.more += 1

    def mark(self) -> tuple[int, int]:
        """How much was found so far, for `back_to`."""
        return len(self.findings), self.more

    def begin_anew(self, start: int, mark: tuple[int, int]) -> None:
        """The log begins at `start` now: what was counted, or found since a mark, is void."""
        del self.findings[mark[0] :]
        self.more = mark[1]
        self.log_start = self.log_end = start
        self.records = self.lost = self.units = self.sidecars = 0

    def drop_below(self, low: int) -> None:
        """Forget what was found of segments and sidecars that have expired by now."""
        self.findings = [one for one in self.findings if not _has_expired(one.path, low)]

    def __str__(self) -> str:
        lines = [str(finding) for finding in self.findings]
        if self.more:
            lines.append(f"... and {self.more} more")
        owner = "" if self.ours else ", written by another broker"
        lost = f" ({self.lost} stand for lost ones)" if self.lost else ""
        lines.append(
            f"{self.store} ({self.state}{owner}): {self.records} records{lost} in"
            f" {self.segments} segments from {self.log_start} to {self.log_end},"
            f" {self.units} units in {self.queues} queues, {self.index_entries} entries in"
            f" {self.index_files} index files, {self.sidecars} sidecars:"
            f" {len(self.findings) + self.more} findings"
        )
        return "\n".join(lines)


def _has_expired(path: str, low: int) -> bool:
    folder, _, name = path.rpartition("/")
    of_the_log = folder in (lognames.DIRECTORY, sidecar.DIRECTORY) and name.isdecimal()
    return of_the_log and int(name) < low
