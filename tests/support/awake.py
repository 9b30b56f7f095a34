"""How long kernels wait awake for a word, beside others that want the processor.

`NUMBA_DISABLE_JIT=1 python -m tests.support.awake`: as Python, with a clock of its own; prints for
each kernel and each time that a turn of another took how often it gave way, and whether it saw
what that turn changed. With the kernels compiled it waits for a word that nobody changes, for more
rounds than there is time for, on one processor with a process that does nothing else than use it:
it prints what the kernels returned, or nothing ever.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable

import numpy as np

from gantrymq.shm import machine
from gantrymq.shm.jit import JIT_OFF
from gantrymq.shm.kernels import words
from gantrymq.shm.lookout import address_of

ROUNDS = 4_000
FOREVER = 1 << 50
TURNS = (0, words.LOST_NS - 1, words.LOST_NS, 40 * words.LOST_NS)

_memory = np.zeros(16, np.uint8)
_table = np.array([address_of(_memory, 0), 0, address_of(_memory, 8), 0], np.int64)
KERNELS: dict[str, Callable[[int], int]] = {
    "spin": lambda rounds: words.spin(_memory, 8, 0, rounds),
    "await_told": lambda rounds: words.await_told(_memory, 0, 1, 8, 0, rounds),
    "watch": lambda rounds: words.watch(_table, 2, rounds),
}


def measure(name: str, took_ns: int, *, changes: bool) -> tuple[int, int]:
    """What the kernel returns, and how often it gave way, if a turn of another takes so long."""
    clock, turns = [0], [0]

    def give_way() -> int:
        turns[0] += 1
        clock[0] += took_ns
        _memory[8] = changes
        return 0

    _memory[:] = 0
    machine.give_way, machine.monotonic_ns = give_way, lambda: clock[0]
    return KERNELS[name](ROUNDS), turns[0]


def use_the_processor(parent: int) -> None:
    """Do nothing else, as long as the parent lives."""
    while os.getppid() == parent:
        pass


def beside_another() -> dict[str, int]:
    """What the kernels return at last, on one processor with somebody who wants it, too."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    context = multiprocessing.get_context("fork")
    other = context.Process(target=use_the_processor, args=(os.getpid(),), daemon=True)
    other.start()
    found = {name: kernel(FOREVER) for name, kernel in KERNELS.items()}
    other.kill()
    other.join()
    return found


def main() -> None:
    """All kernels."""
    if not JIT_OFF:
        print(json.dumps(beside_another()))
        return
    cases = [(name, took, changes) for name in KERNELS for took in TURNS for changes in (0, 1)]
    found = [[*case, *measure(*case[:2], changes=bool(case[2]))] for case in cases]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
