"""Receipts that a producer's own thread decides: those of which somebody outside waits to be told.

They are decided as their completions come and their positions become durable, each by itself: one
that waits for the disk delays none that does not.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from gantrymq.clients.ownthread import OwnThread
from gantrymq.clients.session import pause
from gantrymq.shm.errors import Evicted, GantryError, Unavailable

if TYPE_CHECKING:
    from gantrymq.clients.receipts import Pending
    from gantrymq.clients.writerlink import WriterLink

    Row = tuple[int, int, Pending[Any]]

_PAUSE_S: Final = 0.02
log = logging.getLogger("gantrymq")


class Watched:
    """See the module. The link's lock guards both heaps."""

    def __init__(self, link: WriterLink) -> None:
        self._link = link
        self._coming: list[Row] = []  # by seq, in whose order completions come
        self._syncing: list[Row] = []  # by the position that has to be durable
        self._numbers = count()
        self._helper = OwnThread(
            "gantrymq-receipts", link.lock, self._has_work, self._decide_or_fail
        )

    def watch(self, receipt: Pending[Any]) -> None:
        """Decide a receipt as soon as it can be."""
        link = self._link
        with link.lock:
            row = receipt._seq, next(self._numbers), receipt
            is_first = not self._coming or row < self._coming[0]
            begun = self._helper.begin()
            heapq.heappush(self._coming, row)
            if is_first and not begun:
                link.session.bell.ring()  # it may sleep for others alone

    def _has_work(self) -> bool:
        return bool(self._coming or self._syncing)

    def _decide_or_fail(self) -> None:
        try:
            self._decide_some()
        except GantryError as error:
            self._fail(error)

    def _decide_some(self) -> None:
        """Decide what can be, or wait until something can be.

        As long as it takes: how long a caller wishes to wait is the caller's own.
        """
        link = self._link
        link.look()
        ready = self._take_ready()
        for receipt in ready:
            try:
                receipt.settle()
            except BaseException:  # SystemExit of a callback ends nothing here
                log.exception("a callback of a receipt's future has raised")
        if ready:
            return
        with link.lock:
            wanted = self._syncing[0][0] if self._syncing else 0
        try:
            link.await_news(
                self._has_ready,
                wanted,
                completions=lambda: bool(self._coming),
                deadline=link.deadline(None),
            )
        except Evicted:
            raise
        except Unavailable:  # no broker, or nothing to attach again with: it waits on in the ring
            link.require_open()
            pause(_PAUSE_S)

    def _take_ready(self) -> list[Pending[Any]]:
        with self._link.lock:
            ready = []
            while self._coming and self._is_news(self._coming[0]):
                seq, number, receipt = heapq.heappop(self._coming)
                if receipt._seq != seq:  # it was handed over only now
                    heapq.heappush(self._coming, (receipt._seq, number, receipt))
                elif not receipt.is_durable:
                    heapq.heappush(self._syncing, (receipt.wanted_end, number, receipt))
                else:
                    ready.append(receipt)
            while self._syncing and self._is_synced(self._syncing[0]):
                ready.append(heapq.heappop(self._syncing)[2])
            return ready

    def _has_ready(self) -> bool:
        with self._link.lock:
            return bool(
                (self._coming and self._is_news(self._coming[0]))
                or (self._syncing and self._is_synced(self._syncing[0]))
            )

    def _is_news(self, row: Row) -> bool:
        """Whether a receipt's completion is there, or it is decided, or known by another seq."""
        return row[2]._seq != row[0] or row[2].is_answered

    def _is_synced(self, row: Row) -> bool:
        return row[2].is_durable

    def _fail(self, error: GantryError) -> None:
        """The session is over: what has come counts, and nothing else will come."""
        with contextlib.suppress(GantryError):
            self._link.look()
        with self._link.lock:
            rows = sorted(self._coming) + self._syncing
            self._coming, self._syncing = [], []
        error = self._link.as_closed(error)
        for _seq, _number, receipt in rows:
            try:
                if not receipt.settle():
                    receipt.set_exception(error)
            except BaseException:
                log.exception("a callback of a receipt's future has raised")
