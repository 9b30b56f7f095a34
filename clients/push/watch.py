"""Chunks that take long: others take over what is not begun, and messages that take too long."""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from gantrymq.clients.push.chunks import Chunk, Failure, Run
from gantrymq.clients.push.handoff import Handoff
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.groupwire import LADDER

log = logging.getLogger("gantrymq")

#: How often chunks that take long are looked at.
RELIEF_NS: Final = 10_000_000


class Limits(NamedTuple):
    """What ends a message's deliveries."""

    max_attempts: int
    consume_timeout_ns: int
    send_back: bool  # what takes too long goes to another member meanwhile


class Watch:
    """Looks at running chunks; the fetching thread calls it."""

    def __init__(self, handoff: Handoff, limits: Limits) -> None:
        self._handoff = handoff
        self._limits = limits
        #: The row that a chunk is at, and since when it has been seen there.
        self._since: dict[Chunk, tuple[int, int]] = {}

    def look(self, now: int) -> None:
        """See to chunks that take long, and to messages that take too long."""
        running = list(self._handoff.running)
        known, self._since = self._since, {}
        slow = False
        for chunk in running:
            row, since = known.get(chunk, (-1, now))
            if row != chunk.current:
                row, since = chunk.current, now
            self._since[chunk] = (row, since)
            slow = slow or now - since >= RELIEF_NS
            if now - since >= self._limits.consume_timeout_ns:
                self._report_stuck(chunk, row, (now - since) / 1e9)
        if slow:
            self._handoff.relieve()

    def _report_stuck(self, chunk: Chunk, row: int, seconds: float) -> None:
        """A message takes longer than consume_timeout: another member is to try it (RD-43).

        Whether it is or not (ordered), it does not hold up what has nothing to do with it.
        """
        run, handoff = chunk.run, self._handoff
        if chunk.stuck == row:
            return
        chunk.stuck = row
        why = f"the listener has not ended for {seconds:.1f} s (consume_timeout)"
        log.error("message %d of %s: %s", run.offsets[row], run.window.queue, why)
        send_back = self._limits.send_back
        with handoff.lock:
            handoff.collect(chunk)
            if chunk not in handoff.running or row in chunk.failed or row < chunk.current:
                return
            if send_back:
                chunk.failed.append(row)
                low, offset, told = run.low(row), run.offsets[row], _told_of(run, row)
                handoff.note(Failure(run.window, low, offset, LADDER, why, chunk, False, *told))
            handoff.pass_over(chunk, sent_back=send_back)


def _told_of(run: Run, row: int) -> tuple[int, str, str]:
    """Which delivery of a message it is, its topic and its id."""
    try:
        message = run.batch[row]
    except Corrupt:
        return 0, "", ""
    return message.delivery_attempt, message.topic, message.message_id
