"""bodyFormat=json of a store, and as a stream of a real Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from gantrymq.clients.spark.options import ReadOptions
from gantrymq.clients.spark.planning import plan
from gantrymq.clients.spark.scan import read
from gantrymq.shm.errors import Corrupt, SettingIllegal
from gantrymq.shm.record import Record
from tests.support.sealed import segment_of, write_segment, write_sidecars
from tests.support.trials import mends

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore")  # Spark's own, about versions and sockets
BODIES = [b'{"id":1,"total":2.5}', b"no JSON", b'{"id":3,"who":"else"}']
EXPECTED = [((1, 2.5), None), (None, "JSON is malformed: invalid"), ((3, None), None)]
SEGMENT_BYTES = 4096


@pytest.fixture
def store(tmp_path: Path) -> tuple[Path, int]:
    """A store with one sealed segment, and the position of its malformed body."""
    records = [Record(topic="orders", body=body, store_timestamp=1) for body in BODIES]
    view, placed = segment_of(records, SEGMENT_BYTES)
    write_segment(tmp_path / "store", 0, view)
    write_segment(tmp_path / "store", SEGMENT_BYTES, view[:0])
    write_sidecars(tmp_path / "store", [0])
    return tmp_path / "store", placed[1].physical_offset


def options_of(store: Path, **more: str) -> dict[str, str]:
    schema = "id INT NOT NULL, total DOUBLE COMMENT 'in EUR'"
    columns = "physical_offset,body,body_error"
    words = {"bodyFormat": "json", "schema": schema, "columns": columns, "store": str(store)}
    return words | more


def shown(rows: list[Any]) -> list[tuple[Any, str | None]]:
    rows.sort(key=lambda row: row["physical_offset"])
    return [
        (row["body"] and tuple(row["body"]), row["body_error"] and row["body_error"][:26])
        for row in rows
    ]


def test_a_body_that_is_no_json_ends_the_read_by_position(store: tuple[Path, int]) -> None:
    root, position = store
    read_options = ReadOptions.parse(options_of(root))
    kind = pa.struct([pa.field("id", pa.int32(), nullable=False), ("total", pa.float64())])
    schema = pa.schema([("body", kind), ("body_error", pa.string())])
    (part,) = plan(read_options)
    with pytest.raises(Corrupt, match=f"not JSON of the schema .* position {position};"):
        list(read(part, read_options, schema))


@mends("S290", "S295")
@pytest.mark.parametrize(
    ("schema", "said"),
    [("x ARRAY<VARIANT>", "body.x is VARIANT"), ("x INT, x INT", "twice"), ("x", "a type for")],
)
def test_a_schema_is_refused_before_anything_is_read(
    spark: SparkSession, store: tuple[Path, int], schema: str, said: str
) -> None:
    from gantrymq.spark import own_error

    with pytest.raises(Exception, match="option 'schema'") as refused:
        spark.read.format("gantrymq").options(**options_of(store[0], schema=schema)).load()
    error = own_error(refused.value)
    assert isinstance(error, SettingIllegal)
    assert said in str(error)


def test_a_stream_has_typed_bodies(
    spark: SparkSession, store: tuple[Path, int], tmp_path: Path
) -> None:
    words = options_of(store[0], badRecords="report", includeActive="true")
    stream = spark.readStream.format("gantrymq").options(**words).load()
    writer = stream.writeStream.format("memory").queryName("typed").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "at")).start()
    assert query.awaitTermination(60)
    assert dict(stream.select("body.*").dtypes) == {"id": "int", "total": "double"}
    assert shown(spark.table("typed").collect()) == EXPECTED
