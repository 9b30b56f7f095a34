"""What a command hears of the messages that it has sent, also where the broker goes meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from gantrymq.shm.errors import BrokerGone, DiskFull, StoreFailed, Timeout

if TYPE_CHECKING:
    from concurrent.futures import Future

R = TypeVar("R")


class Answers:
    """Takes receipts; once one has not come in time, it takes only those that are there.

    Each would be awaited for as long as the first one, and there are hundreds.
    """

    def __init__(self) -> None:
        #: How many messages may be stored or not: nobody has said so.
        self.missing = 0
        self._timeout: float | None = None

    def of(self, receipt: Future[R]) -> R:
        """What a message came to. Raises what sends raise."""
        try:
            return receipt.result(self._timeout)
        except DiskFull:  # it is not stored
            raise
        except (BrokerGone, Timeout, StoreFailed):
            self.missing += 1
            self._timeout = 0.0
            raise
