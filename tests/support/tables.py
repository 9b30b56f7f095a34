"""Tables of `gantrymq ingest` as any reader of Parquet sees them: by pyarrow alone."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyarrow import parquet

from gantrymq.clients.spark.table.files import TableFiles
from gantrymq.clients.spark.table.manifest import load_manifest
from gantrymq.shm import sidecar
from gantrymq.shm.record import Record
from tests.support.sealed import segment_of, write_segment, write_sidecars
from tests.support.spark_rows import rows_of

SEGMENT_BYTES = 1 << 13
DAY_MS = 86_400_000


@dataclass(frozen=True)
class Content:
    """What is compared of a table and a log."""

    count: int
    crcs: int
    places: frozenset[tuple[str, int, int]]


def content_of(rows: Iterable[dict[str, Any]]) -> Content:
    """Count, XOR of CRCs over all fields, and (topic, queue, offset) of rows."""
    crcs, places = 0, []
    for row in rows:
        fields = sorted((name, str(value)) for name, value in row.items() if name != "date")
        crcs ^= zlib.crc32(repr(fields).encode())
        places.append((row["topic"], row["queue_id"], row["queue_offset"]))
    assert len(set(places)) == len(places), "a message is there twice"
    return Content(len(places), crcs, frozenset(places))


def listed(out: Path) -> list[str]:
    """The Parquet files that a glob finds."""
    return sorted(str(path.relative_to(out)) for path in out.glob("data/*/date=*/*.parquet"))


def table_rows(out: Path) -> list[dict[str, Any]]:
    """All rows that a glob finds, by position, with the day of their folders."""
    rows = []
    for name in listed(out):
        _, topic, date, _ = name.split("/")
        assert topic.startswith("folder=")
        words = {"date": date.partition("=")[2]}
        rows += [row | words for row in parquet.ParquetFile(out / name).read().to_pylist()]
    return sorted(rows, key=lambda row: row["physical_offset"])


def require_equal(out: Path, store: Path, **options: str) -> Content:
    """Fail unless the table is the log, its manifest names all files, and nothing lies about.

    Of a log whose last segment is open only the others, unless the options say otherwise.
    """
    options = {"includeActive": "false"} | options
    manifest = load_manifest(TableFiles(str(out)))
    assert manifest is not None
    found = content_of(table_rows(out))
    assert found == content_of(rows_of(store, **options))
    assert sorted(file.path for file in manifest.files) == listed(out)
    assert manifest.rows == found.count
    assert not list(out.glob("_gantry/aside/*"))
    return found


class GrowingStore:
    """A store whose log grows by whole segments, of three topics and two days."""

    def __init__(self, root: Path, *, salt: bytes = b"") -> None:
        """`salt` begins each body from then on."""
        self.root = root
        self.end = 0
        self._sent = 0
        self._records: list[Record] = []
        self.salt = salt

    def grow(self, *, seal: bool = True) -> None:
        """One more segment, and behind it the beginning of the next; without, only what it has."""
        self._records = [self._record() for _ in range(30)]
        if seal:
            self.seal()
            return
        view, _ = segment_of(self._records, SEGMENT_BYTES, self.end, sealed=False)
        write_segment(self.root, self.end, view)

    def seal(self) -> None:
        """Close the segment that is open."""
        view, _ = segment_of(self._records, SEGMENT_BYTES, self.end)
        write_segment(self.root, self.end, view)
        write_sidecars(self.root, [self.end])
        self.end += SEGMENT_BYTES
        view, _ = segment_of([self._record()], SEGMENT_BYTES, self.end, sealed=False)
        write_segment(self.root, self.end, view)
        self._sent -= 1

    def expire(self) -> None:
        """Remove the oldest segment as retention does."""
        first = min((self.root / "commitlog").iterdir())
        (self.root / sidecar.DIRECTORY / first.name).unlink(missing_ok=True)
        first.unlink()

    def _record(self) -> Record:
        number = self._sent
        self._sent += 1
        topic = ("orders", "%RETRY%bills", "t/1")[number % 3]
        properties = b"TAGS\x01a\x02n\x01%d\x02KEYS\x01k%d even\x02" % (number, number % 7)
        made = Record(topic=topic, body=self.salt + b"%d" % number * 5, properties=properties)
        time = 1_700_000_000_000 + number // 40 % 2 * DAY_MS
        return replace(made, queue_offset=number // 3, store_timestamp=time, born_timestamp=time)
