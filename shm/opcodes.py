"""The program of an SQL92 filter: what its words mean to its maker and to the kernel.

A stack machine. An instruction is OP and three operands; values on the stack are a kind and two
words. AND and OR keep what they know so far below their operands, and jump when it is decided.
"""

from __future__ import annotations

from typing import Final

# What a program says of a record; ASK: the reference has to (shm/sql92/evaluate.py).
FALSE, TRUE, UNKNOWN, ERROR, ASK = range(5)

# Header words of a program.
LENIENT: Final = 0  # 1: dialect `sql`
NAMES: Final = 1  # index of the rows (pool at, bytes) of the properties that it names
NAME_COUNT: Final = 2
EXOTIC: Final = 3  # 1: it has U+FFFD, which bytes that are no UTF-8 become
CODE: Final = 8  # instructions, up to END
CODE_WORDS: Final = 4

(
    # In this order: what pushes, what takes two values, one, and what may jump.
    END, PUSH, LOAD, EQUAL, COMPARE, NEGATE, CAST, NOT, FIND, IN, LIKE, AND_STEP, OR_STEP,
) = range(13)  # fmt: skip
OPS: Final = (
    "END", "PUSH", "LOAD", "EQUAL", "COMPARE", "NEGATE", "CAST", "NOT", "FIND", "IN", "LIKE",
    "AND_STEP", "OR_STEP",
)  # fmt: skip

# Kinds of values. A number is in the first word, a double as its bits; a string is place and bytes,
# in the record's properties (TEXT) or in the program's pool (LITERAL).
NULL, TRUTH, INT, LONG, DOUBLE, TEXT, LITERAL = range(7)

GT, GE, LT, LE = range(4)

CONTAINS, STARTSWITH, ENDSWITH = range(3)
#: FIND's first operand: one of these, bit NEGATED, and above FIND_BITS where the table of its
#: search is in the pool (shm/sql92/searching.py).
NEGATED: Final = 4
FIND_BITS: Final = 3

#: LIKE's third operand: whether its pattern has `_`, and besides a character beyond ASCII.
PLAIN, WILD, WILD_BEYOND = range(3)
#: A part of its pattern: place and bytes, the place of its search's table, and of one with `_` the
#: words of a mask; a part without has none.
PART_AT, PART_BYTES, PART_TABLE, PART_MASKS = range(4)
PART_WORDS: Final = 4
MASK_BITS: Final = 64
MASKS_MAX: Final = 16  # words of a part's mask: as many bits as a pattern may have characters
#: Before a part's masks: of each ASCII character the number of its mask.
CLASSES: Final = 128

#: Properties that one filter may name, and values on the stack at a time.
NAMES_MAX: Final = 64
STACK_MAX: Final = 512
