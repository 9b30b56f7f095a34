"""What a push consumer tells people: of failed messages, and of its own end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from shm.errors import ConsumerFailed

if TYPE_CHECKING:
    from clients.push.chunks import Failure

log = logging.getLogger("gantrymq")


def failed(name: str, error: BaseException) -> ConsumerFailed:
    """What a user is told of a fault in a consumer's own thread."""
    fault = ConsumerFailed(
        f"{name} has ended by {type(error).__name__}: {error}. Its queues go to other members; what"
        " it had not finished is delivered again. Make another consumer; the traceback is in the"
        " log",
    )
    fault.__cause__ = error
    return fault


def log_sent_back(failures: list[Failure], dead: dict[int, bool]) -> None:
    """What has become of failed messages, by offset."""
    for failure in failures:
        where = "dead letter" if dead[failure.offset] else "to be tried again"
        log.info("%s %d: %s: %s", failure.window.queue, failure.offset, where, failure.why)
