"""The two dialects: RocketMQ's exact rules, and ours, which differ only by what is written here."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Dialect(Enum):
    """How a text is read and what happens to values that do not fit."""

    SQL = "sql"
    ROCKETMQ = "rocketmq"


#: What `sql` does otherwise than `rocketmq`: a rule's name, what RocketMQ does, what `sql` does.
DIFFERENCES: Final = (
    (
        "values that do not fit",
        "a property that can't be read as the constant's type fails the whole expression: no match"
        " (FL-31); so does TRUE or FALSE on the left of a property (FL-33)",
        "that comparison is unknown, and so is NOT of it",
    ),
    (
        "whole and broken numbers",
        "against a whole number a property is read as a 32-bit (or, if the constant needs it, a"
        " 64-bit) integer: 5.5 > 5 fails (FL-31)",
        "a property that is a number in any form is compared as that number, -0.0 as zero; a whole"
        " number beside a broken one, and one of more than 64 bits, is rounded to a double first",
    ),
    (
        "end of the text",
        "what follows a complete expression is ignored (FL-25)",
        "the whole text has to be one expression",
    ),
    (
        "NOT before a comparison",
        "NOT a = 1 means (NOT a) = 1 (FL-26)",
        "is refused with a hint: write NOT (a = 1)",
    ),
    ("!=", "is an illegal character (FL-20)", "is <>"),
    (
        "LIKE",
        "is no keyword: a LIKE 'x%' means a (FL-20, FL-25)",
        "a [NOT] LIKE 'x%' [ESCAPE '!']: % any characters, _ one; unknown without a",
    ),
    (
        "numbers in IN",
        "only strings may stand in the list (FL-50)",
        "a IN (1, 2.5, 'x'): a number in the list is compared as by =",
    ),
    ("0.0", "is out of range (FL-30)", "is zero"),
)
