"""Records of the log -> entries of IndexFiles, and what recovery and `store verify` ask of them.

Rules SF-28, SF-61, SF-78 to SF-80, SF-118, SF-122. A file's front is its header and its slots, as
on the disk: the kernels keep the slots, their caller the header.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import machine
from gantrymq.shm.codes import Stop
from gantrymq.shm.jit import BYTES, BYTES_RO, WORDS, i8, kernel
from gantrymq.shm.kernels.bytesearch import find_byte
from gantrymq.shm.kernels.scan import (
    CHECK_PLACE,
    PROPERTIES_AT,
    PROPERTIES_SIZE,
    ROW_WORDS,
    SIZE,
    STORE_MS,
    SYS_FLAG,
    TOPIC_AT,
    TOPIC_SIZE,
    UNIQ_BYTES,
    has_separator,
    hash_on,
    parse_record,
)
from gantrymq.shm.layout import (
    INDEX_ENTRY_BYTES,
    INDEX_HEADER_BYTES,
    INDEX_POSITION,
    INDEX_PREV,
    INDEX_SLOT_BYTES,
    INDEX_TIME,
    SYS_ROLLBACK,
    SYS_TRANSACTION,
)
from gantrymq.shm.limits import TRAILER_BYTES, UNIQ_KEY_PROPERTY_BYTES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

DONE = int(Stop.DONE)
LIMIT = int(Stop.LIMIT)
ROLL = int(Stop.ROLL)

# Words of a call: indexes into `form`.
AT = 0  # offset in the segment's view to start at; moved on
BASE = 1  # log position of the view's first byte
END_AT = 2  # offset in the view to stop at
RECORDS_MAX = 3
# The file's header (SF-79), moved on.
BEGIN_MS, END_MS, BEGIN_POSITION, END_POSITION, USED_SLOTS, COUNT = range(4, 10)
KEY = 10  # keys of the record at AT that have their entries; moved on
TAGS = 11  # 1: entries for tags too (SF-122)
SLOTS = 12  # slots of a file
ENTRIES = 13  # RocketMQ's maxIndexNum
MADE = 14  # entries that are in `out`, moved on
RECORDS = 15  # out: records passed
FORM_WORDS = 16
HEADER = slice(BEGIN_MS, COUNT + 1)

PAGE_SHIFT = 12  # of the pages of a front that `dirty` names
HASH_MAX = 0x7FFFFFFF

# Where a record's keys are, and which comes next: indexes into `places`.
UNIQ_AT, UNIQ_SIZE, KEYS_AT, KEYS_END, TAGS_AT, TAGS_SIZE = range(6)
START = 6  # hash of topic and `#`
NEXT = 7  # 0 UNIQ_KEY, 1 words of KEYS, 2 nothing more
PLACES_WORDS = 8
# The row of a record has its places behind it.
ROW_AND_PLACES = ROW_WORDS + PLACES_WORDS

_UNIQ_KEY = int.from_bytes(b"UNIQ_KEY", "little")
_KEYS = int.from_bytes(b"KEYS", "little")
_TAGS = int.from_bytes(b"TAGS", "little")
_TRAILER = int.from_bytes(b"__CRC32#", "little")
_DIGITS_AT = 9
# Of eight bytes: what the upper halves of digits are.
_UPPER_HALVES, _OF_DIGITS = -0x0F0F0F0F0F0F0F10, 0x3030303030303030
_HASH_SIGN, _LETTER_T, _SPACE = b"#T "


@kernel()
def _find_keys(memory: Bytes, row: Words, places: Words) -> None:
    """Find UNIQ_KEY, KEYS and TAGS in a record's properties by SF-28; a later one wins."""
    for number in range(PLACES_WORDS):
        places[number] = 0
    at = row[PROPERTIES_AT]
    end = at + row[PROPERTIES_SIZE]
    while at < end:
        if end - at >= UNIQ_KEY_PROPERTY_BYTES and machine.load64(memory, at) == _UNIQ_KEY:
            if memory[at + 8] == 1 and memory[at + 41] == 2 and not has_separator(memory, at + 9):
                places[UNIQ_AT] = at + 9
                places[UNIQ_SIZE] = UNIQ_BYTES
                at += UNIQ_KEY_PROPERTY_BYTES
                continue
        if end - at == TRAILER_BYTES and machine.load64(memory, at) == _TRAILER:
            if machine.load64(memory, at + _DIGITS_AT) & _UPPER_HALVES == _OF_DIGITS:
                break  # whatever its other bytes are, no property that matters has room in it
        stop = find_byte(memory, at, end, 2)
        _note_property(memory, places, at, stop)
        at = stop + 1
    value = hash_on(0, memory, row[TOPIC_AT], row[TOPIC_SIZE])
    places[START] = (31 * value + _HASH_SIGN) & 0xFFFFFFFF


@kernel()
def _note_property(memory: Bytes, places: Words, at: int, stop: int) -> None:
    """One `key 01 value` from `at` to `stop`, if it is one of those that matter."""
    size = stop - at
    if size > 5 and memory[at + 4] == 1:
        word = machine.load32(memory, at)
        if word == _KEYS:
            places[KEYS_AT] = at + 5
            places[KEYS_END] = stop
        elif word == _TAGS:
            places[TAGS_AT] = at + 5
            places[TAGS_SIZE] = size - 5
    elif size > 9 and memory[at + 8] == 1 and machine.load64(memory, at) == _UNIQ_KEY:
        places[UNIQ_AT] = at + 9
        places[UNIQ_SIZE] = size - 9


@kernel()
def _key_hash(start: int, memory: Bytes, at: int, count: int) -> int:
    """SF-78: the amount of the signed hash, 0 for the one that has none."""
    value = hash_on(start, memory, at, count)
    if value > HASH_MAX:
        value = 0x100000000 - value
    return value if value <= HASH_MAX else 0


@kernel()
def _next_key(memory: Bytes, places: Words, tags: int) -> int:
    """Hash of the next key of the record that `_find_keys` has seen, -1 behind the last."""
    if places[NEXT] == 0:
        places[NEXT] = 1
        if places[UNIQ_SIZE]:
            return _key_hash(places[START], memory, places[UNIQ_AT], places[UNIQ_SIZE])
    at = places[KEYS_AT]
    end = places[KEYS_END]
    while at < end and memory[at] == _SPACE:
        at += 1
    if at < end:
        stop = find_byte(memory, at, end, _SPACE)
        places[KEYS_AT] = stop
        return _key_hash(places[START], memory, at, stop - at)
    places[KEYS_AT] = end
    if places[NEXT] == 1 and tags and places[TAGS_SIZE]:
        places[NEXT] = 2
        start = 31 * (31 * places[START] + _LETTER_T) + _HASH_SIGN
        return _key_hash(start & 0xFFFFFFFF, memory, places[TAGS_AT], places[TAGS_SIZE])
    return -1


@kernel()
def _put(
    key_hash: int, position: int, store_ms: int, form: Words, front: Bytes, out: Bytes
) -> None:
    """One entry (SF-79) but for its chain, which `_link` makes once its slot is at hand."""
    slot_at = INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * (key_hash % form[SLOTS])
    machine.prefetch(front, slot_at)
    seconds = 0
    if form[BEGIN_MS] > 0 and store_ms > form[BEGIN_MS]:
        seconds = min((store_ms - form[BEGIN_MS]) // 1000, HASH_MAX)
    at = form[MADE] * INDEX_ENTRY_BYTES
    machine.store_be32(out, at, key_hash)
    machine.store_be64(out, at + INDEX_POSITION, position)
    machine.store_be32(out, at + INDEX_TIME, seconds)
    machine.store_be32(out, at + INDEX_PREV, slot_at)
    if form[COUNT] <= 1:
        form[BEGIN_POSITION] = position
        form[BEGIN_MS] = store_ms
    form[COUNT] += 1
    form[END_POSITION] = position
    form[END_MS] = store_ms
    form[MADE] += 1


@kernel()
def _link(first: int, form: Words, arrays: tuple[Bytes, Bytes, Bytes]) -> None:
    """Chains of the entries from `first` on, which name their slot where `prev` belongs."""
    front, dirty, out = arrays
    number = form[COUNT] - (form[MADE] - first)
    used = 0
    for place in range(first, form[MADE]):
        at = place * INDEX_ENTRY_BYTES + INDEX_PREV
        slot_at = machine.load_be32(out, at)
        prev = machine.load_be32(front, slot_at)
        machine.store_be32(out, at, prev)
        machine.store_be32(front, slot_at, number)
        dirty[slot_at >> PAGE_SHIFT] = 1
        used += 1 if prev == 0 else 0
        number += 1
    form[USED_SLOTS] += used


@kernel()
def _enter(
    memory: Bytes, row: Words, places: Words, form: Words, arrays: tuple[Bytes, Bytes, Bytes],
    room: int,
) -> int:  # fmt: skip
    """Entries of one record from its key form[KEY] on. DONE, or why there is no room for more."""
    front, _dirty, out = arrays
    _find_keys(memory, row, places)
    number = 0
    while True:
        key_hash = _next_key(memory, places, form[TAGS])
        if key_hash < 0:
            return DONE
        if number >= form[KEY]:
            if form[COUNT] >= form[ENTRIES]:
                return ROLL
            if form[MADE] >= room:
                return LIMIT
            _put(key_hash, form[BASE] + form[AT], row[STORE_MS], form, front, out)
            form[KEY] = number + 1
        number += 1


@kernel()
def _index(
    memory: Bytes, form: Words, arrays: tuple[Bytes, Bytes, Bytes], room: int, row: Words
) -> int:
    places = machine.shift(row, ROW_WORDS)
    while form[RECORDS] < form[RECORDS_MAX]:
        at = form[AT]
        if at >= form[END_AT]:
            return DONE
        stop = parse_record(memory, at, form[END_AT], form[BASE] + at, CHECK_PLACE, row)
        if stop != DONE:
            return stop
        if form[COUNT] >= form[ENTRIES]:
            return ROLL  # SF-118: whatever this record is
        if row[SYS_FLAG] & SYS_TRANSACTION != SYS_ROLLBACK:
            stop = _enter(memory, row, places, form, arrays, room)
            if stop != DONE:
                return stop
        form[KEY] = 0
        form[AT] = at + row[SIZE]
        form[RECORDS] += 1
    return LIMIT


@kernel(i8, BYTES_RO, WORDS, BYTES, BYTES, BYTES, WORDS)
def index_log(
    memory: Bytes, form: Words, front: Bytes, dirty: Bytes, out: Bytes, row: Words
) -> int:
    """Make the entries of records from form[AT] to form[END_AT] of a segment's view.

    Entries are added to `out`, slots set in `front`, their pages marked in `dirty`, the words of
    the header moved on. `row` has ROW_AND_PLACES words. Returns DONE; LIMIT: form[RECORDS_MAX]
    records passed or `out` full; ROLL: the file is full (or there is none) and the record at
    form[AT] needs another; or what `parse_record` says of something that is no record.
    """
    form[RECORDS] = 0
    arrays = (machine.raw(front), machine.raw(dirty), machine.raw(out))
    room = out.size // INDEX_ENTRY_BYTES
    words = machine.raw(form)
    first = words[MADE]
    stop = _index(machine.raw(memory), words, arrays, room, machine.raw(row))
    _link(first, words, arrays)
    return stop


# ------------------------------------------------------------------------- what is on the disk

# Words of a call of `relink`.
FIRST = 0  # number of the first entry in `entries`; moved on
USED = 1  # slots in use, moved on
LAST = 2  # position of the last entry seen, moved on
LINK_SLOTS = 3
LINK_WORDS = 4


@kernel(i8, BYTES_RO, WORDS, BYTES)
def relink(entries: Bytes, form: Words, front: Bytes) -> int:
    """Set the slots of entries that are there, one after the other, and check their chains.

    An entry's `prev` has to be what its slot held, and positions may not go back. Returns how many
    hold; the one behind them does not.
    """
    count = entries.size // INDEX_ENTRY_BYTES
    return _relink(machine.raw(entries), count, machine.raw(form), machine.raw(front))


@kernel()
def _relink(entries: Bytes, count: int, form: Words, front: Bytes) -> int:
    for number in range(count):
        at = number * INDEX_ENTRY_BYTES
        key_hash = machine.load_be32(entries, at)
        position = machine.load_be64(entries, at + INDEX_POSITION)
        if key_hash > HASH_MAX or position < form[LAST]:
            return number
        slot_at = INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * (key_hash % form[LINK_SLOTS])
        prev = machine.load_be32(front, slot_at)
        if machine.load_be32(entries, at + INDEX_PREV) != prev:
            return number
        machine.store_be32(front, slot_at, form[FIRST])
        form[FIRST] += 1
        form[USED] += prev == 0
        form[LAST] = position
    return count


@kernel()
def _hash_keys(memory: Bytes, rows: Words, sizes: tuple[int, int, int], out: Words) -> int:
    count, room, tags = sizes
    made = 0
    places = machine.shift(rows, count * ROW_WORDS)
    for place in range(count):
        row = machine.shift(rows, place * ROW_WORDS)
        if row[SYS_FLAG] & SYS_TRANSACTION == SYS_ROLLBACK:
            continue
        _find_keys(memory, row, places)
        while True:
            key_hash = _next_key(memory, places, tags)
            if key_hash < 0:
                break
            if made < room:
                out[made] = key_hash
                out[room + made] = place
            made += 1
    return made


@kernel(i8, BYTES_RO, WORDS, i8, WORDS)
def hash_keys(memory: Bytes, rows: Words, tags: int, out: Words) -> int:
    """The hashes of all keys of rows that `scan_log` made, in the order of their entries.

    Behind the rows there is another, which is changed. `out` is two columns one behind the other:
    hash, number of the row. Returns how many there are; if that is more than there is room for,
    call again with more.
    """
    sizes = (rows.size // ROW_WORDS - 1, out.size // 2, tags)
    return _hash_keys(machine.raw(memory), machine.raw(rows), sizes, machine.raw(out))
