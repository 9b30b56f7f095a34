"""The ledger: what it says is what it said, wherever it was cut."""

from __future__ import annotations

import errno
import random
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from gantrymq.shm import layout
from gantrymq.shm.errors import Corrupt, Incompatible
from gantrymq.shm.groupwire import ATTEMPTS_MAX
from gantrymq.shm.storage import PosixStorage, is_shortage, read_file
from gantrymq.workers.groups.agent import SYNC_NS
from gantrymq.workers.groups.ledger import Ledger, open_ledger
from gantrymq.workers.groups.ledgerentries import NAME, Kind, Names
from gantrymq.workers.groups.ledgerreader import LedgerReader
from gantrymq.workers.groups.ledgersuccessor import STEP_BYTES, UNFINISHED
from gantrymq.workers.groups.progress import GroupProgress, Progress
from tests.support.faults import Fault, FaultPlan
from tests.support.groups_rig import Rig
from tests.support.ledgers import compact, told
from tests.support.simdisk import Disk
from tests.support.simstorage import OPENS, SimStorage
from tests.support.trials import mends


def filled(storage: SimStorage) -> Ledger:
    ledger = open_ledger(storage, 1)
    ledger.subscribe("g", "orders", 2)
    ledger.commit("g", ("orders", 0), 3)
    ledger.grant("g", ("orders", 0), 7)
    ledger.start("g", ("orders", 0), 6, 7)
    ledger.grant("h", ("events", 1), 8)
    ledger.commit("h", ("events", 1), 4)
    ledger.start("h", ("events", 1), 9, 8)
    ledger.end_lease("h", ("events", 1), failed=True)
    ledger.exported(0xDEADBEEF)
    ledger.flush()
    return ledger


def state(ledger: Ledger) -> tuple[dict[str, GroupProgress], list[int], int]:
    return ledger.groups, list(ledger.exports), ledger.last_lease


def test_reading_gives_what_was_written() -> None:
    storage = SimStorage(Disk())
    before = filled(storage)
    assert state(open_ledger(storage, 1)) == state(before)


def test_compacting_says_the_same_in_fewer_bytes() -> None:
    storage = SimStorage(Disk())
    before = filled(storage)
    for offset in range(4, 200):
        before.commit("h", ("events", 1), offset)
        before.flush()
    long = storage.size_of(NAME)
    compact(before)
    assert storage.size_of(NAME) < long / 4
    assert state(open_ledger(storage, 1)) == state(before)
    before.commit("h", ("events", 1), 300)
    before.flush()
    assert state(open_ledger(storage, 1)) == state(before)


def test_offsets_that_only_move_on_take_one_entry_a_flush() -> None:
    storage = SimStorage(Disk())
    ledger = filled(storage)
    size = storage.size_of(NAME)
    for offset in range(4, 200):
        ledger.commit("h", ("events", 1), offset)
        ledger.start("h", ("events", 1), offset + 5, 8)
    ledger.flush()
    assert storage.size_of(NAME) == size + 2 * layout.LEDGER.size
    assert state(open_ledger(storage, 1)) == state(ledger)


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_changes_is_read_as_it_was_made(seed: int) -> None:
    """Also offsets that go back (a seek), between other changes and flushes."""
    chance = random.Random(seed)
    storage = SimStorage(Disk())
    ledger = filled(storage)
    for _ in range(300):
        key = ("orders", chance.randrange(2))
        offset = chance.randrange(50)
        step = chance.randrange(12)
        if step < 5:
            ledger.commit("g", key, offset, 7)
        elif step < 9:
            ledger.start("g", key, offset, 7)
        elif step == 9:
            ledger.grant("g", key, 7)
        elif step == 10:
            ledger.end_lease("g", key, failed=chance.random() < 0.5)
        else:
            ledger.flush()
    ledger.flush()
    assert state(open_ledger(storage, 1)) == state(ledger)


def many_groups(storage: SimStorage, groups: int) -> Ledger:
    ledger = open_ledger(storage, 1)
    for number in range(groups):
        for queue in range(3):
            ledger.commit(f"g{number}", ("orders", queue), number, 1)
            ledger.grant(f"g{number}", ("orders", queue), number % 7 + 1)
            ledger.start(f"g{number}", ("orders", queue), number + 2, 1)
    ledger.flush()
    return ledger


@mends("S7.2")
def test_no_call_writes_more_of_a_compacted_ledger_than_some_queues() -> None:
    """However many groups there are: others wait for one such call (docs/security.md)."""
    storage = SimStorage(Disk(file_bytes_max=1 << 20))
    ledger = many_groups(storage, 1000)
    ledger.begin_compaction()
    sizes = [0]
    while ledger.step():
        sizes.append(storage.size_of(UNFINISHED))
        ledger.commit(f"g{len(sizes) * 37}", ("orders", 0), 5000, 1)
        ledger.flush()
    ledger.sync()
    sizes.append(storage.size_of(NAME))
    grown = [after - before for before, after in pairwise(sizes)]
    assert max(grown) < 2 * STEP_BYTES
    assert len(grown) > 10
    assert state(open_ledger(storage, 1)) == state(ledger)


def test_making_a_shorter_ledger_goes_on_where_nothing_else_happens() -> None:
    """A rig's agent counts its steps as work, and what it has made is put in place."""
    rig = Rig(orders=3)
    hand = rig.attach()
    hand.join()
    rig.agent.ledger.compact_bytes = 200
    hand.commit(q0=0)
    rig.clock.advance(SYNC_NS)
    rig.settle()
    assert rig.agent.ledger.wants_sync, "it is whole"
    assert not rig.agent.ledger.unsynced
    assert rig.agent.arm(rig.clock.monotonic_ns()) <= SYNC_NS
    rig.agent.disarm()
    before = read_file(SimStorage(rig.disk), NAME)
    rig.clock.advance(SYNC_NS)
    rig.settle()
    assert not rig.agent.ledger.wants_sync
    assert read_file(SimStorage(rig.disk), NAME) != before


@pytest.mark.parametrize("end", ["stop", "full", "kill"])
def test_what_was_made_of_a_shorter_ledger_does_not_stay(end: str) -> None:
    """Nobody would go on with it; where the disk is full, its room may be what is wanted."""
    plan = FaultPlan()
    storage = SimStorage(Disk(), faults=plan)
    ledger = many_groups(storage, 300)
    ledger.begin_compaction()
    assert ledger.step()
    assert storage.exists(UNFINISHED)
    ledger.commit("g7", ("orders", 0), 900)
    if end == "stop":
        ledger.end()
    elif end == "full":
        plan.faults = [Fault(1, error=errno.ENOSPC, kinds=("write",))]
        assert not ledger.flush_if_room()
        assert ledger.flush_if_room()
    else:
        ledger.flush()
        Ledger(storage).load()
    assert not storage.exists(UNFINISHED)
    assert state(open_ledger(storage, 1)) == state(ledger)


@pytest.mark.parametrize("how", ["reset", "sought back"])
def test_a_reset_s_place_in_the_log_survives_a_compaction(how: str) -> None:
    """Else a copy of what was consumed before it would count (`unknowncopies`)."""
    storage = SimStorage(Disk())
    ledger = filled(storage)
    if how == "reset":
        ledger.reset("h", ("events", 1), 2, 4711)
    else:
        ledger.log_end = lambda: 4711
        ledger.commit("h", ("events", 1), 9)
        ledger.commit("h", ("events", 1), 2)
        ledger.flush()
        assert state(open_ledger(storage, 1)) == state(ledger)
    compact(ledger)
    assert state(open_ledger(storage, 1)) == state(ledger)
    assert ledger.group("h").queue(("events", 1)).copies_from == 4711


@mends("S227")
def test_copies_that_a_ledger_had_nothing_to_say_of_are_not_looked_at_again() -> None:
    """As those of the scheduler, where no group is at work."""
    storage = SimStorage(Disk())
    ledger = filled(storage)
    ledger.sync(100)
    assert not ledger.wants_sync
    ledger.sync(5000)
    ledger.end(6000)
    assert open_ledger(storage, 1).copies_from == 6000


@mends("S229")
@pytest.mark.parametrize("is_compacted", [False, True])
def test_no_place_lies_behind_the_end_that_a_power_cut_has_left(*, is_compacted: bool) -> None:
    """Copies that come there next are none of those that were known, or consumed, before."""
    storage = SimStorage(Disk())
    ledger = filled(storage)
    key = ("events", 1)
    ledger.reset("h", key, 2, 4711)
    ledger.start("h", key, 9, 8)
    ledger.sending_all("h", key, {2: 1, 3: 2, 4: 1}, 5000)
    ledger.sending("h", key, 5, 1, 300)
    ledger.sync(6000)
    ledger.commit("g", ("orders", 0), 4)
    ledger.flush()
    again = open_ledger(storage, 1)
    assert (again.copies_from, again.group("h").queue(key).copies_from) == (6000, 4711)
    again.limit_positions(400)
    again.commit("g", ("orders", 0), 5)
    again.flush()
    if is_compacted:
        compact(again)
    for known in (again, open_ledger(storage, 1)):
        queue = known.group("h").queue(key)
        assert (known.copies_from, queue.copies_from) == (400, 400)
        assert queue.sending == {2: (1, 400), 3: (2, 400), 4: (1, 400), 5: (1, 300)}


def test_compacting_never_gives_a_lease_number_twice() -> None:
    storage = SimStorage(Disk())
    ledger = filled(storage)
    ledger.end_lease("g", ("orders", 0), failed=False)
    compact(ledger)
    assert open_ledger(storage, 1).grant("g", ("orders", 0), 9) == 3


def test_a_new_life_of_the_broker_ends_all_leases() -> None:
    storage = SimStorage(Disk())
    filled(storage)
    queue = open_ledger(storage, 2).group("g").queue(("orders", 0))
    assert queue.lease is None
    assert queue.attempts == [(3, 6, 1)]


def test_a_torn_tail_is_cut_at_every_byte() -> None:
    storage = SimStorage(Disk())
    filled(storage)
    whole = read_file(storage, NAME)
    ends = entry_ends(whole)
    for length in range(len(whole)):
        torn = SimStorage(Disk())
        torn.create(NAME).write_at(whole[:length], 0)
        Ledger(torn).load()
        assert torn.size_of(NAME) == max(end for end in ends if end <= length)


def entry_ends(data: bytes) -> list[int]:
    ends = [0]
    while ends[-1] < len(data):
        names = layout.LEDGER.unpack(data, ends[-1])["name_bytes"]
        ends.append(ends[-1] + layout.LEDGER.size + (names + 7) // 8 * 8)
    return ends


@pytest.mark.parametrize("bit", range(0, 48 * 8, 5))
def test_a_flipped_bit_is_noticed(bit: int) -> None:
    storage = SimStorage(Disk())
    filled(storage)
    data = bytearray(read_file(storage, NAME))
    at = len(data) - layout.LEDGER.size
    data[at + bit // 8] ^= 1 << bit % 8
    damaged = SimStorage(Disk())
    damaged.create(NAME).write_at(data, 0)
    ledger = Ledger(damaged)
    ledger.load()
    assert damaged.size_of(NAME) == at
    assert not ledger.exports


def damaged_at(data: bytes, at: int, value: int) -> SimStorage:
    """A store whose ledger has another byte there."""
    storage = SimStorage(Disk())
    storage.create(NAME).write_at(data[:at] + bytes([value]) + data[at + 1 :], 0)
    return storage


@mends("H2")
@pytest.mark.parametrize("is_closed", [True, False])
def test_a_flipped_bit_amid_what_was_durable_is_damage(is_closed: bool) -> None:
    """After a clean stop, or a kill: nothing is cut, and the place is named."""
    storage = SimStorage(Disk())
    ledger = filled(storage)
    if is_closed:
        ledger.end()
        durable = storage.size_of(NAME) - layout.LEDGER.size
    else:
        ledger.sync()
        durable = storage.size_of(NAME)
        for offset in range(10, 13):
            ledger.commit("g", ("orders", 1), offset)
            ledger.flush()
    whole = read_file(storage, NAME)
    ends = entry_ends(whole)
    for at in range(durable):
        damaged = damaged_at(whole, at, whole[at] ^ 1 << at % 8)
        begin = max(end for end in ends if end <= at)
        with pytest.raises(Corrupt, match=rf"{NAME} is damaged at byte {begin}\b.*--salvage"):
            Ledger(damaged).load()
        assert damaged.size_of(NAME) == len(whole)


@mends("H2")
def test_an_entry_of_an_unknown_kind_is_no_torn_tail() -> None:
    storage = SimStorage(Disk())
    filled(storage)
    whole = read_file(storage, NAME)
    entry = bytearray(layout.LEDGER.pack(kind=max(Kind) + 1))
    entry[layout.LEDGER.offset("crc") :] = zlib.crc32(entry).to_bytes(4, "big")
    newer = SimStorage(Disk())
    newer.create(NAME).write_at(whole + entry, 0)
    with pytest.raises(Incompatible, match=f"kind {max(Kind) + 1} at byte {len(whole)}.*newer"):
        Ledger(newer).load()
    assert newer.size_of(NAME) == len(whole) + len(entry)


def test_what_was_not_durable_may_have_holes() -> None:
    """A power cut keeps any part of it: the rest is cut at the first of them."""
    storage = SimStorage(Disk())
    ledger = filled(storage)
    ledger.sync()
    durable = storage.size_of(NAME)
    for offset in range(10, 13):
        ledger.commit("g", ("orders", 1), offset)
        ledger.flush()
    whole = read_file(storage, NAME)
    torn = damaged_at(whole, durable + 1, 0xFF)
    Ledger(torn).load()
    assert torn.size_of(NAME) == durable


@pytest.mark.parametrize("seed", range(40))
def test_no_power_cut_makes_damage_of_a_ledger(seed: int) -> None:
    """Whatever was synced when, or compacted; what was synced last is still there."""
    dice = random.Random(seed)
    disk = Disk()
    storage = SimStorage(disk)
    ledger = open_ledger(storage, 1)
    ledger.compact_bytes = 2_000
    offset = durable = 0
    for _ in range(dice.randrange(1, 120)):
        offset += 1
        ledger.commit(f"g{offset % 3}", ("orders", offset % 5), offset)
        ledger.exported(offset)
        ledger.flush()
        ledger.step()
        if dice.random() < 0.2:
            ledger.sync()
            durable = offset
    storage.dead = True
    disk.power_cut(dice)
    again = open_ledger(SimStorage(disk), 2)
    assert not durable or durable <= again.exports[-1] <= offset


def until_there_are_descriptors(call: Callable[[], object]) -> None:
    """As retention does, which looks again later, in the process of `groups`."""
    for _ in range(3):
        try:
            call()
        except OSError as error:
            if not is_shortage(error):
                raise
        else:
            return
    raise AssertionError("it goes on failing")


@mends("S146")
@pytest.mark.parametrize("kind", OPENS)
@pytest.mark.parametrize("at", range(1, 4))
def test_a_ledger_that_lacked_a_descriptor_goes_on(kind: str, at: int) -> None:
    """Whatever it wanted one for: it says all that was flushed, and all that was synced is safe."""
    plan, disk = FaultPlan(), Disk()
    storage = SimStorage(disk, faults=plan)
    ledger = open_ledger(storage, 1)
    ledger.compact_bytes = 2_000
    plan.faults = [Fault(at, error=errno.EMFILE, kinds=(kind,))]
    for offset in range(1, 400):
        ledger.commit(f"g{offset % 3}", ("orders", offset % 5), offset)
        ledger.exported(offset)
        ledger.flush()
        until_there_are_descriptors(ledger.step)
        if offset % 20 == 0:
            until_there_are_descriptors(ledger.sync)
        assert told(loaded(SimStorage(disk))) == told(ledger)
    assert plan.met or kind == "open", "nothing was compacted"
    ledger.sync()
    storage.dead = True
    disk.power_cut(random.Random(at))
    assert told(loaded(SimStorage(disk))) == told(ledger)


def loaded(storage: SimStorage) -> Ledger:
    ledger = Ledger(storage)
    ledger.replay_whole(read_file(storage, NAME), Names())
    return ledger


def test_overlapping_failures_add_up() -> None:
    queue = Progress(committed=0)
    queue.add_attempts([(0, 10)])
    queue.add_attempts([(5, 15)])
    assert queue.attempts == [(0, 5, 1), (5, 10, 2), (10, 15, 1)]
    queue.commit(7)
    assert queue.attempts == [(7, 10, 2), (10, 15, 1)]
    assert [queue.attempts_of(offset) for offset in (6, 7, 10, 15)] == [0, 2, 1, 0]


def test_many_ranges_are_merged_to_the_higher_count() -> None:
    queue = Progress(committed=0)
    queue.set_attempts([(2 * n, 2 * n + 1, 1 + n % 3) for n in range(ATTEMPTS_MAX + 9)])
    assert len(queue.attempts) == ATTEMPTS_MAX
    assert queue.attempts[0] == (0, 19, 3)


def test_seeking_back_forgets_what_was_started_beyond() -> None:
    queue = Progress(committed=5)
    queue.start(9)
    queue.commit(2)
    queue.end_lease(failed=True)
    assert queue.attempts == []


def test_a_reader_follows_while_it_is_written_and_compacted(tmp_path: Path) -> None:
    """What `group describe` shows: at any moment what was flushed, a torn tail left out."""
    storage = PosixStorage(str(tmp_path))
    reader = LedgerReader(storage)
    assert reader.refresh() == {}
    ledger = open_ledger(storage, 1)
    for offset in range(1, 60):
        ledger.commit(f"g{offset % 3}", ("orders", offset % 5), offset)
        if offset % 7 == 0:
            ledger.grant("g1", ("orders", 1), offset)
        ledger.flush()
        if offset % 20 == 0:
            compact(ledger)
        if offset % 2:
            assert reader.refresh() == ledger.groups, offset
    with (tmp_path / NAME).open("ab") as file:
        file.write(b"\x00\x05torn")
    assert reader.refresh() == ledger.groups
    assert LedgerReader(storage).refresh() == ledger.groups
    ledger.close()


@mends("S263")
@pytest.mark.parametrize("how", ["topic", "group"])
@pytest.mark.parametrize("is_compacted", [False, True])
def test_who_had_a_queue_before_it_was_forgotten_knows_nothing_of_it(
    how: str, *, is_compacted: bool
) -> None:
    """A lease of before is older than `since`: its holder's place means other messages."""
    storage = SimStorage(Disk())
    ledger = Ledger(storage)
    ledger.load()
    key = ("orders", 0)
    ledger.commit("g", key, 0)
    before = ledger.grant("g", key, 7)
    assert ledger.group("g").queue(key).since == before
    ledger.end_lease("g", key, failed=False)
    if how == "topic":
        assert not ledger.forget_topics({"orders"})
    else:
        ledger.delete("g")
    ledger.commit("g", key, 0)
    if is_compacted:
        compact(ledger)
    after = ledger.grant("g", key, 8)
    ledger.sync()
    for known in (ledger, loaded(storage)):
        assert known.group("g").queue(key).since == after > before


@mends("S288")
@pytest.mark.usefixtures("nothing_reaches_the_disk")
@pytest.mark.parametrize("commits", [0, 3, 40, 400])
def test_what_a_failed_sync_has_dropped_is_written_again(commits: int) -> None:
    """P3: no later entry says of bytes that they are durable which no sync has written."""
    faults = FaultPlan()
    storage = SimStorage(Disk(), faults=faults)
    ledger = filled(storage)
    ledger.sync()
    for offset in range(commits):
        ledger.commit("g", ("orders", 1), offset)
        ledger.flush()
    faults.faults = (Fault(1, error=errno.EIO, kinds=("sync",)),)
    ledger.commit("g", ("orders", 0), 9)
    with pytest.raises(OSError, match="EIO"):
        ledger.sync()
    again = open_ledger(SimStorage(storage.disk), 2)
    for offset in range(100):
        again.commit("h", ("events", 1), 500 + offset)
        again.sync()
    for seed in range(20):
        disk = storage.disk.clone()
        disk.power_cut(random.Random(seed))
        assert state(open_ledger(SimStorage(disk), 2)) == state(again)
