"""What a filter's program reads of long properties, counted; prints a line of JSON.

`NUMBA_DISABLE_JIT=1 python -m tests.support.filterwork`: the kernels as Python, over arrays that
count each access.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from gantrymq.shm.jit import JIT_OFF
from gantrymq.shm.kernels import sql92
from gantrymq.shm.properties import encode_properties
from gantrymq.shm.sql92.dialect import Dialect
from gantrymq.shm.sql92.parser import parse
from gantrymq.shm.sql92.program import compile_program

#: Bytes of the property, and characters of what is looked for in it.
VALUE: Final = 1500
WANTED: Final = 300
#: A value and an expression by both sizes: what a search that begins anew at each place takes the
#: product of both for.
CASES: Final[dict[str, Callable[[int, int], tuple[str, str]]]] = {
    "contains": lambda n, m: ("a" * n, f"a CONTAINS '{'a' * m}b'"),
    "contains at its end": lambda n, m: ("a" * n, f"a CONTAINS '{'a' * (m // 2)}b{'a' * m}'"),
    "contains by halves": lambda n, m: ("ab" * (n // 2), f"a CONTAINS '{'ab' * (m // 2)}b'"),
    "like": lambda n, m: ("a" * n, f"a LIKE '%{'a' * m}b%'"),
    "like with _": lambda n, m: ("a" * n, f"a LIKE '%{'a_' * (m // 2)}b%'"),
    "like of parts": lambda n, m: ("ab" * (n // 2), f"a LIKE '%{'%'.join('aba_' * (m // 20))}%c'"),
    "in": lambda n, m: ("a" * n, f"a IN ({', '.join(repr('a' * k) for k in range(1, m // 8))})"),
    "order": lambda n, m: ("0" * n + "5", "a > 5"),
    "equality": lambda n, m: ("a" * n, f"a = '{'a' * m}'"),
}  # fmt: skip


class Counting(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes that count how often any of them are taken."""

    taken = 0

    def __getitem__(self, place: Any) -> Any:  # noqa: ANN401 - as numpy's
        Counting.taken += 1
        return super().__getitem__(place)


def measure(value: str, expression: str) -> tuple[int, int]:
    """Accesses to property and pool, and the work that the program itself counts."""
    program = compile_program(parse(expression), Dialect.SQL)
    stored = encode_properties({"a": value})
    memory = np.frombuffer(stored + bytes(8), np.uint8).view(Counting)
    scratch = np.zeros(sql92.SCRATCH_WORDS, np.int64)
    results = np.zeros(1, np.int64)
    offsets = np.array([0, len(stored)], np.int64)
    Counting.taken = 0
    pool = program.pool.view(Counting)
    sql92.run_rows(program.words, pool, memory, offsets, scratch, results)
    return Counting.taken, int(scratch[sql92.SPENT])


def main() -> None:
    """Each case as it is, and with both sizes doubled."""
    if not JIT_OFF:
        sys.exit("needs NUMBA_DISABLE_JIT=1")
    sizes = ((VALUE, WANTED), (2 * VALUE, 2 * WANTED))
    print(json.dumps({n: [measure(*case(*size)) for size in sizes] for n, case in CASES.items()}))


if __name__ == "__main__":
    main()
