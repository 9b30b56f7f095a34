"""Calling a listener, and what it may answer."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Final, NamedTuple

import msgspec

from gantrymq.clients.message import ReceivedMessage
from gantrymq.clients.push.chunks import Chunk, Failure
from gantrymq.clients.push.consumeresult import ConsumeResult, begin_listening, take_delay
from gantrymq.clients.push.handoff import Handoff
from gantrymq.clients.push.telling import FaultLog
from gantrymq.shm.errors import shown, told_by
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.groupwire import DEAD_LETTER, LADDER, WHY_CHARACTERS

log = logging.getLogger("gantrymq")


#: What is called with each message; it may also take any `Message`.
Listener = Callable[[ReceivedMessage], ConsumeResult | None]


class Rules(NamedTuple):
    """What follows from a failure."""

    max_attempts: int
    orderly: bool = False
    drop_failed: bool = False  # broadcasting (RD-44)


SUCCESS: Final = ConsumeResult.SUCCESS


class ListenerThread(threading.Thread):
    """Takes chunks and calls the listener, until it is dismissed."""

    def __init__(
        self, name: str, listener: Listener, handoff: Handoff, rules: Rules, faults: FaultLog
    ) -> None:
        """`faults` is the log of all threads of a consumer."""
        super().__init__(name=name, daemon=True)
        self._listener = listener
        self._handoff = handoff
        self._rules = rules
        self._faults = faults
        self._pid = os.getpid()

    def run(self) -> None:
        """Work through chunks."""
        begin_listening()
        handoff = self._handoff
        while (chunk := handoff.take()) is not None:
            end, failure = chunk.settled, None
            try:
                end, failure = self._work(chunk)
            except BaseException as error:  # our own fault: the consumer ends, and says so
                end = chunk.current
                handoff.crashed = error
                handoff.wake()
                return
            finally:
                handoff.finish(chunk, end, failure)

    def _work(self, chunk: Chunk) -> tuple[int, Failure | None]:
        """Call the listener for each row; the row behind the last one that is done with.

        And, ordered, why it went no further.
        """
        run, pop, listener, handoff = chunk.run, chunk.rows.popleft, self._listener, self._handoff
        window, message_at = run.window, run.batch._message_at
        evicted, ordered = window.evicted, self._rules.orderly
        special = chunk.exhausted or window.failures
        end = chunk.settled
        while not (window.halted or evicted[0] or handoff.stopping):
            try:
                row = pop()
            except IndexError as error:
                require_ours(error)
                break
            chunk.current = row  # all rows below are finished: `relieve` counts on it
            message = None
            try:
                message = message_at(row)
                if special:
                    message = _looked_at(chunk, message)
                result = listener(message)
                if result is None or result is SUCCESS:
                    end = row + 1
                    continue
                why = self._why_not(result, chunk, row)
            except BaseException as error:
                result, why = self._caught(error, chunk, row)
            failure = self._judge(chunk, row, message, result is ConsumeResult.DEAD_LETTER, why)
            if failure is not None and ordered:
                chunk.rows.appendleft(row)
                return row, failure
            if failure is not None:
                chunk.untold.append((row, failure))
            end = row + 1
        return end, None

    def _caught(self, error: BaseException, chunk: Chunk, row: int) -> tuple[ConsumeResult, str]:
        """Result and reason of a listener that raised, in its consumer's process; else raise it."""
        if os.getpid() != self._pid:
            raise error  # in a child that the listener forked this thread is all there is
        if isinstance(error, _ExhaustedError):
            return ConsumeResult.DEAD_LETTER, str(error)
        why = told_by(error)
        self._faults.tell(chunk.run.offsets[row], chunk.run.window.queue, why, error)
        return ConsumeResult.FAILURE, why

    def _why_not(self, result: object, chunk: Chunk, row: int) -> str:
        """Reason of a listener that did not answer SUCCESS."""
        if isinstance(result, ConsumeResult):
            return _ANSWERED[result]
        why = f"the listener answered {shown(result)}, which is no ConsumeResult"
        if isinstance(result, Coroutine):
            result.close()  # nobody awaits it: it would warn of that, too
            why = "the listener returned a coroutine, which nobody awaits: its work was not done"
        self._faults.tell(chunk.run.offsets[row], chunk.run.window.queue, why, None)
        return why

    def _judge(
        self, chunk: Chunk, row: int, message: ReceivedMessage | None, dead: bool, why: str
    ) -> Failure | None:
        """What becomes of a failed message; None: nothing, it is done with."""
        run, rules = chunk.run, self._rules
        delay, offset = take_delay(message), run.offsets[row]
        if delay != LADDER and why == _ANSWERED[ConsumeResult.FAILURE]:
            why = f"the listener asked to be given it again after {delay / 1000:g} s"
        log.info("message %d of %s failed: %s", offset, run.window.queue, why)
        if rules.drop_failed:
            log.error("message %d of %s is dropped: %s", offset, run.window.queue, why)
            return None
        topic = name = ""
        if message is not None:
            attempt, topic, name = message.delivery_attempt, message.topic, message.message_id
        else:
            attempt = int(run.batch.delivery_attempts[row]) + run.window.failures.get(offset, 0)
        if dead or (rules.orderly and attempt >= rules.max_attempts):
            delay = DEAD_LETTER
        keep = rules.orderly and delay != DEAD_LETTER
        return Failure(
            run.window, run.low(row), offset, delay, why[:WHY_CHARACTERS], chunk, keep, attempt,
            topic, name,
        )  # fmt: skip


class _ExhaustedError(Exception):
    """A message that is not to be delivered any more."""


def _looked_at(chunk: Chunk, message: ReceivedMessage) -> ReceivedMessage:
    """The message with the deliveries that have failed under this lease."""
    if chunk.exhausted:
        raise _ExhaustedError("its attempts are used up: its consumers died")
    more = chunk.run.window.failures.get(message.queue_offset or 0, 0)
    if not more:
        return message
    return msgspec.structs.replace(message, delivery_attempt=(message.delivery_attempt or 1) + more)


_ANSWERED: Final = {result: f"the listener answered {result.name}" for result in ConsumeResult}
