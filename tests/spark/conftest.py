"""One Spark for the whole folder: two cores, two attempts of a task, a small heap.

Its Python workers are forks of one interpreter (tests/support/spark_python.py).
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import spark_python
from tests.support.golden import GoldenStore, unpack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    # Small data: most of the time would go into compiling, by Java and by Spark, what runs a few
    # times only, and into verifying the classes of Spark.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote -XX:CompileThresholdScaling=3",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from gantrymq.spark import session

    python = spark_python.make_program(tmp_path_factory.mktemp("spark"))
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")  # Spark's own, about other packages' versions
        for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            patch.setenv(name, str(python))
        started = session("tests", master="local[2,2]", memory="512m", settings=SETTINGS)
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


@pytest.fixture
def plain(golden: Callable[[str], GoldenStore], tmp_path: Path) -> Path:
    """A copy of `plain` that a test may change: five sealed segments and the active one."""
    return Path(shutil.copytree(golden("plain").store, tmp_path / "store"))
