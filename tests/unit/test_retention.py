"""Which segments go, who holds them, and a death at any step of it (SF-70, SF-98 to SF-102)."""

from __future__ import annotations

import errno
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gantrymq.brokerd import queuerecovery, retention
from gantrymq.brokerd.batchqueues import settle_topics
from gantrymq.brokerd.holders import read_pins
from gantrymq.brokerd.queuestarts import FILE, read_starts
from gantrymq.brokerd.recovery import recover
from gantrymq.brokerd.removal import EXPIRED
from gantrymq.shm import layout
from gantrymq.shm.bitmapnote import DIRECTORY as EXTENSIONS
from gantrymq.shm.codes import BrokerState
from gantrymq.shm.queuenames import DIRECTORY as PLAIN_QUEUES
from gantrymq.shm.queuenames import MEMBERS, has_members, queue_directory
from gantrymq.shm.storage import PosixStorage, read_file, replace_file
from gantrymq.workers.housekeeper.progress import PROGRESS_FILE, UNFINISHED, save_progress
from tests.sim import scenario
from tests.support.faults import Fault, FaultPlan, KilledError, Moment, fail_at, kill_at
from tests.support.retaining import HOUR_MS, QUEUES, Rig, units_of, written_machine
from tests.support.simmachine import SimMachine
from tests.support.simstorage import SimStorage
from tests.support.trials import mends

SEGMENT = 16 * 1024


@pytest.fixture(scope="module")
def machine() -> SimMachine:
    """Several sealed segments that group `g` has read to the end."""
    return written_machine()


def pin(rig: Rig, name: str, content: str) -> None:
    storage = SimStorage(rig.disk)
    storage.make_directory("gantry/pins")
    replace_file(storage, f"gantry/pins/{name}", content.encode())


def commit(rig: Rig, key: tuple[str, int], offset: int) -> None:
    """Set group `g` back, as a seek does."""
    agent = rig.open()
    ledger = agent._holders[0]._ledger  # type: ignore[attr-defined]
    ledger.commit("g", key, offset)
    ledger.flush()
    ledger.sync()
    ledger.close()


def offset_in(machine: SimMachine, key: tuple[str, int], position: int) -> int:
    """Number of a queue's records below a log position."""
    board = machine.board
    assert board is not None
    topic = next(topic for topic in board.topics() if topic.name == key[0])
    written = board.queue(topic.queue_base + key[1])["written"]
    units = units_of(machine.disk, key, 0, written)
    places = [layout.CQ_UNIT.unpack(unit)["physical_offset"] for unit in units]
    return sum(place < position for place in places)


def last_base(machine: SimMachine) -> int:
    assert machine.board is not None
    return machine.board.word(layout.BOARD_APPENDED) // SEGMENT * SEGMENT


@pytest.fixture(scope="module")
def batch_machine() -> Iterator[SimMachine]:
    """The same, where `plain` is of RocketMQ's type BatchCQ."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scenario, "BATCH_TOPICS", {"plain"})
        yield written_machine()


@pytest.mark.parametrize("fixture", ["machine", "batch_machine"])
def test_what_is_old_and_read_goes_but_never_the_last(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    """SF-98, SF-70: log, sidecars, queue files whose units are all below; queues say so first."""
    machine: SimMachine = request.getfixturevalue(fixture)
    rig = Rig(machine)
    assert has_members(rig.storage, "plain") == (fixture == "batch_machine")
    before = rig.log()
    rig.run(rig.open())
    low = last_base(machine)
    assert low >= 3 * SEGMENT
    assert rig.low == low
    assert rig.log() == {name: data for name, data in before.items() if int(name) >= low}
    assert rig.storage.list(EXPIRED) == []
    assert all(int(name) >= low for name in rig.storage.list("gantry/segments"))
    firsts = {key: offset_in(machine, key, low) for key in QUEUES}
    assert rig.min_offsets() == firsts
    assert read_starts(rig.storage) == (low, {k: v for k, v in firsts.items() if v})
    for key, first in firsts.items():
        names = rig.storage.list(queue_directory(rig.storage, *key))
        assert names
        assert all(int(name) + 20 * 64 > first * 20 for name in names[:-1]), "SF-70"
    assert [e["forced"] for e in rig.events("segments_removed")] == [False]
    assert not rig.sessions.failures


@mends("S149", "S210")
@pytest.mark.parametrize("fixture", ["machine", "batch_machine"])
def test_what_has_no_position_as_its_name_is_passed_over(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    """Nor is a directory taken for a file; the start that follows passes over them as well."""
    machine: SimMachine = request.getfixturevalue(fixture)
    rig = Rig(machine)
    folders = [EXPIRED, "gantry/segments", *(queue_directory(rig.storage, *key) for key in QUEUES)]
    folders.append(f"{EXTENSIONS}/plain/0")
    strays = [f"{folder}/{name}" for folder in folders for name in ("\u00b2", "12x", "7", "1.bak")]
    strays += [f"{EXTENSIONS}/notes", f"{EXTENSIONS}/plain/notes"]
    if fixture == "batch_machine":
        strays += [f"{MEMBERS}/notes", f"{MEMBERS}/plain/notes", f"{MEMBERS}/plain/\u00b2"]
    for path in strays:
        rig.storage.create(path).close()
    wrong = [f"{EXPIRED}/{99:020d}", f"gantry/segments/{99:020d}"]
    for path in wrong:
        rig.storage.make_directory(path)
    rig.run(rig.open())
    assert rig.low == last_base(machine)
    assert rig.events("retention_cannot_look") == []
    assert not rig.sessions.failures
    assert rig.storage.list(EXPIRED) == ["0" * 18 + "99", "1.bak", "12x", "7", "\u00b2"]
    storage = SimStorage(rig.disk)
    settle_topics(storage)
    rig.restart()
    for root in (PLAIN_QUEUES, MEMBERS, EXTENSIONS):
        queuerecovery._cut_queues(storage, rig.settings.mapped_file_size_consume_queue, root, {})
    assert all(map(storage.exists, strays))


@mends("S19")
@pytest.mark.parametrize("kind", ["make_directory", "rename"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_segments_go_where_no_block_is_left_for_a_folder(
    machine: SimMachine, kind: str, number: int
) -> None:
    """They cannot be moved out of the way first: they are removed at once."""
    rig = Rig(machine)
    fault = Fault(1, error=number, kinds=(kind,), persistent=True, under=EXPIRED)
    rig.storage.faults = FaultPlan([fault])
    agent = rig.open()
    rig.run(agent)
    assert rig.low == last_base(machine)
    assert [int(name) for name in rig.log()] == [rig.low]
    assert not rig.sessions.failures


def test_the_newest_message_of_a_segment_counts(machine: SimMachine) -> None:
    rig = Rig(machine)
    rig.clock.step_wall(-2 * HOUR_MS)
    rig.run(rig.open())
    assert rig.low == 0


@pytest.mark.parametrize("hours", ["04", "16;4"])
def test_age_counts_at_its_hours_only_unless_the_disk_is_rather_full(
    machine: SimMachine, hours: str
) -> None:
    """SF-99, SF-100."""
    rig = Rig(machine, delete_when=hours)
    local = time.localtime(rig.clock.wall_ms() / 1000)
    rig.clock.step_wall((12 - local.tm_hour) % 24 * HOUR_MS)
    rig.run(rig.open())
    assert rig.low == 0
    rig.disk.capacity = rig.disk.used() * 100 // 80
    rig.run(rig.open())
    assert rig.low == last_base(machine), "above disk_max_used_space_ratio at any hour"
    again = Rig(machine, delete_when=hours)
    again.clock.step_wall((4 - local.tm_hour) % 24 * HOUR_MS)
    again.run(again.open())
    assert again.low == last_base(machine)


def test_an_unread_queue_holds_its_segment_and_all_behind(machine: SimMachine) -> None:
    """Design 4: one group that is behind in one queue; it is named once."""
    rig = Rig(machine)
    firsts = {key: offset_in(machine, key, 2 * SEGMENT) for key in QUEUES}
    key = next(key for key in QUEUES if firsts[key] < offset_in(machine, key, 3 * SEGMENT))
    unread = firsts[key]
    commit(rig, key, unread)
    rig.run(rig.open())
    assert rig.low == 2 * SEGMENT
    (held,) = rig.events("segments_held")
    assert held["who"] == f"group g in {key[0]}/{key[1]} at {unread}"


def test_a_pin_holds_the_log_from_its_position_on(machine: SimMachine) -> None:
    """F21: also one that cannot be read; one that ends at a usage does not hold above it."""
    rig = Rig(machine)
    pin(rig, "spark-a", json.dumps({"position": SEGMENT + 1}))
    rig.run(rig.open())
    assert rig.low == SEGMENT
    pin(rig, "spark-a", "{")
    rig.run(rig.open())
    assert rig.low == SEGMENT
    assert "unreadable" in str(rig.events("segments_held")[-1]["who"])
    pin(rig, "spark-a", json.dumps({"position": 0, "until_ratio": 50}))
    rig.disk.capacity = rig.disk.used() * 100 // 60
    rig.run(rig.open())
    assert rig.low == last_base(machine)


@mends("S22")
@pytest.mark.parametrize("at", ["gantry/pins", "gantry/pins/roots"])
def test_a_pin_that_cannot_be_opened_holds_by_age_but_never_the_disk_rule(
    machine: SimMachine, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's file, or folder: it is told by name, and the disk does not fill up."""
    rig = Rig(machine)
    pin(rig, "roots", json.dumps({"position": last_base(machine)}))
    whole_open, whole_list = SimStorage.open, SimStorage.list

    def refused(call: Callable[..., Any]) -> Callable[..., Any]:
        def asked(self: SimStorage, name: str, **options: Any) -> Any:  # noqa: ANN401
            if name == at:
                raise PermissionError(errno.EACCES, "Permission denied", name)
            return call(self, name, **options)

        return asked

    monkeypatch.setattr(SimStorage, "open", refused(whole_open))
    monkeypatch.setattr(SimStorage, "list", refused(whole_list))
    rig.run(rig.open())
    assert rig.low == 0
    (held,) = rig.events("segments_held")
    name = at.removeprefix("gantry/pins/")
    assert f"pin {name} (unreadable: PermissionError" in str(held["who"])
    rig.disk.capacity = rig.disk.used() * 100 // 86
    rig.run(rig.open())
    assert rig.low == SEGMENT
    assert [event["who"] for event in rig.events("removed_while_needed")] == [f"pin {name}"]


PINS_THAT_SAY_NOTHING = [
    "{", "[" * 5000, "[]", "1", '"x"', "{}", '{"position": "1"}', '{"position": 1e999}',
    f'{{"position": {1 << 64}}}', f'{{"position": {-1 << 64}}}', '{"position": -1}',
    '{"position": 1, "until_ratio": NaN}', '{"position": 1, "store": [1]}', "\xff",
]  # fmt: skip


@mends("S22", "S23")
@pytest.mark.parametrize("content", PINS_THAT_SAY_NOTHING, ids=lambda text: text[:20])
def test_a_pin_of_any_content_holds_all_and_ends_nothing(machine: SimMachine, content: str) -> None:
    """By age; the disk rule removes below it."""
    rig = Rig(machine)
    pin(rig, "odd", content)
    rig.run(rig.open())
    assert rig.low == 0
    assert "pin odd (" in str(rig.events("segments_held")[-1]["who"])
    rig.disk.capacity = rig.disk.used() * 100 // 86
    rig.run(rig.open())
    assert rig.low == SEGMENT


@mends("S22")
def test_a_folder_a_link_or_a_pipe_in_place_of_a_pin_holds_all(store_dir: Path) -> None:
    """As the operating system has them."""
    (store_dir / "gantry/pins/folder").mkdir(parents=True)
    (store_dir / "gantry/pins/link").symlink_to("/etc/passwd")
    os.mkfifo(store_dir / "gantry/pins/pipe")
    found = read_pins(PosixStorage(str(store_dir)))
    assert [one.name for one in found] == ["folder", "link", "pipe"]
    assert {(one.position, one.until_ratio) for one in found} == {(0, 100)}
    assert all("unreadable" in one.damage for one in found)


def test_the_disk_rule_wins_over_holders_and_says_who_loses_what(machine: SimMachine) -> None:
    """SF-100: above the clean level the oldest go whatever their age, as few as are needed."""
    rig = Rig(machine)
    rig.clock.step_wall(-2 * HOUR_MS)
    key = ("plain", 0)
    commit(rig, key, 0)
    pin(rig, "nightly", json.dumps({"position": 100}))
    rig.disk.capacity = rig.disk.used() * 100 // 86
    rig.run(rig.open())
    assert rig.low == SEGMENT
    lost = {str(event["who"]): event for event in rig.events("removed_while_needed")}
    assert lost["group g"]["count"] == offset_in(machine, key, SEGMENT) > 0
    assert lost["group g"]["what"] == "messages of plain"
    assert lost["pin nightly"]["count"] == SEGMENT - 100
    assert rig.events("segments_removed")[0]["forced"] is True


def test_a_removal_that_takes_long_takes_no_segment_too_many(
    machine: SimMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it gives back counts before the next one is decided, at the pace of a real broker."""
    for name in retention.Pace.__slots__:
        monkeypatch.setattr(retention.PACE, name, getattr(retention.Pace(), name))
    rig = Rig(machine)
    rig.clock.step_wall(-2 * HOUR_MS)
    commit(rig, ("plain", 0), 0)
    rig.disk.capacity = rig.disk.used() * 100 // 86
    rig.run(rig.open(), 80_000_000_000)
    assert rig.low == SEGMENT


def test_who_was_waited_for_once_is_waited_for_again(
    machine: SimMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk had room again by itself meanwhile: the patience of then is not spent."""
    rig = Rig(machine)
    agent = rig.open()
    monkeypatch.setattr(agent, "_move_below", lambda low: True)
    agent._over_bytes, agent._used = 1, 87
    assert agent._decide() is None
    agent._over_bytes, agent._used = 0, 60
    agent._decide()
    rig.clock.advance(30 * 24 * HOUR_MS * 1_000_000)
    agent._over_bytes, agent._used = 1, 87
    assert agent._decide() is None


def test_above_the_warning_level_the_board_says_that_sends_are_refused(machine: SimMachine) -> None:
    """SF-100; the writer's part: test_appender of the simulator, and the system tests."""
    rig = Rig(machine)
    pin(rig, "all", json.dumps({"position": 0}))
    agent = rig.open()
    rig.disk.capacity = rig.disk.used() * 100 // 95
    rig.run(agent, 1_000_000)
    assert rig.board.half(layout.BOARD_DISK_FULL) == 1
    assert rig.board.half(layout.BOARD_DISK_USED) >= 95
    rig.run(agent)
    assert rig.board.half(layout.BOARD_DISK_FULL) == 0, "segments have gone"
    assert [len(rig.events(f"disk_{w}_warning_level")) for w in ("above", "below")] == [1, 1]


MOMENTS = [Moment.BEFORE, Moment.AFTER]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("power", [False, True])
def test_a_death_at_any_storage_call_leaves_a_store_that_goes_on(
    machine: SimMachine, moment: Moment, power: bool
) -> None:
    """F2, P11: the next life finishes; every record that is there is whole, queues begin right."""
    whole = Rig(machine)
    whole.run(whole.open())
    everything = Rig(machine).log()
    low, log, firsts = whole.low, whole.log(), whole.min_offsets()
    ends = {key: offset_in(machine, key, 1 << 60) for key in QUEUES}
    deaths = 0
    while True:
        plan = FaultPlan((kill_at(deaths + 1, moment, CALLS),))
        rig = Rig(machine, faults=plan)
        try:
            rig.run(rig.open())
        except KilledError:
            deaths += 1
        else:
            break
        if power:
            rig.disk.power_cut(random.Random(deaths))
            rig.restart()
        else:
            rig.storage = SimStorage(rig.disk, "retention")
        assert rig.log().items() <= everything.items(), "what is there is whole"
        rig.run(rig.open())
        assert (rig.low, rig.log()) == (low, log), f"death {deaths}"
        assert rig.min_offsets() == firsts, f"death {deaths}"
        for key in QUEUES:
            there = units_of(rig.disk, key, firsts[key], ends[key])
            assert there == units_of(machine.disk, key, firsts[key], ends[key])
        assert rig.storage.list(EXPIRED) == []
        assert not rig.sessions.failures
    assert deaths > 20


#: All calls that change the disk, but what the ledger does at its start.
CALLS = ("create", "write", "rename", "unlink", "make_directory", "sync_directory")


def test_a_start_notices_queue_files_that_are_missing_after_a_removal(machine: SimMachine) -> None:
    """P14: those that retention removed are not missed; others make a start build all anew."""
    rig = Rig(machine)
    rig.run(rig.open())
    key = max(QUEUES, key=lambda key: len(rig.storage.list(f"consumequeue/{key[0]}/{key[1]}")))
    folder = f"consumequeue/{key[0]}/{key[1]}"
    assert rig.storage.exists(PROGRESS_FILE)
    rig.restart()
    assert rig.board.word(layout.BOARD_DISPATCHED) > rig.low, "nothing is missed"
    first = rig.storage.list(folder)[0]
    rig.storage.unlink(f"{folder}/{first}")
    rig.restart()
    assert rig.board.word(layout.BOARD_DISPATCHED) == rig.low, "all queues are made anew"


def test_a_queue_whose_records_have_all_expired_goes_on_at_its_offset(machine: SimMachine) -> None:
    """P5, also when the queues are made anew from the log, which has no record of it."""
    rig = Rig(machine)
    rig.run(rig.open())
    low, firsts = read_starts(rig.storage) or (0, {})
    content = {"low": low, "queues": {f"{t}@{q}": n for (t, q), n in firsts.items()}}
    content["queues"]["plain@5"] = 77  # type: ignore[index]
    replace_file(rig.storage, FILE, json.dumps(content).encode())
    rig.storage.unlink(PROGRESS_FILE)
    found = recover(rig.storage, rig.settings, None)
    assert found.queues["plain", 5] == (77, 77, 77)
    save_progress(rig.storage, found.low, {("plain", 5): 77})
    found = recover(rig.storage, rig.settings, None)
    assert found.queues["plain", 5] == (77, 77, 77)
    assert rig.storage.exists(PROGRESS_FILE), "the next start believes it: nothing is made anew"


def test_a_sidecar_that_a_power_cut_has_brought_back_goes_at_the_next_start(
    machine: SimMachine,
) -> None:
    """P14: its segment is out of the log for good, its own removal was not on the disk yet."""
    rig = Rig(machine)
    name = rig.storage.list("gantry/segments")[0]
    data = read_file(rig.storage, f"gantry/segments/{name}")
    rig.run(rig.open())
    assert int(name) < rig.low
    replace_file(rig.storage, f"gantry/segments/{name}", data)
    rig.restart()
    low = rig.low
    rig.run(rig.open(), for_ns=retention.PACE.first // 2)
    assert rig.low == low, "before it decides anything"
    assert not rig.storage.exists(f"gantry/segments/{name}")


@mends("S135")
@pytest.mark.parametrize("full", [False, True])
def test_where_queues_go_on_is_noted_before_their_last_records_go(
    machine: SimMachine, full: bool
) -> None:
    """P5: the power fails once a segment is out of the log, and before anything else is noted.

    A full disk has room for the note, once a sidecar has gone.
    """
    whole = Rig(machine)
    whole.run(whole.open())
    noted = read_starts(whole.storage)
    assert noted is not None
    rig = Rig(machine, faults=FaultPlan((kill_at(2, Moment.AFTER, ("rename",)),)))
    agent = rig.open()
    if full:
        rig.disk.capacity = rig.disk.used()
    with pytest.raises(KilledError):
        rig.run(agent)
    rig.disk.power_cut(random.Random(1))
    before = read_starts(SimStorage(rig.disk))
    assert before is not None
    assert (before[0], before[1].keys()) == (UNFINISHED, noted[1].keys())
    rig.disk.capacity = whole.disk.capacity
    rig.restart()
    rig.run(rig.open())
    assert read_starts(rig.storage) == noted


def test_no_room_for_the_note_is_tried_again_and_another_error_is_final(
    machine: SimMachine,
) -> None:
    """F7: segments go first, so that there is room again."""
    plan = FaultPlan((fail_at(1, errno.EIO, ("rename",)),))
    rig = Rig(machine, faults=plan)
    rig.run(rig.open())
    assert rig.sessions.failures
    full = Rig(machine, faults=FaultPlan())
    agent = full.open()
    full.storage.faults.faults = (fail_at(4, errno.ENOSPC, ("create", "write")),)
    full.run(agent)
    assert full.events("no_space_for_retention")
    assert full.low == last_base(machine)
    assert full.storage.list(EXPIRED) == []
    assert not full.sessions.failures


@mends("S28")
@pytest.mark.parametrize(
    ("kind", "under"), [("sync_directory", EXPIRED), ("sync", "gantry/ledger")]
)
def test_a_sync_without_room_is_final(machine: SimMachine, kind: str, under: str) -> None:
    """P3: no byte of a segment changes whose name may still be in the log after a power cut."""
    rig = Rig(machine)
    agent = rig.open()
    agent._holders[0]._ledger.unsynced = True  # type: ignore[attr-defined]
    later = Fault(1, error=errno.ENOSPC, kinds=("write", "unlink"), under=EXPIRED, persistent=True)
    rig.storage.faults.faults = (Fault(1, error=errno.ENOSPC, kinds=(kind,), under=under), later)
    rig.run(agent)
    assert rig.sessions.failures
    assert [text.split()[:2] for text in rig.storage.faults.met] == [[kind, f"{under}:"]]


def test_in_a_failed_store_it_rests(machine: SimMachine) -> None:
    rig = Rig(machine)
    agent = rig.open()
    rig.board.set_half(layout.BOARD_STATE, int(BrokerState.FAILED))
    rig.clock.advance(HOUR_MS * 1_000_000)
    now_ns = rig.clock.monotonic_ns()
    assert agent.do_work(now_ns) == 0
    assert agent.arm(now_ns) == retention.PACE.look
