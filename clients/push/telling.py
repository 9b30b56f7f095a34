"""What a push consumer tells people: of failed messages, and of its own end."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from gantrymq.shm.errors import ConsumerFailed, told_by
from gantrymq.shm.properties import DLQ_PREFIX

if TYPE_CHECKING:
    from gantrymq.clients.message import MessageQueue
    from gantrymq.clients.push.chunks import Failure

log = logging.getLogger("gantrymq")
#: What failed in listeners, and messages that were given up.
listening = logging.getLogger("gantrymq.listener")
#: A kind of failure that was told is quiet for so long.
QUIET_S: Final = 60.0
KINDS_MAX: Final = 1000
#: So many dead letters are named in a record at most.
TOGETHER_MAX: Final = 100


def failed(name: str, error: BaseException) -> ConsumerFailed:
    """What a user is told of a fault in a consumer's own thread."""
    fault = ConsumerFailed(
        f"{name} has ended by {told_by(error)}. Its queues go to other members; what it had not"
        " finished is delivered again. Make another consumer; the traceback is in the log",
    )
    fault.__cause__ = error
    return fault


class FaultLog:
    """What listeners raise: of each kind the first one with its traceback, then some, counted.

    A kind is a type and the line that raised it. One that goes on is told once a minute, so that a
    log shows it and no loop fills the disk.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[object, list[float]] = {}  # when told last, and failures since

    def tell(self, offset: int, queue: MessageQueue, why: str, error: BaseException | None) -> None:
        """A listener has failed; without `error` by what it answered."""
        kind = _kind_of(why, error)
        now = time.monotonic()
        with self._lock:
            known = self._kinds.get(kind)
            if known is not None and now - known[0] < QUIET_S:
                known[1] += 1
                return
            if known is None and len(self._kinds) >= KINDS_MAX:
                self._kinds.clear()
            more = f" ({known[1]:.0f} more since it was told last)" if known else ""
            self._kinds[kind] = [now, 0]
        listening.warning(
            "the listener failed at message %d of %s: %s%s",
            offset, queue, why, more, exc_info=error,
        )  # fmt: skip


def _kind_of(why: str, error: BaseException | None) -> object:
    if error is None:
        return why.partition("0x")[0]
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = trace and (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    return type(error), where


def log_sent_back(group: str, failures: list[Failure], dead: dict[int, bool]) -> None:
    """What has become of failed messages, by offset: dead letters loudly.

    Those that share topic, queue and reason are one record: a thousand cost little more than one.
    """
    lost: dict[tuple[str, int, int, str], list[tuple[str, int]]] = {}
    for failure in failures:
        if dead[failure.offset]:
            queue, name = failure.window.queue, failure.name or str(failure.offset)
            kind = (failure.topic or queue.topic, queue.queue_id, failure.attempt, failure.why)
            lost.setdefault(kind, []).append((name, failure.offset))
        else:
            what = (failure.window.queue, failure.offset, "to be tried again", failure.why)
            log.info("%s %d: %s: %s", *what)
    for kind, messages in lost.items():
        for start in range(0, len(messages), TOGETHER_MAX):
            _log_dead(group, kind, messages[start : start + TOGETHER_MAX])


def _log_dead(group: str, kind: tuple[str, int, int, str], messages: list[tuple[str, int]]) -> None:
    topic, queue_id, attempts, why = kind
    (name, offset), *others = messages
    more = ", ".join(f"{name} at {offset}" for name, offset in others)
    listening.error(
        "dead letter: message %s of topic %s, which group %s got at queue %d, offset %d, is in %s"
        " after %d attempts: %s%s",
        name, topic, group, queue_id, offset, DLQ_PREFIX + group, attempts, why,
        f"; so are {len(others)} more, with their offsets: {more}" if others else "",
    )  # fmt: skip
