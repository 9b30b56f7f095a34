"""A producer's END in its common form: one half's numbers into a text that is there, and away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import machine
from gantrymq.shm.codes import EntryKind
from gantrymq.shm.jit import BYTES, WORDS, i8, kernel
from gantrymq.shm.kernels.message import put_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

REQUEST = int(EntryKind.REQUEST)

# Where the numbers are in the text (shm.transactionwire.End as msgpack has it, of 64-bit numbers);
# those behind the names are counted from its end.
SERIAL_AT = 6
COMMIT_AT = 23
POSITION_AT = 19
OFFSET_AT = 10
ALONE_AT = 1


@kernel(i8, BYTES, WORDS, BYTES, i8, i8, i8, i8, i8)
def put_end(
    arena: Bytes, lane: Words, text: Bytes, serial: int, commit: int, position: int, offset: int,
    alone: int,
) -> int:  # fmt: skip
    """Put the END that `text` is, with these numbers; returns what `put_message` does."""
    body = machine.raw(text)
    end = text.size
    machine.store_be64(body, SERIAL_AT, serial)
    body[end - COMMIT_AT] = 0xC2 + commit
    machine.store_be64(body, end - POSITION_AT, position)
    machine.store_be64(body, end - OFFSET_AT, offset)
    body[end - ALONE_AT] = 0xC2 + alone
    return put_bytes(arena, lane, 1, REQUEST, text, end)
