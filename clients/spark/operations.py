"""What a store's log says of its topics, minute by minute, computed by Spark.

The broker keeps what waits, failed or is undecided in topics of its own, each record with the
topic that it is about (REAL_TOPIC, or RETRY_TOPIC of a retry and a dead letter). So the log alone
tells it, of a RocketMQ's store as well, and of times long before anybody measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.clients.spark.options import SYSTEM_PREFIXES, SYSTEM_TOPICS
from gantrymq.shm.properties import (
    DLQ_PREFIX,
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS: Final = "topic,properties,body,born_timestamp,store_timestamp"
_TRANSACTIONS: Final = "topic,queue_id,queue_offset,properties,body,store_timestamp"
_RETRY, _DEAD = f"'{RETRY_PREFIX}'", f"'{DLQ_PREFIX}'"
#: A retry that waits is told when it comes; what recalls a timer is no message.
_PARKED: Final = f"""
    IF(startswith(properties['REAL_TOPIC'], {_RETRY})
        OR properties['TIMER_DEL_UNIQKEY'] IS NOT NULL, NULL, 'delayed')"""
_IS_SYSTEM: Final = " OR ".join(
    [f"topic IN ({', '.join(repr(name) for name in sorted(SYSTEM_TOPICS))})"]
    + [f"startswith(topic, '{prefix}')" for prefix in SYSTEM_PREFIXES]
)
_KIND: Final = f"""
    CASE WHEN topic IN ('{SCHEDULE_TOPIC}', '{TIMER_TOPIC}') THEN {_PARKED}
        WHEN topic = '{HALF_TOPIC}' THEN 'half'
        WHEN topic = '{GIVEN_UP_TOPIC}' THEN 'given up'
        WHEN {_IS_SYSTEM} THEN NULL
        WHEN startswith(topic, {_RETRY}) THEN 'retry'
        WHEN startswith(topic, {_DEAD}) THEN 'dead letter'
        ELSE 'message' END"""
_ABOUT: Final = """
    CASE WHEN kind = 'message' THEN topic
        WHEN kind IN ('retry', 'dead letter')
            THEN coalesce(properties['DLQ_ORIGIN_TOPIC'], properties['RETRY_TOPIC'], topic)
        ELSE coalesce(properties['REAL_TOPIC'], topic) END"""
#: `{{log}}` and `{{transactions}}` are filled in by Spark. A half is decided by the op record that
#: names its offset, in the op queue of the same number (TX-21, TX-22).
_QUERY: Final = f"""
WITH kinds AS (SELECT *, {_KIND} AS kind FROM {{log}} WHERE topic <> ''),
stored AS (SELECT kind, {_ABOUT} AS name, store_timestamp, length(body) AS bytes,
        (unix_millis(store_timestamp) - unix_millis(born_timestamp)) / 1000 AS delay_s
    FROM kinds WHERE kind IS NOT NULL),
halves AS (SELECT queue_id, queue_offset, properties['REAL_TOPIC'] AS name, store_timestamp
        FROM {{transactions}} WHERE topic = '{HALF_TOPIC}'
    UNION ALL SELECT queue_id, try_cast(word AS BIGINT), NULL, NULL FROM (
        SELECT queue_id, explode(split(CAST(body AS STRING), ',')) AS word
        FROM {{transactions}} WHERE topic = '{OP_TOPIC}')),
open AS (SELECT 'open' AS kind, any_value(name) AS name, any_value(store_timestamp), 0, NULL
    FROM halves GROUP BY queue_id, queue_offset HAVING every(store_timestamp IS NOT NULL)),
told AS (SELECT name AS topic, date_trunc('MINUTE', store_timestamp) AS minute,
        count_if(kind = 'message') AS messages,
        sum(IF(kind = 'message', bytes, 0)) AS bytes,
        avg(IF(kind = 'message', delay_s, NULL)) AS mean_delay_s,
        max(IF(kind = 'message', delay_s, NULL)) AS max_delay_s,
        count_if(kind = 'delayed') AS delayed,
        count_if(kind = 'retry') AS retries,
        count_if(kind = 'dead letter') AS dead_letters,
        count_if(kind = 'half') AS transactional,
        count_if(kind = 'open') AS in_doubt,
        count_if(kind = 'given up') AS given_up
    FROM (SELECT * FROM stored UNION ALL SELECT * FROM open) GROUP BY ALL)
SELECT topic, minute, messages, messages / 60 AS per_second, bytes,
    bytes / nullif(messages, 0) AS mean_bytes, mean_delay_s, max_delay_s, delayed, retries,
    dead_letters, transactional, in_doubt, given_up
FROM told
"""


def operations(
    spark: SparkSession,
    store: str,
    *,
    start_time: str | None = None,
    end_time: str | None = None,
    include_active: bool = True,
) -> DataFrame:
    """One row per topic and minute (of the store time, UTC) in which anything was stored about it.

    `messages` became visible in the topic then, with `bytes` of bodies (as sent), `delay_s` after
    they were made: what waited in a delay or a transaction counts with its wait. `delayed` were
    parked, `retries` came to a group again, `dead_letters` were given up by one. `transactional`
    are halves that were stored; `in_doubt` of them have no decision up to the log's end (or
    `end_time`), `given_up` were no longer checked. Times: Unix ms or ISO 8601, as options
    `startTime` and `endTime`; the read is planned when the rows are asked for.
    """
    options = {"store": store, "includeActive": str(include_active).lower()}
    if start_time is not None:
        options["startTime"] = start_time
    if end_time is not None:
        options["endTime"] = end_time
    reader = spark.read.format("gantrymq").options(**options)
    log = reader.options(includeSystem="true", columns=_COLUMNS).load()
    topics = f"{HALF_TOPIC},{OP_TOPIC}"
    transactions = reader.options(topic=topics, columns=_TRANSACTIONS).load()
    return spark.sql(_QUERY, log=log, transactions=transactions)
