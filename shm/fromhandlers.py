"""What a signal handler raises is what comes out, whatever its type.

CPython calls handlers between any two steps, so an exception of theirs comes amid a `try` of ours
as well, whose `except OSError` (or ValueError, say) means what our own call raises. Each such
`except` asks `require_ours` first; a test looks for those that do not.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType, TracebackType


def is_ours(error: BaseException) -> bool:
    """Whether no handler has raised it: none of the functions that it came through is one."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        if _is_handler(trace.tb_next.tb_frame, trace.tb_frame):
            return False
        trace = trace.tb_next
    return True


def _is_handler(frame: FrameType, caller: FrameType) -> bool:
    """Only a handler is given the very frame that it came amid."""
    return any(
        value is caller or (type(value) is tuple and any(one is caller for one in value))
        for value in frame.f_locals.values()
    )


def require_ours(error: BaseException) -> None:
    """Raise it again unless it is ours."""
    if not is_ours(error):
        try:
            raise error
        finally:
            del error  # else its traceback has what has itself


class Suppressed(AbstractContextManager[None]):
    """As `contextlib.suppress`, for what is ours only."""

    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> bool:
        return error is not None and isinstance(error, self._kinds) and is_ours(error)
