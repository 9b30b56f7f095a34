"""The broker's log: one line per event on stderr, JSON when nobody reads along on a terminal.

Who reads it may stop reading; the broker never waits for that. Events that find no room are dropped
and counted, and the next event that finds room is preceded by their number.
"""

from __future__ import annotations

import io
import json
import os
import select
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Final, TextIO

from gantrymq.shm.storage import is_disk_full

LEVELS: Final = ("debug", "info", "warning", "error")
#: What a pipe that has room takes at once (POSIX; a terminal and a socket do so as well).
_PIECE: Final = select.PIPE_BUF


class Log:
    """Writes events with fields; a text event has a fixed name, so that programs can match it."""

    def __init__(self, level: str = "info", stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._least = LEVELS.index(level)
        self._json = not self._stream.isatty()
        self._room = _room_of(self._stream)
        self._rest = b""  # of a line that was begun
        self._torn = False  # part of it is written
        self._dropped = 0

    def write(self, level: str, event: str, fields: Mapping[str, object]) -> None:
        """Write one line; an unknown level counts as an error."""
        rank = LEVELS.index(level) if level in LEVELS else len(LEVELS) - 1
        if rank < self._least:
            return
        try:
            self._finish()
            if self._rest or not self._has_room():
                self._dropped += 1
                return
            if self._dropped:
                self._put(self._line("warning", "events_dropped", {"count": self._dropped}))
                self._dropped = 0
            self._put(self._line(level, event, fields))
        except (OSError, ValueError) as error:
            self._give_up(error)

    def _give_up(self, error: OSError | ValueError) -> None:
        """Drop the event where the disk is full for now, else all: who read the log has gone."""
        if isinstance(error, OSError) and is_disk_full(error):
            self._rest = b"\n" if self._torn else b""  # what was begun is a line of its own
            self._dropped += 1
        else:
            self._least = len(LEVELS)

    def _line(self, level: str, event: str, fields: Mapping[str, object]) -> bytes:
        now = time.time()
        second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        stamp = f"{second}.{int(now * 1000) % 1000:03}Z"
        if self._json:
            row = {"time": stamp, "level": level, "event": event, **fields}
            text = json.dumps(row, default=str, ensure_ascii=False)
        else:
            detail = " ".join(f"{name}={value}" for name, value in fields.items())
            text = f"{stamp} {level:7} {event} {detail}".rstrip()
        return (text + "\n").encode(errors="backslashreplace")

    def _has_room(self) -> bool:
        return self._room is None or bool(self._room.poll(0))

    def _put(self, line: bytes) -> None:
        self._rest += line
        self._finish()

    def _finish(self) -> None:
        """Write as much as there is room for without waiting."""
        if self._room is None:
            text, self._rest = self._rest.decode(), b""
            self._stream.write(text)
            self._stream.flush()
            return
        while self._rest and self._has_room():
            try:
                written = os.write(self._stream.fileno(), self._rest[:_PIECE])
            except BlockingIOError:  # another has taken the room, of a pipe that does not wait
                return
            self._rest = self._rest[written:]
            self._torn = bool(self._rest)

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


def traced(error: BaseException) -> str:
    """Where an error comes from, as a field of an event."""
    return "".join(traceback.format_exception(error)[-6:])


def _room_of(stream: TextIO) -> select.poll | None:
    """Tells whether a stream has room; None: it is no file, and always has."""
    try:
        descriptor = stream.fileno()
    except (io.UnsupportedOperation, ValueError):
        return None
    room = select.poll()
    room.register(descriptor, select.POLLOUT)
    return room
