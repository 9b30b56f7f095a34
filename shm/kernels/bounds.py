"""Words by which a caller bounds a call."""

from __future__ import annotations

from typing import Final

from gantrymq.shm.jit import kernel

#: More than any call does.
NO_BOUND: Final = 1 << 62


@kernel()
def bound_of(word: int) -> int:
    """The bound that a word says; 0: there is none."""
    return word if word else NO_BOUND
