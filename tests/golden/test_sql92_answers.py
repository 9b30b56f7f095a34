"""Every answer that RocketMQ's filter module gave (filtering.md 3.6; golden/sql92.jsonl.gz)."""

from __future__ import annotations

import gzip
import json
from functools import cache
from typing import Any

from gantrymq.shm.errors import FilterSyntaxError
from gantrymq.shm.properties import java_hash
from gantrymq.shm.sql92.dialect import Dialect
from gantrymq.shm.sql92.parser import parse
from gantrymq.shm.sql92.tree import Node
from tests.support.golden import DATA
from tests.support.sqlfilters import by_program, by_reference


@cache
def answers() -> list[dict[str, Any]]:
    with gzip.open(DATA / "sql92.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def expressions() -> list[tuple[dict[str, Any], Node | None]]:
    found = []
    for line in answers():
        if "expr" in line:
            try:
                node = parse(line["expr"], Dialect.ROCKETMQ)
            except FilterSyntaxError:
                node = None
            found.append((line, node))
    return found


def test_what_compiles_is_what_compiles_there() -> None:
    """FL-20..FL-30, FL-50."""
    found = expressions()
    assert len(found) == 4000
    wrong = [row["expr"] for row, node in found if (node is None) != (row["compile"] == "error")]
    assert wrong == []


def test_the_reference_gives_every_answer() -> None:
    """FL-31..FL-44, FL-51: results, errors and unknowns."""
    wrong = []
    for row, node in expressions():
        if node is not None:
            said = by_reference(node, row["props"], Dialect.ROCKETMQ)
            if said != row["result"]:
                wrong.append((row["expr"], row["props"], said, row["result"]))
    assert wrong == []


def test_the_program_gives_every_answer_or_asks() -> None:
    wrong, asked, count = [], 0, 0
    for row, node in expressions():
        if node is not None:
            (ran,) = by_program(node, [row["props"]], Dialect.ROCKETMQ)
            count += 1
            asked += ran == "ask"
            if ran not in (row["result"], "ask"):
                wrong.append((row["expr"], row["props"], ran, row["result"]))
    assert wrong == []
    assert asked < count / 10  # these properties are chosen to be odd


def test_hashes_of_tags() -> None:
    """SF-4, FL-3."""
    rows = [row for row in answers() if "tag" in row]
    assert rows
    assert [java_hash(row["tag"]) for row in rows] == [row["code"] for row in rows]
