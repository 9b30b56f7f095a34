"""The broker's log: one line per event on stderr, JSON when nobody reads along on a terminal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Final, TextIO

LEVELS: Final = ("debug", "info", "warning", "error")


class Log:
    """Writes events with fields; a text event has a fixed name, so that programs can match it."""

    def __init__(self, level: str = "info", stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._least = LEVELS.index(level)
        self._json = not self._stream.isatty()

    def write(self, level: str, event: str, fields: Mapping[str, object]) -> None:
        """Write one line; an unknown level counts as an error."""
        rank = LEVELS.index(level) if level in LEVELS else len(LEVELS) - 1
        if rank < self._least:
            return
        now = time.time()
        second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        stamp = f"{second}.{int(now * 1000) % 1000:03}Z"
        if self._json:
            row = {"time": stamp, "level": level, "event": event, **fields}
            text = json.dumps(row, default=str, ensure_ascii=False)
        else:
            detail = " ".join(f"{name}={value}" for name, value in fields.items())
            text = f"{stamp} {level:7} {event} {detail}".rstrip()
        try:
            self._stream.write(text + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            # Whoever read the log has gone, or its disk is full; the broker goes on.
            self._least = len(LEVELS)

    def debug(self, event: str, **fields: object) -> None:
        """For whoever looks for a fault."""
        self.write("debug", event, fields)

    def info(self, event: str, **fields: object) -> None:
        """Something that an operator may want to know."""
        self.write("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Something that mended itself, or will need attention."""
        self.write("warning", event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Something that ended."""
        self.write("error", event, fields)
