"""Two runs of the suite share its files: each is one run's, files of a kind are neighbours."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.support.processortime import TESTS, Times, kind_of
from tests.support.sharing import _files, _with_next, taken


def test_each_file_is_taken_once_in_whatever_turns(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    for count in (0, 1, 2, 9):
        folder = tmp_path / str(count)
        folder.mkdir()
        ends = [taken(folder, count, backwards) for backwards in (False, True)]
        got: list[list[int]] = [[], []]
        going = [0, 1]
        while going:
            which = dice.choice(going)
            number = next(ends[which], None)
            if number is None:
                going.remove(which)
            else:
                got[which].append(number)
        assert got[0] + got[1][::-1] == list(range(count))


def _items() -> list[pytest.Item]:
    paths = sorted(TESTS.glob("*/test_*.py"))
    each = [SimpleNamespace(path=path, number=n) for path in paths for n in range(3)]
    return cast("list[pytest.Item]", each)


def test_no_test_is_left_out_and_kinds_stay_together() -> None:
    items = _items()
    files = _files(items)
    assert sorted(map(id, itertools.chain(*files))) == sorted(map(id, items))
    kinds = [kind for kind, _ in itertools.groupby(kind_of(file[0].path) for file in files)]
    assert len(kinds) == len(set(kinds))


def test_each_test_is_told_which_one_follows(tmp_path: Path) -> None:
    """By it pytest decides which fixtures go on."""
    files = _files(_items())
    pairs = list(_with_next(files, taken(tmp_path, len(files), False)))
    assert [item for item, _ in pairs] == list(itertools.chain(*files))
    assert [after for _, after in pairs[:-1]] == [item for item, _ in pairs[1:]]
    assert pairs[-1][1] is None


def test_times_of_runs_are_added(tmp_path: Path) -> None:
    whole = Times()
    for number in (1, 2):
        one = Times()
        one.processor["unit"] += 100 * number
        one.clock["unit"] += number
        one.write(tmp_path / str(number))
        whole.add(Times.read(tmp_path / str(number)))
    (line,) = whole.lines()
    assert line.startswith("unit         300.0 s of")
    assert line.endswith("3.0 s by the clock, over budget")
