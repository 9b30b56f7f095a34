"""One Spark for the whole folder: two cores, a small heap."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.support.golden import GoldenStore, unpack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    # Small data: most of the time would go into compiling what runs a few times only.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from gantrymq.spark import session

    with warnings.catch_warnings():  # Spark's own, about other packages' versions
        warnings.simplefilter("ignore")
        started = session("tests", master="local[2]", memory="512m", settings=SETTINGS)
    yield started
    started.stop()
    end_of_java()


def end_of_java() -> None:
    """Wait for Spark's Java, so that what it and its workers used is counted with the tests."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None, "it is made with the first session"
    gateway.shutdown()
    gateway.proc.stdin.close()  # it ends with whoever has started it
    gateway.proc.wait()


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], GoldenStore]:
    """Return a function: name of a set -> its store, not to be changed."""
    return cache(lambda name: unpack(name, tmp_path_factory.mktemp(f"golden-{name}")))
