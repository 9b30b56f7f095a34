"""Sidecars against the segments that they describe. A start makes a missing one again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.shm import layout
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.lognames import segment_name
from gantrymq.shm.sidecar import DIRECTORY, Sidecar, block_crcs, parse
from gantrymq.shm.storage import read_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gantrymq.brokerd.verify.log import LogCheck, SegmentRecords
    from gantrymq.brokerd.verify.report import Report
    from gantrymq.brokerd.verify.scope import Scope
    from gantrymq.shm.storage import Storage

_HEAD: Final = ("base", "segment_bytes", "end", "first_ms", "last_ms")


class SidecarCheck:
    """Compares each sidecar with what the walk found."""

    def __init__(self, storage: Storage, scope: Scope, report: Report, log: LogCheck) -> None:
        self._storage = storage
        self._scope = scope
        self._report = report
        self._names = log.names
        self._segment_bytes = log.segment_bytes
        self._left = {f"{DIRECTORY}/{name}" for name in storage.list(DIRECTORY)}

    def take(self, segment: SegmentRecords) -> None:
        """Check the sidecar of a whole segment, if there is one."""
        path = f"{DIRECTORY}/{segment.base:020d}"
        if path not in self._left:
            if self._must_be_there(segment):
                self._report.add(path, None, "missing file", "one that a start makes again")
            return
        self._left.discard(path)
        self._report.sidecars += 1
        try:
            sidecar = parse(read_file(self._storage, path), path)
        except Corrupt as error:
            self._report.add(path, 0, "damaged sidecar", found=str(error).removeprefix(f"{path}: "))
            return
        if not segment.damaged:
            self._compare(path, sidecar, segment)
        self._compare_blocks(path, sidecar, segment)

    def finish(self, *, whole: bool, lost: Sequence[tuple[int, int]]) -> None:
        """What is left describes no segment; an unfinished one may be there unless `whole`."""
        for path in sorted(self._left):
            name = path.rpartition("/")[2]
            base = int(name) if name.isdecimal() else -1
            if any(start <= base < end for start, end in lost):
                continue  # its segment is missing or damaged: that is told already
            if self._is_under_way(base):
                continue
            if 0 <= base < self._report.log_start:
                self._report.add(
                    segment_name(base), None, "missing segment", f"the one that {path} is of"
                )
            elif whole or not path.endswith(".new"):
                self._report.add(path, None, "stray file", "a sealed segment of that name")

    def _is_under_way(self, base: int) -> bool:
        """Of a running broker: its segment has expired, or was not full when the check began."""
        scope = self._scope
        if scope.state != "running" or scope.log_end is None:
            return False
        return 0 <= base < scope.low() or base + self._segment_bytes > scope.log_end

    def _must_be_there(self, segment: SegmentRecords) -> bool:
        """Whether our broker has sealed a segment before it was stopped."""
        scope = self._scope
        return scope.ours and scope.whole and segment.end <= scope.sure

    def _compare(self, path: str, sidecar: Sidecar, segment: SegmentRecords) -> None:
        head = {
            "base": segment.base,
            "segment_bytes": len(segment.view),
            "end": segment.end,
            "first_ms": segment.times[0] if segment.times else 0,
            "last_ms": segment.times[-1] if segment.times else 0,
        }
        for name in _HEAD:
            found = getattr(sidecar, name)
            if found != head[name]:
                at = layout.SIDECAR.offset(name)
                self._report.add(path, at, f"wrong {name}", str(head[name]), str(found))
        starts = _joined(segment.starts)
        if len(sidecar.positions) != len(starts):
            at = layout.SIDECAR.offset("records")
            found = str(len(sidecar.positions))
            self._report.add(path, at, "wrong number of records", str(len(starts)), found)
            return
        places = np.flatnonzero(sidecar.positions != starts)
        if len(places):
            first = int(places[0])
            self._report.add(
                path, layout.SIDECAR.size + 4 * first, "wrong position of a record",
                str(int(starts[first])), str(int(sidecar.positions[first])),
            )  # fmt: skip
        self._compare_topics(path, sidecar, _joined(segment.topics))

    def _compare_topics(self, path: str, sidecar: Sidecar, topics: NDArray[np.int64]) -> None:
        known = {name: number for number, name in enumerate(self._names)}
        numbers = np.array([known.get(name, -1) for name in sidecar.names], np.int64)
        found = numbers[sidecar.topic_numbers] if len(numbers) else topics[:0]
        if len(found) != len(topics):
            return  # told as a wrong number of records
        places = np.flatnonzero(found != topics)
        if len(places):
            first = int(places[0])
            self._report.add(
                path, layout.SIDECAR.size + 4 * len(topics) + 2 * first, "wrong topic of a record",
                self._names[int(topics[first])], sidecar.names[int(sidecar.topic_numbers[first])],
            )  # fmt: skip

    def _compare_blocks(self, path: str, sidecar: Sidecar, segment: SegmentRecords) -> None:
        """The blocks' CRCs tell of damage also where no record is."""
        found = block_crcs(segment.view.data)
        if len(found) != len(sidecar.block_crcs):
            return  # the segment's length differs: told above
        for block in np.flatnonzero(found != sidecar.block_crcs).tolist():
            self._report.add(
                segment_name(segment.base), block * layout.SIDECAR_BLOCK_BYTES,
                f"MiB block {block} is not what {path} noted",
                f"CRC {int(sidecar.block_crcs[block]):#010x}", f"{int(found[block]):#010x}",
            )  # fmt: skip


def _joined(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
