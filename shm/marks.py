"""Edge to the operating system: named places where a test may kill the process.

`mark("name")` does nothing unless GANTRYMQ_MARK=name[:n] was set when the process started; then
the process ends itself by SIGKILL at the n-th passing, as a crash exactly there would. With
GANTRYMQ_MARKS_REACHED=folder the first process to get there leaves a file of that name in the
folder and dies; others, its replacement above all, then pass unharmed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Final

from gantrymq.shm.fromhandlers import require_ours

#: Every mark of the product; a meta test compares them with the calls and with the crash tests.
MARKS: Final = frozenset(
    {
        "flusher.after_checkpoint",
        "flusher.after_durable",
        "flusher.after_sync",
        "flusher.before_sync",
        "housekeeper.after_progress",
        "housekeeper.after_sidecar",
        "housekeeper.before_sidecar",
        "housekeeper.between_queues",
        "indexer.after_new_file",
        "indexer.after_note",
        "indexer.after_slots",
        "indexer.before_entries",
        "indexer.before_header",
        "indexer.before_note",
        "reader.after_dispatched",
        "reader.after_units",
        "reader.before_dispatched",
        "reader.before_ring",
        "reader.before_units",
        "reader.between_queues",
        "recovery.after_cut",
        "recovery.after_queues",
        "recovery.after_rewrite",
        "recovery.after_scan",
        "scheduler.after_note",
        "scheduler.after_put",
        "scheduler.before_note",
        "scheduler.before_put",
        "txn_checker.after_note",
        "txn_checker.after_put",
        "txn_checker.before_note",
        "txn_checker.before_put",
        "writer.after_append",
        "writer.after_appended",
        "writer.after_roll",
        "writer.after_settle_lane",
        "writer.before_append",
        "writer.before_roll",
    }
)

_ENVIRONMENT: Final = "GANTRYMQ_MARK"
_REACHED: Final = "GANTRYMQ_MARKS_REACHED"


def mark(name: str) -> None:
    """Pass a named place; free of cost but for a call when no test has asked for it."""
    if _hook is not None:
        _hook(name)


def is_asked() -> bool:
    """Whether somebody waits for a mark: what goes past several at once goes step by step then."""
    return _hook is not None


def set_hook(hook: Callable[[str], None] | None) -> None:
    """Let the simulator be told of each passing; it raises to kill a simulated process."""
    global _hook  # noqa: PLW0603 - one process, one hook
    _hook = hook


class _Killer:
    """Counts passings of one mark and ends the process at the n-th."""

    def __init__(self, wish: str, reached: str | None) -> None:
        name, _, count = wish.partition(":")
        if name not in MARKS:
            raise ValueError(f"{_ENVIRONMENT} names no mark: {name}")
        self._name = name
        self._left = int(count or "1")
        self._reached = reached

    def __call__(self, name: str) -> None:
        if name != self._name:
            return
        self._left -= 1
        if self._left == 0 and self._first_to_get_here():
            os.kill(os.getpid(), signal.SIGKILL)

    def _first_to_get_here(self) -> bool:
        if self._reached is None:
            return True
        path = os.path.join(self._reached, self._name)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError as error:
            require_ours(error)
            return False
        return True


def _from_environment() -> Callable[[str], None] | None:
    wish = os.environ.get(_ENVIRONMENT)
    return _Killer(wish, os.environ.get(_REACHED)) if wish else None


_hook: Callable[[str], None] | None = _from_environment()
