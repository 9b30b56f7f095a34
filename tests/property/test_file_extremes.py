"""Whatever a number of a file says: who reads it names the file, or takes no harm."""

from __future__ import annotations

import ast
import os
import random
import shutil
import sys
from collections.abc import Callable
from functools import partial
from io import StringIO
from itertools import product
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

from gantrymq.brokerd.dump import dump_store
from gantrymq.brokerd.salvage import Salvaged
from gantrymq.brokerd.salvage.copying import write_ledger
from gantrymq.brokerd.verify import verify
from gantrymq.shm import layout
from gantrymq.shm.bloom import BloomForm
from gantrymq.shm.codes import Role
from gantrymq.shm.configfile import parse_config
from gantrymq.shm.errors import Corrupt, GantryError, Incompatible
from gantrymq.shm.jsonsum import without_sum
from gantrymq.shm.storage import PosixStorage, replace_file
from gantrymq.workers.filterfile import FilterEntry, read_filters, write_filters
from gantrymq.workers.groups.ledger import open_ledger
from gantrymq.workers.groups.ledgerentries import NAME as LEDGER
from gantrymq.workers.groups.ledgerentries import Kind, pack_entry
from gantrymq.workers.scheduler.note import Note, read_note, write_note
from gantrymq.workers.scheduler.timerbuckets import DIRECTORY as BUCKETS
from gantrymq.workers.scheduler.timerbuckets import bucket_names, span_of
from gantrymq.workers.scheduler.timerpool import ENTRY
from gantrymq.workers.scheduler.timerseals import MS_MAX, sealed, unsealed
from tests.support import sweptbytes
from tests.support.door import open_at
from tests.support.extremes import NUMBERS
from tests.support.groups_rig import Rig
from tests.support.parking import Life, at_message
from tests.support.simclock import SimClock
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage
from tests.support.sweptbytes import ledgers
from tests.support.sweptfiles import FILES, Reader, SweptFile, changed, wrong_numbers
from tests.support.tree import FOLDERS, ROOT, nodes, parsed, python_files
from tests.support.trials import mends


def outcome(file: SweptFile, read: Reader, root: Path) -> list[object]:
    """What is wrong with how a reader took a file."""
    try:
        return list(wrong_numbers(read(root)))
    except GantryError as error:
        return [] if file.name in str(error) else [error]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a broadcasting consumer keeps its offsets; no waiting for a disk."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no power is cut here


@mends("S235", "S236")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_value_of_a_file_ends_its_readers(file: SweptFile, tmp_path: Path) -> None:
    for content in changed(file.content):
        for read in file.readers:
            file.write(tmp_path, content)
            assert outcome(file, read, tmp_path) == [], content


def _start(home: Path) -> None:
    """Up to where agents would come."""
    broker = open_at(home)
    try:
        broker.begin()
    finally:
        broker.close(clean=False)


#: What reads all files of a store.
WHOLE: tuple[Reader, ...] = (
    _start,
    lambda home: verify(home / "store"),
    lambda home: dump_store(home / "store", StringIO(), None, "disk"),
)
#: How often each of them is done.
SAMPLES = 6


def test_no_value_of_a_file_ends_a_start_or_a_check(
    varied_store: Path, tmp_path: Path, seed: int
) -> None:
    """A sample of what is above, with all other files there."""
    dice = random.Random(seed)
    known = {file.path: file for file in FILES}
    sound = {
        path: without_sum(parse_config((varied_store / path).read_text()))
        for path in known
        if (varied_store / path).is_file()
    }
    assert len(sound) > 8
    home = tmp_path / "home"
    for act, _ in product(WHOLE, range(SAMPLES)):
        shutil.copytree(varied_store, home / "store")
        home.chmod(0o700)
        path = dice.choice(list(sound))
        content = dice.choice(list(changed(sound[path])))
        known[path].write(home / "store", content)
        try:
            act(home)
        except GantryError as error:
            named = any(word in str(error) for word in (path, "commitlog/", "setting", "topic"))
            assert named, (path, content, error)  # noqa: PT017 - one of many
        shutil.rmtree(home)


# ----------------------------------------------------------------------------- files with a layout


@mends("S238")
@pytest.mark.parametrize("file", sweptbytes.FILES, ids=lambda file: file.path.split("/")[1])
def test_no_number_of_a_layout_ends_its_readers(
    file: sweptbytes.SweptBytes, tmp_path: Path
) -> None:
    """Its checksum is right."""
    storage = PosixStorage(str(tmp_path))
    storage.make_directory("gantry")
    file.make(storage)
    path = tmp_path / file.path
    sound = path.read_bytes()
    file.read(storage)
    for what, data in file.changed(sound):
        path.write_bytes(data)
        try:
            found = list(wrong_numbers(file.read(storage)))
        except GantryError as error:
            found = [] if path.name in str(error) else [error]
        assert found == [], what


@mends("S237")
def test_no_number_of_the_ledger_ends_groups(seed: int) -> None:
    """Whatever an entry of any kind says, its checksum being right: it is named, or taken."""
    dice = random.Random(seed)
    for what, data in ledgers():
        if dice.randrange(8):
            continue
        rig = Rig(orders=4)
        rig.fill(0, 10)
        replace_file(SimStorage(rig.disk), LEDGER, data)
        try:
            rig.replace_agent()
            hand = rig.attach()
            hand.join("g")
            hand.start(q0=8)
            hand.commit(q0=9)
            hand.die()
            rig.replace_agent()
        except (Corrupt, Incompatible) as error:
            named = LEDGER in str(error)
        except Exception as error:
            raise AssertionError(what) from error
        else:
            named = True
        assert named, what


def test_no_number_of_a_bucket_ends_the_scheduler(tmp_path: Path) -> None:
    """Its entries have a seal each, which is right."""
    life = Life(tmp_path, SimClock())
    life.park(at_message(life.clock.wall_ms() + 600_000))
    life.run_for(12_000)
    (name,) = bucket_names(life.storage.list(BUCKETS))
    path = tmp_path / BUCKETS / name
    sound, _whole = unsealed(np.frombuffer(path.read_bytes(), ENTRY).copy(), span_of(name))
    for field in ENTRY.names or ():
        for number in NUMBERS:
            data = sound.copy()
            size = ENTRY[field].itemsize
            word = (number & ((1 << 8 * size) - 1)).to_bytes(size, "little")
            data[field] = np.frombuffer(word, ENTRY[field])
            if field == "ms" and not 0 <= data["ms"][0] <= MS_MAX:
                continue  # a seal has its bits
            path.write_bytes(sealed(data).tobytes())
            life.kill(Role.SCHEDULER)
            for _ in range(4):
                life.turn()
    path.write_bytes(sealed(sound).tobytes())
    life.kill(Role.SCHEDULER)
    life.run_for(700_000)
    assert len(life.delivered()) == 1
    life.stop()


#: Layouts of files without a checksum of ours, or of whole files: who else looks at them.
SWEPT_ELSEWHERE = {
    "record_head": "tests/property/test_damaged_records.py",
    "filler": "the same",
    "crc_trailer": "the same",
    "consume_queue_unit": "tests/unit/test_misplaced_units.py",
    "consume_queue_ext_unit": "tests/golden/test_bitmaps.py",
    "batch_consume_queue_unit": "tests/golden/test_batch_units.py",
    "checkpoint": "RocketMQ's, of which a start believes nothing",
    "index_header": "tests/property/test_verify_index.py",
    "index_entry": "the same",
    "timer_checkpoint": "RocketMQ's: tests/unit/test_timer_files.py",
    "timer_log_unit": "the same",
    "timer_log_end": "the same",
    "timer_slot": "the same",
}


def test_every_layout_of_a_file_is_in_a_sweep() -> None:
    """A new one fails here until it is."""
    swept = {struct.name for file in sweptbytes.FILES for struct, _at in file.structs}
    swept.add(layout.LEDGER.name)
    assert {kind for kind, _name, _values in sweptbytes.ENTRIES} == set(Kind)
    known = {struct.name for struct in layout.STORE}
    assert known - swept == SWEPT_ELSEWHERE.keys()


# ------------------------------------------------------------------------------ nobody is left out

#: What takes a text of JSON, or a file of it, apart.
PARSERS = frozenset(
    {"parse_json", "parse_object", "parse_config", "read_config", "read_content", "decode_json"}
)
#: Who does so, but reads no file that anything is told by.
NO_READERS = {
    "clients/spark/catalog.py:options_in": "the comment of a column of Spark's",
    "gantrymq/cli/bench.py:bench": "figures that this command has made just now",
    "gantrymq/cli/send.py:_from_json": "lines of the standard input",
    "gantrymq/temporary.py:start": "settings that this object has written itself",
    "brokerd/backup.py:_read_whole": "whether it is JSON at all: it is copied as it is",
    "brokerd/handover/groupfiles.py:_is_good": "whether it is JSON at all",
    "brokerd/salvage/copying.py:_readable": "whether it is JSON at all: it is copied as it is",
}  # fmt: skip


def readers() -> set[str]:
    """All functions of the product that read JSON."""
    found = set()
    for path in python_files(*FOLDERS, "gantrymq"):
        for node in nodes(parsed(path)):
            if isinstance(node, ast.FunctionDef) and _parses(node):
                found.add(f"{path.relative_to(ROOT)}:{node.name}")
    return found


def _parses(function: ast.FunctionDef) -> bool:
    calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    return any(isinstance(call, ast.Name) and call.id in PARSERS for call in calls)


def called_by(act: Callable[[], object]) -> set[str]:
    """Functions of the product that are called meanwhile."""
    found = set()

    def note(frame: FrameType, event: str, _value: object) -> None:
        if event == "call":
            found.add(frame.f_code)

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    files = {code: Path(code.co_filename).resolve() for code in found}
    return {
        f"{path.relative_to(ROOT)}:{code.co_name}"
        for code, path in files.items()
        if path.is_relative_to(ROOT)
    }


def test_every_reader_of_json_is_in_the_sweep(tmp_path: Path) -> None:
    """A new one fails here until a file of its own is in tests/support/sweptfiles.py."""
    reached: set[str] = set()
    for file in FILES:
        for read in file.readers:
            file.write(tmp_path, file.content)
            reached |= called_by(partial(outcome, file, read, tmp_path))
    known = readers()
    assert known - reached == NO_READERS.keys()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_sound_file_of_the_sweep_is_taken(file: SweptFile, tmp_path: Path) -> None:
    """Else nobody would look at what lies behind the first value that is refused."""
    for read in file.readers:
        file.write(tmp_path, file.content)
        read(tmp_path)


FORM = BloomForm.of(20, 32)
FAR = 316_000_000_000_000  # in the year 11983, as a host's clock may say it


@mends("S240")
def test_times_of_other_hosts_may_be_any() -> None:
    """Clients of RocketMQ give a filter's version in ns, and records what their host's clock says.

    Else all filters, or the scheduler's whole note, would count as damaged.
    """
    storage = SimStorage(Disk())
    entry = FilterEntry("t", "g", "a > 1", "sql", FAR, 1_795_252_972_130_000_000, FAR)
    write_filters(storage, [entry], FORM)
    assert read_filters(storage, FORM) == [entry]
    note = Note(stamped_ms=FAR, unsure=[[FAR, FAR + 5, 9]])
    write_note(storage, note)
    assert read_note(storage) == note


@mends("S237")
def test_a_ledger_with_an_entry_that_none_can_be_is_salvaged_up_to_it() -> None:
    source, target = SimStorage(Disk()), SimStorage(Disk())
    sound = pack_entry(Kind.GROUP, b"g", group=0) + pack_entry(Kind.TOPIC, b"t", topic=1)
    sound += pack_entry(Kind.COMMIT, b"", group=0, topic=1, offset=7)
    replace_file(source, LEDGER, sound + pack_entry(Kind.COMMIT, b"", group=5, topic=1, offset=9))
    done = Salvaged("", "", ours=True)
    write_ledger(source, target, done)
    assert LEDGER in done.files
    assert open_ledger(target, 3).group("g").queue(("t", 0)).committed == 7
