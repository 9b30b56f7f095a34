"""The machine that runs a filter's program (shm/opcodes.py) over a record's properties.

It answers as shm/sql92/evaluate.py does, which is the reference. What is rare and long to say
(numbers that need more than 19 digits, hexadecimal ones, digits of other scripts, bytes that are no
UTF-8) it leaves to the reference: ASK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.shm import machine
from gantrymq.shm.jit import BYTES_RO, WORDS, WORDS_RO, i8, kernel
from gantrymq.shm.kernels import filtertext
from gantrymq.shm.kernels.bounds import NO_BOUND
from gantrymq.shm.kernels.bytesearch import find_byte, is_ascii, is_same
from gantrymq.shm.kernels.filtertext import find_text, is_in, is_like
from gantrymq.shm.kernels.javanumbers import (
    NO_NUMBER,
    READ,
    READ_KIND,
    READ_WELL,
    UNSURE,
    order_bits,
    order_numbers,
    read_double,
    read_integer,
)
from gantrymq.shm.opcodes import (
    AND_STEP,
    ASK,
    CAST,
    CODE,
    CODE_WORDS,
    COMPARE,
    DOUBLE,
    END,
    EQUAL,
    ERROR,
    EXOTIC,
    FALSE,
    FIND,
    IN,
    LENIENT,
    LIKE,
    LOAD,
    LONG,
    NAME_COUNT,
    NAMES,
    NAMES_MAX,
    NOT,
    NULL,
    OR_STEP,
    PUSH,
    STACK_MAX,
    TEXT,
    TRUE,
    TRUTH,
    UNKNOWN,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

# Words of scratch: a slot for each name (place and bytes), the stack, and an operator's own.
SLOTS: Final = 0
STACK: Final = 2 * NAMES_MAX
VALUE_WORDS: Final = 3
NUMBER: Final = STACK + VALUE_WORDS * STACK_MAX
SPENT: Final = NUMBER + filtertext.SPENT  # counts work; whoever runs programs begins and ends it
SCRATCH_WORDS: Final = NUMBER + filtertext.SCRATCH_WORDS

#: Work of an operator, whatever it looks at.
_OPERATOR_WORK = 8

_INT_MAX = (1 << 31) - 1
_NEGATIVE_ZERO = -(1 << 63)  # its bits
_TRUE_TEXT = np.frombuffer(b"true", np.uint8)
_LOWER = 0x20  # a letter's bit that makes it small

# What comparing two values comes to beside -1, 0 and 1.
_UNEQUAL, _NOTHING, _THROWS, _UNSAID = 2, 3, 4, 5
_ANSWERS = np.array([FALSE, UNKNOWN, ERROR, ASK], np.int64)
#: Of GT, GE, LT, LE and equality: bit (sign + 1) says whether it holds.
_SAME = 4
_HOLDS = np.array([0b100, 0b110, 0b001, 0b011, 0b010], np.int64)


@kernel()
def _find_values(words: Words, pool: Bytes, log: Bytes, at: int, size: int, scratch: Words) -> None:
    """Fill the slots: place and bytes of each named property, the last one counts (SF-28)."""
    count = words[NAME_COUNT]
    names = words[NAMES]
    for slot in range(count):
        scratch[SLOTS + 2 * slot] = -1
    end = at + size
    spent = size
    while at < end:
        stop = find_byte(log, at, end, 2)
        key_end = find_byte(log, at, stop, 1)
        key = key_end - at
        if key > 0 and stop - key_end > 1:
            spent += count
            for slot in range(count):
                if words[names + 2 * slot + 1] != key:
                    continue
                spent += key
                if is_same(log, at, pool, words[names + 2 * slot], key):
                    scratch[SLOTS + 2 * slot] = key_end + 1
                    scratch[SLOTS + 2 * slot + 1] = stop - key_end - 1
                    break
        at = stop + 1
    scratch[SPENT] += spent


@kernel()
def _read_double(memory: Bytes, at: int, size: int, lenient: int, number: Words) -> int:
    """As `read_double`; `lenient`: -0.0, which Java's Double.compare tells from 0.0, is zero."""
    status: int = read_double(memory, at, size, number)
    if lenient and number[READ] == _NEGATIVE_ZERO:
        number[READ] = 0
    return status


@kernel()
def _read_as(kind: int, lenient: int, memory: Bytes, at: int, size: int, number: Words) -> int:
    """A property as a number to be compared with one of this kind (FL-31)."""
    if lenient:
        status = read_integer(memory, at, size, number)
        if status != NO_NUMBER:
            return status
        return _read_double(memory, at, size, lenient, number)
    if kind == DOUBLE:
        return read_double(memory, at, size, number)
    status = read_integer(memory, at, size, number)
    if status == READ_WELL and kind != LONG:
        if number[READ] > _INT_MAX or number[READ] < -_INT_MAX - 1:
            return NO_NUMBER
    return status


@kernel()
def _is_true_text(memory: Bytes, at: int, size: int) -> int:
    if size != 4:
        return 0
    for step in range(4):
        if (memory[at + step] | 32) != _TRUE_TEXT[step]:
            return 0
    return 1


@kernel()
def _order_truths(left: int, right: int) -> int:
    return 0 if left == right else (1 if left > right else -1)


@kernel()
def _order_read(
    constant: Words, sign: int, memory: Bytes, at: int, size: int, lenient: int, number: Words
) -> int:
    """A property against a number; `sign` -1 if the number is on the left."""
    number[filtertext.SPENT] += size
    status = _read_as(constant[0], lenient, memory, at, size, number)
    if status == UNSURE:
        return _UNSAID
    if status == NO_NUMBER:
        return _NOTHING if lenient else _THROWS
    return sign * order_numbers(number[READ_KIND], number[READ], constant[0], constant[1])


@kernel()
def _order_texts(memory: Bytes, left: Words, right: Words, lenient: int, number: Words) -> int:
    """FL-34: both as doubles."""
    number[filtertext.SPENT] += left[2] + right[2]
    status = _read_double(memory, left[1], left[2], lenient, number)
    value = number[READ]
    other = _read_double(memory, right[1], right[2], lenient, number)
    if status == NO_NUMBER or other == NO_NUMBER:
        # What throws does so whatever the other one is.
        return _NOTHING if lenient else _THROWS
    if status == UNSURE or other == UNSURE:
        return _UNSAID
    return order_bits(value, number[READ])


@kernel()
def _order_truth(truth: int, right: Words, memory: Bytes, lenient: int) -> int:
    """TRUE or FALSE on the left (FL-33)."""
    if right[0] == TRUTH:
        return _order_truths(truth, right[1])
    if right[0] < TEXT:
        return _UNEQUAL
    if not lenient:
        return _THROWS
    return _order_truths(truth, _is_true_text(memory, right[1], right[2]))


@kernel()
def _order(left: Words, right: Words, log: Bytes, pool: Bytes, lenient: int, number: Words) -> int:
    """-1, 0, 1, or why not; neither is unknown, and not both are strings."""
    memory = log if left[0] == TEXT or right[0] == TEXT else pool
    if left[0] == TRUTH:
        return _order_truth(left[1], right, memory, lenient)
    if left[0] >= TEXT:
        if right[0] == TRUTH:
            return _order_truths(_is_true_text(memory, left[1], left[2]), right[1])
        return _order_read(right, 1, memory, left[1], left[2], lenient, number)
    if right[0] == TRUTH:
        return _UNEQUAL
    if right[0] >= TEXT:
        return _order_read(left, -1, memory, right[1], right[2], lenient, number)
    return order_numbers(left[0], left[1], right[0], right[1])


@kernel()
def _equal_texts(
    left: Words, right: Words, log: Bytes, pool: Bytes, exotic: int, number: Words
) -> int:
    """TRUE or FALSE; ASK where different bytes may be read as the same characters."""
    ours = log if left[0] == TEXT else pool
    theirs = log if right[0] == TEXT else pool
    if left[2] == right[2]:
        number[filtertext.SPENT] += left[2]
        if is_same(ours, left[1], theirs, right[1], left[2]):
            return TRUE
    both = left[0] == TEXT and right[0] == TEXT
    if both or exotic:
        number[filtertext.SPENT] += left[2] + right[2]
        if not (is_ascii(ours, left[1], left[2]) or is_ascii(theirs, right[1], right[2])):
            return ASK
    return FALSE


@kernel()
def _answer(order: int, compared: int) -> int:
    """What a comparison says; order _SAME asks for equality."""
    answer: int = (_HOLDS[order] >> (compared + 1)) & 1
    if compared >= _UNEQUAL:
        answer = _ANSWERS[compared - _UNEQUAL]
    return answer


@kernel()
def _equal(words: Words, left: Words, log: Bytes, pool: Bytes, number: Words) -> int:
    """The value behind `left` is the right one."""
    right = machine.shift(left, VALUE_WORDS)
    if left[0] == NULL:
        return TRUE if right[0] == NULL else UNKNOWN
    if right[0] == NULL:
        return FALSE
    if left[0] >= TEXT and right[0] >= TEXT:
        return _equal_texts(left, right, log, pool, words[EXOTIC], number)
    return _answer(_SAME, _order(left, right, log, pool, words[LENIENT], number))


@kernel()
def _compare(words: Words, order: int, left: Words, log: Bytes, pool: Bytes, number: Words) -> int:
    right = machine.shift(left, VALUE_WORDS)
    if left[0] == NULL or right[0] == NULL:
        return UNKNOWN
    if left[0] == TEXT and right[0] == TEXT:
        return _answer(order, _order_texts(log, left, right, words[LENIENT], number))
    return _answer(order, _order(left, right, log, pool, words[LENIENT], number))


@kernel()
def _operate(words: Words, code: int, value: Words, log: Bytes, pool: Bytes, number: Words) -> int:
    """Result of an operator whose first operand is `value`."""
    op = words[code]
    if op == COMPARE:
        return _compare(words, words[code + 1], value, log, pool, number)
    if op == EQUAL:
        return _equal(words, value, log, pool, number)
    if op == IN:
        return is_in(words, code, value, log, pool, number)
    if op == FIND:
        return find_text(words, code, value, log, pool, number)
    if op == LIKE:
        return is_like(words, code, value, log, pool, number)
    if op == NOT:
        return UNKNOWN if value[0] == NULL else 1 - value[1]
    if op == CAST:
        return UNKNOWN if value[0] == NULL else FALSE
    return UNKNOWN  # NEGATE


@kernel()
def _push(value: Words, kind: int, first: int, second: int) -> None:
    value[0] = kind
    value[1] = first
    value[2] = second


@kernel()
def _load(words: Words, code: int, value: Words, scratch: Words) -> None:
    """PUSH or LOAD."""
    if words[code] == PUSH:
        _push(value, words[code + 1], words[code + 2], words[code + 3])
        return
    slot = SLOTS + 2 * words[code + 1]
    kind = NULL if scratch[slot] < 0 else TEXT
    _push(value, kind, scratch[slot], scratch[slot + 1])


@kernel()
def _step(op: int, scratch: Words, top: int) -> int:
    """AND_STEP or OR_STEP: take the top value into the one below; 1 if that decides."""
    below = top - VALUE_WORDS
    decisive = 1 if op == OR_STEP else 0
    if scratch[top] == NULL:
        scratch[below] = NULL
    elif scratch[top + 1] == decisive:
        _push(machine.shift(scratch, below), TRUTH, decisive, 0)
        return 1
    return 0


@kernel()
def _charged(result: int, scratch: Words, limit: int) -> int:
    """Count an operator's work; its result, or ASK if that has come to the limit."""
    scratch[SPENT] += _OPERATOR_WORK
    return ASK if scratch[SPENT] >= limit and result < ERROR else result


@kernel()
def run_program(
    words: Words, pool: Bytes, log: Bytes, at: int, size: int, scratch: Words, limit: int
) -> int:
    """What a program says of properties at a place in the log: FALSE, TRUE, UNKNOWN, ERROR, ASK.

    ASK too once scratch[SPENT], which goes on from where it stood, has come to `limit`.
    """
    _find_values(words, pool, log, at, size, scratch)
    number = machine.shift(scratch, NUMBER)
    code = CODE
    top = STACK - VALUE_WORDS
    while words[code] != END:
        op = words[code]
        if op <= LOAD:
            top += VALUE_WORDS
            _load(words, code, machine.shift(scratch, top), scratch)
        elif op >= AND_STEP:
            if _step(op, scratch, top):
                code = words[code + 1] - CODE_WORDS
            top -= VALUE_WORDS
        else:
            if op <= COMPARE:
                top -= VALUE_WORDS
            result = _operate(words, code, machine.shift(scratch, top), log, pool, number)
            result = _charged(result, scratch, limit)
            if result >= ERROR:
                return result
            kind = NULL if result == UNKNOWN else TRUTH
            _push(machine.shift(scratch, top), kind, result, 0)
        code += CODE_WORDS
    if scratch[top] == NULL:
        return UNKNOWN
    return TRUE if scratch[top + 1] else FALSE


@kernel(i8, WORDS_RO, BYTES_RO, BYTES_RO, WORDS_RO, WORDS, WORDS, nogil=True)
def run_rows(
    words: Words, pool: Bytes, memory: Bytes, offsets: Words, scratch: Words, results: Words
) -> int:
    """A program over many properties, of which row i lies in `memory` at [offsets[i], [i + 1]).

    Fills `results`; returns how many are TRUE; scratch[SPENT] is the work that it took.
    """
    program = machine.raw(words)
    strings = machine.raw(pool)
    log = machine.raw(memory)
    room = machine.raw(scratch)
    room[SPENT] = 0
    count = 0
    for row in range(results.size):
        at = offsets[row]
        result = run_program(program, strings, log, at, offsets[row + 1] - at, room, NO_BOUND)
        results[row] = result
        if result == TRUE:
            count += 1
    return count
