"""Spark's rows into topics of a broker: each once, also where a task, broker or query fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from gantrymq import Broker, Message, Producer
from gantrymq.clients.home import store_of
from gantrymq.clients.session import Session
from gantrymq.clients.spark.sink.sending import _send_all
from gantrymq.clients.spark.sink.staging import stage
from gantrymq.shm import wire
from gantrymq.shm.errors import (
    BrokerGone,
    GantryError,
    MessageIllegal,
    SettingIllegal,
    TopicNotFound,
)
from gantrymq.spark import GantryDataSource, own_error
from tests.support.spark_rows import everything
from tests.support.trials import mends

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.filterwarnings("ignore")  # Spark's own, about versions and sockets
ROWS = 1_500


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker.temporary(auto_create_topic_enable=False) as broker:
        with Session(broker.home) as session:
            for topic in ("all", "again"):
                session.request(wire.CreateTopic(topic, 4, "written"))
        yield broker


@pytest.fixture
def mortal() -> Iterator[Broker]:
    """A broker of the test's own, to be killed."""
    with Broker.temporary() as broker:
        yield broker


def write(data: DataFrame, broker: Broker, **options: str) -> None:
    writer = data.write.format("gantrymq").mode("append").option("home", str(broker.home))
    writer.options(**options).save()


def bodies(broker: Broker, topic: str) -> Counter[int]:
    rows = everything(store_of(broker.home), topic=topic, columns="body")
    return Counter(int(row["body"]) for row in rows)


def test_rows_are_read_as_they_were_written(spark: SparkSession, broker: Broker) -> None:
    data = spark.range(0, ROWS, 1, 2).selectExpr(
        "'all' AS topic",
        "CAST(id AS STRING) AS body",
        "IF(id % 2 = 0, 'even', NULL) AS tag",
        "IF(id % 3 = 0, array(concat('k', id), 'third'), NULL) AS keys",
        "map('number', CAST(id AS STRING)) AS properties",
        "CAST(id % 4 AS INT) AS queue_id",
        "IF(id = 7, timestamp_millis(4102444800000), NULL) AS delivery_timestamp",
    )
    write(data, broker)
    rows = everything(store_of(broker.home), topic="all")
    assert len(rows) == ROWS - 1
    for row in rows:
        number = int(row["body"])
        properties = dict(row["properties"])
        assert row["tag"] == (None if number % 2 else "even")
        assert row["keys"] == ([] if number % 3 else [f"k{number}", "third"])
        assert (properties["number"], row["queue_id"]) == (str(number), number % 4)
    assert {int(row["body"]) for row in rows} == set(range(ROWS)) - {7}
    parked = everything(store_of(broker.home), topic="rmq_sys_wheel_timer")
    assert [row["body"] for row in parked] == [b"7"]


@mends("D5")
def test_what_was_read_can_be_written(spark: SparkSession, mortal: Broker) -> None:
    """With the properties that the broker has put there, which are another message's then."""
    with Producer(home=mortal.home) as producer:
        for number in range(20):
            producer.send(
                "first", b"%d" % number, tag="t", keys=["k", f"k{number}"], properties={"n": "1"}
            )
    source = spark.read.format("gantrymq").options(store=str(store_of(mortal.home))).load()
    columns = ("body", "tag", "keys", "properties")
    write(source.select(*columns), mortal, topic="second")
    source = source.where("topic = 'first'")
    write(source.select("body", "properties"), mortal, topic="third")
    shown = [
        sorted(
            (row["body"], row["tag"], row["keys"], dict(row["properties"])["n"])
            for row in everything(store_of(mortal.home), topic=topic)
        )
        for topic in ("first", "second", "third")
    ]
    assert len(shown[0]) == 20
    assert shown[0] == shown[1] == shown[2]


def test_what_is_done_again_doubles_nothing(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Break a task off in its middle; in here, so that a worker does not load this file."""
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0 and context.partitionId() == 1:
            raise ValueError("this task fails once")

    data = spark.range(0, ROWS, 1, 2).selectExpr("CAST(CAST(id AS STRING) AS BINARY) AS body")
    write(data.mapInArrow(fail_once, "body binary"), broker, topic="again")
    assert bodies(broker, "again") == Counter(range(ROWS))
    for _ in range(2):  # with a checkpoint the whole job is done once
        more = data.selectExpr(
            f"CAST(CAST(CAST(body AS STRING) + {ROWS} AS INT) AS STRING) AS body"
        )
        write(more, broker, topic="again", checkpointLocation=f"file://{tmp_path}")
    assert bodies(broker, "again") == Counter(range(2 * ROWS))


@mends("S38")
def test_properties_count_for_how_much_goes_at_once(broker: Broker) -> None:
    """A batch takes as much of the ring as its properties and keys do, not only its bodies."""
    long = {"note": "n" * 30_000}
    messages = [Message("all", b"", keys=["k" * 100] * 20, properties=long) for _ in range(1024)]
    with Producer(broker.home) as producer:
        segment_bytes = producer._link.session.board.segment_bytes
        assert _send_all(producer, messages, segment_bytes, 0) == len(messages)


def run_query(
    spark: SparkSession, broker: Broker, checkpoint: Path, end: int, timeout: str = "20"
) -> None:
    """One run of the query, which reads a folder's files: ROWS more of them, up to row `end`."""
    source = checkpoint.parent / "source"
    source.mkdir(exist_ok=True)
    (source / f"{end}.txt").write_text("\n".join(map(str, range(end - ROWS, end))))
    options = {
        "home": str(broker.home),
        "topic": "stream",
        "checkpointLocation": str(checkpoint),
        "timeout": timeout,
    }
    rows = spark.readStream.text(str(source)).withColumnRenamed("value", "body")
    stream = rows.writeStream.format("gantrymq").options(**options).trigger(availableNow=True)
    query = stream.start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def test_a_query_goes_on_from_its_checkpoint(
    spark: SparkSession, mortal: Broker, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    mortal.process.kill()
    mortal.process.wait()
    with pytest.raises(Exception, match="no broker answers") as caught:
        run_query(spark, mortal, checkpoint, ROWS, timeout="0.2")
    assert isinstance(own_error(caught.value), BrokerGone)
    mortal.start()
    run_query(spark, mortal, checkpoint, 2 * ROWS)
    # As if it had died between our end of the batch and its own note of it: it is done again.
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink()
    run_query(spark, mortal, checkpoint, 3 * ROWS)
    assert bodies(mortal, "stream") == Counter(range(3 * ROWS))


@pytest.mark.parametrize(
    ("columns", "options", "kind", "text"),
    [
        ("id AS body", {"topic": "all"}, SettingIllegal, "column 'body' is bigint"),
        ("'x' AS body", {"topic": "nowhere"}, TopicNotFound, "nowhere"),
        ("CAST(NULL AS STRING) AS body", {"topic": "all"}, MessageIllegal, "'body' is null"),
    ],
    ids=["plan", "commit", "task"],
)
def test_what_is_no_message_is_refused(
    spark: SparkSession,
    broker: Broker,
    columns: str,
    options: dict[str, Any],
    kind: type[GantryError],
    text: str,
) -> None:
    """Spark passes on what each of its three places raises; what there is: the next two tests."""
    data = spark.range(1).selectExpr(columns)
    with pytest.raises(Exception, match=text) as caught:
        write(data, broker, **options)
    assert isinstance(own_error(caught.value), kind)


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        ("id long", {"topic": "all"}, "no column 'id'"),
        ("topic string", {}, "column 'body' is missing"),
        ("body string", {}, "give option 'topic' or a column"),
        ("body string, topic string", {"topic": "all"}, "give option 'topic' or a column"),
        ("body string", {"topic": "all", "tpoic": "all"}, "no option 'tpoic'"),
    ],
)
def test_a_frame_that_makes_no_messages_is_refused(
    columns: str, options: dict[str, str], text: str
) -> None:
    schema = StructType()
    for column in columns.split(", "):
        name, kind = column.split(" ")
        schema.add(name, kind)
    with pytest.raises(SettingIllegal, match=text):
        GantryDataSource(options).writer(schema, overwrite=False)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"body": "x", "tag": " "}, "tag ' '"),
        ({"body": None}, "'body' is null"),
    ],
)
def test_a_row_that_is_no_message_is_refused(
    tmp_path: Path, row: dict[str, Any], text: str
) -> None:
    batch = pa.RecordBatch.from_pylist([row])
    with pytest.raises(MessageIllegal, match=text):
        stage(str(tmp_path), "all", [batch])
