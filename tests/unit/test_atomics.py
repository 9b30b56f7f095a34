"""Litmus tests of the compiled orderings: two threads on this machine's processors.

The schedule explorer (tests/sim/test_litmus.py) runs the Python twins, which are sequentially
consistent; whether the compiled code is as strong can only be seen on a processor.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from shm import atomics, machine
from shm.kernels import ring

F = TypeVar("F", bound=Callable[..., Any])
Words = NDArray[np.int64]
ROUNDS = 3_000
#: Words on lines of their own: two to wait for each other at, two to race for, a payload.
READY, OTHER_READY, LEFT, RIGHT, PAYLOAD = range(0, 5 * 256, 256)
WORDS = 8


def compiled(function: F) -> F:
    """Without a cache: it must have today's atomics in it. Without the GIL: both run at once."""
    return cast("F", numba.njit(nogil=True)(function))  # noqa: TID251 - see above


@compiled
def meet(memory: np.ndarray, mine: int, other: int, turn: int) -> None:
    """Go on when the other thread is at the same turn."""
    atomics.store_release(memory, mine, turn)
    while atomics.load_acquire(memory, other) < turn:
        machine.pause()


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


def test_a_fence_lets_at_least_one_of_two_see_the_other() -> None:
    assert sum(both_missed(fenced=True) for _ in range(5)) == 0


def test_without_the_fence_both_miss_each_other() -> None:
    """The canary: the same program finds what the fence is for, if two processors are there."""
    if len(os.sched_getaffinity(0)) < 2:
        assert both_missed(fenced=False) == 0, "one processor sees its own stores"
        return
    assert any(both_missed(fenced=False) for _ in range(200))


def test_no_wake_up_is_lost_between_arming_and_publishing() -> None:
    """`arm` says sleep only if `publish_and_check` says ring, or the change was seen."""
    for _ in range(5):
        memory, slept, rung = memory_of_a_round(), *np.zeros((2, ROUNDS), np.int64)
        together(partial(sleeper, memory, slept), partial(publisher, memory, rung))
        assert not ((slept != 0) & (rung == 0)).any()


def test_what_was_written_before_a_release_is_there_after_the_acquire() -> None:
    memory = memory_of_a_round()
    _, wrong = together(lambda: sender(memory, ROUNDS), lambda: receiver(memory, ROUNDS))
    assert wrong == 0
