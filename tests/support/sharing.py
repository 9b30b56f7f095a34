"""A run of pytest that shares the tests with others: `-p tests.support.sharing --share FOLDER`.

Some take a file after the other from the front, others (`--backwards`) from the end, until none is
left: all end together, however long each kind of test takes on this machine. Files of a kind stay
together, so that what they share is made once; the kinds in the middle are of many short files. A
file is taken by making an entry of its number in the folder.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.processortime import kind_of

#: From the front to the end. What is not named comes where they meet.
_BEFORE = ("sim", "golden", "property", "unit")
_BEHIND = ("meta", "spark", "crash", "system")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where files are taken, and from which end."""
    parser.addoption("--share", type=Path, required=True, help="folder of what is taken")
    parser.addoption("--backwards", action="store_true", help="begin at the end")


def place_of(path: Path) -> int:
    """Where the files of its kind come."""
    kind = kind_of(path)
    if kind in _BEFORE:
        return _BEFORE.index(kind) - len(_BEFORE)
    return _BEHIND.index(kind) + 1 if kind in _BEHIND else 0


def taken(folder: Path, count: int, backwards: bool) -> Iterator[int]:
    """Take numbers below `count` from one end that no other run has, each when it is asked for."""
    for number in reversed(range(count)) if backwards else range(count):
        try:
            (folder / str(number)).touch(exist_ok=False)
        except FileExistsError:
            continue
        yield number


def _files(items: Sequence[pytest.Item]) -> list[list[pytest.Item]]:
    ordered = sorted(items, key=lambda item: place_of(item.path))  # stable
    return [list(each) for _, each in itertools.groupby(ordered, lambda item: item.path)]


def _with_next(
    files: Sequence[list[pytest.Item]], numbers: Iterator[int]
) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    """Each test with the one that follows; the next file is taken before the last test of one."""
    number = next(numbers, None)
    while number is not None:
        items = files[number]
        yield from itertools.pairwise(items)
        number = next(numbers, None)
        yield items[-1], None if number is None else files[number][0]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run what is taken, as pytest runs all that it has collected."""
    config = session.config
    if config.option.collectonly or session.testsfailed:
        return None  # pytest says what is wrong
    files = _files(session.items)
    numbers = taken(config.option.share, len(files), config.option.backwards)
    for item, after in _with_next(files, numbers):
        config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
    return True
