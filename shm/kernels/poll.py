"""A consumer's poll: one call that looks at all its queues and copies what is there.

Its state is a table of numbers of the consumer's own, with the addresses of what it uses: board,
arena, and a row of words for each queue under lease. Whatever is not the common way (a notice, a
queue that goes on in another file or segment, damage) ends the call, and Python goes on from the
rows and the form as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.shm import atomics, machine
from gantrymq.shm.codes import BrokerState, ClientState, Stop
from gantrymq.shm.jit import JIT_OFF, WORDS, external, i4, i8, kernel
from gantrymq.shm.kernels import fetch, frames
from gantrymq.shm.kernels.progress import note_progress
from gantrymq.shm.layout import (
    ARENA_EVICTED,
    ARENA_WAIT_ARMED,
    BOARD_LOW,
    BOARD_STATE,
    LANE_CLIENT_ARMED,
    LANE_DOWN_TAIL,
    QUEUE_MAX_OFFSET,
    QUEUE_MIN_OFFSET,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

# Words of the state.
BOARD: Final = 0  # addresses: of the board,
ARENA: Final = 1  # of the arena,
LANE: Final = 2  # of the groups lane's words,
FORM: Final = 3  # of fetch.FORM_WORDS
QUEUES: Final = 4  # and of a word for each queue: the address of its row
COUNT: Final = 5  # queues
COLUMNS: Final = 6  # address of COLUMN_WORDS: where rows go
LOG: Final = 7  # address of the segment that the form means, and its bytes
LOG_BYTES: Final = 8
WANTED: Final = 9  # rows at most
MODE: Final = 10
ATTENTION: Final = 11  # 1: Python has something to do before anything is fetched
ATTENDED: Final = 12  # 1: it has just done so
TURN: Final = 13  # counts calls: another queue is first each time
LEFT: Final = 14  # queues with units beyond their position, as last seen
OWN: Final = 15  # address of the state
DESCRIPTORS: Final = 16  # two struct pollfd: the bell, the control socket
TIMEOUT: Final = 18  # seconds and nanoseconds
STOP: Final = 21  # a codes.Stop: what has STOPPED the last call
SATED: Final = 22  # 1: whatever there is to fetch, sleep
RINGS: Final = 24  # what is read from the bell: so many rings at a time
RINGS_MAX: Final = 32
STATE_WORDS: Final = RINGS + RINGS_MAX

# Bits of MODE.
PASS: Final = 1  # what was handed out before is done with
HAND_OUT: Final = 2  # what is fetched is handed out at once

# Words of a queue's row. Each offset is that of the next message: to fetch, to hand out, ...
POSITION: Final = 0  # to fetch
DELIVERED: Final = 1  # to hand out
PASSED: Final = 2  # the application is done with all below
BEGUN: Final = 3  # the application has, or is about to get, all below
SLOT: Final = 4  # where its progress slot is in the arena; 0: it has none
PLACE: Final = 5  # where its slot is on the board
NUMBER: Final = 6  # its number on the board
ACTIVE: Final = 7  # 1: messages are fetched
UNITS: Final = 8  # address of a ConsumeQueue file; 0: none
UNITS_HELD: Final = 9  # units in it
UNITS_BASE: Final = 10  # queue offset of the first
TAGS: Final = 11  # addresses and count as fetch.fetch has them
TAG_COUNT: Final = 12
TAG_BYTES: Final = 13
FILTER: Final = 14
END: Final = 15  # messages from here on are not fetched yet
EXTENSIONS: Final = 16  # as fetch.EXTENSIONS and the words behind it
EXTENSIONS_FROM: Final = 17
EXTENSIONS_END: Final = 18
BITS: Final = 19
ROW_WORDS: Final = 20

# Words that say where the arrays of columns are, as fetch.fetch names them.
(
    BODIES, BODY_ROOM, BODY_OFFSETS, PROPERTIES, PROPERTY_ROOM, PROPERTY_OFFSETS, NUMBERS, ROOM,
    HOSTS,
) = range(9)  # fmt: skip
COLUMN_WORDS: Final = 9

#: As END: as far as there are messages.
NO_END: Final = 1 << 62

# A call looks at so many units of a queue with a filter before it looks at the next queue,
SCAN_UNITS: Final = 4096
#: and in all at so many, where a record that is looked at counts as RECORD_COST of them, and what
#: a filter's program does with it by its work: a few milliseconds. Then it returns what it has,
#: even if that is nothing, and the next call goes on: what is rare, or long to look through, holds
#: up neither other queues, nor notices, nor commits.
SCAN_COST: Final = 1 << 20
RECORD_COST: Final = 64
WORK_PER_UNIT: Final = 8

# What `poll` returns if not rows.
ATTEND: Final = -1  # look at the session and its notices, then call again
CROWDED: Final = -2  # more is there than the columns have room for; nothing was fetched
STOPPED: Final = -3  # another file, segment or stretch, no room, or damage: go on in Python

# What `rest` returns.
TIMED_OUT: Final = 0
WOKEN: Final = 1
SPOKEN_TO: Final = 2  # the control socket has something to say, or has ended

DONE = int(Stop.DONE)
REMOVED = int(Stop.REMOVED)
STATE_FAILED = int(BrokerState.FAILED)
STATE_STOPPED = int(BrokerState.STOPPED)
ARMED = int(ClientState.ARMED)
POLLIN = 1


@kernel()
def _row(words: Words, index: int) -> Words:
    return machine.words_at(machine.words_at(words[QUEUES])[index])


@kernel()
def _publish(words: Words) -> None:
    """Say of each queue what is passed and begun."""
    arena = machine.bytes_at(words[ARENA])
    for index in range(words[COUNT]):
        row = _row(words, index)
        if row[SLOT]:
            note_progress(arena, row[SLOT], row[PASSED], max(row[BEGUN], row[PASSED]))


@kernel()
def _is_notified(words: Words) -> int:
    """1 if the session is over, the broker has ended, or `groups` has said something."""
    arena = machine.bytes_at(words[ARENA])
    lane = machine.words_at(words[LANE])
    if atomics.load_acquire32(arena, ARENA_EVICTED):
        return 1
    state = atomics.load_acquire32(machine.bytes_at(words[BOARD]), BOARD_STATE)
    if state in (STATE_FAILED, STATE_STOPPED):
        return 1
    tail = atomics.load_acquire(arena, lane[frames.CONTROL] + LANE_DOWN_TAIL)
    return 1 if tail != lane[frames.DOWN_CURSOR] else 0


@kernel()
def _there(board: Bytes, row: Words) -> int:
    """How far a queue may be fetched."""
    # SYNC POINT: max_offset (other end: the reader publishes units)
    there: int = atomics.load_acquire(board, row[PLACE] + QUEUE_MAX_OFFSET)
    end: int = row[END]
    return min(there, end)


@kernel()
def _count_waiting(words: Words) -> int:
    """Units that are there to fetch; LEFT says in how many queues."""
    board = machine.bytes_at(words[BOARD])
    waiting = 0
    left = 0
    for index in range(words[COUNT]):
        row = _row(words, index)
        if row[ACTIVE]:
            more = _there(board, row) - row[POSITION]
            if more > 0:
                waiting += more
                left += 1
    words[LEFT] = left
    return waiting


@kernel()
def _copy(words: Words, row: Words) -> int:
    """Run `fetch_run` as the form says."""
    to = machine.words_at(words[COLUMNS])
    sources = (
        machine.bytes_at(row[UNITS]), row[UNITS_HELD],
        machine.bytes_at(words[LOG]), words[LOG_BYTES],
        machine.words_at(row[TAGS]), row[TAG_COUNT], machine.bytes_at(row[TAG_BYTES]),
    )  # fmt: skip
    targets = (
        machine.bytes_at(to[BODIES]), to[BODY_ROOM], machine.words_at(to[BODY_OFFSETS]),
        machine.bytes_at(to[PROPERTIES]), to[PROPERTY_ROOM], machine.words_at(to[PROPERTY_OFFSETS]),
        machine.words_at(to[NUMBERS]), to[ROOM], machine.bytes_at(to[HOSTS]),
    )  # fmt: skip
    return fetch.fetch_run(machine.words_at(words[FORM]), sources, targets)


@kernel()
def _fetch_queue(words: Words, row: Words, most: int) -> int:
    """Fetch up to `most` rows of one queue; DONE, or why that ended before."""
    board = machine.bytes_at(words[BOARD])
    form = machine.words_at(words[FORM])
    row[POSITION] = max(row[POSITION], machine.load64(board, row[PLACE] + QUEUE_MIN_OFFSET))
    units = most if row[FILTER] == fetch.EVERYTHING else max(most, SCAN_UNITS)
    end = min(_there(board, row), row[POSITION] + units)
    if row[POSITION] >= end:
        return DONE
    form[fetch.OFFSET] = row[POSITION]
    form[fetch.END_OFFSET] = end
    form[fetch.CQ_BASE] = row[UNITS_BASE]
    form[fetch.LOW] = machine.load64(board, BOARD_LOW)
    form[fetch.QUEUE] = row[NUMBER]
    form[fetch.FILTER] = row[FILTER]
    form[fetch.EXTENSIONS] = row[EXTENSIONS]
    form[fetch.EXTENSIONS_FROM] = row[EXTENSIONS_FROM]
    form[fetch.EXTENSIONS_END] = row[EXTENSIONS_END]
    form[fetch.BITS] = row[BITS]
    rows = form[fetch.ROWS]
    form[fetch.ROWS_END] = rows + most
    bodies = form[fetch.BODY_USED]
    properties = form[fetch.PROPERTIES_USED]
    stop = _copy(words, row)
    if form[fetch.ROWS] > rows:
        to = machine.words_at(words[COLUMNS])
        first = machine.words_at(to[NUMBERS])[fetch.POSITION * to[ROOM] + rows]
        atomics.fence()
        if first < atomics.load_acquire(board, BOARD_LOW):  # retention has overtaken the copy
            form[fetch.ROWS] = rows
            form[fetch.BODY_USED] = bodies
            form[fetch.PROPERTIES_USED] = properties
            return REMOVED
    row[POSITION] = form[fetch.OFFSET]
    return stop


@kernel()
def _cost(form: Words, passed: int) -> int:
    """What a call has done so far, of SCAN_COST."""
    cost: int = passed + RECORD_COST * form[fetch.JUDGED] + form[fetch.SPENT] // WORK_PER_UNIT
    return cost


@kernel(i8, WORDS, i8)
def cost_of(form: Words, passed: int) -> int:
    """What the calls with a form have done since `poll` began, and units passed besides."""
    return _cost(machine.raw(form), passed)


@kernel()
def _fetch_all(words: Words) -> int:
    """Fetch from queues in turn, each at most its share, then whatever is left; DONE or a stop.

    Ends at SCAN_COST as well, behind the record that reaches it.
    """
    board = machine.bytes_at(words[BOARD])
    form = machine.words_at(words[FORM])
    form[fetch.JUDGED] = 0
    form[fetch.SPENT] = 0
    form[fetch.WORK_MAX] = SCAN_COST * WORK_PER_UNIT
    count = words[COUNT]
    words[TURN] += 1
    left = words[LEFT]
    passed = 0
    while left and form[fetch.ROWS] < words[WANTED]:
        share = max(1, (words[WANTED] - form[fetch.ROWS]) // left)
        left = 0
        for index in range(count):
            row = _row(words, (index + words[TURN]) % count)
            most = min(share, words[WANTED] - form[fetch.ROWS])
            if row[ACTIVE] and most > 0:
                before = row[POSITION]
                stop = _fetch_queue(words, row, most)
                if stop != DONE:
                    return stop
                if row[FILTER] != fetch.EVERYTHING:
                    passed += row[POSITION] - before
                    if _cost(form, passed) >= SCAN_COST:
                        return DONE
                left += 1 if row[POSITION] < _there(board, row) else 0
    return DONE


@kernel()
def _hand_out(words: Words, rows: int) -> None:
    for index in range(words[COUNT]):
        row = _row(words, index)
        if rows == 0 and row[ACTIVE] and row[DELIVERED] == row[PASSED]:
            # Tags kept everything away (FL-4).
            row[DELIVERED] = max(row[DELIVERED], row[POSITION])
            row[BEGUN] = row[DELIVERED]
            row[PASSED] = row[DELIVERED]
        if words[MODE] & HAND_OUT:
            row[DELIVERED] = max(row[DELIVERED], row[POSITION])
            row[BEGUN] = row[DELIVERED]
    _publish(words)


@kernel(i8, WORDS, nogil=True)
def poll(state: Words) -> int:
    """Pass what MODE says, look, fetch into COLUMNS, hand out; all of it is published.

    Returns rows, or ATTEND, CROWDED, STOPPED (the form and the queues' rows say how far it came;
    `hand_out` ends what Python goes on with).
    """
    words = machine.raw(state)
    if words[MODE] & PASS:
        for index in range(words[COUNT]):
            row = _row(words, index)
            row[PASSED] = row[DELIVERED]
    _publish(words)
    attended = words[ATTENDED]
    words[ATTENDED] = 0
    if not attended and (words[ATTENTION] or _is_notified(words)):
        return ATTEND
    waiting = _count_waiting(words)
    if waiting == 0:
        return 0
    form = machine.words_at(words[FORM])
    form[fetch.ROWS] = 0
    form[fetch.BODY_USED] = 0
    form[fetch.PROPERTIES_USED] = 0
    if min(waiting, words[WANTED]) > machine.words_at(words[COLUMNS])[ROOM]:
        return CROWDED
    words[STOP] = _fetch_all(words)
    if words[STOP] != DONE:
        return STOPPED
    rows: int = form[fetch.ROWS]
    _hand_out(words, rows)
    return rows


@kernel(i8, WORDS, i8)
def hand_out(state: Words, rows: int) -> int:
    """What `poll` does in the end, after Python has fetched so many rows."""
    _hand_out(machine.raw(state), rows)
    return rows


@kernel()
def _arm(words: Words) -> int:
    arena = machine.bytes_at(words[ARENA])
    lane = machine.words_at(words[LANE])
    atomics.store_release32(arena, ARENA_WAIT_ARMED, 1)
    atomics.store_release32(arena, lane[frames.CONTROL] + LANE_CLIENT_ARMED, ARMED)
    # SYNC POINT: sleep (other ends: the reader and `groups` ring those who wait)
    atomics.fence()
    if _is_notified(words):
        return 0
    return 0 if _count_waiting(words) and not words[SATED] else 1


@kernel(i8, WORDS)
def arm(state: Words) -> int:
    """Ask for a ring when something comes, then look; 1 if there is nothing, so one may sleep."""
    return _arm(machine.raw(state))


@kernel()
def _disarm(words: Words) -> None:
    arena = machine.bytes_at(words[ARENA])
    lane = machine.words_at(words[LANE])
    atomics.store_release32(arena, ARENA_WAIT_ARMED, 0)
    atomics.store_release32(arena, lane[frames.CONTROL] + LANE_CLIENT_ARMED, 0)


@kernel(i8, WORDS)
def disarm(state: Words) -> int:
    """Awake again."""
    _disarm(machine.raw(state))
    return 0


if not JIT_OFF:
    _ppoll = external("ppoll", i4, i8, i8, i8, i8)
    _read_from = external("read", i8, i4, i8, i8)

    @kernel()
    def _sleep(words: Words, timeout_ns: int) -> int:
        words[TIMEOUT] = timeout_ns // 1_000_000_000
        words[TIMEOUT + 1] = timeout_ns % 1_000_000_000
        for index in range(2):
            number = words[DESCRIPTORS + index] & 0xFFFFFFFF
            words[DESCRIPTORS + index] = number | POLLIN << 32
        at = words[OWN] + 8 * DESCRIPTORS
        ready = _ppoll(at, 2, words[OWN] + 8 * TIMEOUT, 0)
        if ready == 0:
            return TIMED_OUT
        if ready < 0:  # a signal: Python hears it first
            return WOKEN
        if words[DESCRIPTORS] >> 48:
            _read_from(words[DESCRIPTORS] & 0xFFFFFFFF, words[OWN] + 8 * RINGS, 8 * RINGS_MAX)
        return SPOKEN_TO if words[DESCRIPTORS + 1] >> 48 else WOKEN

    @kernel(i8, WORDS, i8, nogil=True)
    def rest(state: Words, timeout_ns: int) -> int:
        """Arm, look, and sleep on both descriptors; TIMED_OUT, WOKEN or SPOKEN_TO."""
        words = machine.raw(state)
        found = _sleep(words, timeout_ns) if _arm(words) else WOKEN
        _disarm(words)
        return found
