"""Rows of a store as the Spark source makes them, and as RocketMQ's own dump tells them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa

from gantrymq.clients.spark.columns import ARROW_TYPES
from gantrymq.clients.spark.options import BAD_TYPES, COLUMN_TYPES, ReadOptions
from gantrymq.clients.spark.planning import plan
from gantrymq.clients.spark.scan import read
from tests.support.golden import is_inner_batch, members_sent

#: What a dump line says of a record, by the names of our columns.
TRANSACTIONS = ("none", "prepared", "commit", "rollback")


def rows_of(store: Path, **options: str) -> list[dict[str, Any]]:
    return rows_with(ReadOptions.parse({"store": str(store), **options}))


def sealed_rows(store: Path, **options: str) -> list[dict[str, Any]]:
    """The same of segments that are closed alone, unless the options say otherwise."""
    return rows_of(store, **{"includeActive": "false", **options})


def rows_with(chosen: ReadOptions) -> list[dict[str, Any]]:
    """What a read yields, by position."""
    types = COLUMN_TYPES | BAD_TYPES
    schema = pa.schema([(name, ARROW_TYPES[types[name]]) for name in chosen.columns])
    found: list[dict[str, Any]] = []
    for part in plan(chosen):
        for batch in read(part, chosen, schema):
            batch.validate(full=True)
            found += batch.to_pylist()
    return sorted(found, key=lambda row: row.get("physical_offset", 0))


def everything(store: Path, **options: str) -> list[dict[str, Any]]:
    return rows_of(store, includeSystem="true", includeActive="true", **options)


def expected_rows(name: str, line: dict[str, Any]) -> list[dict[str, Any]]:
    """What a record of a golden set shows: itself, or the messages of an inner batch (RD-73)."""
    if not is_inner_batch(line):
        return [expected_row(line)]
    found = []
    for number, sent in enumerate(members_sent(name, line)):
        own = {"properties": sent["properties"], "uniqKey": sent["properties"]["UNIQ_KEY"]}
        place = {"bodySha256": sent["bodySha256"], "queueOffset": line["queueOffset"] + number}
        found.append(expected_row({**line, **own, **place}))
    return found


def expected_row(line: dict[str, Any]) -> dict[str, Any]:
    properties = {key: text for key, text in line["properties"].items() if key != "__CRC32#"}
    return {
        "topic": line["topic"],
        "queue_id": line["queueId"],
        "queue_offset": line["queueOffset"],
        "physical_offset": line["physicalOffset"],
        "message_id": line["uniqKey"] or line["offsetMsgId"],
        "tag": properties.get("TAGS"),
        "keys": [key for key in properties.get("KEYS", "").split(" ") if key],
        "properties": properties,
        "body": line.get("plainBodySha256", line["bodySha256"]),
        "born_timestamp": line["bornTimestamp"],
        "store_timestamp": line["storeTimestamp"],
        "born_host": line["bornHost"],
        "delivery_attempt": min(line["reconsumeTimes"] + 1, (1 << 31) - 1),
        "sys_flag": line["sysFlag"],
        "transaction": TRANSACTIONS[line["sysFlag"] >> 2 & 3],
        "crc_ok": True,
    }


def comparable(row: dict[str, Any], line: dict[str, Any]) -> dict[str, Any]:
    """The row with its body hashed and its times in Unix ms; a time beyond year 9999 is null."""
    shown = {**row, "properties": dict(row["properties"])}
    shown["body"] = hashlib.sha256(row["body"]).hexdigest()
    for name, stored in (
        ("born_timestamp", "bornTimestamp"),
        ("store_timestamp", "storeTimestamp"),
    ):
        far = not 0 <= line[stored] < 253_402_300_800_000
        time = row[name]
        shown[name] = line[stored] if time is None and far else round(time.timestamp() * 1000)
    return shown
