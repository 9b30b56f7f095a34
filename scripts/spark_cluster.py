"""A standalone Spark cluster on this machine reads a store; the package is sent along.

`make cluster` starts Spark's master and one worker from the pyspark package, lets spark-submit run
a read on them and `gantrymq ingest` another job, compares both with the log, and shows that a write
is refused there. Executors find the package in the shipped archive alone.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from gantrymq import Broker, Producer
from gantrymq.clients.home import store_of
from gantrymq.shm import sidecar
from tests.support.spark_rows import rows_of
from tests.support.tables import content_of, require_equal
from tests.support.watchdog import poll_until

ROOT = Path(__file__).resolve().parent.parent
SENT = 20_000
START_S = 120.0
#: What spark-submit runs: counts by topic, where tasks found the package, and a write.
JOB = """
import json, sys
from pyspark.sql import SparkSession
from gantrymq.spark import GantryDataSource, own_error

def place(_number):
    import gantrymq.clients
    return gantrymq.clients.__file__

spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(GantryDataSource)
store, home = sys.argv[1:]
data = spark.read.format("gantrymq").option("store", store).load()
counts = {row["topic"]: row["count"] for row in data.groupBy("topic").count().collect()}
places = sorted(set(spark.sparkContext.parallelize(range(4), 4).map(place).collect()))
refused = ""
try:
    rows = data.limit(1).select("body")
    rows.write.format("gantrymq").mode("append").options(home=home, topic="t0").save()
except Exception as error:
    refused = str(own_error(error))
print("RESULT " + json.dumps({"master": spark.sparkContext.master, "counts": counts,
                              "places": places, "refused": refused}))
spark.stop()
"""


def archive(folder: Path) -> Path:
    """The packages that executors need, as --py-files takes them."""
    path = folder / "gantrymq.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name in ("", "clients/", "shm/"):  # a link that rglob does not follow leads to these
            for file in sorted((ROOT / "gantrymq" / name).rglob("*.py")):
                made.write(file, file.relative_to(ROOT))
    return path


def environment(folder: Path) -> dict[str, str]:
    """What Spark's processes get: this interpreter, and no way to this tree."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return kept | {
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_WORKER_DIR": str(folder / "work"),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


@contextmanager
def process(folder: Path, kind: str, *arguments: str, said: str) -> Iterator[str]:
    """One of Spark's own processes; what it has said that matches `said`."""
    log = folder / f"{kind}.log"
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    command = [str(spark_class), f"org.apache.spark.deploy.{kind.lower()}.{kind}", *arguments]
    with log.open("wb") as out:
        started = subprocess.Popen(
            command, stdout=out, stderr=out, env=environment(folder), cwd=folder
        )
    try:
        found = poll_until(lambda: re.search(said, log.read_text()), f"{kind} is up", START_S)
        assert found is not None
        yield found.group(0)
    finally:
        started.terminate()
        started.wait()


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """A master and a worker with two cores; the master's address."""
    ports = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with (
        process(folder, "Master", *ports, said=r"spark://127\.0\.0\.1:\d+") as master,
        process(
            folder, "Worker", "--cores", "2", "--memory", "1g", *ports, master,
            said="Successfully registered with master",
        ),
    ):  # fmt: skip
        yield master


def run(folder: Path, command: list[str], **added: str) -> str:
    """Run a command as a user of the cluster does; its output."""
    log = folder / "job.log"
    with log.open("wb") as errors:
        done = subprocess.run(
            command, cwd=folder, env=environment(folder) | added, check=False,
            stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
    if done.returncode:
        said = log.read_text()[-8000:]
        sys.exit(f"{command} ended with {done.returncode}:\n{done.stdout.decode()}\n{said}")
    return done.stdout.decode()


def submit(folder: Path, master: str, *arguments: str) -> dict[str, object]:
    """spark-submit with --py-files; what the job has printed."""
    job = folder / "job.py"
    job.write_text(JOB)
    spark_submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    words = ["--master", master, "--driver-memory", "512m", "--executor-memory", "512m"]
    words += ["--py-files", str(archive(folder)), str(job), *arguments]
    out = run(folder, [str(spark_submit), *words])
    (line,) = (line for line in out.splitlines() if line.startswith("RESULT "))
    found: dict[str, object] = json.loads(line.removeprefix("RESULT "))
    return found


def ingest(folder: Path, master: str, store: Path, out: Path) -> str:
    """`gantrymq ingest --master`; its last line."""
    given = f"--py-files {archive(folder)} --executor-memory 512m pyspark-shell"
    words = ["--store", str(store), "--out", str(out), "--master", master, "--memory", "512m"]
    # The driver is an installed package for a user; here it is the same archive.
    return run(
        folder,
        [sys.executable, "-m", "gantrymq", "ingest", "--json", *words],
        PYSPARK_SUBMIT_ARGS=given,
        PYTHONPATH=str(archive(folder)),
    ).splitlines()[-1]


def fill(broker: Broker) -> None:
    """Some messages of three topics, and sealed segments."""
    with Producer(home=broker.home) as producer:
        for number in range(SENT):
            producer.send_oneway(f"t{number % 3}", b"%d" % number + b"x" * (number % 90), tag="a")
        producer.flush(timeout=60.0)
    sealed = store_of(broker.home) / sidecar.DIRECTORY
    poll_until(lambda: len(list(sealed.glob("[0-9]" * 20))) >= 4, "segments are sealed")


def main() -> None:
    """Start, compare, say."""
    began = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gantrymq-cluster-")))
        broker = stack.enter_context(Broker.temporary(mapped_file_size_commit_log=1 << 20))
        fill(broker)
        broker.stop()
        store = store_of(broker.home)
        log = rows_of(store)
        master = stack.enter_context(cluster(folder))
        print(f"cluster: master {master} and a worker after {time.monotonic() - began:.0f} s")
        found = submit(folder, master, str(store), str(broker.home))
        topics = [row["topic"] for row in log]
        assert found["master"] == master
        assert found["counts"] == {topic: topics.count(topic) for topic in set(topics)}
        assert all("gantrymq.zip" in str(place) for place in list(found["places"])), found  # type: ignore[call-overload]
        assert "local mode only" in str(found["refused"]), found
        print(f"cluster: spark-submit counted {found['counts']}, tasks ran {found['places']}")
        print(f"cluster: a write was refused: {found['refused']}")
        out = folder / "table"
        print(f"cluster: ingest says {ingest(folder, master, store, out)}")
        content = require_equal(out, store)
        assert content == content_of(log)
        print(f"cluster: the table is the log: {content.count} rows, XOR {content.crcs:08x}")
    print(f"cluster: done in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
