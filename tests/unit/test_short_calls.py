"""System calls that do less than they were asked for, or are interrupted (F10)."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gantrymq.brokerd.bells import make_bell
from gantrymq.shm.bell import EventBell
from gantrymq.shm.storage import PosixStorage, read_file
from tests.support import twins

#: So many rings, as an eventfd counts them.
_MANY = ((1 << 64) - 2).to_bytes(8, sys.byteorder)


@pytest.fixture
def interrupted() -> Iterator[None]:
    """A signal with a handler, two thousand times a second."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def shorten(monkeypatch: pytest.MonkeyPatch, seed: int) -> list[int]:
    """From now on pwrite and preadv do a part of what they are asked for; how often they did."""
    dice, count = random.Random(seed), [0]
    pwrite: Callable[..., int] = os.pwrite
    preadv: Callable[..., int] = os.preadv

    def part(size: int) -> int:
        count[0] += size > 1
        return dice.randint(1, max(1, size))

    def short_write(descriptor: int, data: Any, position: int) -> int:  # noqa: ANN401 - a buffer
        view = memoryview(data).cast("B")
        return pwrite(descriptor, view[: part(len(view))], position)

    def short_read(descriptor: int, buffers: list[memoryview], position: int) -> int:
        (view,) = buffers
        return preadv(descriptor, [view[: part(len(view))]], position)

    monkeypatch.setattr(os, "pwrite", short_write)
    monkeypatch.setattr(os, "preadv", short_read)
    return count


def test_a_broker_over_short_calls_writes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, interrupted: None
) -> None:
    """Writer, flusher and reader, all files; with signals in between."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    whole = twins.run(tmp_path / "whole")
    count = shorten(monkeypatch, seed)
    assert twins.run(tmp_path / "parts") == whole
    assert count[0] > 50


def test_a_write_that_writes_nothing_is_an_error(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would otherwise be tried for ever."""
    file = PosixStorage(str(store_dir)).create("a")
    counts = itertools.chain([3], itertools.repeat(0))
    monkeypatch.setattr(os, "pwrite", lambda *_: next(counts))
    with pytest.raises(OSError, match="wrote nothing"):
        file.write_at(b"0123456789", 0)
    file.close()


def test_a_file_that_ends_early_ends_the_read(store_dir: Path) -> None:
    storage = PosixStorage(str(store_dir))
    file = storage.create("a")
    file.write_at(b"0123456789", 0)
    buffer = bytearray(20)
    assert file.read_into(buffer, 5) == 5
    assert read_file(storage, "a") == b"0123456789"
    file.close()


def test_a_bell_without_a_ring_is_cleared_and_a_full_one_rung() -> None:
    """EAGAIN at both ends of an eventfd, and of a pipe."""
    for made in (EventBell(), make_bell()):
        with contextlib.closing(made) as bell:
            bell.clear()
            with contextlib.suppress(BlockingIOError):
                while os.write(bell.descriptor, _MANY):
                    pass
            bell.ring()
            bell.clear()
            while bell.wait(0):
                pass
            bell.clear()
