"""Files of a log that are missing, have a wrong length or are no segments: a read says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gantrymq.clients.spark.options import COLUMN_TYPES
from gantrymq.shm.errors import Corrupt, StoreFailed
from gantrymq.shm.exitcode import exit_code
from tests.support.sealed import write_sidecars
from tests.support.spark_rows import everything, rows_of

ALL = ",".join(COLUMN_TYPES)


def test_a_missing_segment_ends_a_read_or_is_logged(
    plain: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """F21 within the log: also right before the active segment; not at the log's beginning."""
    whole = rows_of(plain)
    *sealed, active = sorted((plain / "commitlog").iterdir())
    size = sealed[0].stat().st_size
    for gone in (sealed[2], sealed[-1]):
        aside, first = plain / "aside", int(gone.name)
        gone.rename(aside)
        for words in ({}, {"includeActive": "true"}):
            with pytest.raises(StoreFailed, match=f"positions {first} to {first + size}: .*false"):
                rows_of(plain, **words)
        caplog.clear()
        rest = [row for row in whole if not first <= row["physical_offset"] < first + size]
        assert rows_of(plain, failOnDataLoss="false") == rest != whole
        assert f"has lost positions {first} to {first + size}" in caplog.text
        assert rows_of(plain, startOffset=str(first + size)) == [
            row for row in whole if row["physical_offset"] >= first + size
        ]
        assert rows_of(plain, endOffset=str(first))
        aside.rename(gone)
    sealed[0].unlink()
    assert rows_of(plain) == [row for row in whole if row["physical_offset"] >= size]
    assert int(active.name) > size


@pytest.mark.parametrize("with_sidecars", [False, True])
def test_a_segment_of_a_wrong_length_ends_a_read_or_is_a_row(
    plain: Path, with_sidecars: bool
) -> None:
    """F20: a cut at a record's end or within one, bytes too many, nothing left at all."""
    if with_sidecars:
        write_sidecars(plain)
    whole = rows_of(plain)
    path = sorted((plain / "commitlog").iterdir())[1]
    sound, base = path.read_bytes(), int(path.name)
    starts = [row["physical_offset"] - base for row in whole]
    cut = [at for at in starts if 0 < at < len(sound)][5]
    for content in (sound[:cut], sound[: cut + 9], sound[: cut + 200], sound + bytes(4096), b""):
        path.write_bytes(content)
        text = f"{path.name} has {len(content)} bytes, not {len(sound)}"
        with pytest.raises(Corrupt, match=text):
            rows_of(plain)
        with pytest.raises(Corrupt, match=text):
            rows_of(plain, startOffset=str(base + len(sound) - 1), failOnDataLoss="false")
        rows = rows_of(plain, badRecords="report", columns=ALL)
        (bad,) = [row for row in rows if not row["crc_ok"]]
        there = {row["physical_offset"] for row in rows if row["crc_ok"]}
        assert [row for row in whole if row["physical_offset"] in there] == [
            row for row in rows if row["crc_ok"]
        ]
        lost = [row["physical_offset"] for row in whole if row["physical_offset"] not in there]
        assert all(bad["physical_offset"] <= at < base + len(sound) for at in lost)
        assert (bad["topic"], bad["body"]) == (None, None)
        assert bool(lost) is (len(content) < len(sound))
        assert rows_of(plain, endOffset=str(base)), "what is before it is not touched"


def test_an_active_segment_of_a_wrong_length_is_said(plain: Path) -> None:
    path = max((plain / "commitlog").iterdir())
    sound = path.read_bytes()
    path.write_bytes(sound[:-4096])
    with pytest.raises(Corrupt, match=f"{path.name} has {len(sound) - 4096} bytes"):
        everything(plain)
    assert all(row["crc_ok"] for row in everything(plain, badRecords="report"))


def test_a_foreign_file_in_the_log_is_named_or_passed_over(
    plain: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = rows_of(plain)
    (plain / "commitlog" / "notes.txt").write_text("mine")
    with pytest.raises(
        Corrupt, match=r"commitlog/notes\.txt does not belong there: move"
    ) as caught:
        rows_of(plain)
    assert exit_code(caught.value) == os.EX_SOFTWARE
    for _ in range(2):
        assert rows_of(plain, badRecords="report", columns=ALL) == whole
    assert caplog.text.count(f"commitlog/notes.txt of {plain} does not belong there") == 1
