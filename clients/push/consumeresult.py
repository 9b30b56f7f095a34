"""What a listener may answer, and what it may wish for a message that fails."""

from __future__ import annotations

import threading
from enum import Enum

from gantrymq.shm.groupwire import LADDER


class ConsumeResult(Enum):
    """What a listener says of a message; None means SUCCESS, an exception FAILURE."""

    SUCCESS = "success"
    FAILURE = "failure"
    DEAD_LETTER = "dead_letter"


class _Wish(threading.local):
    """Of the message that this thread's listener has."""

    listening = False
    message: object = None
    delay_ms = LADDER


_wish = _Wish()


def begin_listening() -> None:
    """This thread calls a listener from now on: its wishes are heard."""
    _wish.listening = True


def wish_delay(message: object, delay_ms: int) -> bool:
    """Note that this message's failure is to wait so long; False outside of a listener's thread."""
    if not _wish.listening:
        return False
    _wish.message, _wish.delay_ms = message, delay_ms
    return True


def take_delay(message: object) -> int:
    """The delay in ms wished for a message, LADDER without a wish; wishes end with it."""
    wished, delay_ms = _wish.message, _wish.delay_ms
    _wish.message, _wish.delay_ms = None, LADDER
    return delay_ms if wished is message and message is not None else LADDER
