"""The log of events: a line each, and no trouble of its own."""

from __future__ import annotations

import fcntl
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.brokerd.log import Log
from tests.support.trials import mends


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe of four pages: who reads, who writes."""
    ends = os.pipe()
    fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, 4 * 4096)
    yield ends
    for end in ends:
        os.close(end)


def drained(descriptor: int) -> bytes:
    os.set_blocking(descriptor, False)
    found = b""
    try:
        while piece := os.read(descriptor, 1 << 16):
            found += piece
    except BlockingIOError:
        pass
    return found


def test_an_event_is_a_line_of_json() -> None:
    stream = io.StringIO()
    Log("info", stream).warning("disk_full", position=7)
    Log("info", stream).write("debug", "attached", {})
    (line,) = stream.getvalue().splitlines()
    row = json.loads(line)
    assert (row["level"], row["event"], row["position"]) == ("warning", "disk_full", 7)


def test_a_log_on_a_full_disk_ends_nobody() -> None:
    """F7: its file is on the disk that it speaks of."""
    with Path("/dev/full").open("w") as stream:
        log = Log("info", stream)
        for number in range(3):
            log.info("ready", number=number)


def test_a_reader_who_has_gone_ends_nobody() -> None:
    stream = io.StringIO()
    log = Log("info", stream)
    stream.close()
    log.info("ready")


@pytest.mark.parametrize("waits", [True, False], ids=["as-usual", "O_NONBLOCK"])
def test_a_pipe_that_nobody_reads_holds_up_nobody(pipe: tuple[int, int], waits: bool) -> None:
    """A client that is ended again and again fills it; then the supervisor hung for ever."""
    reads, writes = pipe
    os.set_blocking(writes, waits)
    with os.fdopen(os.dup(writes), "w") as stream:
        log = Log("info", stream)
        for number in range(300):
            log.info("evicted", number=number)
        first = drained(reads)
        log.info("ready", number=300)
        rows = [json.loads(line) for line in (first + drained(reads)).splitlines()]
    numbers = [row["number"] for row in rows if "number" in row]
    (dropped,) = [row for row in rows if row["event"] == "events_dropped"]
    assert numbers == [*range(300 - dropped["count"]), 300]
    assert dropped["level"] == "warning"
    assert rows[-1]["number"] == 300


def test_a_line_longer_than_the_pipe_comes_whole_in_the_end(pipe: tuple[int, int]) -> None:
    reads, writes = pipe
    with os.fdopen(os.dup(writes), "w") as stream:
        log = Log("info", stream)
        log.error("agent_failed", trace="x" * 50_000)
        found = b""
        for number in range(4):
            log.info("ready", number=number)
            found += drained(reads)
    rows = [json.loads(line) for line in found.splitlines()]
    assert len(rows[0]["trace"]) == 50_000
    assert rows[-1]["number"] == 3
    assert sum(row.get("count", 1) for row in rows) == 5


@mends("S48")
def test_a_log_goes_on_once_its_disk_has_room_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Path("/dev/full").open("w") as stream:
        log = Log("info", stream)
        log.info("one")
        log.info("two")
        with path.open("wb") as roomy:
            os.dup2(roomy.fileno(), stream.fileno())
        log.error("three")
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [(row["event"], row.get("count")) for row in rows] == [
        ("events_dropped", 2),
        ("three", None),
    ]
