"""What is counted of the application: all that stays, whoever gives it memory, and nothing else."""

from __future__ import annotations

import sys
import threading

import numpy as np

from tests.support.footprint import own_footprint
from tests.support.interned import settle_interned

KIB = 2048


def test_what_stays_is_seen() -> None:
    """Objects of Python's and numpy's memory, as a list or cache may keep them."""
    own_footprint()  # what its first call gives back or keeps
    before = own_footprint()
    kib = KIB + before.memory // 40  # enough beside all that this process holds
    objects = [b"%030d" % number for number in range(16 * kib)]
    assert own_footprint().exceeds(before)
    objects.clear()
    arrays = [np.ones(128, np.int64) for _ in range(kib)]
    assert own_footprint().exceeds(before)
    arrays.clear()
    assert not own_footprint().exceeds(before)


def test_names_that_are_forgotten_leave_nothing() -> None:
    """A path interns its parts; the table of them grows by 1 MiB once, and then no more."""
    settle_interned()
    before = own_footprint()
    for number in range(100_000):
        sys.intern(f"forgotten {number}")
    now = own_footprint()
    assert now.memory - before.memory < KIB // 20


def test_what_threads_leave_free_is_nobodys() -> None:
    """Each of many threads has an allocator's arena of its own for what it takes and gives back."""

    def take_and_give_back(kept: list[bytearray], meet: threading.Barrier) -> None:
        meet.wait()
        taken = [bytearray(1000) for _ in range(KIB)]
        kept.append(taken[-1])  # pins what lies below it
        meet.wait()

    before = own_footprint()
    kept, meet = list[bytearray](), threading.Barrier(8)
    threads = [threading.Thread(target=take_and_give_back, args=(kept, meet)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert own_footprint().memory <= 1.02 * before.memory


def test_a_thread_that_stays_is_seen() -> None:
    end, before = threading.Event(), own_footprint()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        assert own_footprint().exceeds(before)
    finally:
        end.set()
        thread.join()
