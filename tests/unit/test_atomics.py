"""Litmus tests of the compiled orderings: two threads on this machine's processors.

The schedule explorer (tests/sim/test_litmus.py) runs the Python twins, which are sequentially
consistent; whether the compiled code is as strong can only be seen on a processor.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.tree import ROOT


@pytest.fixture(scope="module")
def seen() -> dict[str, int]:
    """What tests/support/compiled_litmus.py counted."""
    environment = {name: text for name, text in os.environ.items() if name != "NUMBA_DISABLE_JIT"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.compiled_litmus"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    counted: dict[str, int] = json.loads(done.stdout)
    return counted


def test_a_fence_lets_at_least_one_of_two_see_the_other(seen: dict[str, int]) -> None:
    assert seen["fenced"] == 0


def test_without_the_fence_both_miss_each_other(seen: dict[str, int]) -> None:
    """The canary: the same program finds what the fence is for, if two processors are there."""
    assert (seen["unfenced"] > 0) == (len(os.sched_getaffinity(0)) > 1)


def test_no_wake_up_is_lost_between_arming_and_publishing(seen: dict[str, int]) -> None:
    """`arm` says sleep only if `publish_and_check` says ring, or the change was seen."""
    assert seen["lost"] == 0


def test_what_was_written_before_a_release_is_there_after_the_acquire(
    seen: dict[str, int],
) -> None:
    assert seen["torn"] == 0
