"""One Spark for the whole folder: two cores, two attempts of a task, a small heap.

Its Python workers are forks of one interpreter (tests/support/spark_python.py), the classes of its
Java are mapped from an archive (tests/support/spark_classes.py).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import spark_python
from tests.support.golden import GoldenStore, unpack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from tests.support import spark_classes

    python = spark_python.make_program(tmp_path_factory.mktemp("spark"))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            patch.setenv(name, str(python))
        started = spark_classes.start()
    yield started
    spark_classes.end(started)


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], GoldenStore]:
    """Return a function: name of a set -> its store, not to be changed."""
    return cache(lambda name: unpack(name, tmp_path_factory.mktemp(f"golden-{name}")))


@pytest.fixture
def plain(golden: Callable[[str], GoldenStore], tmp_path: Path) -> Path:
    """A copy of `plain` that a test may change: five sealed segments and the active one."""
    return Path(shutil.copytree(golden("plain").store, tmp_path / "store"))
