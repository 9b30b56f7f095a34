"""Litmus tests of the compiled orderings: two threads on this machine's processors.

A process of its own, in which `atomics` and `machine` are what numba compiles: it prints, as JSON,
what tests/unit/test_atomics.py judges.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import compile as kernel_compiler
from gantrymq.shm import jit

jit.compile_by(kernel_compiler.declare, kernel_compiler.external_function)

from gantrymq.shm import atomics, machine  # noqa: E402 - they are what the mode says
from gantrymq.shm.kernels import ring  # noqa: E402

F = TypeVar("F", bound=Callable[..., Any])
Words = NDArray[np.int64]
#: `make soak` has a million turns of each.
ROUNDS = int(os.environ.get("GANTRYMQ_TEST_LITMUS", "3000"))
#: Words on lines of their own: two to wait for each other at, two to race for, a payload.
READY, OTHER_READY, LEFT, RIGHT, PAYLOAD = range(0, 5 * 256, 256)
WORDS = 8
#: More than a thread that runs lets the other one wait.
SPINS_MAX = 2000
yield_processor = ctypes.CDLL(None).sched_yield
yield_processor.argtypes, yield_processor.restype = [], ctypes.c_int


def compiled(function: F) -> F:
    """Without a cache: it must have today's atomics in it. Without the GIL: both run at once."""
    return cast("F", numba.njit(nogil=True)(function))  # noqa: TID251 - see above


@compiled
def meet(memory: np.ndarray, mine: int, other: int, turn: int) -> None:
    """Go on when the other thread is at the same turn."""
    atomics.store_release(memory, mine, turn)
    spins = 0
    while atomics.load_acquire(memory, other) < turn:
        machine.pause()
        spins += 1
        if spins > SPINS_MAX:  # the other thread has no processor: it may have this one
            yield_processor()


@compiled
def store_then_load(
    memory: np.ndarray, ready: tuple[int, int], words: tuple[int, int], fenced: bool, out: Words
) -> None:
    for turn in range(1, out.size + 1):
        meet(memory, ready[0], ready[1], turn)
        atomics.store_release(memory, words[0], turn)
        if fenced:
            atomics.fence()
        out[turn - 1] = atomics.load_acquire(memory, words[1])
    meet(memory, ready[0], ready[1], out.size + 1)


@compiled
def sleeper(memory: np.ndarray, out: Words) -> None:
    for turn in range(1, out.size + 1):
        atomics.store_release32(memory, RIGHT, 0)
        meet(memory, READY, OTHER_READY, 2 * turn - 1)
        out[turn - 1] = ring.arm(memory, RIGHT, 1, LEFT, turn - 1)
        meet(memory, READY, OTHER_READY, 2 * turn)


@compiled
def publisher(memory: np.ndarray, out: Words) -> None:
    for turn in range(1, out.size + 1):
        meet(memory, OTHER_READY, READY, 2 * turn - 1)
        out[turn - 1] = ring.publish_and_check(memory, LEFT, turn, memory, RIGHT)
        meet(memory, OTHER_READY, READY, 2 * turn)


@compiled
def sender(memory: np.ndarray, rounds: int) -> None:
    for turn in range(1, rounds + 1):
        for word in range(WORDS):
            machine.store64(memory, PAYLOAD + 8 * word, turn)
        atomics.store_release(memory, LEFT, turn)
        while atomics.load_acquire(memory, RIGHT) < turn:
            machine.pause()


@compiled
def receiver(memory: np.ndarray, rounds: int) -> int:
    wrong = 0
    for turn in range(1, rounds + 1):
        while atomics.load_acquire(memory, LEFT) < turn:
            machine.pause()
        for word in range(WORDS):
            wrong += machine.load64(memory, PAYLOAD + 8 * word) != turn
        atomics.store_release(memory, RIGHT, turn)
    return wrong


def together(*calls: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(calls)) as threads:
        return [future.result() for future in [threads.submit(call) for call in calls]]


def memory_of_a_round() -> np.ndarray:
    return np.zeros(2048, np.uint8)


def both_missed(fenced: bool) -> int:
    """Rounds in which neither thread saw the other's store."""
    memory, left, right = memory_of_a_round(), *np.zeros((2, ROUNDS), np.int64)
    together(
        lambda: store_then_load(memory, (READY, OTHER_READY), (LEFT, RIGHT), fenced, left),
        lambda: store_then_load(memory, (OTHER_READY, READY), (RIGHT, LEFT), fenced, right),
    )
    turns = np.arange(1, ROUNDS + 1)
    return int(((left < turns) & (right < turns)).sum())


def wake_ups_lost() -> int:
    """Rounds in which `arm` says sleep, and `publish_and_check` does not say ring."""
    memory, slept, rung = memory_of_a_round(), *np.zeros((2, ROUNDS), np.int64)
    together(partial(sleeper, memory, slept), partial(publisher, memory, rung))
    return int(((slept != 0) & (rung == 0)).sum())


def words_torn() -> int:
    """Words that a receiver saw of another turn than the one it had acquired."""
    memory = memory_of_a_round()
    _, wrong = together(lambda: sender(memory, ROUNDS), lambda: receiver(memory, ROUNDS))
    return int(wrong)


def missed_without_fence() -> int:
    """Rounds in which both missed each other; one processor sees its own stores."""
    turns = range(200 if len(os.sched_getaffinity(0)) > 1 else 1)
    return next((missed for _ in turns if (missed := both_missed(fenced=False))), 0)


if __name__ == "__main__":
    print(
        json.dumps(
            {
                "fenced": sum(both_missed(fenced=True) for _ in range(5)),
                "unfenced": missed_without_fence(),
                "lost": wake_ups_lost(),
                "torn": words_torn(),
            }
        )
    )
