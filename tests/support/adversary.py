"""A client that publishes by hand, so that it can stop, die or lie at every step of it."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gantrymq.clients.session import Session
from gantrymq.shm import layout, wire
from gantrymq.shm.codes import EntryFlag, EntryKind
from tests.support.watchdog import poll_until

#: Steps of publishing one entry; from "tail" on it is published.
STEPS = ("nothing", "length", "head", "half of the body", "body", "tail", "bell")
PUBLISHED = STEPS.index("tail")
_BORN_MS = 1_700_000_000_000


class Hand:
    """A session whose entries are written byte by byte. Loads no kernels."""

    def __init__(self, home: Path, topic: str = "orders", secret: bytes = b"") -> None:
        self.secret = secret or os.urandom(10)
        self.producer = wire.producer_number(self.secret)
        self.session = Session(home, self.secret)
        self.plan = self.session.plan.writer
        self.arena = self.session.arena
        self.tail = 0
        self.seq = 0
        self.topic = self.session.open_topic(topic).slot
        self.set_route(0, self.topic)

    def set_route(self, number: int, topic: int, block: bytes = b"", ready: int = 1) -> None:
        """Fill in a slot of the route table."""
        at = layout.ROUTES_AT + number * layout.ROUTE_BYTES
        size = len(block)
        self.write(at, layout.ROUTE.pack(ready=ready, topic=topic, block_bytes=size, block=block))

    def write(self, at: int, data: bytes) -> None:
        """Bytes at an offset of the arena."""
        self.arena[at : at + len(data)] = np.frombuffer(data, np.uint8)

    def set_word(self, at: int, value: int) -> None:
        """A word of 64 bits, one store."""
        self.arena[at : at + 8].view("<u8")[0] = value

    def word(self, at: int) -> int:
        """A word of 64 bits."""
        return int(self.arena[at : at + 8].view("<u8")[0])

    def entry(self, body: bytes, extra: bytes = b"", **fields: int) -> bytes:
        """An entry of the next seq; `fields` replace what would be right."""
        self.seq += 1
        size = (layout.ENTRY_BYTES + len(body) + len(extra) + 7) & ~7
        head = {
            "length": size,
            "kind": int(EntryKind.SEND),
            "flags": int(EntryFlag.RECEIPT),
            "seq": self.seq,
            "born_ms": _BORN_MS,
            "queue": -1,
            "body_bytes": len(body),
            "extra_bytes": len(extra),
        }
        return (layout.ENTRY.pack(**{**head, **fields}) + body + extra).ljust(size, b"\0")

    def parked(self, body: bytes, mode: int, value: int, **fields: int) -> bytes:
        """A PARK entry of the next seq, likewise."""
        extension = layout.PARK.pack(mode=mode, value=value)
        kind = {"kind": int(EntryKind.PARK), "body_bytes": len(body)}
        return self.entry(extension + body, b"", **{**kind, **fields})

    def put(self, *entries: bytes) -> None:
        """Publish whole entries by one store."""
        for entry in entries:
            at = self.plan.up + (self.tail & (self.plan.up_bytes - 1))
            self.write(at, entry)
            self.tail += len(entry)
        self.publish()

    def publish(self) -> None:
        """Store the tail and ring."""
        self.set_word(self.plan.control + layout.LANE_UP_TAIL, self.tail)
        self.session.writer_bell.ring()

    def steps(self, body: bytes) -> Iterator[str]:
        """Publish one message, a step at a time: the names in STEPS."""
        entry = self.entry(body)
        at = self.plan.up + (self.tail & (self.plan.up_bytes - 1))
        half = layout.ENTRY_BYTES + len(body) // 2
        yield "nothing"
        start = 0
        for name, end in zip(STEPS[1:5], (4, layout.ENTRY_BYTES, half, len(entry)), strict=True):
            self.write(at + start, entry[start:end])
            start = end
            yield name
        self.tail += len(entry)
        self.set_word(self.plan.control + layout.LANE_UP_TAIL, self.tail)
        yield "tail"
        self.session.writer_bell.ring()
        yield "bell"

    @property
    def taken(self) -> bool:
        """True once the writer has taken all that is published."""
        return self.word(self.plan.control + layout.LANE_UP_HEAD) == self.tail

    def completions(self) -> list[dict[str, Any]]:
        """The completions so far."""
        end = self.word(self.plan.control + layout.LANE_DOWN_TAIL)
        places = range(self.plan.down, self.plan.down + end, layout.COMPLETION_BYTES)
        return [layout.COMPLETION.unpack(self.arena, at) for at in places]

    def statuses(self) -> list[int]:
        """Statuses of the completions so far."""
        return [completion["status"] for completion in self.completions()]

    @property
    def evicted(self) -> bool:
        """True once the broker has ended the session."""
        return bool(self.arena[layout.ARENA_EVICTED])

    def close(self) -> None:
        """End the session."""
        self.session.close()


class Victim:
    """A forked process that runs `work` and is killed, stopped and continued by the test."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                work()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)

    def wait_until_stopped(self) -> None:
        """Wait for its SIGSTOP."""
        (status,) = poll_until(lambda: self._look(os.WUNTRACED), "it has stopped")
        assert os.WIFSTOPPED(status), status

    def end(self) -> int:
        """Its exit code, negative for a signal."""
        (status,) = poll_until(lambda: self._look(0), "it has ended")
        return os.waitstatus_to_exitcode(status)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def _look(self, flags: int) -> tuple[int, ...]:
        """Its wait status; empty while there is no news."""
        pid, status = os.waitpid(self.pid, os.WNOHANG | flags)
        return (status,) if pid else ()
