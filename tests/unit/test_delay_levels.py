"""Delay levels: what is parked is delivered once, in order, on its millisecond (DT-10 to DT-17)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gantrymq.shm import layout
from gantrymq.shm.codes import Role
from gantrymq.shm.configfile import write_config
from gantrymq.shm.storage import PosixStorage
from gantrymq.workers.scheduler.note import read_level_offsets
from tests.support.nearnames import NEAR
from tests.support.parking import Life, after_message, at_message, level_message, origins
from tests.support.simclock import SimClock
from tests.support.trials import mends


@pytest.fixture
def life(tmp_path: Path) -> Life:
    """A broker that has just begun."""
    return Life(tmp_path, SimClock())


def test_a_level_is_delivered_when_it_is_due(life: Life) -> None:
    """DT-13, DT-14: not a millisecond early, and all properties are kept."""
    stored_ms = life.clock.wall_ms()
    [position] = life.park(level_message(1, TAGS="t", UNIQ_KEY="0" * 32))
    life.run_for(999)
    assert not life.delivered()
    life.run_for(3)
    [copy] = life.delivered()
    assert origins([copy]) == [position]
    assert copy.store_timestamp - stored_ms in (1000, 1001, 1002)
    kept = copy.property_map()
    assert {k: kept[k] for k in ("TAGS", "DELAY", "REAL_TOPIC", "REAL_QID")} == {
        "TAGS": "t", "DELAY": "1", "REAL_TOPIC": "later", "REAL_QID": "0",
    }  # fmt: skip
    life.stop()


@mends("S52")
@pytest.mark.parametrize("parked", ["level", "delay"])
def test_what_is_due_on_a_durable_topic_waits_for_no_flush_interval(
    tmp_path: Path, parked: str
) -> None:
    """It can be seen when it is due, as on other topics; retries are such messages."""
    life = Life(tmp_path, SimClock(), {"flush_interval_commit_log": 60_000}, topics=())
    life.metadata.create("later", 2, "durable")
    life.park(level_message(1) if parked == "level" else after_message(life, 1_000))
    (topic,) = (each for each in life.board.topics() if each.name == "later")
    queue = topic.queue_base + (0 if parked == "level" else 1)
    life.run_for(999)
    assert life.board.queue(queue)["max_offset"] == 0
    life.run_for(10)
    assert life.board.queue(queue)["max_offset"] == 1
    life.stop()


@mends("H1")
def test_names_of_an_application_that_are_nearly_ours_stay_and_mean_nothing(life: Life) -> None:
    """Of a delay level, a time and a delay; each is delivered where and when it was to be."""
    decoys = dict.fromkeys(NEAR, "9")
    due_ms = life.clock.wall_ms() + 1_500
    parked = [
        level_message(1, **decoys),
        at_message(due_ms, **decoys),
        after_message(life, 1_500, **decoys),
    ]
    positions = life.park(*parked)
    life.run_for(1_600)
    delivered = life.delivered()
    assert sorted(origins(delivered)) == positions
    for copy in delivered:
        assert copy.property_map().items() >= decoys.items()
    life.stop()


def test_levels_keep_their_order_and_do_not_wait_for_each_other(life: Life) -> None:
    """DT-12: within a level by time of storing."""
    first = life.park(*(level_message(2) for _ in range(50)), level_message(1))
    life.run_for(100)
    second = life.park(*(level_message(2) for _ in range(50)))
    life.run_for(6000)
    assert origins(life.delivered()) == [first[-1], *first[:-1], *second]
    life.stop()


@pytest.mark.parametrize("victim", [Role.SCHEDULER, Role.WRITER, Role.READER])
def test_a_death_repeats_nothing_and_loses_nothing(life: Life, victim: Role) -> None:
    """P5: exactly one copy, though puts were on their way."""
    positions = life.park(*(level_message(1) for _ in range(200)))
    life.run_for(995)
    life.clock.advance(20_000_000)
    for number in range(12):
        life.agents[Role.SCHEDULER].do_work(life.clock.monotonic_ns())
        if number % 3 == 1:
            life.agents[Role.WRITER].do_work(life.clock.monotonic_ns())
        life.kill(victim)
    life.run_for(500)
    assert sorted(origins(life.delivered())) == positions
    life.stop()


def test_a_restart_goes_on(tmp_path: Path) -> None:
    """A clean stop leaves the rest parked; the next life delivers it, without the note as well."""
    clock = SimClock()
    life = Life(tmp_path, clock)
    positions = life.park(level_message(1), level_message(2))
    life.run_for(1500)
    life.stop()
    offsets = (tmp_path / "config" / "delayOffset.json").read_text()
    assert "1:1" in offsets
    for lost in ((), ("gantry/schedule.json", "config/delayOffset.json")):
        for name in lost:
            (tmp_path / name).unlink()
        life = Life(tmp_path, clock)
        life.run_for(4000)
        assert origins(life.delivered()) == positions
        life.stop()
    note = json.loads((tmp_path / "gantry" / "schedule.json").read_text())
    assert note["levels"] == {"1": 1, "2": 1}


def test_a_queue_that_was_removed_unread_is_passed_over(life: Life) -> None:
    """Retention may take all of a parking queue: the scheduler goes on behind, and rests."""
    life.run_for(10)
    scheduler = life.agents.pop(Role.SCHEDULER)
    far_ms = life.clock.wall_ms() + 3_600_000
    life.park(level_message(1), level_message(2), at_message(far_ms))
    life.settle()
    for topic in life.board.topics():
        for queue in range(topic.queue_base, topic.queue_base + topic.queue_count):
            at = life.board.queue_at(queue)
            end = life.board.word(at + layout.QUEUE_MAX_OFFSET)
            life.board.set_word(at + layout.QUEUE_MIN_OFFSET, end)
    life.agents[Role.SCHEDULER] = scheduler
    life.run_for(2_000)
    assert life.sleep() > 0
    assert not life.delivered()
    positions = life.park(level_message(1), at_message(life.clock.wall_ms() + 500))
    life.run_for(1_100)
    assert sorted(origins(life.delivered())) == positions
    life.stop()


@mends("R1")
def test_offsets_beyond_the_recovered_queue_pass_over_nothing_that_came_since(
    tmp_path: Path,
) -> None:
    """Another broker's file was written, and its log lost; then others park before this opens."""
    write_config(PosixStorage(str(tmp_path)), "delayOffset.json", {"offsetTable": {"1": 5}})
    life = Life(tmp_path, SimClock())
    scheduler = life.agents.pop(Role.SCHEDULER)
    positions = life.park(*(level_message(1) for _ in range(3)))
    life.settle()
    life.agents[Role.SCHEDULER] = scheduler
    life.run_for(1_500)
    assert sorted(origins(life.delivered())) == positions
    life.stop()


def without_room_for_topics(life: Life) -> Life:
    """The board has no place for a topic that is missing."""
    life.metadata.have = lambda name: None  # type: ignore[method-assign]
    return life


def offsets_for_others(directory: Path) -> dict[int, int]:
    """What another broker finds."""
    return read_level_offsets(PosixStorage(str(directory)))


@mends("S217")
@pytest.mark.parametrize(
    "lost", [(), ("gantry/schedule.json",), ("gantry/schedule.json", "config/delayOffset.json")]
)
def test_what_had_no_topic_is_delivered_whatever_file_is_lost(
    tmp_path: Path, lost: tuple[str, ...]
) -> None:
    """The log alone says what waits: no other file is believed."""
    clock = SimClock()
    life = without_room_for_topics(Life(tmp_path, clock))
    parked = life.park(level_message(1), level_message(1, "missing"), level_message(1))
    life.run_for(12_000)
    life.stop()
    assert origins(life.delivered()) == [parked[0], parked[2]]
    for name in lost:
        (tmp_path / name).unlink()
    life = Life(tmp_path, clock, topics=("later", "missing"))
    life.run_for(2_000)
    assert origins(life.delivered()) == [parked[0], parked[2]]
    assert origins(life.delivered("missing")) == [parked[1]]
    life.stop()


@mends("S217")
def test_another_broker_is_told_of_what_has_no_topic(tmp_path: Path) -> None:
    """It believes `config/delayOffset.json`: that passes over nothing, in this life or the next."""
    clock = SimClock()
    life = without_room_for_topics(Life(tmp_path, clock))
    timer = at_message(clock.wall_ms() + 500)
    timer.properties["REAL_TOPIC"] = "missing"
    life.park(
        level_message(1), level_message(1, "missing"), level_message(1),
        level_message(2), level_message(2), timer,
    )  # fmt: skip
    life.run_for(20_000)
    assert offsets_for_others(tmp_path) == {1: 1, 2: 2}
    life.stop()
    life = without_room_for_topics(Life(tmp_path, clock))
    life.park(level_message(1), level_message(1, "missing"), level_message(2))
    life.run_for(20_000)
    assert offsets_for_others(tmp_path) == {1: 1, 2: 3}
    life.metadata.create("missing", 2, "written")
    life.run_for(20_000)
    assert offsets_for_others(tmp_path) == {1: 5, 2: 3}
    assert (len(life.delivered()), len(life.delivered("missing"))) == (6, 3)
    life.stop()
