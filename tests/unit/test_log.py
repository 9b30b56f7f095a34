"""The log of events: a line each, and no trouble of its own."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from gantrymq.brokerd.log import Log


def test_an_event_is_a_line_of_json() -> None:
    stream = io.StringIO()
    Log("info", stream).warning("disk_full", position=7)
    Log("info", stream).write("debug", "attached", {})
    (line,) = stream.getvalue().splitlines()
    row = json.loads(line)
    assert (row["level"], row["event"], row["position"]) == ("warning", "disk_full", 7)


def test_a_log_on_a_full_disk_ends_nobody() -> None:
    """F7: its file is on the disk that it speaks of."""
    stream = Path("/dev/full").open("w")  # noqa: SIM115 - closing is what fails
    log = Log("info", stream)
    for number in range(3):
        log.info("ready", number=number)
    with pytest.raises(OSError, match="No space"):
        stream.close()  # what it holds cannot be written in the end either


def test_a_reader_who_has_gone_ends_nobody() -> None:
    stream = io.StringIO()
    log = Log("info", stream)
    stream.close()
    log.info("ready")
