"""What is wrong around a read or an ingest is said in one line, with what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from gantrymq.clients.spark import needs
from gantrymq.clients.spark.options import ReadOptions
from gantrymq.clients.spark.planning import plan
from gantrymq.clients.spark.table.job import Ingest, IngestOptions
from gantrymq.clients.spark.table.manifest import MANIFEST
from gantrymq.clients.spark.topics import require_topics
from gantrymq.shm.codes import ExitCode
from gantrymq.shm.errors import Corrupt, Incompatible, SettingIllegal, TopicNotFound
from tests.support.tables import GrowingStore
from tests.support.trials import mends


@pytest.fixture
def growing(store_dir: Path) -> GrowingStore:
    """A store of one segment that says which topics it has."""
    made = GrowingStore(store_dir)
    made.grow()
    table: dict[str, object] = {
        "topicConfigTable": {name: {} for name in ("orders", "%RETRY%bills", "t/1", "new")}
    }
    (store_dir / "config").mkdir()
    (store_dir / "config" / "topics.json").write_text(json.dumps(table))
    return made


def ingest(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command with other surroundings; all of it is heard."""
    line = [sys.executable, "-m", "gantrymq", "ingest", *map(str, words)]
    around = os.environ | environment
    return subprocess.run(line, env=around, capture_output=True, text=True, check=False)


def said(ran: subprocess.CompletedProcess[str]) -> str:
    """The one line of a refusal."""
    assert ran.returncode == ExitCode.USAGE, ran
    assert "Traceback" not in ran.stderr
    return ran.stderr.strip().splitlines()[-1]


@mends("D10.1")
@pytest.mark.parametrize("package", ["pyarrow", "pyspark"])
def test_a_package_of_a_wrong_version_is_named(
    growing: GrowingStore, tmp_path: Path, package: str
) -> None:
    """As an old one fails: something that it does not have cannot be imported."""
    old = tmp_path / "old"
    (old / package).mkdir(parents=True)
    (old / package / "__init__.py").write_text("raise ImportError('nothing here')")
    (old / f"{package}-3.1.dist-info").mkdir()
    (old / f"{package}-3.1.dist-info" / "METADATA").write_text(f"Name: {package}\nVersion: 3.1\n")
    words = ("--store", growing.root, "--out", tmp_path / "table", "--spark")
    text = said(ingest(*words, PYTHONPATH=str(old)))
    assert f"{package} is 3.1, and" in text
    assert "pip install 'gantrymq[spark]'" in text


@mends("D10.1")
def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "PACKAGES", {"no-such-package": (4, 3), "numpy": (1,)})
    with (
        pytest.raises(Incompatible, match=r"no-such-package 4\.3 or newer is not installed: pip"),
        needs.explained("no-such-package", "numpy"),
    ):
        raise ImportError("No module named 'no_such_package'", name="no_such_package")
    assert needs.what_is_wrong("numpy") is None
    with pytest.raises(Incompatible, match="numpy cannot be loaded"), needs.explained("numpy"):
        raise ImportError("broken", name="numpy.core")
    with pytest.raises(ImportError, match="of ours"), needs.explained("numpy"):
        raise ImportError("of ours", name="gantrymq.clients.spark.nothing")


@mends("D10.1")
def test_a_java_that_is_not_there_is_named(growing: GrowingStore, tmp_path: Path) -> None:
    words = ("--store", growing.root, "--out", tmp_path / "table", "--spark")
    text = said(ingest(*words, JAVA_HOME=str(tmp_path)))
    assert f"JAVA_HOME is {tmp_path}, which has no bin/java" in text
    assert "leave --spark and --master out" in text
    with pytest.raises(SettingIllegal, match=r"there is no Java: install Java 17.*--spark"):
        needs.java_of({"PATH": str(tmp_path)})


@mends("D10.1")
def test_a_java_that_is_too_old_is_named(growing: GrowingStore, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\nexit 1\n")
    java.chmod(0o755)
    words = ("--store", growing.root, "--out", tmp_path / "table", "--spark")
    text = said(ingest(*words, JAVA_HOME=str(tmp_path)))
    assert f'{java} says openjdk version "11.0.2" 2019-01-15; Spark needs Java 17' in text


@mends("D10.2")
def test_a_mistyped_topic_is_an_error(growing: GrowingStore, tmp_path: Path) -> None:
    out = tmp_path / "table"
    words = ("--store", growing.root, "--out", out)
    text = said(ingest(*words, "--topic", "ordres"))
    assert "no topic 'ordres': did you mean 'orders'?" in text
    assert "--allow-missing" in text
    assert not out.exists()
    for topic in ("orders", "new"):
        assert ingest(*words[:3], tmp_path / topic, "--topic", topic).returncode == 0
    assert ingest(*words, "--topic", "ordres", "--allow-missing").returncode == 0


@mends("D10.2")
def test_a_read_asks_for_topics_that_are_there(growing: GrowingStore) -> None:
    """Also for one that is in the log alone; a log without a configuration says nothing."""

    def options(topic: str, **words: str) -> ReadOptions:
        return ReadOptions.parse({"store": str(growing.root), "topic": topic, **words})

    with pytest.raises(TopicNotFound, match="did you mean 'orders'"):
        require_topics(options("orders,oders"))
    require_topics(options("oders", allowMissing="true"))
    table = {"topicConfigTable": {"new": "a topic"}}
    (growing.root / "config" / "topics.json").write_text(json.dumps(table))
    require_topics(options("orders,new"))
    (growing.root / "config" / "topics.json").unlink()
    require_topics(options("oders"))


@mends("D10.2")
@pytest.mark.parametrize("name", [MANIFEST, "_gantry/intent.json"])
def test_a_damaged_manifest_says_what_to_do(
    growing: GrowingStore, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "table"
    chosen = IngestOptions(ReadOptions.parse({"store": str(growing.root)}), str(out), "t")
    with Ingest(chosen) as job:
        job.step()
    (out / name).write_bytes(b'{"gantryCrc32":"00000000"}')
    with pytest.raises(Corrupt, match=r"is damaged.*another one \(--out\)"):
        Ingest(chosen)


@mends("D10.3")
def test_a_home_in_place_of_its_store_is_named(growing: GrowingStore, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    growing.root.rename(home / "store")
    with pytest.raises(SettingIllegal, match=f"use {home}/store"):
        plan(ReadOptions.parse({"store": str(home)}))
    assert f"use {home}/store" in said(ingest("--store", home, "--out", tmp_path / "table"))


@mends("D10.3")
def test_a_session_says_nothing_of_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which it needs for nothing; what else it warns of is heard."""
    from pyspark.sql import SparkSession

    from gantrymq import spark

    def noisy(builder: object) -> object:
        warnings.warn(
            "PySpark does not yet fully support pandas >= 3.0.0. Some", FutureWarning, stacklevel=1
        )
        warnings.warn("something else", FutureWarning, stacklevel=1)
        raise StopIteration

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", noisy)
    monkeypatch.setattr(spark, "java_of", lambda environment: "java")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with pytest.raises(StopIteration):
            spark.session()
    assert [str(one.message) for one in heard] == ["something else"]
