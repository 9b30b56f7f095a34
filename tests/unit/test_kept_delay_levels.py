"""A store notes the delay levels that its units were made by, and all who look at it heed them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gantrymq import Broker, Producer
from gantrymq.brokerd import config, epoch
from gantrymq.brokerd.dump.settings import load_settings
from gantrymq.brokerd.handover.leaving import Target, handover
from gantrymq.brokerd.rebuild import rebuild
from gantrymq.brokerd.salvage import salvage
from gantrymq.brokerd.verify import verify
from gantrymq.shm.codes import Role
from gantrymq.shm.jsonsum import with_sum
from gantrymq.shm.properties import SCHEDULE_TOPIC
from gantrymq.shm.storage import PosixStorage
from tests.support.parking import Life, level_message, origins
from tests.support.simclock import SimClock
from tests.support.small_stores import flip

FIRST, SECOND = "2h 3h 4h", "1h 5h"
UNIT = f"consumequeue/{SCHEDULE_TOPIC}/0/{0:020d}"


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stopped stores of one life (`one`), and after a second one with other levels (`two`)."""
    kept = tmp_path_factory.mktemp("levels")
    sizes = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 1000}
    with Broker.temporary(**sizes, message_delay_level=FIRST) as broker:
        for name, levels in (("one", FIRST), ("two", SECOND)):
            given = broker.home / "given.json"
            given.write_text(json.dumps(json.loads(given.read_text()) | {epoch.LEVELS: levels}))
            broker.start()
            with Producer(broker.home) as producer:
                for level in (1, 2, 3, 9):
                    producer.send("later", b"%d" % level, delay_level=level)
            broker.stop()
            shutil.copytree(broker.home / "store", kept / name / "store")
        said = (broker.home / "broker.log").read_text()
    assert said.count("delay_levels_changed") == 1
    return kept


@pytest.fixture
def home(stores: Path, tmp_path: Path, name: str) -> Path:
    """A copy of one of them, with nothing configured beside it."""
    return Path(shutil.copytree(stores / name, tmp_path / "home"))


@pytest.mark.parametrize("name", ["one", "two"])
def test_units_of_all_its_levels_are_sound(home: Path, tmp_path: Path) -> None:
    """SF-63: by what is noted; a time that no level gives is found."""
    store = home / "store"
    assert verify(store).ok, str(verify(store))
    salvage(store, tmp_path / "salvaged" / "store")
    assert verify(tmp_path / "salvaged" / "store").ok
    flip(store / UNIT, 17)  # the first unit is of the first life
    assert [(f.path, f.position) for f in verify(store).findings] == [(UNIT, 0)]


@pytest.mark.parametrize("name", ["one"])
def test_tools_take_what_the_store_was_written_with(home: Path) -> None:
    """Whatever the next start is configured to do; also the settings that a RocketMQ is told."""
    (home / "gantrymq.toml").write_text(f'message_delay_level = "{SECOND}"\n')
    before = (home / "store" / UNIT).read_bytes()
    rebuild(home / "store")
    assert (home / "store" / UNIT).read_bytes() == before
    assert verify(home / "store").ok
    told = handover(home, Target(0), dry_run=True).settings["messageDelayLevel"]
    assert told == FIRST
    dumped = load_settings(PosixStorage(str(home / "store")))
    assert dumped.text("messageDelayLevel") == FIRST


@pytest.mark.parametrize("name", ["two"])
def test_a_rebuilt_store_has_the_times_of_its_last_levels(home: Path) -> None:
    """As RocketMQ, whose units are made of the level's number by what is set now."""
    storage = PosixStorage(str(home / "store"))
    assert load_settings(storage).earlier_levels == (FIRST,)
    before = (home / "store" / UNIT).read_bytes()
    rebuild(home / "store")
    assert (home / "store" / UNIT).read_bytes() != before
    assert verify(home / "store").ok


def begin(store: Path, levels: str = "") -> tuple[epoch.Life, config.Configuration]:
    given = {epoch.LEVELS: levels} if levels else {}
    return epoch.begin(PosixStorage(str(store)), config.load(None, given, {}))


def test_a_start_keeps_the_stores_levels_unless_it_is_told_others(store_dir: Path) -> None:
    storage = PosixStorage(str(store_dir))
    assert begin(store_dir, FIRST)[0].levels_before == ""
    assert load_settings(storage).earlier_levels == ()
    life, configuration = begin(store_dir)
    assert (life.levels_before, configuration.settings.message_delay_level) == ("", FIRST)
    assert configuration.origins[epoch.LEVELS] == "the store (gantry/store.json)"
    assert begin(store_dir, SECOND)[0].levels_before == FIRST
    assert begin(store_dir, FIRST)[0].levels_before == SECOND
    settings = load_settings(storage)
    assert (settings.text("messageDelayLevel"), settings.earlier_levels) == (FIRST, (SECOND,))


def test_a_store_that_does_not_say_was_made_by_the_default(store_dir: Path) -> None:
    begin(store_dir)
    path = store_dir / "gantry" / "store.json"
    content = json.loads(path.read_text())
    kept = {name: content[name] for name in ("version", "starts", *epoch.SIZES)}
    path.write_text(with_sum(json.dumps(kept)))
    begin(store_dir, FIRST)
    earlier = load_settings(PosixStorage(str(store_dir))).earlier_levels
    assert earlier == (config.DEFAULTS[epoch.LEVELS],)


@pytest.mark.parametrize(("now", "now_ms"), [("10s", 10_000), ("1s", 1000)])
def test_what_waits_at_a_change_keeps_its_time_or_waits_for_the_new_delay(
    tmp_path: Path, now: str, now_ms: int
) -> None:
    """DT-13: the unit's time stands, but never more than the level's delay from the start on."""
    clock = SimClock()
    life = Life(tmp_path, clock, {epoch.LEVELS: "3s"})
    parked_ms = clock.wall_ms()
    [position] = life.park(level_message(1))
    life.settle()
    life.stop()
    seen_ms = clock.wall_ms()
    life = Life(tmp_path, clock, {epoch.LEVELS: now})
    life.settle()
    due_ms = min(parked_ms + 3000, seen_ms + now_ms)
    life.run_for(due_ms - clock.wall_ms() - 1)
    assert life.delivered() == []
    life.run_for(20)
    assert origins(life.delivered()) == [position]
    life.kill(Role.SCHEDULER)
    life.run_for(20_000)
    assert origins(life.delivered()) == [position]
    life.stop()
