"""A power cut amid the last records: the log ends before the damage (P1, P6, P11, P13, F4)."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gantrymq.brokerd import epoch
from gantrymq.brokerd.checkpoint import CheckpointFile
from gantrymq.brokerd.config import Settings
from gantrymq.brokerd.epoch import Life
from gantrymq.brokerd.recovery import recover
from gantrymq.clients.home import store_of
from gantrymq.clients.producer import Producer
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.storage import PosixStorage
from gantrymq.temporary import Broker
from tests.support.folders import files_below
from tests.support.stores import Stored, read_log

SEGMENT_BYTES = 8192
SETTINGS = Settings(mapped_file_size_commit_log=SEGMENT_BYTES, mapped_file_size_consume_queue=2000)
#: At each position that this divides recovery is done twice.
_AGAIN = 8
Damage = Callable[[NDArray[np.uint8], int], None]


@dataclass(frozen=True)
class Torn:
    """A store whose last two records were never synced, and copies of it to damage."""

    source: Path
    records: list[Stored]
    log: bytes
    folder: Path
    files: dict[str, bytes]

    @property
    def last(self) -> str:
        """File of the last segment."""
        return f"commitlog/{self.base:020d}"

    @property
    def base(self) -> int:
        """Where it starts."""
        return self.records[-1].position // SEGMENT_BYTES * SEGMENT_BYTES

    @property
    def end(self) -> int:
        """Log position behind the last record."""
        item = self.records[-1]
        return item.position + item.record.total_size

    @property
    def bounds(self) -> list[int]:
        """Where the last two records start and end."""
        return [self.records[-2].position, self.records[-1].position, self.end]

    def copy(self) -> Path:
        """A store to damage: the one before, with its files put back that are not as they were."""
        found = files_below(self.folder)
        for name in found.keys() - self.files.keys():
            (self.folder / name).unlink()
        for name, content in self.files.items():
            if found.get(name) != content:
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / name).write_bytes(content)
        return self.folder

    def damaged(self, position: int, damage: Damage) -> Path:
        """A copy whose last segment `damage` has changed from a log position on."""
        store = self.copy()
        data = np.fromfile(store / self.last, np.uint8)
        damage(data, position - self.base)
        data.tofile(store / self.last)
        return store

    def is_changed(self, store: Path) -> bool:
        """False if the damage hit only what was like that before."""
        return (store / self.last).read_bytes() != (self.source / self.last).read_bytes()

    def kept_below(self, position: int) -> int:
        """Where the log must end if the first changed byte is at a position."""
        return max(bound for bound in [*self.bounds[:2], 0] if bound <= position)


@pytest.fixture(scope="module")
def torn(tmp_path_factory: pytest.TempPathFactory) -> Torn:
    source = tmp_path_factory.mktemp("source") / "store"
    sizes = {
        "mapped_file_size_commit_log": SEGMENT_BYTES,
        "mapped_file_size_consume_queue": 2000,
    }
    with Broker.temporary(**sizes) as broker, Producer(broker.home) as producer:
        for index in range(60):
            producer.send("orders", b"%d" % index * (index % 7), tag="t", keys=["k"])
        producer.send("orders", b"the last but one", properties={"a": "b"})
        producer.send("orders", b"the last", tag="z")
        broker.stop()
        shutil.copytree(store_of(broker.home), source)
    records = read_log(source)
    folder = tmp_path_factory.mktemp("torn") / "store"
    torn = Torn(source, records, read_bytes(source), folder, {})
    assert torn.bounds[0] > torn.base, "both lie in the last segment"
    epoch.mark_running(PosixStorage(str(source)), Life(1, epoch.boot_id()), torn.end)
    _claim_durable(source, torn.bounds[0])
    (source / "gantry" / "queues.json").unlink()
    shutil.copytree(source, folder)  # empty folders, too
    torn.files.update(files_below(source))
    return torn


def _claim_durable(store: Path, position: int) -> None:
    """Leave checkpoints that know of no more than what was durable at a position."""
    storage = PosixStorage(str(store))
    checkpoint = CheckpointFile(storage, bytes(16), 1)
    for _slot in range(2):
        checkpoint.write(position, 0, 0)
    checkpoint.close()


def zeroes(data: NDArray[np.uint8], at: int) -> None:
    data[at:] = 0


def garbage(data: NDArray[np.uint8], at: int) -> None:
    """Every byte from there to the file's end is another one."""
    noise = np.random.default_rng(at).integers(1, 256, data.size - at, np.uint8)
    data[at:] ^= noise


def one_byte(data: NDArray[np.uint8], at: int) -> None:
    data[at] ^= 0x20


def read_bytes(store: Path) -> bytes:
    """The whole log; its files are of full length."""
    files = sorted((store / "commitlog").iterdir())
    assert {path.stat().st_size for path in files} == {SEGMENT_BYTES}
    return b"".join(path.read_bytes() for path in files)


def require_cut(store: Path, torn: Torn, end: int, *, again: bool = True) -> None:
    """Recovery ends at `end`, keeps all below, leaves zeroes, and can be done `again`."""
    storage = PosixStorage(str(store))
    found = recover(storage, SETTINGS, None)
    assert (found.appended, found.durable) == (end, end)
    log = read_bytes(store)
    assert log[:end] == torn.log[:end]
    assert not any(log[end:])
    if again:
        assert recover(storage, SETTINGS, None) == found
        assert read_bytes(store) == log


@pytest.mark.parametrize("damage", [zeroes, garbage, one_byte])
def test_a_tail_torn_at_any_byte_is_cut(torn: Torn, damage: Damage) -> None:
    for position in range(torn.bounds[0], torn.end):
        store = torn.damaged(position, damage)
        end = torn.kept_below(_first_change(torn, store)) if torn.is_changed(store) else torn.end
        require_cut(store, torn, end, again=position % _AGAIN == 0)


def _first_change(torn: Torn, store: Path) -> int:
    """Zeroing from a byte on changes nothing where the bytes are zero already."""
    before = np.fromfile(torn.source / torn.last, np.uint8)
    after = np.fromfile(store / torn.last, np.uint8)
    return torn.base + int(np.flatnonzero(before != after)[0])


@pytest.mark.parametrize("sector", [512, 4096])
def test_any_subset_of_lost_sectors_is_cut(torn: Torn, sector: int, seed: int) -> None:
    """What was not synced may be missing sector by sector, in any order."""
    dice = random.Random(seed)
    first = (torn.bounds[0] - torn.base) // sector
    numbers = range(first, SEGMENT_BYTES // sector)
    for _ in range(60):
        lost = [number for number in numbers if dice.random() < 0.5]
        noise = dice.random() < 0.5

        def damage(
            data: NDArray[np.uint8], at: int, lost: list[int] = lost, noise: bool = noise
        ) -> None:
            for number in lost:
                start = max(number * sector, at)  # what was durable stays
                piece = data[start : (number + 1) * sector]
                piece[:] = piece ^ 0x55 if noise else 0

        store = torn.damaged(torn.bounds[0], damage)
        first_change = _first_change(torn, store) if torn.is_changed(store) else torn.end
        end = torn.kept_below(first_change) if first_change < torn.end else torn.end
        require_cut(store, torn, end)


def test_the_last_record_alone_may_have_survived(torn: Torn) -> None:
    """A record behind a hole is no proof: the one before it was never acknowledged as durable."""
    first, second, _end = torn.bounds

    def hole(data: NDArray[np.uint8], at: int) -> None:
        data[at : second - torn.base] = 0

    require_cut(torn.damaged(first, hole), torn, first)


def test_damage_below_the_durable_position_is_refused(torn: Torn) -> None:
    """P1: it is named by file and position, and nothing is changed (LW-4)."""
    victims = [item for item in torn.records if torn.base <= item.position < torn.bounds[0]]
    assert victims
    for item in victims:
        for inside in (0, 4, 8, 60, item.record.total_size - 1):
            store = torn.damaged(item.position + inside, one_byte)
            before = files_below(store)
            with pytest.raises(Corrupt) as caught:
                recover(PosixStorage(str(store)), SETTINGS, None)
            assert (caught.value.path, caught.value.position) == (torn.last, item.position)
            assert files_below(store) == before


def test_a_file_cut_short_below_the_durable_position_is_refused(torn: Torn) -> None:
    """F17: at any length. Above it one with records is, too: no power cut leaves it (S307)."""
    for length in (0, 1, 511, torn.bounds[0] - torn.base - 1, torn.bounds[1] - torn.base):
        store = torn.copy()
        with (store / torn.last).open("r+b") as file:
            file.truncate(length)
        before = files_below(store)
        with pytest.raises(Corrupt) as caught:
            recover(PosixStorage(str(store)), SETTINGS, None)
        assert caught.value.path == torn.last
        assert files_below(store) == before
        _claim_durable(store, torn.base)
        if (store / torn.last).read_bytes().strip(b"\0"):
            with pytest.raises(Corrupt, match="bring the whole file back"):
                recover(PosixStorage(str(store)), SETTINGS, None)
            (store / torn.last).write_bytes(bytes(length))
        require_cut(store, torn, torn.base)


def test_a_first_file_cut_short_is_made_anew(tmp_path: Path) -> None:
    """Its name reached the disk and its length did not; nothing in it was durable."""
    storage = PosixStorage(str(tmp_path))
    _claim_durable(tmp_path, 0)
    first = tmp_path / "commitlog" / f"{0:020d}"
    first.parent.mkdir()
    first.write_bytes(bytes(100))
    assert recover(storage, SETTINGS, None).appended == 0
    assert not first.exists()
