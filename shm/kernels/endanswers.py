"""Answers to ENDs in their common form, which are not refused: notices without Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import atomics, machine
from gantrymq.shm.codes import EntryKind
from gantrymq.shm.jit import BYTES, WORDS, WORDS_RO, i8, kernel
from gantrymq.shm.kernels import frames, message
from gantrymq.shm.kernels.ends import END_WORDS, IS_ALONE, IS_COMMIT, SERIAL, SESSION
from gantrymq.shm.layout import ARENA_TOLD, TOLD_MASK

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

NOTICE = int(EntryKind.NOTICE)

_ENDED = (0x95, 0xA5, 69, 110, 100, 101, 100)  # array of 5, "Ended"
_COMMITTED = (0xA9, 99, 111, 109, 109, 105, 116, 116, 101, 100, 0xA0, 0xA0)
_ROLLED_BACK = (0xAB, 114, 111, 108, 108, 101, 100, 95, 98, 97, 99, 107, 0xA0, 0xA0)


@kernel()
def _write_answer(text: Bytes, serial: int, committed: int) -> int:
    """The body of an Ended without an error; its length."""
    for place in range(len(_ENDED)):
        text[place] = _ENDED[place]
    at = len(_ENDED)
    if serial < 0x80:
        text[at] = serial
        at += 1
    else:
        text[at] = 0xCF
        machine.store_be64(text, at + 1, serial)
        at += 9
    if committed:
        for place in range(len(_COMMITTED)):
            text[at + place] = _COMMITTED[place]
        return at + len(_COMMITTED)
    for place in range(len(_ROLLED_BACK)):
        text[at + place] = _ROLLED_BACK[place]
    return at + len(_ROLLED_BACK)


@kernel()
def _is_told(peer: Bytes, rows: Words, at: int) -> int:
    """1 if who asked for a row has heard of it from the writer."""
    if not rows[at + IS_ALONE]:
        return 0
    serial = rows[at + SERIAL]
    # SYNC POINT: told (other end: `_tell`)
    return int(atomics.load_acquire(peer, ARENA_TOLD + 8 * (serial & TOLD_MASK)) == serial)


@kernel(i8, WORDS_RO, i8, i8, BYTES, WORDS, BYTES)
def tell_ends(rows: Words, count: int, who: int, peer: Bytes, control: Words, text: Bytes) -> int:
    """Tell a session that its rows are what they were to be; how many rows were gone through.

    Whoever the writer has told already needs no answer. `text` is scratch of BODY_ROOM. Fewer than
    `count` if its ring has no room for the next. `control[RING]` says whether to ring.
    """
    rings = 0
    raw = machine.raw
    words, memory = raw(rows), raw(peer)
    told = 0
    while told < count:
        at = told * END_WORDS
        if rows[at + SESSION] == who and not _is_told(memory, words, at):
            size = _write_answer(text, rows[at + SERIAL], rows[at + IS_COMMIT])
            if message.put_bytes(peer, control, 0, NOTICE, text, size) != 1:
                break
            rings |= control[frames.RING]
        told += 1
    control[frames.RING] = rings
    return told
