"""Kernels that walk properties know names by every letter: what others mean nothing changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantrymq.shm.codes import Stop
from gantrymq.shm.kernels import halfform, halfrows, index, scan, stretch, timer
from gantrymq.shm.properties import encode_properties
from gantrymq.shm.record import encode_record
from tests.property.test_retrycopy_property import PLAIN
from tests.support.nearnames import NEAR, RESERVED
from tests.support.trials import mends

#: What a message of any kind may have of the broker's own.
OWN = {
    "UNIQ_KEY": "0123456789ABCDEF" * 2, "TAGS": "paid", "KEYS": "one two", "DELAY": "3",
    "REAL_TOPIC": "later", "REAL_QID": "1", "PGROUP": "g", "TIMER_OUT_MS": "1700000000000",
    "GANTRY_TX": "0123456789abcdef" * 2 + ",1",
}  # fmt: skip
TIMES = st.sampled_from(
    [{"TIMER_DELIVER_MS": "1700000000123"}, {"TIMER_DELAY_MS": "7000"}, {"TIMER_DELAY_SEC": "9"},
     {"TIMER_ROLL_TIMES": "2"}, {"TIMER_DEL_UNIQKEY": "later+AB"}, {}]
)  # fmt: skip
VALUES = st.sampled_from(["1", "77", "later+CD", "0" * 32, "17000000009"])
DECOYS = st.lists(st.tuples(st.sampled_from(NEAR), VALUES), max_size=5)


def seen(properties: bytes) -> dict[str, object]:
    """What each kernel makes of a record with these properties."""
    data = encode_record(replace(PLAIN, physical_offset=0, properties=properties), trailer=True)
    view = np.zeros(len(data) + 64, np.uint8)
    view[: len(data)] = np.frombuffer(data, np.uint8)
    rows = np.zeros(scan.ROW_WORDS + index.ROW_AND_PLACES, np.int64)
    form = np.array([0, 0, scan.CHECK_PLACE, 0, 0, 0], np.int64)
    scan.scan_log(view, form, rows[: scan.ROW_WORDS])
    assert form[5] == 1
    at = int(rows[scan.UNIQ_AT])
    unique = view[at : at + scan.UNIQ_BYTES].tobytes() if at >= 0 else b""
    hashes = np.zeros(32, np.int64)
    count = index.hash_keys(view, rows, 1, hashes)
    return {
        "unique": unique, "tag": int(rows[scan.TAGS_CODE]), "level": int(rows[scan.DELAY]),
        "keys": hashes[:count].tolist(),
        "timer": timer_of(view, len(data)), "half": half_of(view, len(data)),
    }  # fmt: skip


def timer_of(view: np.ndarray, size: int) -> list[int]:
    form, out = np.zeros(timer.FORM_WORDS, np.int64), np.zeros(timer.TIMER_WORDS, np.int64)
    form[timer.COUNT], form[timer.PRECISION_MS] = 1, 1000
    places = np.zeros(1, np.int64), np.array([size], np.int64)
    assert timer.read_timers(view, form, *places, out) == Stop.DONE
    return [int(out[n]) for n in (timer.DUE_MS, timer.KEY_HASH, timer.KIND, timer.OUT_MS)]


def half_of(view: np.ndarray, size: int) -> list[int]:
    form = np.zeros(halfform.FORM_WORDS, np.int64)
    out = np.zeros(halfrows.READ_WORDS, np.int64)
    form[stretch.COUNT], form[stretch.STRETCH_END] = 1, size
    assert halfrows.read_halves(view, form, np.array([0, size], np.int64), out) == Stop.DONE
    names = ("READ_STATE", "TX_HASH", "KEY_HASH", "IMMUNE_S", "GROUP_HASH")
    return [int(out[getattr(halfrows, name)]) for name in names]


@mends("H1")
@settings(max_examples=300, deadline=None)
@given(TIMES, DECOYS, DECOYS)
def test_a_name_that_is_nearly_one_of_ours_changes_nothing(
    times: dict[str, str], before: list[tuple[str, str]], behind: list[tuple[str, str]]
) -> None:
    own = encode_properties({**OWN, **times})
    decoys = [encode_properties(dict([pair])) for pair in (*before, *behind)]
    first = b"".join(decoys[: len(before)])
    assert seen(first + own + b"".join(decoys[len(before) :])) == seen(own)


@mends("H1")
@pytest.mark.parametrize("name", RESERVED)
def test_every_near_name_alone_means_nothing(name: str) -> None:
    """Where none of the broker's own is; half an entry of one is none either (SF-28)."""
    nothing = seen(b"")
    for other in NEAR:
        if other.startswith(name[:2]):
            assert seen(f"{other}\x01{'7' * 32}\x02".encode()) == nothing, other
    assert seen(f"{name}\x01\x02{name}\x02".encode()) == nothing
