"""A bell that is closed while others ring it: their ring reaches it or nothing, nobody's file."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gantrymq.shm import bell as bell_module
from gantrymq.shm.bell import EventBell
from tests.support.trials import mends


class _Around:
    """Stands in place of a module: something happens just before one of its calls, or behind."""

    def __init__(
        self,
        module: ModuleType,
        name: str,
        before: Callable[[], object] = int,
        behind: Callable[[], object] = int,
    ) -> None:
        self._module, self._name, self._before, self._behind = module, name, before, behind

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the module has
        found = getattr(self._module, name)
        if name != self._name:
            return found

        def call(*given: Any) -> Any:  # noqa: ANN401
            self._before()
            result = found(*given)
            self._behind()
            return result

        return call


def is_open(descriptor: int) -> bool:
    """Whether a number is that of an open file."""
    return Path(f"/proc/self/fd/{descriptor}").exists()


@pytest.mark.parametrize("call", ["ring", "clear"])
@mends("S40")
def test_a_close_amid_a_call_of_another_thread_leaves_the_number_its_own(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number is read, then the bell is closed and a file opened, then the call is made."""
    bell = EventBell()
    bell.ring()
    number = bell.fileno()
    file = tmp_path / "file"
    opened: list[int] = []

    def close_and_open() -> None:
        closing = threading.Thread(target=bell.close)
        closing.start()
        closing.join()
        opened.append(os.open(file, os.O_RDWR | os.O_CREAT))

    name = {"ring": "write", "clear": "read"}[call]
    monkeypatch.setattr(bell_module, "os", _Around(os, name, before=close_and_open))
    getattr(bell, call)()
    os.close(opened[0])
    assert file.read_bytes() == b""
    assert bell.fileno() == -1
    assert not is_open(number)
    getattr(bell, call)()  # of one that is closed: nothing


@mends("S40")
def test_a_ring_behind_the_closing_writes_nowhere(tmp_path: Path) -> None:
    """Somebody opens a file of the same number at once."""
    bell = EventBell()
    number = bell.fileno()
    file = tmp_path / "file"
    other = os.open(file, os.O_RDWR | os.O_CREAT)
    bell.close()
    os.dup2(other, number)
    bell.ring()
    bell.close()
    assert file.read_bytes() == b""
    assert is_open(number), "it is not closed twice"
    os.close(number)
    os.close(other)


@pytest.mark.parametrize("timeout_s", [0.001, 0.02])
def test_who_sleeps_on_a_bell_has_its_number_until_then(
    timeout_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is closed as the sleep begins, and given back behind it."""
    bell = EventBell()
    number = bell.fileno()
    seen: list[bool] = []
    asleep = _Around(
        select,
        "poll" if timeout_s >= 0.01 else "select",
        bell.close,
        lambda: seen.append(is_open(number)),
    )
    monkeypatch.setattr(bell_module, "select", asleep)
    assert not bell.wait(timeout_s)
    assert seen == [True]
    assert not is_open(number)
    assert not bell.wait(timeout_s)  # of one that is closed


def test_a_bell_that_nobody_has_is_closed() -> None:
    """As files of Python's are."""
    bell = EventBell()
    number = bell.fileno()
    del bell
    assert not is_open(number)
