"""Files of `config/`: read what RocketMQ and we wrote, write as RocketMQ does."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from gantrymq.shm.configfile import (
    by_number,
    fault_in,
    format_config,
    parse_config,
    read_config,
    restore_config,
    write_config,
)
from gantrymq.shm.storage import PosixStorage, read_file
from tests.support.faults import Fault, FaultPlan, KilledError, Moment, kill_at
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage
from tests.support.trials import mends

OFFSETS = '{\n\t"offsetTable":{"TopicTest@CID_A":{0:250,1:251},"%RETRY%CID_A@CID_A":{0:3}}}'


def test_bare_integer_keys_are_read() -> None:
    """SF-104."""
    table = parse_config(OFFSETS)["offsetTable"]
    assert by_number(table["TopicTest@CID_A"]) == {0: 250, 1: 251}
    assert parse_config("{ 1 :2, -3:{\n4\t:[5,6]}}") == {"1": 2, "-3": {"4": [5, 6]}}


@pytest.mark.parametrize(
    "text",
    ['{"a{1:2,3:4":"{5:6,7:8}"}', r'{"quote\",1:2":"\\","b":",9:9"}', '{"x":[1,{"2":3}]}'],
)
def test_strings_are_left_alone(text: str) -> None:
    import json

    assert parse_config(text) == json.loads(text)


@pytest.mark.parametrize("text", ["", "{", '{"a":', "{1:2,}", "\0\0\0"])
def test_broken_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_config(text)


def test_text_is_rocketmqs() -> None:
    """SF-104, SF-119: sorted, tab-indented, bare integer keys, empty maps on three lines."""
    value = {
        "offsetTable": {10: 1, 2: 0},
        "dataVersion": {"counter": 4, "stateVersion": 0},
        "attributes": {},
        "none": None,
        "name": 'тема "q"',
        "bits": [103, 60],
        "topics": ["a", "b"],
        "order": False,
    }
    assert format_config(value) == (
        '{\n\t"attributes":{\n\t\t\n\t},\n\t"bits":[103,60],\n'
        '\t"dataVersion":{\n\t\t"counter":4,\n\t\t"stateVersion":0\n\t},\n'
        '\t"name":"тема \\"q\\"",\n\t"offsetTable":{\n\t\t2:0,\n\t\t10:1\n\t},\n'
        '\t"order":false,\n\t"topics":[\n\t\t"a",\n\t\t"b"\n\t]\n}'
    )


@pytest.fixture
def storage(store_dir: Path) -> PosixStorage:
    return PosixStorage(str(store_dir))


def put(storage: PosixStorage, name: str, text: str) -> None:
    path = Path(storage.root) / "config" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("file", "backup", "expected"),
    [
        ('{"a":1}', '{"a":2}', {"a": 1}),
        (None, '{"a":2}', {"a": 2}),
        ("", '{"a":2}', {"a": 2}),
        ('{"a":', '{"a":2}', {"a": 2}),
        ('{"a":', None, None),
        (None, None, None),
    ],
)
def test_the_backup_stands_in(
    storage: PosixStorage, file: str | None, backup: str | None, expected: object
) -> None:
    """SF-103."""
    for name, text in (("t.json", file), ("t.json.bak", backup)):
        if text is not None:
            put(storage, name, text)
    assert read_config(storage, "t.json") == expected


def test_saving_keeps_the_last_version_as_backup(storage: PosixStorage) -> None:
    """SF-103."""
    for counter in (1, 2, 3):
        write_config(storage, "t.json", {"counter": counter})
    assert read_config(storage, "t.json") == {"counter": 3}
    assert read_config(storage, "t.json.bak") == {"counter": 2}
    assert storage.list("config") == ["t.json", "t.json.bak"]


def test_a_broken_file_never_becomes_the_backup(storage: PosixStorage) -> None:
    put(storage, "t.json", '{"counter":')
    put(storage, "t.json.bak", '{"counter":1}')
    write_config(storage, "t.json", {"counter": 2})
    assert read_config(storage, "t.json.bak") == {"counter": 1}


def saved_twice() -> Disk:
    storage = SimStorage(Disk())
    write_config(storage, "t.json", {"counter": 1})
    write_config(storage, "t.json", {"counter": 2})
    return storage.disk


@pytest.mark.parametrize("moment", list(Moment))
def test_a_crash_at_any_call_leaves_the_old_or_the_new_value(moment: Moment) -> None:
    """SF-103: killed at the n-th call of a save, with and without a power cut."""
    for call in range(1, 100):
        storage = SimStorage(saved_twice(), "test", FaultPlan((kill_at(call, moment),)))
        try:
            write_config(storage, "t.json", {"counter": 3})
        except KilledError:
            require_old_or_new(storage.disk)
        else:
            break
    assert 5 < call < 99


def require_old_or_new(disk: Disk) -> None:
    assert read_config(SimStorage(disk.clone()), "t.json") in ({"counter": 2}, {"counter": 3})
    for seed in range(30):
        cut = disk.clone()
        cut.power_cut(random.Random(seed))
        found = read_config(SimStorage(cut), "t.json")
        assert found in ({"counter": 2}, {"counter": 3}), seed


def test_a_finished_save_survives_a_power_cut() -> None:
    disk = saved_twice()
    for seed in range(60):
        cut = disk.clone()
        cut.power_cut(random.Random(seed))
        assert read_config(SimStorage(cut), "t.json") == {"counter": 2}, seed


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.MIDDLE])
@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("kind", ["create", "write"])
def test_what_finds_no_room_leaves_the_file_as_it_was(
    moment: Moment, before: int, kind: str
) -> None:
    """F7, SF-103: no stub stays that a start would take for damage."""
    disk = Disk()
    for number in range(before):
        write_config(SimStorage(disk), "x.json", {"number": number})
    full = Fault(1, error=errno.ENOSPC, kinds=(kind,), moment=moment, under="config/x.json")
    with pytest.raises(OSError, match=r"x\.json"):
        write_config(SimStorage(disk, "full", FaultPlan([full])), "x.json", {"number": 9})
    storage = SimStorage(disk)
    found = read_config(storage, "x.json")
    assert found == ({"number": before - 1} if before else None)
    assert storage.exists("config/x.json") == bool(before)
    write_config(storage, "x.json", {"number": 7})
    assert read_config(storage, "x.json") == {"number": 7}


def test_a_stub_is_written_anew_from_the_backup() -> None:
    storage = SimStorage(Disk())
    for number in range(2):
        write_config(storage, "x.json", {"number": number})
    file = storage.open("config/x.json", write=True)
    file.truncate(0)
    file.close()
    value = read_config(storage, "x.json")
    assert value == {"number": 0}
    restore_config(storage, "x.json", value)
    assert parse_config(read_file(storage, "config/x.json").decode())["number"] == 0


_KEYS = '{"a":{0:1,1:2,"b":{-3:4'


@mends("S269")
@pytest.mark.parametrize(
    ("data", "place", "said"),
    [
        (b"", 0, "the end"), (b"{\n\t", 3, "the end"), (b'{"a"', 4, "the end"),
        ('{"é":"x'.encode(), 6, "a string that does not end"),
        ('{"é" 1}'.encode(), 6, "'1', which"),
        (b'{"a":1}x', 7, "'x', which"), (b'{"a":"\x01"}', 6, "'\\x01', which"),
        (b'{"a":"\xff"}', 6, "byte 0xff, which is no UTF-8"),
        (_KEYS.encode(), len(_KEYS), "the end"),
        (f"{_KEYS},x".encode(), len(_KEYS) + 1, "'x', which"),
        (b'{0:1,"a":{1:x', 12, "'x', which"), (b'{0:1x', 4, "'x', which"),
        (b"[" * 100_000, 0, "nested too deeply"), (b"1" * 5_000, 0, "too long"),
        (b"NaN", 0, "a number that is none"),
    ],
)  # fmt: skip
def test_where_a_text_ceases_to_be_one(data: bytes, place: int, said: str) -> None:
    found = fault_in(data)
    assert found is not None
    assert found[0] == place
    assert said in found[1]


@mends("S269")
def test_a_whole_text_has_no_fault() -> None:
    for text in (OFFSETS, f"{_KEYS}}}}}}}", "{}", "null"):
        assert fault_in(text.encode()) is None
