"""`timerlog/` and `config/timercheck` of a hand-over, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantrymq.brokerd.handover.timerfiles import (
    Timer,
    TimerForm,
    place_of,
    slot_of,
    timer_of,
    units,
    units_per_file,
    write_timer_checkpoint,
    write_timer_log,
)
from gantrymq.shm import layout
from gantrymq.shm.storage import PosixStorage, read_file

NOW_MS = 1_795_253_766_123
READ_MS = 1_795_253_766_000
FORM = TimerForm(NOW_MS)
DAY_MS = 86_400_000


def timer(out_ms: int, number: int = 0, due_ms: int = 0) -> Timer:
    return Timer(1000 * number, 300 + number, out_ms, due_ms, "TopicTest")


def rows(data: bytes) -> list[dict[str, int]]:
    size = layout.TIMER_LOG_UNIT.size
    return [layout.TIMER_LOG_UNIT.unpack(data, at) for at in range(0, len(data), size)]


def test_the_checkpoint_is_that_of_the_example(tmp_path: Path) -> None:
    """HO-11, and the same once more over an older one."""
    storage = PosixStorage(str(tmp_path))
    for offset in (7, 158):
        write_timer_checkpoint(storage, offset, FORM)
    wanted = "000001a1fd768770 0000000000000000 000000000000009e 000000000000009e"
    data = read_file(storage, "config/timercheck")
    assert data == bytes.fromhex(wanted.replace(" ", "")).ljust(4096, b"\0")


def test_a_unit_is_that_of_the_example() -> None:
    """delay-and-timer.md 4.4."""
    example = Timer(288, 300, 1_700_000_063_000, 0, "TopicTest")
    wanted = """00 00 00 34 ff ff ff ff ff ff ff ff 00 00 00 01 00 00 01 8b cf e5 73 b8 00 00 ea 60
        00 00 00 00 00 00 01 20 00 00 01 2c 8e 98 76 41 00 00 00 00 00 00 00 00"""
    found = list(units([example], None, TimerForm(1_700_000_003_456)))
    assert found == [bytes.fromhex(wanted)]


def test_units_of_a_slot_are_chained_over_files(tmp_path: Path) -> None:
    """HO-12, DT-42: 2000 bytes hold 38 units and an end mark; all files are whole."""
    storage = PosixStorage(str(tmp_path))
    timers = [timer(READ_MS + 60_000 * (1 + number % 2), number) for number in range(80)]
    for _ in range(2):
        form = TimerForm(NOW_MS, file_bytes=2000)
        assert write_timer_log(storage, units(timers, (5, 6), form), form) == 81
    names = storage.list("timerlog")
    assert names == [f"{base:020d}" for base in (0, 2000, 4000)]
    files = [read_file(storage, f"timerlog/{name}") for name in names]
    assert {len(file) for file in files} == {2000}
    for file in files[:2]:
        assert file[38 * 52 :] == bytes.fromhex("00000018 0000000000000000 cbd43194").ljust(
            24, b"\0"
        )
    assert not any(files[2][5 * 52 :])
    found = [
        row
        for file, count in zip(files, (38, 38, 5), strict=True)
        for row in rows(file[: count * 52])
    ]
    places = [at // 38 * 2000 + at % 38 * 52 for at in range(80)]
    assert [row["prev"] for row in found] == [-1, -1, *places[:78], -1]
    assert [row["physical_offset"] for row in found] == [*(1000 * n for n in range(80)), 5]
    assert found[-1]["write_time"] + found[-1]["delay"] == READ_MS - 1000  # HO-14


def test_a_file_of_rocketmqs_size_holds_what_it_says() -> None:
    """DT-42: the last of 2,016,492 units begins at 104,857,532."""
    assert units_per_file(100 << 20) == 2_016_492
    assert place_of(2_016_491, 100 << 20) == 104_857_532
    assert place_of(2_016_492, 100 << 20) == 100 << 20


def test_without_a_timer_there_is_no_log(tmp_path: Path) -> None:
    """HO-16: also no closing unit, and what was there goes."""
    storage = PosixStorage(str(tmp_path))
    form = TimerForm(NOW_MS, file_bytes=2000)
    write_timer_log(storage, units([timer(READ_MS)], None, form), form)
    assert write_timer_log(storage, units([], (5, 6), form), form) == 0
    assert storage.list("timerlog") == []


@pytest.mark.parametrize(
    ("ahead_ms", "slot_ms", "rolled"),
    [
        (-9 * DAY_MS, 0, False),  # HO-13: overdue
        (0, 0, False),
        (5000, 5000, False),
        (2 * DAY_MS - 1000, 2 * DAY_MS - 1000, False),
        (2 * DAY_MS, DAY_MS, True),  # DT-51
        (2 * DAY_MS + DAY_MS * 2 // 3 - 1000, DAY_MS, True),
        (2 * DAY_MS + DAY_MS * 2 // 3, 2 * DAY_MS, True),
        (365 * DAY_MS, 2 * DAY_MS, True),
    ],
)
def test_slots(ahead_ms: int, slot_ms: int, rolled: bool) -> None:
    assert slot_of(timer(READ_MS + ahead_ms), FORM) == (READ_MS + slot_ms, rolled)


def test_another_precision_never_makes_a_timer_early() -> None:
    """A slot is served from its time plus the precision on (DT-58), whatever parked the record."""
    for due in (READ_MS + 5580, READ_MS + 6000, READ_MS + 5001):
        for parked_with in (1000, 100):
            out_ms = (due - 1) // parked_with * parked_with
            for precision in (1000, 500, 100):
                form = TimerForm(NOW_MS, precision)
                slot, _ = slot_of(timer(out_ms, due_ms=due), form)
                assert slot % precision == 0
                assert due <= slot + precision <= due + precision


def test_what_tells_a_timers_time() -> None:
    """DT-30's order; what is no number tells nothing."""
    properties = {"TIMER_OUT_MS": "41000", "REAL_TOPIC": "t", "TIMER_DELIVER_MS": "41580"}
    record = (7, 300, 39_000)
    assert timer_of(properties, record) == Timer(7, 300, 41_000, 41_580, "t")
    properties["TIMER_DELAY_MS"] = "2500"
    assert timer_of(properties, record).due_ms == 41_500
    properties["TIMER_DELAY_SEC"] = "2"
    assert timer_of(properties, record).due_ms == 41_000
    assert timer_of({"TIMER_OUT_MS": "soon"}, record) == Timer(7, 300, 0, 0, "")


def test_when_it_must_be_started() -> None:
    """HO-18: 604,740 slots, whatever they stand for."""
    assert FORM.start_before_ms == READ_MS + 7 * DAY_MS - 60_000
    assert TimerForm(NOW_MS, 100).start_before_ms == NOW_MS // 100 * 100 + 60_474_000
