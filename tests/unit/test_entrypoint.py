"""What Python may hand to a compiled kernel: anything else raises, and nothing is touched."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gantrymq.shm.kernels import fetch, ring, words

MEMORY = np.zeros(64, np.uint8)
READ_ONLY = np.zeros(64, np.uint8)
READ_ONLY.flags.writeable = False

WRONG: list[tuple[Callable[..., Any], tuple[Any, ...], type[Exception]]] = [
    (words.load_word, (), TypeError),
    (words.load_word, (MEMORY,), TypeError),
    (words.load_word, (MEMORY, 8, 8), TypeError),
    (words.load_word, (None, 8), TypeError),
    (words.load_word, (list(range(64)), 8), TypeError),
    (words.load_word, (bytearray(64), 8), TypeError),
    (words.load_word, (np.uint8(1), 8), TypeError),
    (words.load_word, (MEMORY[::2], 8), TypeError),
    (words.load_word, (MEMORY.reshape(8, 8), 8), TypeError),
    (words.load_word, (MEMORY.view(np.int8), 8), TypeError),
    (words.load_word, (MEMORY.view(np.int64), 8), TypeError),
    (words.load_word, (MEMORY, 8.0), TypeError),
    (words.load_word, (MEMORY, "8"), TypeError),
    (words.load_word, (MEMORY, 1 << 64), OverflowError),
    (words.store_word, (READ_ONLY, 8, 1), TypeError),
    (ring.take_completions, (MEMORY, MEMORY, MEMORY), TypeError),
]


@pytest.mark.parametrize(("kernel", "arguments", "error"), WRONG)
def test_a_wrong_argument_raises(
    kernel: Callable[..., Any], arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        kernel(*arguments)
    assert not MEMORY.any()
    assert not READ_ONLY.any()


def test_the_message_names_kernel_and_argument() -> None:
    with pytest.raises(TypeError, match=r"argument 1 of store_word .* writable array of uint8"):
        words.store_word(READ_ONLY, 8, 1)
    with pytest.raises(TypeError, match="fetch takes 11 arguments, by position"):
        fetch.fetch(MEMORY)  # type: ignore[call-arg]


def test_whole_numbers_of_any_kind_and_arrays_of_subclasses_are_taken(tmp_path: Path) -> None:
    memory = np.zeros(64, np.uint8)
    values: tuple[Any, ...] = (7, -1, np.int64(-2), np.uint8(9), True, -(1 << 63), (1 << 63) - 1)
    place: Any = np.int32(16)
    for value in values:
        words.store_word(memory, place, value)
        assert words.load_word(memory, 16) == int(value)
    mapped = np.memmap(tmp_path / "mapped", np.uint8, "w+", shape=(64,))
    words.store_word(mapped, 8, 77)
    assert words.load_word(mapped, 8) == 77
    assert words.load_word(mapped[8:], 0) == 77


def test_arguments_are_given_back() -> None:
    """No reference is kept and none is taken away, whether the call succeeds or not."""
    memory, number = np.zeros(64, np.uint8), 1 << 40
    before = sys.getrefcount(memory), sys.getrefcount(number)
    for _ in range(100):
        words.store_word(memory, 8, number)
        with pytest.raises(TypeError):
            words.load_word(memory, 8.5)  # type: ignore[arg-type]
    assert (sys.getrefcount(memory), sys.getrefcount(number)) == before
