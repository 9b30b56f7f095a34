"""ENDs in their common form: from a session's ring into the txn-checker's own.

One half, the first of its transaction, of which nothing is known yet: such a request takes no
Python. Whatever else a session asks stays in its ring, and the caller takes it from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import atomics, machine
from gantrymq.shm.codes import EntryFlag, EntryKind, Stop
from gantrymq.shm.jit import BYTES, BYTES_RO, WORDS, WORDS_RO, i8, kernel
from gantrymq.shm.kernels import frames, halfform, message, ring
from gantrymq.shm.kernels.copyentry import DURABLE, is_durable
from gantrymq.shm.kernels.decide import (
    OP_FLAG,
    OP_FLAGS,
    OP_NAME_BYTES,
    OP_REST_BYTES,
    OP_SERIAL,
    OP_SESSION,
    OP_SINCE,
    OP_WORDS,
    decide_half,
    judge_half,
    put_op,
)
from gantrymq.shm.kernels.decimals import store_decimal
from gantrymq.shm.kernels.stretch import is_shown
from gantrymq.shm.kernels.words import has_moved, watch_raw
from gantrymq.shm.layout import (
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

    from gantrymq.shm.kernels.copyentry import Targets

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

DONE = int(Stop.DONE)
ROLL = int(Stop.ROLL)
BACKPRESSURE = int(Stop.BACKPRESSURE)
PAD = int(EntryKind.PAD)
URGENT = int(EntryFlag.URGENT)

#: The next message is none of these: the caller takes it.
OTHER = -1

# A row: the words of halfform's rows, then these.
SERIAL, IS_COMMIT, SESSION = halfform.HALF_WORDS, halfform.HALF_WORDS + 1, halfform.HALF_WORDS + 2
OP_SEQ = halfform.HALF_WORDS + 3  # of `serve_ends`
IS_ALONE = halfform.HALF_WORDS + 4  # who asks hears of it from the writer, if the op record is its
END_WORDS = halfform.HALF_WORDS + 5

# Words of `take_ends`.
COUNT = 0  # rows so far
ROOM = 1  # rows at most
OPEN_FROM = 2  # halves of queue offsets from here on were not read from their queue yet,
OPEN_END = 3  # and for those below this one `taken` says whether they are decided
WHO = 4  # session
NEED = 5  # the half of the next request is at this log position
LENGTH, VALUE, SIZE, TAKEN_MASK = 6, 7, 8, 9  # scratch
BURST = 10  # of `serve_ends`: so many rows are enough
FLAGS = 11  # of op records
PUBLISHED, MUST_WAIT = 12, 13
WATCHED = 14  # words of a table, and how often they are looked at
ROUNDS = 15
OP_AT = 16  # the form of op records, OP_WORDS
ASK_WORDS = OP_AT + OP_WORDS

#: Bytes of a request at most, and behind them as many as any look ahead needs.
BODY_MAX = 512
BODY_ROOM = BODY_MAX + 64
#: Rows at most, and bytes of an op record that names as many.
ENDS_MAX = 512
OP_ROOM = ENDS_MAX * OP_NAME_BYTES + OP_REST_BYTES
#: Scratch of both: a request's body, its names, an op record's text.
TEXT_AT = 2 * BODY_ROOM
SCRATCH_ROOM = TEXT_AT + OP_ROOM


@kernel()
def _peek(peer: Bytes, lane: Words, ask: Words, body: Bytes) -> int:
    """Copy the body of the next message; its length, 0 if there is none, OTHER if it is odd."""
    mask = lane[frames.UP_MASK]
    # SYNC POINT: message tail (other end: `put_message`)
    tail = atomics.load_acquire(peer, lane[frames.CONTROL] + LANE_UP_TAIL)
    if tail == lane[frames.UP_CURSOR]:
        return 0
    if tail < lane[frames.UP_CURSOR] or tail - lane[frames.UP_CURSOR] > mask + 1 or tail & 7:
        return OTHER
    message.pass_padding(peer, lane, tail)
    cursor = lane[frames.UP_CURSOR]
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
    if machine.load32(body, 0) != 0x6E45A398 or machine.load8(body, 4) != 100:  # array of 8, "End"
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
    if not place or place + 2 != size:
        return 0
    rows[at + halfform.OFFSET] = ask[VALUE]
    rows[at + IS_ALONE] = machine.load8(body, place + 1) & 1
    # Not from a check: false, then false or true.
    return int(machine.load_be16(body, place) in (0xC2C2, 0xC2C3))


@kernel()
def _is_new(ask: Words, taken: Bytes, offset: int) -> int:
    """1 if nothing was decided of a half yet."""
    if offset < ask[OPEN_FROM] or offset >= ask[OPEN_END]:
        return 0
    return 0 if taken[offset & ask[TAKEN_MASK]] else 1


@kernel()
def _settle(
    log: Bytes, limit: int, form: Words, rows: Words, at: int, targets: Targets, names: Bytes
) -> int:
    """Judge the half of a row, and put its commit copy: DONE, or what `take_ends` returns."""
    if not is_shown(form, limit, rows[at + halfform.POSITION]):
        return ROLL
    if judge_half(log, limit, form, rows, at, names) != halfform.GOOD:
        return OTHER
    if not halfform.is_first(log, form, form[halfform.TX_BYTES]):
        return OTHER  # what became of those before it counts
    # With the copy there must be room for the op record: nothing goes up without it.
    most = rows[at + halfform.SIZE] + ENTRY_BYTES + APPEND_BYTES + OP_ROOM
    if ring.reserve(targets[0], targets[1], targets[1][frames.UP_CURSOR], most) < 0:
        return BACKPRESSURE
    form[halfform.OP_ROOM] = OP_ROOM
    form[halfform.COMMIT] = halfform.PUTS if rows[at + IS_COMMIT] else halfform.LOOK
    state = decide_half(log, form, rows, at, targets)
    if state == halfform.NEW:
        return BACKPRESSURE
    return DONE if state == (halfform.PUT if rows[at + IS_COMMIT] else halfform.GOOD) else OTHER


@kernel()
def _take(
    log: Bytes, limit: int, form: Words, ask: Words, rows: Words, targets: Targets, peer: Bytes,
    control: Words, scratch: Bytes, taken: Bytes,
) -> int:  # fmt: skip
    """`take_ends` with raw arrays; `log` is `limit` bytes long."""
    names = machine.shift(scratch, BODY_ROOM)
    while ask[COUNT] < ask[ROOM]:
        size = _peek(peer, control, ask, scratch)
        if size <= 0:
            return DONE if size == 0 else OTHER
        at = ask[COUNT] * END_WORDS
        if not _parse(scratch, size, ask, form, names, rows, at):
            return OTHER
        offset, ask[NEED] = rows[at + halfform.OFFSET], rows[at + halfform.POSITION]
        if not _is_new(ask, taken, offset):
            return OTHER
        stop = _settle(log, limit, form, rows, at, targets, names)
        if stop != DONE:
            return stop
        rows[at + SESSION] = ask[WHO]
        taken[offset & ask[TAKEN_MASK]] = 1
        control[frames.UP_CURSOR] += ask[LENGTH]
        ask[COUNT] += 1
    return DONE


@kernel(
    i8, BYTES_RO, WORDS, WORDS, WORDS, BYTES_RO, WORDS_RO, BYTES, WORDS, BYTES, WORDS, BYTES, BYTES
)
def take_ends(
    log: Bytes, form: Words, ask: Words, rows: Words, board: Bytes, index: Words, arena: Bytes,
    lane: Words, peer: Bytes, control: Words, scratch: Bytes, taken: Bytes,
) -> int:  # fmt: skip
    """Take a session's ENDs as long as they are of the common form, and put their commit copies.

    `log` with `form` as for `put_commits`; `board` and `index` are its topics; `arena` and `lane`
    the way to the writer, `peer` and `control` the session's lane; `scratch` has SCRATCH_ROOM;
    `taken`, as long as a power of two, says by low bits of the queue offset what is decided.
    Nothing is published. DONE (no more), OTHER, BACKPRESSURE, or ROLL: `log` does not show NEED.
    """
    raw = machine.raw
    targets = (raw(arena), raw(lane), raw(board), raw(index), index.size - 1)
    words = raw(ask)
    words[TAKEN_MASK] = taken.size - 1
    return _take(
        raw(log), log.size, raw(form), words, raw(rows), targets, raw(peer), raw(control),
        raw(scratch), raw(taken),
    )  # fmt: skip


@kernel()
def _publish(arena: Bytes, lane: Words, form: Words, rows: Words, count: int, text: Bytes) -> int:
    """`publish_ends` with raw arrays."""
    size = 0
    commits = 0
    for wanted in range(1, -1, -1):  # commits come first
        for number in range(count):
            at = number * END_WORDS
            if rows[at + IS_COMMIT] == wanted:
                size = store_decimal(text, size, rows[at + halfform.OFFSET])
                text[size] = 44  # a comma
                size += 1
                commits += wanted
    form[OP_FLAG] = 1 + commits
    # A lone one hears it from the writer; not where that has to wait for the disk.
    tells = count == 1 and rows[IS_ALONE] and not form[OP_FLAGS] & DURABLE
    form[OP_SESSION] = rows[SESSION] if tells else 0
    form[OP_SERIAL] = rows[SERIAL]
    form[OP_SINCE] = lane[frames.SEQ] + 1 - commits
    seq: int = put_op(arena, lane, form, text, size)
    if seq >= 0:
        ring.publish_entries(arena, lane, lane[frames.UP_CURSOR], lane[frames.SEQ], URGENT)
    return seq


@kernel(i8, BYTES, WORDS, WORDS, WORDS, i8, BYTES)
def publish_ends(
    arena: Bytes, lane: Words, form: Words, rows: Words, count: int, text: Bytes
) -> int:
    """Put the op record of rows (its `form` as for `publish_decisions`), publish all that was put.

    `text`: scratch, OP_NAME_BYTES for each row. The op entry's seq, or FULL: nothing is published.
    """
    raw = machine.raw
    return _publish(raw(arena), raw(lane), raw(form), raw(rows), count, raw(text))


@kernel()
def _is_durable(board: Bytes, rows: Words, first: int, count: int) -> int:
    """1 if a topic of some rows asks for the disk."""
    for number in range(first, count):
        topic = rows[number * END_WORDS + halfform.TOPIC]  # below 0: a rollback needs none
        if topic >= 0 and is_durable(board, topic):
            return 1
    return 0


@kernel()
def _go_up(targets: Targets, ask: Words, rows: Words, first: int, scratch: Bytes) -> int:
    """Publish rows from `first` on with an op record of their own; its seq, or FULL."""
    form = machine.shift(ask, OP_AT)
    lane = targets[1]
    count = ask[COUNT]
    form[OP_FLAGS] = ask[FLAGS]
    if _is_durable(targets[2], rows, first, count):
        form[OP_FLAGS] |= DURABLE
        ask[MUST_WAIT] = 1
    fresh = machine.shift(rows, first * END_WORDS)
    seq: int = _publish(
        targets[0], lane, form, fresh, count - first, machine.shift(scratch, TEXT_AT)
    )
    ask[PUBLISHED] = first if seq < 0 else count
    for number in range(first, count if seq >= 0 else first):
        rows[number * END_WORDS + OP_SEQ] = seq
    return seq


@kernel(
    i8, BYTES_RO, WORDS, WORDS, WORDS, BYTES_RO, WORDS_RO, BYTES, WORDS, BYTES, WORDS, BYTES, BYTES,
    WORDS,
)  # fmt: skip
def serve_ends(
    log: Bytes, form: Words, ask: Words, rows: Words, board: Bytes, index: Words, arena: Bytes,
    lane: Words, peer: Bytes, control: Words, scratch: Bytes, taken: Bytes, table: Words,
) -> int:  # fmt: skip
    """As `take_ends`, of a lone session, and publish what was taken; then look out for the next.

    That for ROUNDS, by a `table` as for `watch`: first comes the end of what this session has put,
    then that of others, WATCHED in all. It ends when others ask, and goes on only as long as each
    hears of its decision from the writer: not if several came at a time, if one is not alone, if
    it has to wait for the disk (MUST_WAIT), or if the writer is to be rung. Rows below PUBLISHED
    are on their way, each with the seq of its op record; those behind are to share theirs with
    what else is there.
    """
    raw = machine.raw
    targets = (raw(arena), raw(lane), raw(board), raw(index), index.size - 1)
    words, ends = raw(ask), raw(control)
    words[TAKEN_MASK] = taken.size - 1
    words[MUST_WAIT] = words[PUBLISHED] = 0
    watched = raw(table)
    begun = ends[frames.UP_CURSOR]
    stop = DONE
    while stop == DONE:
        first = words[COUNT]
        stop = _take(
            raw(log), log.size, raw(form), words, raw(rows), targets, raw(peer), ends,
            raw(scratch), raw(taken),
        )  # fmt: skip
        if words[COUNT] > first and stop in (DONE, ROLL):
            seq = _go_up(targets, words, raw(rows), first, raw(scratch))
            if seq < 0 or not words[OP_AT + OP_SESSION] or targets[1][frames.RING]:
                break
        # The client gets its room back from the caller, before it has none.
        taken_bytes = ends[frames.UP_CURSOR] - begun
        if words[COUNT] >= words[BURST] or stop != DONE or 2 * taken_bytes > ends[frames.UP_MASK]:
            break
        watched[1] = ends[frames.UP_CURSOR]
        if has_moved(watched, 1, words[WATCHED]):
            break
        if not watch_raw(watched, words[WATCHED], words[ROUNDS]) or not has_moved(watched, 0, 1):
            break
    return stop
