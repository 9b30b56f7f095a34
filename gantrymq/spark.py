"""The Spark side: the source `GantryDataSource`, a session that has it, and `operations`.

The session's workers find this package; `operations` is what a log says of topics and minutes.

Importing it loads pyspark; `import gantrymq` alone does not.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gantrymq.clients.spark.needs import java_of, what_is_wrong, why_java_ended
from gantrymq.shm import errors
from gantrymq.shm.errors import GantryError, SettingIllegal, Unavailable

try:
    from gantrymq.clients.spark.operations import operations
    from gantrymq.clients.spark.source import GantryDataSource
except ImportError as error:
    if text := what_is_wrong("pyspark", "pyarrow"):
        raise ImportError(f"{text} ({error})", name=error.name) from error
    raise

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["GantryDataSource", "operations", "own_error", "session"]

_ABOUT_PANDAS = "PySpark does not yet fully support pandas"
_NO_JVM = "JAVA_GATEWAY_EXITED"
#: A local Spark talks to itself only: nothing of it listens on the network.
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
#: The last line of a Python worker's traceback, as Spark passes it on.
_OWN_ERROR = re.compile(r"gantrymq\.([A-Z]\w+): (.*)")


def session(
    name: str = "gantrymq",
    *,
    master: str = "local[*]",
    memory: str = "1g",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start (or return the running) local Spark with the source registered, its UI off.

    Spark's Python workers run this interpreter: with Spark's default, `python3` of the PATH, they
    would lack the package. Times are shown in UTC. Raises SettingIllegal if there is no Java that
    it can run.
    """
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    java = java_of(os.environ)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    chosen = {
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        **(_LOOPBACK if master.startswith("local") else {}),
        **(settings or {}),
    }
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        with warnings.catch_warnings():  # of a pandas that nobody uses here
            warnings.filterwarnings("ignore", _ABOUT_PANDAS, FutureWarning)
            spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != _NO_JVM:
            raise
        raise SettingIllegal(why_java_ended(java)) from error
    spark.dataSource.register(GantryDataSource)
    return spark


def has_no_java(error: BaseException) -> bool:
    """Whether an exception says that Spark's Java process is not there (any more)."""
    from py4j.protocol import Py4JNetworkError

    return isinstance(error, ConnectionError | Py4JNetworkError)


def own_error(error: BaseException) -> GantryError | None:
    """The error of ours that an exception of Spark carries in its text; None if there is none.

    Unavailable if Spark's Java does not answer any more.
    """
    if has_no_java(error):
        return Unavailable(
            "Spark's Java process has ended (too little memory, or it was killed): what was done"
            " before is whole; the same command goes on from there"
        )
    found = _OWN_ERROR.findall(str(error))
    if not found:
        return None
    name, text = found[-1]
    kind = getattr(errors, name, GantryError)
    return kind(text) if issubclass(kind, GantryError) else GantryError(text)
