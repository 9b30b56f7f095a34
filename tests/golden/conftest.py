"""Golden stores, unpacked once per run; tests that change files take a copy."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.support.golden import GoldenStore, unpack


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], GoldenStore]:
    """Return a function: name of a set -> its store, not to be changed."""
    return cache(lambda name: unpack(name, tmp_path_factory.mktemp(f"golden-{name}")))


@pytest.fixture
def own_copy(tmp_path: Path) -> Callable[[str], GoldenStore]:
    """Return a function: name of a set -> a store of this test alone."""
    return lambda name: unpack(name, tmp_path)
