"""ENDs in their common form: from a session's ring into the txn-checker's own, and the answers.

One half, named with its group and transaction, of which nothing is known yet: such a request takes
no Python. Whatever else a session asks stays in its ring, and the caller takes it from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shm import atomics, machine
from shm.codes import EntryFlag, EntryKind, Stop
from shm.jit import BYTES, BYTES_RO, WORDS, WORDS_RO, i8, kernel
from shm.kernels import frames, halfform, message, ring
from shm.kernels.decide import OP_FLAG, decide_half, judge_half, put_op
from shm.kernels.decimals import store_decimal
from shm.kernels.stretch import is_shown
from shm.layout import (
    APPEND_BYTES,
    ENTRY_BYTES,
    ENTRY_KIND,
    LANE_UP_TAIL,
    MESSAGE_BODY,
    MESSAGE_BYTES,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shm.kernels.copyentry import Targets

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

DONE = int(Stop.DONE)
ROLL = int(Stop.ROLL)
BACKPRESSURE = int(Stop.BACKPRESSURE)
PAD = int(EntryKind.PAD)
NOTICE = int(EntryKind.NOTICE)
URGENT = int(EntryFlag.URGENT)

#: What `take_ends` returns when the next message is none of these: the caller takes it.
OTHER = -1

# A row: the words of halfform's rows, then these.
SERIAL, IS_COMMIT, SESSION = halfform.HALF_WORDS, halfform.HALF_WORDS + 1, halfform.HALF_WORDS + 2
END_WORDS = halfform.HALF_WORDS + 3

# Words of `take_ends`.
COUNT = 0  # rows so far
ROOM = 1  # rows at most
OPEN_FROM = 2  # halves of queue offsets from here on were not read from their queue yet,
OPEN_END = 3  # and for those below this one `taken` says whether they are decided
WHO = 4  # session
NEED = 5  # the half of the next request is at this log position
LENGTH, VALUE, SIZE = 6, 7, 8  # scratch
ASK_WORDS = 10

#: Bytes of a request at most, and behind them as many as any look ahead needs.
BODY_MAX = 512
BODY_ROOM = BODY_MAX + 64
#: Rows at most, bytes of an offset and its comma in an op record, and of all of that.
ENDS_MAX = 512
DIGITS_MAX = 20
OP_ROOM = ENDS_MAX * DIGITS_MAX + 256

_ENDED = (0x95, 0xA5, 69, 110, 100, 101, 100)  # array of 5, "Ended"
_COMMITTED = (0xA9, 99, 111, 109, 109, 105, 116, 116, 101, 100, 0xA0, 0xA0)
_ROLLED_BACK = (0xAB, 114, 111, 108, 108, 101, 100, 95, 98, 97, 99, 107, 0xA0, 0xA0)


@kernel()
def _peek(peer: Bytes, lane: Words, ask: Words, body: Bytes) -> int:
    """Copy the body of the next message; its length, 0 if there is none, OTHER if it is odd."""
    cursor, mask = lane[frames.UP_CURSOR], lane[frames.UP_MASK]
    # SYNC POINT: message tail (other end: `put_message`)
    tail = atomics.load_acquire(peer, lane[frames.CONTROL] + LANE_UP_TAIL)
    if tail == cursor:
        return 0
    if tail < cursor or tail - cursor > mask + 1 or tail & 7:
        return OTHER
    at = lane[frames.UP] + (cursor & mask)
    length = atomics.load_acquire32(peer, at)
    if length < MESSAGE_BYTES or length & 7 or length > tail - cursor:
        return OTHER
    if (cursor & mask) + length > mask + 1 or machine.load16(peer, at + ENTRY_KIND) == PAD:
        return OTHER
    size = atomics.load_acquire32(peer, at + MESSAGE_BODY)
    if size <= 0 or size > BODY_MAX or MESSAGE_BYTES + size > length:
        return OTHER
    machine.copy(body, 0, peer, at + MESSAGE_BYTES, size)
    ask[LENGTH] = length
    found: int = size
    return found


@kernel()
def _number(body: Bytes, at: int, ask: Words) -> int:
    """Read a number that is not negative; where it ends, or 0. Of 8 bytes: below 2**63."""
    kind = machine.load8(body, at)
    if kind < 0x80:
        ask[VALUE] = kind
        return at + 1
    if kind == 0xCC:
        ask[VALUE] = machine.load8(body, at + 1)
        return at + 2
    if kind == 0xCD:
        ask[VALUE] = machine.load_be16(body, at + 1)
        return at + 3
    if kind == 0xCE:
        ask[VALUE] = machine.load_be32(body, at + 1)
        return at + 5
    if kind == 0xCF:
        ask[VALUE] = machine.load_be64(body, at + 1)
        return at + 9 if ask[VALUE] >= 0 else 0
    return 0


@kernel()
def _text(body: Bytes, at: int, ask: Words) -> int:
    """Where a text begins, or 0 if none that is 1 to 255 bytes long does; its length is SIZE."""
    kind = machine.load8(body, at)
    if 0xA1 <= kind < 0xC0:
        ask[SIZE] = kind & 31
        return at + 1
    if kind == 0xD9:
        ask[SIZE] = machine.load8(body, at + 1)
        return at + 2 if ask[SIZE] else 0
    return 0


@kernel()
def _names(body: Bytes, at: int, size: int, ask: Words, form: Words, names: Bytes) -> int:
    """Take group and transaction of a request; where they end, or 0."""
    start = _text(body, at, ask)
    if not start or start + ask[SIZE] > size:
        return 0
    group = ask[SIZE]
    machine.copy(names, 0, body, start, group)
    start = _text(body, start + group, ask)
    if not start or start + ask[SIZE] > size:
        return 0
    machine.copy(names, group, body, start, ask[SIZE])
    form[halfform.GROUP_BYTES], form[halfform.TX_BYTES] = group, ask[SIZE]
    end: int = start + ask[SIZE]
    return end


@kernel()
def _parse(
    body: Bytes, size: int, ask: Words, form: Words, names: Bytes, rows: Words, at: int
) -> int:
    """1 if a body is the END of one half, of a group and a transaction: it is the row then."""
    if machine.load32(body, 0) != 0x6E45A397 or machine.load8(body, 4) != 100:  # array of 7, "End"
        return 0
    place = _number(body, 5, ask)
    if not place:
        return 0
    rows[at + SERIAL] = ask[VALUE]
    place = _names(body, place, size, ask, form, names)
    if not place:
        return 0
    said = machine.load8(body, place)
    if said != 0xC2 and said != 0xC3:
        return 0
    rows[at + IS_COMMIT] = said & 1
    if machine.load8(body, place + 1) != 0x91 or machine.load8(body, place + 2) != 0x92:
        return 0
    place = _number(body, place + 3, ask)
    if not place:
        return 0
    rows[at + halfform.POSITION] = ask[VALUE]
    place = _number(body, place, ask)
    if not place or place + 1 != size or machine.load8(body, place) != 0xC2:
        return 0
    rows[at + halfform.OFFSET] = ask[VALUE]
    return 1


@kernel()
def _is_new(ask: Words, taken: Bytes, offset: int) -> int:
    """1 if nothing was decided of a half yet; `taken` is as long as a power of two."""
    if offset < ask[OPEN_FROM] or offset >= ask[OPEN_END]:
        return 0
    return 0 if taken[offset & (len(taken) - 1)] else 1


@kernel()
def _read(
    body: Bytes, size: int, ask: Words, form: Words, names: Bytes, rows: Words, at: int
) -> int:
    """Fill a row; DONE, or OTHER."""
    if not _parse(body, size, ask, form, names, rows, at):
        return OTHER
    ask[NEED] = rows[at + halfform.POSITION]
    return DONE


@kernel()
def _settle(
    log: Bytes, limit: int, form: Words, rows: Words, at: int, targets: Targets, names: Bytes
) -> int:
    """Judge the half of a row, and put its commit copy: DONE, or what `take_ends` returns."""
    if not is_shown(form, limit, rows[at + halfform.POSITION]):
        return ROLL
    if judge_half(log, limit, form, rows, at, names) != halfform.GOOD:
        return OTHER
    # With the copy there must be room for the op record: nothing goes up without it.
    most = rows[at + halfform.SIZE] + ENTRY_BYTES + APPEND_BYTES + OP_ROOM
    if ring.reserve(targets[0], targets[1], targets[1][frames.UP_CURSOR], most) < 0:
        return BACKPRESSURE
    form[halfform.COMMIT] = rows[at + IS_COMMIT]
    state = decide_half(log, form, rows, at, targets)
    if state == halfform.NEW:
        return BACKPRESSURE
    return DONE if state == (halfform.PUT if rows[at + IS_COMMIT] else halfform.GOOD) else OTHER


@kernel(
    i8, BYTES_RO, WORDS, WORDS, WORDS, BYTES_RO, WORDS_RO, BYTES, WORDS, BYTES, WORDS, BYTES, BYTES,
    BYTES,
)  # fmt: skip
def take_ends(
    log: Bytes, form: Words, ask: Words, rows: Words, board: Bytes, index: Words, arena: Bytes,
    lane: Words, peer: Bytes, control: Words, body: Bytes, names: Bytes, taken: Bytes,
) -> int:  # fmt: skip
    """Take a session's ENDs as long as they are of the common form, and put their commit copies.

    `log` with `form` as for `put_commits`; `board` and `index` are its topics; `arena` and `lane`
    the way to the writer, `peer` and `control` the session's lane; `body` (BODY_ROOM), `names` are
    scratch; `taken`, by the low bits of the queue offset, says what is decided. Nothing is
    published. Returns DONE (no more), OTHER, BACKPRESSURE, ROLL (`log` does not show NEED).
    """
    raw = machine.raw
    targets = (raw(arena), raw(lane), raw(board), raw(index), index.size - 1)
    ends, words = raw(peer), raw(control)
    while ask[COUNT] < ask[ROOM]:
        size = _peek(ends, words, ask, raw(body))
        if size <= 0:
            return DONE if size == 0 else OTHER
        at = ask[COUNT] * END_WORDS
        stop = _read(raw(body), size, ask, form, raw(names), rows, at)
        if stop == DONE and not _is_new(ask, taken, rows[at + halfform.OFFSET]):
            stop = OTHER
        if stop == DONE:
            stop = _settle(raw(log), log.size, raw(form), raw(rows), at, targets, raw(names))
        if stop != DONE:
            return stop
        rows[at + SESSION] = ask[WHO]
        taken[rows[at + halfform.OFFSET] & (len(taken) - 1)] = 1
        control[frames.UP_CURSOR] += ask[LENGTH]
        ask[COUNT] += 1
    return DONE


@kernel(i8, BYTES, WORDS, WORDS, WORDS_RO, i8, BYTES)
def publish_ends(
    arena: Bytes, lane: Words, form: Words, rows: Words, count: int, text: Bytes
) -> int:
    """Put the op record of rows (its `form` as for `publish_decisions`), publish all that was put.

    `text` is scratch, DIGITS_MAX for each row. Returns the op entry's seq, or FULL: then nothing is
    published.
    """
    size = 0
    commits = 0
    body = machine.raw(text)
    for wanted in range(1, -1, -1):  # commits come first
        for number in range(count):
            at = number * END_WORDS
            if rows[at + IS_COMMIT] == wanted:
                size = store_decimal(body, size, rows[at + halfform.OFFSET])
                body[size] = 44  # a comma
                size += 1
                commits += wanted
    form[OP_FLAG] = 1 + commits
    ends, words = machine.raw(arena), machine.raw(lane)
    seq: int = put_op(ends, words, machine.raw(form), body, size)
    if seq >= 0:
        ring.publish_entries(ends, words, lane[frames.UP_CURSOR], lane[frames.SEQ], URGENT)
    return seq


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


@kernel(i8, WORDS_RO, i8, i8, BYTES, WORDS, BYTES)
def tell_ends(rows: Words, count: int, who: int, peer: Bytes, control: Words, text: Bytes) -> int:
    """Tell a session that its rows are what they were to be; how many rows were gone through.

    `text` is scratch of BODY_ROOM. Fewer than `count` if its ring has no room for the next.
    `control[RING]` says whether to ring.
    """
    rings = 0
    told = 0
    while told < count:
        at = told * END_WORDS
        if rows[at + SESSION] == who:
            size = _write_answer(text, rows[at + SERIAL], rows[at + IS_COMMIT])
            if message.put_bytes(peer, control, 0, NOTICE, text, size) != 1:
                break
            rings |= control[frames.RING]
        told += 1
    control[frames.RING] = rings
    return told
