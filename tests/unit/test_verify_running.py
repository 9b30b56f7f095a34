"""`store verify` of a running broker's store, while retention and housekeeping take files of it.

The broker is one that is only said to run: before each call of the check's storage in turn all that
it may take is taken. So no moment is left to luck.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from gantrymq.brokerd import logscan
from gantrymq.brokerd import verify as verify_module
from gantrymq.brokerd.misplaced import FilesOnly
from gantrymq.brokerd.verify import Report, Scope, queues, verify
from gantrymq.shm import layout
from gantrymq.shm.indexnote import Note, read_note, save_note
from gantrymq.shm.storage import PosixFile, PosixStorage
from tests.support.small_stores import SEGMENT_BYTES, filtered_store, flip
from tests.support.trials import mends

UNIT = layout.CQ_UNIT_BYTES


@dataclass
class Taken:
    """A store whose broker may take what lies below `bound`."""

    root: Path
    bound: int
    low: int = 0

    def raise_low(self) -> None:
        """First step: `low`, and index files, which the housekeeper drops at once."""
        self.low = self.bound
        known = read_note(PosixStorage(str(self.root)))
        assert known is not None
        for name, header in known[1].files[:-1]:
            if header.end_position < self.bound:
                (self.root / "index" / name).unlink(missing_ok=True)

    def take_all(self) -> None:
        """And the rest, after the grace, as brokerd/removal.py does."""
        self.raise_low()
        for base in range(0, self.bound, SEGMENT_BYTES):
            self._empty(self.root / f"commitlog/{base:020d}")
            (self.root / f"gantry/segments/{base:020d}").unlink()
        for folder in sorted((self.root / "consumequeue").glob("*/*")):
            self._take_extensions(folder)
            for path in sorted(folder.iterdir())[:-1]:
                if 0 < self._units(path)[-1]["physical_offset"] < self.bound:
                    path.unlink()

    def _empty(self, segment: Path) -> None:
        """Away from its place, then its blocks: who has it mapped reads zeroes."""
        gone = self.root / "gantry/expired" / segment.name
        gone.parent.mkdir(exist_ok=True)
        segment.rename(gone)
        with gone.open("r+b") as file:
            file.write(bytes(SEGMENT_BYTES))
        gone.unlink()

    def _take_extensions(self, folder: Path) -> None:
        files = sorted(
            (self.root / "consumequeue_ext" / folder.parent.name / folder.name).glob("*")
        )
        units = [unit for path in sorted(folder.iterdir()) for unit in self._units(path)]
        first = next(unit for unit in units if unit["physical_offset"] >= self.bound)
        address = first["tags_code"] - layout.CQ_EXT_ADDRESS_BASE
        for path, following in pairwise(files):
            if int(following.name) <= address:
                path.unlink()

    def _units(self, path: Path) -> list[dict[str, int]]:
        data = path.read_bytes()
        return [layout.CQ_UNIT.unpack(data, at) for at in range(0, len(data), UNIT)]


class Watched(FilesOnly):
    """Does something before its call of a number."""

    number = -1
    calls = 0
    then: Callable[[], None]

    def _count(self) -> None:
        Watched.calls += 1
        if Watched.calls == Watched.number:
            Watched.then()

    def open(self, name: str, *, write: bool = False) -> PosixFile:
        """Counted."""
        self._count()
        return super().open(name, write=write)

    def exists(self, name: str) -> bool:
        """Counted."""
        self._count()
        return super().exists(name)

    def size_of(self, name: str) -> int:
        """Counted."""
        self._count()
        return super().size_of(name)

    def list(self, name: str) -> list[str]:
        """Counted, and what is listed may be gone."""
        found = super().list(name)
        self._count()
        return found


def nothing() -> None:
    """Nobody takes anything."""


Check = Callable[..., Report]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Check:
    """Return a check of such a store; something is done before its storage's call of a number."""

    def run(
        taken: Taken, number: int = -1, then: Callable[[], None] = nothing, end: int = 0
    ) -> Report:
        def scope(_storage: object, _root: Path) -> Scope:
            bound = end or taken.bound + SEGMENT_BYTES
            return Scope("running", True, bound, bound, low=lambda: taken.low)

        Watched.number, Watched.calls, Watched.then = number, 0, staticmethod(then)
        monkeypatch.setattr(verify_module, "find_scope", scope)
        monkeypatch.setattr(verify_module, "FilesOnly", Watched)
        # Pieces of a segment, and comparisons amid it, as with a segment of a GiB.
        monkeypatch.setattr(logscan, "ROWS_PER_CALL", 50)
        monkeypatch.setattr(queues, "GATHERED", 70)
        return verify(taken.root)

    return run


@pytest.fixture(scope="module")
def bits_store(tmp_path_factory: pytest.TempPathFactory, warm_starts: None) -> Path:
    """Return a store with extensions, and bits of a filter in them."""
    return filtered_store(tmp_path_factory.mktemp("bits") / "store")


def copied(store: Path, target: Path, bound: int) -> Taken:
    shutil.rmtree(target, ignore_errors=True)
    return Taken(Path(shutil.copytree(store, target)), bound)


@mends("S127")
@pytest.mark.parametrize("graceful", [True, False])
@pytest.mark.parametrize(("name", "segments"), [("plain_store", 3), ("bits_store", 1)])
def test_whatever_a_broker_takes_amid_a_check_is_no_finding(
    request: pytest.FixtureRequest, tmp_path: Path, check: Check, name: str, segments: int,
    graceful: bool,
) -> None:  # fmt: skip
    """At no step of it: neither an error nor a finding; and all that stays is judged.

    With `graceful` index files are gone, and segments not yet, when it begins.
    """
    store, bound = request.getfixturevalue(name), segments * SEGMENT_BYTES
    end = min(bound + SEGMENT_BYTES, verify(store).log_end)
    taken = copied(store, tmp_path / "store", bound)
    whole = check(taken, end=end)
    assert whole.ok, str(whole)
    assert whole.log_start == 0
    steps = Watched.calls
    for number in range(1, steps + 1):
        taken = copied(store, tmp_path / "store", bound)
        if graceful:
            taken.raise_low()
        report = check(taken, number, taken.take_all, end)
        assert report.ok, f"step {number} of {steps}: {report}"
        assert report.log_start in range(bound * graceful, bound + 1, SEGMENT_BYTES)
        assert report.judged_to == report.log_end == end
        assert report.units == report.records > 0


@mends("S127")
def test_all_of_a_log_may_expire_amid_a_check(
    plain_store: Path, tmp_path: Path, check: Check
) -> None:
    """Then there is nothing left to judge."""
    taken = copied(plain_store, tmp_path / "store", 3 * SEGMENT_BYTES)
    check(taken, end=2 * SEGMENT_BYTES)
    for number in range(1, Watched.calls + 1):
        taken = copied(plain_store, tmp_path / "store", 3 * SEGMENT_BYTES)
        report = check(taken, number, taken.take_all, 2 * SEGMENT_BYTES)
        assert report.ok, f"step {number}: {report}"


def test_damage_of_what_stays_is_told_though_others_go(
    plain_store: Path, tmp_path: Path, check: Check
) -> None:
    """A record, a unit, an entry above `low`, and files that had to be there."""
    low = 3 * SEGMENT_BYTES
    for number in (1, 20, 40, 60, 80):
        taken = copied(plain_store, tmp_path / "store", low)
        index = sorted((taken.root / "index").iterdir())[-2]
        units = sorted((taken.root / "consumequeue/orders/0").iterdir())[-2]
        flip(taken.root / f"commitlog/{low:020d}", 100)
        index.unlink()
        units.unlink()
        report = check(taken, number, taken.take_all)
        found = {(finding.path, finding.what.split(":")[0]) for finding in report.findings}
        assert (f"commitlog/{low:020d}", "no record") in found, str(report)
        assert (str(index.relative_to(taken.root)), "missing file") in found
        assert (str(units.relative_to(taken.root)), "missing file") in found


@mends("S127")
def test_damage_of_what_has_expired_is_nobodys_matter(
    plain_store: Path, tmp_path: Path, check: Check
) -> None:
    """Whether it was found before its segment went, or not."""
    taken = copied(plain_store, tmp_path / "store", 3 * SEGMENT_BYTES)
    flip(taken.root / f"commitlog/{0:020d}", 100)
    assert check(taken).findings
    for number in range(1, Watched.calls + 1):
        taken = copied(plain_store, tmp_path / "store", 3 * SEGMENT_BYTES)
        flip(taken.root / f"commitlog/{0:020d}", 100)
        report = check(taken, number, taken.take_all)
        assert report.ok, f"step {number}: {report}"


@mends("S127")
def test_a_sidecar_of_a_segment_that_was_sealed_amid_a_check_is_no_stray(
    plain_store: Path, tmp_path: Path, check: Check
) -> None:
    """The check ends where the log was dispatched when it began, within that segment."""
    taken = copied(plain_store, tmp_path / "store", 0)
    first = (taken.root / f"commitlog/{SEGMENT_BYTES:020d}").read_bytes()[:4]
    report = check(taken, end=SEGMENT_BYTES + int.from_bytes(first, "big"))
    assert report.ok, str(report)
    assert report.sidecars == 1


@mends("S127")
def test_all_records_that_the_index_is_noted_to_know_of_may_have_expired(
    plain_store: Path, tmp_path: Path, check: Check
) -> None:
    """The newest file stays: its entries without a record are no finding."""
    taken = copied(plain_store, tmp_path / "store", 3 * SEGMENT_BYTES)
    storage = PosixStorage(str(taken.root))
    known = read_note(storage)
    assert known is not None
    shape, note = known
    newest = note.files[0][1]
    assert newest.end_position < taken.bound
    save_note(storage, shape, Note(newest.end_position, 0, note.files[:1], newest.end_ms))
    taken.take_all()
    report = check(taken)
    assert report.ok, str(report)
    assert report.index_files == 1
