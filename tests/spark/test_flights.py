"""The demo's comparison: Spark over a store equals the CSV, and a difference would be seen."""

from __future__ import annotations

import runpy
import subprocess
import sys
import zipfile
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gantrymq.shm.record import Record
from scripts import demo_flights
from scripts.demo_flights import TOPIC, Mean
from tests.support.sealed import segment_of, write_segment, write_sidecars
from tests.support.tree import ROOT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.filterwarnings("ignore")  # Spark's own, about versions and sockets
CSV = """year,dep_delay,arr_delay,carrier,tailnum
2013,2,11,UA,N1
2013,NA,NA,UA,N2
2013,-4,NA,AA,"N,3"
2013,NA,NA,OO,N4
2013,3,0,UA,NA
"""


@pytest.fixture
def csv_zip(tmp_path: Path) -> Path:
    path = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("flights.csv", CSV)
    return path


def frame(spark: SparkSession, store: Path, rows: list[bytes]) -> DataFrame:
    records = [Record(topic=TOPIC, body=row, store_timestamp=1) for row in rows]
    write_segment(store, 0, segment_of(records, 4096)[0])
    write_sidecars(store, [0])
    return spark.read.format("gantrymq").load(str(store))


def test_a_missing_delay_counts_as_a_row_and_not_in_the_mean(csv_zip: Path) -> None:
    assert demo_flights.from_csv(csv_zip) == {
        "AA": Mean(1, -4.0, 0, None, 1),
        "OO": Mean(1, None, 1, None, 1),
        "UA": Mean(3, 2.5, 1, 5.5, 1),
    }


def test_spark_finds_what_the_csv_says(spark: SparkSession, csv_zip: Path, tmp_path: Path) -> None:
    header, *rows = demo_flights.lines(csv_zip)
    expected = demo_flights.from_csv(csv_zip)
    found = demo_flights.from_spark(frame(spark, tmp_path / "store", rows), header)
    assert found == expected
    assert demo_flights.differences(expected, found) == []
    assert len(list(demo_flights.table(found))) == 1 + len(expected)


def test_a_difference_is_seen(spark: SparkSession, csv_zip: Path, tmp_path: Path) -> None:
    header, *rows = demo_flights.lines(csv_zip)
    doubled = frame(spark, tmp_path / "store", [*rows, rows[1]])
    found = demo_flights.from_spark(doubled, header)
    (line,) = demo_flights.differences(demo_flights.from_csv(csv_zip), found)
    assert line.startswith("UA")


@pytest.mark.parametrize(
    "found",
    [{}, {"UA": Mean(3, 2.5, 1, 5.6, 1)}, {"UA": Mean(3, 2.5, 1, None, 1)}],
    ids=["lost", "mean", "missing"],
)
def test_one_line_per_carrier_that_differs(found: dict[str, Mean]) -> None:
    assert len(demo_flights.differences({"UA": Mean(3, 2.5, 1, 5.5, 1)}, found)) == 1


ASKED = """2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z
2013,1,1,600,540,20,850,840,10,UA,1546,N2,EWR,IAH,227,1400,5,40,2013-01-01T10:00:00Z
2013,1,1,700,600,60,900,800,60,AA,1,"N,3",JFK,MIA,160,1089,6,0,2013-01-01T11:00:00Z
2013,1,2,NA,600,NA,NA,800,NA,AA,1,NA,JFK,MIA,NA,1089,6,0,2013-01-02T11:00:00Z
"""


def test_three_questions_are_answered_from_the_log(spark: SparkSession, tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "docs" / "flights_sql.py"))
    frame(spark, tmp_path / "store", ASKED.encode().splitlines())
    script["make_view"](spark, str(tmp_path / "store"))
    best, gained, worst = (spark.sql(query).collect() for query in script["QUESTIONS"].values())
    assert [tuple(row) for row in best] == [(5, 2, 11.0, 0.0), (6, 2, 60.0, 50.0)]
    assert [tuple(row) for row in gained] == [("UA", 1, 10.0), ("AA", 1, 0.0)]
    days = [(date(2013, 1, 2), 1, 1), (date(2013, 1, 1), 3, 0)]
    assert [tuple(row) for row in worst] == days


def test_parts_share_all_flights(csv_zip: Path) -> None:
    parts = [list(demo_flights.flights(csv_zip, part=part, parts=2)) for part in range(2)]
    assert sorted(flight.number for part in parts for flight in part) == [0, 1, 2, 3, 4]
    assert [flight.carrier for flight in parts[0]] == ["UA", "AA", "UA"]


def test_the_data_package_is_not_imported() -> None:
    program = (
        "import sys; from scripts import demo_flights as d; n = sum(1 for _ in d.flights());"
        " print(n, d.PACKAGE in sys.modules, 'pandas' in sys.modules)"
    )
    command = [sys.executable, "-c", program]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == [str(demo_flights.FLIGHTS), "False", "False"]
