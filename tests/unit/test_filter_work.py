"""What a filter costs is in proportion to what it looks through."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from gantrymq.shm.opcodes import MASKS_MAX
from gantrymq.shm.sql92.parser import LIKE_MAX, parse
from gantrymq.shm.sql92.tree import Like
from tests.support.filterwork import CASES, VALUE, WANTED
from tests.support.sqlfilters import answer
from tests.support.tree import ROOT


@pytest.fixture(scope="module")
def measured() -> dict[str, list[list[int]]]:
    """Of each case, at both sizes: accesses counted, and the work that the program counts."""
    command = [sys.executable, "-m", "tests.support.filterwork"]
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    found: dict[str, list[list[int]]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_search_takes_time_in_proportion_to_the_text(
    case: str, measured: dict[str, list[list[int]]]
) -> None:
    """Not to the product of what is looked through and what is looked for."""
    assert LIKE_MAX <= 64 * MASKS_MAX
    most = 4 + MASKS_MAX if "_" in case else 4
    for times, (taken, work) in enumerate(measured[case], start=1):
        assert taken <= most * times * (VALUE + WANTED), (taken, work)
        assert taken <= 3 * work, "the program tells of what it has looked at"


def test_long_patterns_are_found_across_words_of_a_mask() -> None:
    for size in (63, 64, 65, 127, 128, 129, LIKE_MAX - 2):
        part = ("ab_" * LIKE_MAX)[: size - 1] + "c"
        (found,) = [node for node in (parse(f"a LIKE '%{part}%'"),) if isinstance(node, Like)]
        assert len(found.pattern[1]) == size
        fits = "ab" + part.replace("_", "x") + "ab"
        assert answer(f"a LIKE '%{part}%'", {"a": fits}) == "true"
        assert answer(f"a LIKE '%{part}%'", {"a": fits.replace("c", "b")}) == "false"
        assert answer(f"a LIKE '%{part}%'", {"a": "é" + fits}) == "true", "by the reference"
