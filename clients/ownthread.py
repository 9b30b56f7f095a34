"""A thread of a client's own that must not end while there is something for it to do."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from gantrymq.clients.session import pause
from gantrymq.clients.shortwaits import start

if TYPE_CHECKING:
    from collections.abc import Callable

_PAUSE_S: Final = 0.1
log = logging.getLogger("gantrymq")


class OwnThread:
    """Takes steps as long as there is work: begun when it is needed, ended when nothing is left.

    Applications' code is called in such threads: SystemExit of a callback must not end them.
    """

    def __init__(
        self,
        name: str,
        lock: threading.RLock,
        has_work: Callable[[], bool],
        step: Callable[[], object],
    ) -> None:
        """The lock guards the work: it is held where `has_work` is asked, and by who adds to it."""
        self._name = name
        self._lock = lock
        self._has_work = has_work
        self._step = step
        self._thread: threading.Thread | None = None

    def begin(self) -> bool:
        """Have it run; False if it does. The lock is held, and work is added only afterwards.

        So no work is left without a thread, wherever a signal handler raises: a thread that was
        noted but not started is no reason not to start another one.
        """
        if self._thread is not None and self._thread.is_alive():
            return False
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        start(self._thread)
        return True

    @property
    def is_me(self) -> bool:
        """Whether its thread asks."""
        return threading.current_thread() is self._thread

    def join(self, timeout_s: float) -> None:
        """Wait for its end, unless its start was broken off."""
        thread = self._thread
        if thread is not None and not self.is_me and thread.is_alive():
            thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self.is_me:
                    return  # its start was broken off, and another one stands for it by now
                if not self._has_work():
                    self._thread = None
                    return
            try:
                self._step()
            except BaseException:
                log.exception("thread %s goes on after an error", self._name)
                pause(_PAUSE_S)
