"""What a start makes of a log that another broker has gone on with: kept, or refused (ADR 0009)."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from gantrymq.brokerd import epoch
from gantrymq.brokerd.checkpoint import CheckpointFile
from gantrymq.brokerd.config import Settings
from gantrymq.brokerd.epoch import Life
from gantrymq.brokerd.recovered import Recovered
from gantrymq.brokerd.recovery import recover
from gantrymq.clients.home import store_of
from gantrymq.clients.producer import Producer
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.ranges import FILE, OPEN, read_ranges
from gantrymq.shm.storage import PosixStorage
from gantrymq.temporary import Broker
from tests.support.another_broker import AnotherBroker, golden_records
from tests.support.folders import files_below
from tests.support.golden import CLEAN_SETS, dump_lines, unpack
from tests.support.stores import Stored, read_log

SEGMENT_BYTES = 8192
SETTINGS = Settings(mapped_file_size_commit_log=SEGMENT_BYTES, mapped_file_size_consume_queue=2000)
SIZES = {"mapped_file_size_commit_log": SEGMENT_BYTES, "mapped_file_size_consume_queue": 2000}
#: Of so many messages the last ones had not been synced at our kill.
SENT, UNSYNCED = 60, 8
#: Bytes of a record's bornTimestamp and body, with IPv4 hosts.
BORN_MS, BODY = 40, 88


@dataclass
class Store:
    """A copy of a store of ours, to go on with, to damage and to start."""

    root: Path
    records: list[Stored]
    golden: list[bytes]

    @property
    def storage(self) -> PosixStorage:
        return PosixStorage(str(self.root))

    @property
    def end(self) -> int:
        """Where our records end."""
        return self.records[-1].position + self.records[-1].record.total_size

    def crash(self, durable: int) -> None:
        """As a kill and a reboot leave it: no board, a checkpoint below the end."""
        epoch.mark_running(self.storage, Life(1, epoch.boot_id()), self.end)
        checkpoint = CheckpointFile(self.storage, bytes(16), 1)
        for _slot in range(2):
            checkpoint.write(durable, 0, 0)
        checkpoint.close()

    def go_on(self, count: int = 20, *, killed: bool, end: int | None = None) -> AnotherBroker:
        """Another broker appends its own records and copies of ours."""
        offsets: Counter[tuple[str, int]] = Counter()
        for item in self.records:
            offsets[item.queue] = item.record.queue_offset + 1
        other = AnotherBroker(self.storage, SEGMENT_BYTES, end or self.end, offsets)
        copies = [self.raw(item) for item in self.records[:5]]
        for record in [*self.golden[:count], *copies][: count + 5 if count else 0]:
            other.append(record)
        other.leave(killed=killed)
        return other

    def raw(self, item: Stored) -> bytes:
        base = item.position // SEGMENT_BYTES * SEGMENT_BYTES
        data = (self.root / "commitlog" / f"{base:020d}").read_bytes()
        return data[item.position - base : item.position - base + item.record.total_size]

    def flip(self, position: int) -> None:
        """One bit of the log."""
        base = position // SEGMENT_BYTES * SEGMENT_BYTES
        path = self.root / "commitlog" / f"{base:020d}"
        data = bytearray(path.read_bytes())
        data[position - base] ^= 1
        path.write_bytes(data)

    def start(self) -> Recovered:
        return recover(self.storage, SETTINGS, None)

    def refused(self, match: str) -> None:
        """A start must refuse, and change nothing."""
        before = files_below(self.root)
        with pytest.raises(Corrupt, match=match):
            self.start()
        assert files_below(self.root) == before

    def spans(self) -> tuple[tuple[int, int], ...]:
        found = read_ranges(self.storage)
        assert found is not None
        return found.spans


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("source")
    with Broker.temporary(**SIZES) as broker, Producer(broker.home) as producer:
        for index in range(SENT):
            producer.send("orders", b"%d." % index * (1 + index % 9), tag="t", keys=["k"])
        broker.stop()
        shutil.copytree(store_of(broker.home), folder / "store")
    golden = golden_records(folder / "golden", 40, bytes_max=1000)
    return Store(folder / "store", read_log(folder / "store"), golden)


@pytest.fixture
def store(source: Store, tmp_path: Path) -> Store:
    """A copy after our clean stop."""
    root = Path(shutil.copytree(source.root, tmp_path / "store"))
    return Store(root, source.records, source.golden)


def test_what_follows_our_clean_end_is_kept(store: Store) -> None:
    other = store.go_on(killed=False)
    found = store.start()
    assert found.appended == found.durable == other.end
    assert store.spans() == ((0, store.end),)
    assert found.topics >= {"orders", "PlainA", "PlainB"}
    following = {key: numbers[0] for key, numbers in found.queues.items()}
    assert following == dict(other.next_offsets)
    epoch.mark_running(store.storage, Life(2, epoch.boot_id()), found.appended)
    assert store.spans() == ((0, store.end), (other.end, OPEN))


@pytest.mark.parametrize("killed", [False, True])
def test_what_follows_our_crash_is_kept(store: Store, killed: bool) -> None:
    """`abort` is not ours any more, so our range ends where true trailers end."""
    store.crash(store.records[-UNSYNCED].position)
    other = store.go_on(killed=killed)
    found = store.start()
    assert found.appended == other.end
    assert store.spans() == ((0, store.end),)


def test_a_start_that_was_killed_decides_the_same_again(store: Store) -> None:
    """After recovery, before `abort`; after `abort`, before the range is opened."""
    store.crash(store.records[-UNSYNCED].position)
    other = store.go_on(killed=True)
    assert store.start().appended == other.end
    assert store.start().appended == other.end
    (store.root / "abort").write_text(epoch.boot_id())
    assert store.start().appended == other.end
    assert store.spans() == ((0, store.end),)


@pytest.mark.parametrize("crashed", [False, True])
def test_damage_in_what_we_had_synced_is_refused(store: Store, crashed: bool) -> None:
    """P13: any bit, though the other broker has taken it for good."""
    victim = store.records[-UNSYNCED - 1]
    if crashed:
        store.crash(store.records[-UNSYNCED].position)
    store.go_on(killed=False)
    for offset in (BORN_MS, BODY, victim.record.total_size - 1, 12, 30):
        store.flip(victim.position + offset)
        store.refused(f"log position {victim.position}")
        store.flip(victim.position + offset)
    store.start()


def test_damage_amid_what_we_had_not_synced_is_refused(store: Store) -> None:
    """A later record continues its producer's numbers, so it is ours, and so is the damage."""
    store.crash(store.records[-UNSYNCED].position)
    store.go_on(killed=False)
    victim, following = store.records[-3:-1]
    store.flip(victim.position + BORN_MS)
    store.refused(f"log position {victim.position}.*ours follows at {following.position}")


def test_the_last_record_of_ours_may_count_as_the_other_brokers(store: Store) -> None:
    """A torn one that it has taken over by its body: it may have been delivered, so it stays."""
    store.crash(store.records[-UNSYNCED].position)
    other = store.go_on(killed=False)
    last = store.records[-1]
    store.flip(last.position + BORN_MS)
    assert store.start().appended == other.end
    assert store.spans() == ((0, last.position),)


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("killed", [False, True])
def test_a_damaged_body_amid_the_other_brokers_is_refused(
    store: Store, crashed: bool, killed: bool
) -> None:
    """LW-4: nobody knows what it had synced, but a record behind the damage tells."""
    if crashed:
        store.crash(store.records[-UNSYNCED].position)
    other = store.go_on(killed=killed)
    for position, _size in (other.places[0], other.places[7], other.places[-3]):
        store.flip(position + BODY)
        store.refused(f"log position {position}.*a record follows")
        store.flip(position + BODY)


def test_its_last_record_is_damage_after_a_clean_stop(store: Store) -> None:
    other = store.go_on(killed=False)
    position, _size = other.places[-1]
    store.flip(position + BODY)
    store.refused(f"log position {position}.*stopped cleanly")


def test_its_last_record_is_torn_after_a_kill(store: Store) -> None:
    """SF-117: a tail behind the last valid record is cut, and zero from then on (LW-3)."""
    other = store.go_on(killed=True)
    position, _size = other.places[-1]
    store.flip(position + BODY)
    assert store.start().appended == position
    assert not any(read_bytes(store)[position:])


def read_bytes(store: Store) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((store.root / "commitlog").iterdir()))


def test_left_overs_behind_its_end_are_cleared(store: Store) -> None:
    """SF-13, SF-93: it does not clear what it cuts off; those records were stored earlier."""
    old = store.go_on(3, killed=True)
    cut_at = old.places[2][0]
    (start, size), base = old.places[4], old.places[4][0] // SEGMENT_BYTES * SEGMENT_BYTES
    assert base == cut_at // SEGMENT_BYTES * SEGMENT_BYTES
    later = AnotherBroker(store.storage, SEGMENT_BYTES, cut_at, old.next_offsets)
    later.now_ms = old.now_ms + 60_000
    later.append(min(store.golden, key=len))
    later.leave(killed=False)
    assert later.end != start, "none begins where it ends"
    assert later.end < start + size, "left-overs are behind it"
    assert store.start().appended == later.end
    assert not any(read_bytes(store)[later.end :])


def test_our_own_left_overs_are_cleared(store: Store) -> None:
    """A power cut tore a record of ours, whole ones behind; the other broker cut and sent none."""
    store.crash(store.records[-UNSYNCED].position)
    torn = store.records[-3]
    store.flip(torn.position + BODY)
    store.go_on(0, killed=False)
    assert store.start().appended == torn.position
    assert store.spans() == ((0, torn.position),)
    assert not any(read_bytes(store)[torn.position :])


def test_its_clock_may_go_back(store: Store) -> None:
    """SF-41: its times are the wall clock's."""
    other = store.go_on(5, killed=False)
    other.now_ms -= 3_600_000
    other.append(store.golden[10])
    other.append(store.golden[11])
    assert store.start().appended == other.end


@pytest.mark.parametrize("crashed", [False, True])
def test_without_the_file_its_records_are_never_cut_off(store: Store, crashed: bool) -> None:
    """What is ours then: all up to our clean stop, or up to where true trailers end."""
    if crashed:
        store.crash(store.records[-UNSYNCED].position)
    else:
        checkpoint = CheckpointFile(store.storage, bytes(16), 1)
        checkpoint.write(store.end, 1, store.end, clean=True)
        checkpoint.close()
    other = store.go_on(killed=False)
    (store.root / FILE).unlink()
    assert store.start().appended == other.end
    assert store.spans() == ((0, store.end),)


def test_a_damaged_file_is_named(store: Store) -> None:
    path = store.root / FILE
    path.write_bytes(path.read_bytes().replace(b"ranges", b"ranger"))
    store.refused(FILE)


@pytest.mark.parametrize("name", CLEAN_SETS)
def test_a_store_of_a_real_rocketmq_keeps_every_record(name: str, tmp_path: Path) -> None:
    """It is another broker's from its first byte on, whatever its trailers."""
    golden = unpack(name, tmp_path)
    (summary,) = dump_lines(name, "summary")
    settings = Settings(
        mapped_file_size_commit_log=golden.segment_bytes,
        mapped_file_size_consume_queue=int(golden.settings["mappedFileSizeConsumeQueue"]),
    )
    storage = PosixStorage(str(golden.store))
    index = {path.name: path.read_bytes() for path in (golden.store / "index").glob("*")}
    (golden.store / "abort").write_text("4711")
    found = recover(storage, settings, None)
    kept = {path.name: path.read_bytes() for path in (golden.store / "index").glob("*")}
    assert kept == index, "LW-7: after a crash too"
    assert found.appended == summary["maxPhyOffset"]
    ranges = read_ranges(storage)
    assert ranges is not None
    assert not ranges.spans
