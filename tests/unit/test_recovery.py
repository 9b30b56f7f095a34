"""Recovery over stores that the simulated machine has made, then lost pieces of."""

from __future__ import annotations

import contextlib
import errno
import itertools
from copy import copy
from functools import cache
from pathlib import Path

import pytest

from gantrymq.brokerd import epoch
from gantrymq.brokerd.checkpoint import FILE, CheckpointFile, read_checkpoint
from gantrymq.brokerd.epoch import Life
from gantrymq.brokerd.metadata import Metadata
from gantrymq.brokerd.recovered import Recovered
from gantrymq.brokerd.recovery import recover
from gantrymq.shm import layout, limits
from gantrymq.shm.board import Board
from gantrymq.shm.codes import BrokerState, Role
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.ranges import read_ranges
from gantrymq.shm.storage import read_file
from gantrymq.workers.agent import Bells
from gantrymq.workers.failure import has_failed
from gantrymq.workers.groups import deadletternote
from gantrymq.workers.housekeeper.agent import Housekeeper
from gantrymq.workers.housekeeper.progress import PROGRESS_FILE, save_progress
from gantrymq.workers.reader.agent import Reader
from tests.sim import scenario
from tests.sim.downfalls import STEPS_MAX
from tests.support.another_broker import AnotherBroker, golden_records
from tests.support.faults import Fault, FaultPlan, KilledError, Moment, kill_at
from tests.support.memory_sessions import MemorySessions
from tests.support.simbell import SimBell
from tests.support.simdisk import Disk
from tests.support.simmachine import ROLES, SimMachine
from tests.support.simstorage import SimStorage
from tests.support.storedlog import read_log
from tests.support.trials import mends

QUEUES = [("plain", 0), ("plain", 1), ("safe", 0)]


@cache
def _stopped_world() -> scenario.World:
    world = scenario.new_world(9)
    for producer in world.producers:
        producer.send_more(60)
    world.simulation.run_until(world.settled, STEPS_MAX)
    scenario.stop_cleanly(world)
    return world


def stopped_machine() -> tuple[SimMachine, SimStorage]:
    """A machine that has written several segments and was stopped, with a disk of its own."""
    machine = copy(_stopped_world().machine)
    machine.disk = machine.disk.clone()
    return machine, SimStorage(machine.disk)


def recover_again(machine: SimMachine, storage: SimStorage) -> Recovered:
    """What a start without an old board makes of the files."""
    return recover(storage, machine.configuration.settings, None)


def let_reader_work(machine: SimMachine, storage: SimStorage, found: Recovered) -> Board:
    """Start as far as the reader, and let it make all units; the housekeeper makes them durable."""
    settings = machine.configuration.settings
    metadata = Metadata(storage, settings, machine.simulation.clock)
    metadata.load()
    board = machine._format(1 << 16)
    metadata.publish(board, found)
    bells = Bells.each(SimBell)
    for opener in (Reader, Housekeeper):
        sessions = MemorySessions()
        agent = opener(storage, machine.simulation.clock, board, sessions, bells, settings)
        while agent.do_work(0):
            pass
    assert board.word(layout.BOARD_DISPATCHED) == found.appended
    return board


def units_of(storage: SimStorage, topic: str, queue_id: int) -> dict[int, bytes]:
    """Queue offset -> unit, for all units of a queue's files that are not zero."""
    found = {}
    folder = f"consumequeue/{topic}/{queue_id}"
    size = layout.CQ_UNIT_BYTES
    for name in storage.list(folder):
        data = read_file(storage, f"{folder}/{name}")
        for at in range(0, len(data), size):
            if any(data[at : at + size]):
                found[(int(name) + at) // size] = data[at : at + size]
    return found


def segments(storage: SimStorage) -> list[str]:
    return storage.list("commitlog")


@mends("S202")
def test_a_start_leaves_alone_what_a_command_is_writing() -> None:
    """`gantrymq dlq` notes what it did while brokers start and end; another's `.new` goes."""
    machine, storage = stopped_machine()
    theirs, ours = f"{deadletternote.FILE}.new", f"{PROGRESS_FILE}.new"
    for path in (theirs, ours):
        storage.create(path).close()
    recover_again(machine, storage)
    assert (storage.exists(theirs), storage.exists(ours)) == (True, False)


@pytest.mark.parametrize("keep_progress", [True, False])
def test_a_log_whose_first_segment_is_gone_keeps_its_queue_offsets(keep_progress: bool) -> None:
    """SF-65: a rebuilt queue begins with filler units up to its first offset."""
    machine, storage = stopped_machine()
    before = {queue: units_of(storage, *queue) for queue in QUEUES}
    gone, low = segments(storage)[:2], int(segments(storage)[2])  # each queue begins in these
    for name in gone:
        storage.unlink(f"commitlog/{name}")
    if not keep_progress:
        storage.unlink(PROGRESS_FILE)
    found = recover_again(machine, storage)
    let_reader_work(machine, storage, found)
    filler = layout.CQ_UNIT.pack(size=layout.CQ_FILLER_SIZE)
    assert found.low == low
    again = recover_again(machine, storage)
    for queue in QUEUES:
        assert again.queues[queue][::2] == found.queues[queue][::2], "the next start knows it too"
    for queue in QUEUES:
        after = units_of(storage, *queue)
        following, written, first = found.queues[queue]
        if keep_progress:
            assert after == before[queue]
            places = {o: layout.CQ_UNIT.unpack(u)["physical_offset"] for o, u in after.items()}
            assert first == min(offset for offset, place in places.items() if place >= low)
            continue
        assert 0 < first == written < following == max(before[queue]) + 1
        kept = {offset: unit for offset, unit in after.items() if offset >= first}
        assert kept == {offset: u for offset, u in before[queue].items() if offset >= first}
        assert {unit for offset, unit in after.items() if offset < first} <= {filler}
        file_units = machine.configuration.settings.mapped_file_size_consume_queue // 20
        assert min(after) == first // file_units * file_units


def test_queues_end_where_the_log_says_before_their_units_are_made() -> None:
    """A group that begins at the end, or an offset of the ledger, must not meet a lower end."""
    machine, storage = stopped_machine()
    before = {queue: units_of(storage, *queue) for queue in QUEUES}
    storage.unlink(PROGRESS_FILE)
    found = recover_again(machine, storage)
    assert found.dispatched == 0 < found.appended
    for queue in QUEUES:
        assert found.queues[queue] == (max(before[queue]) + 1, 0, 0)


def test_progress_from_below_the_first_segment_is_not_believed() -> None:
    """P5, F7: a full disk may keep it from being noted, while retention makes room."""
    machine, storage = stopped_machine()
    before = recover_again(machine, storage).queues
    save_progress(storage, 0, {("plain", 0): 1})
    storage.unlink(f"commitlog/{segments(storage)[0]}")
    found = recover_again(machine, storage)
    assert found.dispatched == found.low == int(segments(storage)[0])
    let_reader_work(machine, storage, found)
    after = {key: queue[0] for key, queue in found.queues.items() if key in QUEUES}
    assert after == {key: before[key][0] for key in QUEUES}


def test_progress_of_units_that_were_made_anew_is_not_believed() -> None:
    machine, storage = stopped_machine()
    storage.unlink(f"consumequeue/plain/0/{storage.list('consumequeue/plain/0')[-1]}")
    assert recover_again(machine, storage).dispatched == 0
    assert not storage.exists(PROGRESS_FILE)


def test_a_last_segment_of_wrong_length_is_damage_if_some_of_it_was_durable() -> None:
    machine, storage = stopped_machine()
    last = f"commitlog/{segments(storage)[-1]}"
    storage.open(last, write=True).cut(5000)
    changes = len(machine.disk.log)
    with pytest.raises(Corrupt, match="durable up to"):
        recover_again(machine, storage)
    assert storage.size_of(last) == 5000
    assert len(machine.disk.log) == changes, "nothing has been changed"


def test_the_only_segment_of_wrong_length_is_damage_if_some_of_it_was_durable() -> None:
    machine, storage = stopped_machine()
    for name in segments(storage)[1:]:
        storage.unlink(f"commitlog/{name}")
    storage.open(f"commitlog/{segments(storage)[0]}", write=True).cut(5000)
    with pytest.raises(Corrupt, match="no whole segment"):
        recover_again(machine, storage)
    assert len(segments(storage)) == 1


@pytest.mark.parametrize("size", [0, 5000])
def test_a_segment_of_wrong_length_behind_the_durable_end_is_removed(size: int) -> None:
    """What a kill leaves of a file that was being made (RocketMQ preallocates two)."""
    machine, storage = stopped_machine()
    names = segments(storage)
    segment_bytes = machine.configuration.settings.mapped_file_size_commit_log
    file = storage.create(f"commitlog/{int(names[-1]) + segment_bytes:020d}")
    file.cut(size)
    before = read_file(storage, f"commitlog/{names[-1]}")
    found = recover_again(machine, storage)
    assert segments(storage) == names
    assert read_file(storage, f"commitlog/{names[-1]}") == before
    assert int(names[-1]) < found.appended <= int(names[-1]) + segment_bytes


@mends("S307")
@pytest.mark.parametrize("whole", [True, False])
def test_a_piece_of_a_segment_behind_the_durable_end_goes_only_if_it_has_nothing(
    whole: bool,
) -> None:
    """No power cut leaves one of ours: somebody has cut it, or put another store's there."""
    machine, storage = stopped_machine()
    names = segments(storage)
    epoch.mark_running(storage, Life(1, "never stopped"), recover_again(machine, storage).appended)
    with contextlib.closing(CheckpointFile(storage, bytes(16), 1)) as checkpoint:
        checkpoint.write(int(names[-1]), 0, 0)
    with contextlib.closing(storage.open(f"commitlog/{names[-1]}", write=True)) as file:
        file.cut(100)
        if whole:
            file.write_at(bytes(100), 0)
    if whole:
        assert recover_again(machine, storage).appended == int(names[-1])
        assert segments(storage) == names[:-1]
    else:
        changes = len(machine.disk.log)
        with pytest.raises(Corrupt, match=f"{names[-1]} has 100 bytes, .* bring the whole"):
            recover_again(machine, storage)
        assert len(machine.disk.log) == changes, "nothing has been changed"


@mends("S307")
@pytest.mark.parametrize("size", [4096, 1 << 20])
def test_a_segment_of_another_store_in_an_empty_log_is_refused(size: int) -> None:
    """As the first one of a store that was started, and has had no message: it is not its own."""
    machine, storage = stopped_machine()
    segment = read_file(storage, f"commitlog/{segments(storage)[0]}")
    storage = SimStorage(Disk(file_bytes_max=2 << 20))
    recover_again(machine, storage)
    with contextlib.closing(storage.create(f"commitlog/{0:020d}")) as file:
        file.write_at(segment[:size].ljust(size, b"\0"), 0)
    changes = len(storage.disk.log)
    with pytest.raises(Corrupt, match="bring the whole file back"):
        recover_again(machine, storage)
    assert len(storage.disk.log) == changes, "nothing has been changed"


def test_a_spare_segment_with_two_names_is_forgotten() -> None:
    """A power cut may keep both names of a rename."""
    machine, storage = stopped_machine()
    last = f"commitlog/{segments(storage)[-1]}"
    inode = machine.disk.names.entries[last]
    machine.disk.names.entries["gantry/spare"] = inode
    recover_again(machine, storage)
    assert not storage.exists("gantry/spare")
    assert machine.disk.names.entries[last] is inode


def gone_on(machine: SimMachine, storage: SimStorage, folder: Path) -> AnotherBroker:
    """Another broker appends over a segment's end, and is killed."""
    segment_bytes = machine.configuration.settings.mapped_file_size_commit_log
    end = recover_again(machine, storage).appended
    other = AnotherBroker(storage, segment_bytes, end, now_ms=1_800_000_000_000)
    for record in golden_records(folder / "golden", 30, bytes_max=1500):
        other.append(record)
    assert other.end // segment_bytes > end // segment_bytes
    other.leave(killed=True)
    return other


def test_taking_another_brokers_records_over_can_be_killed_at_every_storage_call(
    tmp_path: Path,
) -> None:
    """P11: the next try comes to the same, with the same files."""
    machine, storage = stopped_machine()
    start = recover_again(machine, storage).appended
    end = gone_on(machine, storage, tmp_path).end
    disk = machine.disk
    outcomes = []
    calls = 0
    for at in itertools.count(1):
        tried = SimStorage(disk.clone(), "supervisor", FaultPlan([kill_at(at)]))
        with contextlib.suppress(KilledError):
            recover_again(machine, tried)
        again = SimStorage(tried.disk)
        found = recover_again(machine, again)
        ranges = read_ranges(again)
        assert ranges is not None
        assert (found.appended, ranges.spans) == (end, ((0, start),))
        following = {key: numbers[0] for key, numbers in found.queues.items()}
        outcomes.append((following, found.store_ms, read_whole_log(again)))
        assert outcomes[-1] == outcomes[0]
        if not tried.faults.met:
            calls = at
            break
    assert calls > 5


def read_whole_log(storage: SimStorage) -> dict[str, bytes]:
    return {name: read_file(storage, f"commitlog/{name}") for name in segments(storage)}


@mends("R7.4")
def test_a_hole_in_the_tail_is_no_damage_though_both_slots_of_the_checkpoint_are_torn() -> None:
    """Behind what a power cut has torn there may be whole records: none of them was durable."""
    machine, storage = stopped_machine()
    life = Life(1, "that ended so")
    appended = recover_again(machine, storage).appended
    epoch.mark_running(storage, life, appended)
    base = int(segments(storage)[-2])
    log = [record for record in read_log(storage, appended) if record.position >= base]
    hole, end = log[1].position, log[2].position
    with contextlib.closing(CheckpointFile(storage, bytes(16), 1)) as file:
        file.write(base, 0, 0)
        file.keep()
        for durable in (hole, hole):
            file.write(durable, 0, 0)
    for path, at, count in (
        (f"commitlog/{base:020d}", hole - base, end - hole),
        (FILE, 30, 20),
        (FILE, layout.GANTRY_CHECKPOINT_SLOT_BYTES + 30, 20),
    ):
        storage.open(path, write=True).write_at(bytes(count), at)
    assert recover_again(machine, storage).appended == hole


def test_a_clean_stop_counts_until_the_next_start_only() -> None:
    machine, storage = stopped_machine()
    found = recover_again(machine, storage)
    checkpoint = CheckpointFile(storage, bytes(16), 1)
    checkpoint.write(found.appended, 1, found.appended, clean=True)
    checkpoint.close()

    recover_again(machine, storage)

    last = read_checkpoint(storage)
    assert last is not None
    assert (last.clean, last.durable) == (False, found.appended)


@mends("S300")
@pytest.mark.usefixtures("nothing_reaches_the_disk")
def test_zeroes_of_a_start_whose_sync_failed_are_written_again_by_the_next() -> None:
    """P3: the page cache has them, and the disk what a power cut has left behind the end."""
    machine, storage = stopped_machine()
    appended = recover_again(machine, storage).appended
    epoch.mark_running(storage, Life(1, "that ended so"), appended)
    path = f"commitlog/{segments(storage)[-1]}"
    base = int(segments(storage)[-1])
    log = [record for record in read_log(storage, appended) if record.position >= base]
    end = log[-2].position
    file = storage.open(path, write=True)
    file.write_at(bytes(20), end - base)  # torn, and whole records behind
    file.sync()
    with contextlib.closing(CheckpointFile(storage, bytes(16), 1)) as checkpoint:
        for _ in range(2):
            checkpoint.write(log[0].position, 0, 0, sync=True)
    require_nothing_behind(machine, end, None)


@mends("S309")
@pytest.mark.usefixtures("nothing_reaches_the_disk")
def test_what_a_killed_broker_was_writing_goes_though_a_sync_of_that_failed() -> None:
    """P3: the page cache has a start's zeroes there, and the disk a whole record."""
    machine, storage = stopped_machine()
    appended = recover_again(machine, storage).appended
    epoch.mark_running(storage, Life(1, "that was killed"), appended)
    path = f"commitlog/{segments(storage)[-1]}"
    end = read_log(storage, appended)[-1].position
    board = machine._format(1 << 16)
    board.set_word(layout.BOARD_APPENDED, end)
    with contextlib.closing(CheckpointFile(storage, bytes(16), 1)) as checkpoint:
        for _ in range(2):
            checkpoint.write(end, 0, 0, sync=True)
    with contextlib.closing(storage.open(path, write=True)) as file:
        file.sync()
    require_nothing_behind(machine, end, board)


def require_nothing_behind(machine: SimMachine, end: int, board: Board | None) -> None:
    """On the disk, once the log was recovered up to there, and the start before met a bad sync."""
    settings = machine.configuration.settings
    fails = Fault(1, Moment.BEFORE, errno.EIO, ("sync",), under="commitlog")
    faulty = SimStorage(machine.disk, "supervisor", FaultPlan([fails]))
    with pytest.raises(OSError, match="EIO"):
        recover(faulty, settings, board)
    storage = SimStorage(machine.disk)
    assert recover(storage, settings, board).appended == end
    last = segments(storage)[-1]
    inode = machine.disk.names.entries[f"commitlog/{last}"]
    assert inode is not None
    assert not inode.durable[end - int(last) : inode.length].any()


@mends("S315")
@pytest.mark.parametrize("ended", ["stopped", "killed", "by a power cut"])
def test_whole_segments_that_the_last_life_cannot_have_written_are_refused(ended: str) -> None:
    """Of an earlier time of another store, as somebody puts them there to mend this one."""
    machine, storage = stopped_machine()
    names = segments(storage)
    recovered = recover_again(machine, storage)
    first = read_file(storage, f"commitlog/{names[0]}")
    segment_bytes = len(first)
    base = int(names[-1]) + segment_bytes
    board = None
    if ended != "stopped":
        epoch.mark_running(storage, Life(1, "that ended so"), recovered.appended)
        board = machine._format(1 << 16) if ended == "killed" else None
        if board:
            board.set_word(layout.BOARD_APPENDED, recovered.appended)
    with contextlib.closing(CheckpointFile(storage, bytes(16), 1)) as checkpoint:
        checkpoint.write(recovered.appended, recovered.store_ms, 0, clean=ended == "stopped")
    with contextlib.closing(storage.create(f"commitlog/{base:020d}")) as file:
        file.write_at(moved(first, base), 0)
    changes = len(machine.disk.log)
    with pytest.raises(Corrupt, match="nothing has been changed"):
        recover(storage, machine.configuration.settings, board)
    assert len(machine.disk.log) == changes


def moved(segment: bytes, base: int) -> bytes:
    """A segment with its first record at another position, which its sums do not cover."""
    at = layout.RECORD_PHYSICAL_OFFSET
    return segment[:at] + base.to_bytes(8, "big") + segment[at + 8 :]


@mends("S315")
def test_another_stores_segment_behind_a_killed_broker_s_end_is_refused_by_its_length() -> None:
    """A killed writer leaves one batch there at most."""
    machine, storage = stopped_machine()
    recovered = recover_again(machine, storage)
    epoch.mark_running(storage, Life(1, "that was killed"), recovered.appended)
    board = machine._format(1 << 16)
    board.set_word(layout.BOARD_APPENDED, recovered.appended)
    segment_bytes = machine.configuration.settings.mapped_file_size_commit_log
    base = int(segments(storage)[-1]) + segment_bytes
    while base < recovered.appended + limits.STAGING_BYTES + 2 * segment_bytes:
        with contextlib.closing(storage.create(f"commitlog/{base:020d}")) as file:
            file.write_at(b"x" * segment_bytes, 0)
        base += segment_bytes
    with pytest.raises(Corrupt, match=r"does not belong to this log: the broker was killed"):
        recover(storage, machine.configuration.settings, board)


@mends("S316")
def test_what_a_failed_broker_had_appended_may_be_gone_with_the_page_cache() -> None:
    """Its disk was mounted anew since, in the same boot; what was durable is asked for."""
    machine, storage = stopped_machine()
    recovered = recover_again(machine, storage)
    epoch.mark_running(storage, Life(1, "that failed"), recovered.appended)
    board = machine._format(1 << 16)
    board.set_word(layout.BOARD_APPENDED, recovered.appended + 500)
    board.set_word(layout.BOARD_DURABLE, recovered.appended)
    board.set_half(layout.BOARD_STATE, BrokerState.FAILED)
    assert recover(storage, machine.configuration.settings, board).appended == recovered.appended


@mends("S318")
@pytest.mark.parametrize("word", [layout.BOARD_DURABLE, layout.BOARD_APPENDED])
def test_an_end_that_only_memory_knows_may_be_of_a_disk_that_was_put_back(word: int) -> None:
    """To a snapshot of the life that was killed: the error says what to do then."""
    machine, storage = stopped_machine()
    recovered = recover_again(machine, storage)
    epoch.mark_running(storage, Life(1, "that was killed"), recovered.appended)
    with contextlib.closing(CheckpointFile(storage, bytes(16), 1)) as checkpoint:
        checkpoint.write(recovered.appended, 0, 0, sync=True)
    board = machine._format(1 << 16)
    board.set_word(layout.BOARD_APPENDED, recovered.appended + 500)
    board.set_word(layout.BOARD_DURABLE, recovered.appended)
    board.set_word(word, recovered.appended + 500)
    changes = len(machine.disk.log)
    with pytest.raises(Corrupt, match=r"snapshot of an earlier time, remove the file `run/board`"):
        recover(storage, machine.configuration.settings, board)
    assert len(machine.disk.log) == changes
    assert recover(storage, machine.configuration.settings, None).appended == recovered.appended
    damage = recovered.appended - 10
    name = f"commitlog/{segments(storage)[-1]}"
    storage.open(name, write=True).write_at(bytes(10), damage - int(segments(storage)[-1]))
    with pytest.raises(Corrupt, match=r"was durable up to \d+; `gantrymq store verify`"):
        recover(storage, machine.configuration.settings, board)


def of_another(machine: SimMachine, records: list[bytes]) -> SimStorage:
    """A store that another broker has made, and stopped cleanly."""
    storage = SimStorage(Disk())
    segment_bytes = machine.configuration.settings.mapped_file_size_commit_log
    other = AnotherBroker(storage, segment_bytes, 0, now_ms=1_800_000_000_000)
    for record in records:
        other.append(record)
    other.leave(killed=False)
    return storage


@mends("S302")
@pytest.mark.parametrize("kept", [200, 4000, 12_287])
def test_a_piece_of_the_only_segment_of_another_broker_is_refused(
    tmp_path: Path, kept: int
) -> None:
    """Not taken for a log that is empty: its records would be gone in silence."""
    machine, _ = stopped_machine()
    storage = of_another(machine, golden_records(tmp_path / "golden", 9, bytes_max=1500))
    storage.open(f"commitlog/{0:020d}", write=True).cut(kept)
    changes = len(storage.disk.log)
    with pytest.raises(Corrupt, match="bring the whole file back"):
        recover_again(machine, storage)
    assert len(storage.disk.log) == changes, "nothing has been changed"


@mends("S302", "S311")
@pytest.mark.parametrize("kept", [4, 6, 8, 30, 40, 87, 88, 200])
def test_a_segment_of_another_broker_that_was_cut_in_its_first_record_is_refused(
    tmp_path: Path, kept: int
) -> None:
    """It was stopped cleanly: none of its records is torn."""
    machine, _ = stopped_machine()
    storage = of_another(machine, golden_records(tmp_path / "golden", 60, bytes_max=1500))
    last = segments(storage)[-1]
    assert int(last)
    storage.open(f"commitlog/{last}", write=True).cut(kept)
    with pytest.raises(Corrupt, match="ends behind the file's end"):
        recover_again(machine, storage)
    assert segments(storage)[-1] == last


@mends("S301")
@pytest.mark.parametrize("role", ROLES)
def test_names_that_others_gave_are_durable_before_an_agent_counts_on_them(role: Role) -> None:
    """Whoever renamed a file last may have been killed before its folder was synced."""
    world = scenario.new_world(9)
    world.simulation.run_until(lambda: world.machine.running, STEPS_MAX)
    disk = world.machine.disk
    storage = SimStorage(disk)
    for folder in ("config", "gantry"):
        file = storage.create(f"{folder}/of_another.new")
        file.sync()
        storage.rename(f"{folder}/of_another.new", f"{folder}/of_another")
    assert disk.pending
    world.machine.build(role)
    assert not [change for change in disk.pending if "of_another" in (change.added or "")]


@mends("S301")
def test_a_sync_of_names_that_fails_fails_the_store() -> None:
    """F5: no later one says what it has lost."""
    world = scenario.new_world(9)
    world.simulation.run_until(lambda: world.machine.running, STEPS_MAX)
    world.machine.plans.agents[Role.GROUPS] = [
        Fault(1, Moment.BEFORE, errno.EIO, ("sync_directory",), under="gantry")
    ]
    board = world.machine.board
    assert board is not None
    assert world.machine.build(Role.GROUPS) is None
    assert has_failed(board)
