"""Options of the Spark source, checked once: what api.md lists, in Spark's spelling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from gantrymq.clients.queries.moments import milliseconds
from gantrymq.clients.spark.ddl import check_fields
from gantrymq.shm.errors import SettingIllegal
from gantrymq.shm.filter import parse_sql
from gantrymq.shm.properties import SCHEDULE_TOPIC

#: Spark's names and types of all columns, in order.
COLUMN_TYPES: Final = {
    "topic": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    "physical_offset": "bigint",
    "message_id": "string",
    "tag": "string",
    "keys": "array<string>",
    "properties": "map<string,string>",
    "body": "binary",
    "born_timestamp": "timestamp",
    "store_timestamp": "timestamp",
    "born_host": "string",
    "delivery_attempt": "int",
    "sys_flag": "int",
    "transaction": "string",
    "crc_ok": "boolean",
}
#: With badRecords=report: why a row is no sound message, bytes of the log that it stands for from
#: `physical_offset` on, and these. Null in all other rows.
BAD_TYPES: Final = {"bad_reason": "string", "bad_size": "bigint", "bad_bytes": "binary"}
#: Beside `body` with bodyFormat=json: why there is no value.
BODY_ERROR: Final = "body_error"

#: What RocketMQ keeps for itself (SF-106); retry and dead-letter topics are the users'.
SYSTEM_TOPICS: Final = frozenset(
    (
        "TBW102",
        SCHEDULE_TOPIC,
        "BenchmarkTest",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    )
)
#: Behind every position.
OFFSET_MAX: Final = (1 << 63) - 1
SYSTEM_PREFIXES: Final = ("rmq_sys_", "RMQ_SYS_")
_KNOWN: Final = {
    name.lower(): name
    for name in (
        "store",
        "path",
        "topic",
        "startTime",
        "endTime",
        "startOffset",
        "endOffset",
        "startQueueOffset",
        "endQueueOffset",
        "filter",
        "columns",
        "includeSystem",
        "includeActive",
        "badRecords",
        "includeLost",
        "queue",
        "key",
        "bodyFormat",
        "schema",
        "pushFilters",
        "failOnDataLoss",
        "allowMissing",
        "maxRowsPerTrigger",
        "maxBytesPerTrigger",
    )
}


def by_lower_name(
    options: Mapping[str, str], known: Mapping[str, str], of: str = ""
) -> dict[str, str]:
    """Options by their names in lower case: Spark tells no cases apart. Raises SettingIllegal.

    `known` has the names by those, as they are spelled.
    """
    given = {name.lower(): value for name, value in options.items()}
    unknown = sorted(given.keys() - known.keys())
    if unknown:
        names = ", ".join(known.values())
        raise SettingIllegal(f"no option {unknown[0]!r}{of}; there are {names}", name=unknown[0])
    return given


def is_system_topic(name: str) -> bool:
    """Whether a topic belongs to the broker itself."""
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_PREFIXES)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of one read; times are storeTimestamps in Unix ms, `start_ms` <= t < `end_ms`.

    Offsets are positions in the log, in bytes: records that begin in [start, end). Queue offsets
    are messages', of whatever queue, half-open too.
    """

    store: str
    topics: frozenset[str] = frozenset()  # empty: all
    start_ms: int | None = None
    end_ms: int | None = None
    start_offset: int = 0
    end_offset: int = OFFSET_MAX
    columns: tuple[str, ...] = tuple(COLUMN_TYPES)
    #: Spark's type of `body`: binary as stored, string, or a struct of what its JSON holds.
    body_type: str = COLUMN_TYPES["body"]
    include_system: bool = False
    include_active: bool = True
    report_bad_records: bool = False
    include_lost: bool = False
    queues: frozenset[int] = frozenset()  # empty: all
    key: str | None = None
    start_queue_offset: int = 0
    end_queue_offset: int = OFFSET_MAX
    filter: str = ""  # SQL92 over properties; empty: none
    push_filters: bool = False
    fail_on_data_loss: bool = True
    allow_missing: bool = False
    max_rows: int | None = None  # of one micro-batch
    max_bytes: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """Check what `.option(...)` gave. Raises SettingIllegal, naming the option."""
        given = by_lower_name(options, _KNOWN)
        store = given.get("store") or given.get("path")
        if not store:
            raise SettingIllegal("option 'store' is missing: the store's root, HOME/store")
        body_type = _body_type(given)
        reports = _choice(given, "badrecords", ("fail", "report")) == "report"
        return cls(
            store=store.removeprefix("file://"),
            topics=frozenset(_words(given.get("topic", ""))),
            start_ms=_time_ms(given, "starttime"),
            end_ms=_time_ms(given, "endtime"),
            start_offset=_number(given, "startoffset", 0),
            end_offset=_number(given, "endoffset", OFFSET_MAX),
            columns=_columns(given.get("columns"), _known_columns(body_type, reports=reports)),
            body_type=body_type,
            include_system=_flag(given, "includesystem"),
            include_active=_choice(given, "includeactive", ("true", "false")) == "true",
            report_bad_records=reports,
            include_lost=_flag(given, "includelost"),
            queues=frozenset(_queues(given.get("queue", ""))),
            key=given.get("key"),
            start_queue_offset=_number(given, "startqueueoffset", 0),
            end_queue_offset=_number(given, "endqueueoffset", OFFSET_MAX),
            filter=_filter(given.get("filter", "")),
            push_filters=_flag(given, "pushfilters"),
            allow_missing=_flag(given, "allowmissing"),
            fail_on_data_loss=_choice(given, "failondataloss", ("true", "false")) == "true",
            max_rows=_limit(given, "maxrowspertrigger"),
            max_bytes=_limit(given, "maxbytespertrigger"),
        )

    def wants(self, topic: str) -> bool:
        """Whether records of a topic are asked for; a topic asked for by name always is.

        A record whose topic is hidden by damage ("") is shown whatever the topics are.
        """
        if not topic:
            return True
        if self.topics:
            return topic in self.topics
        return self.include_system or not is_system_topic(topic)

    def overlaps(self, first_ms: int, last_ms: int | None) -> bool:
        """Whether times from `first_ms` to `last_ms` (None: no end) may be asked for."""
        too_late = self.end_ms is not None and first_ms >= self.end_ms
        too_early = self.start_ms is not None and last_ms is not None and last_ms < self.start_ms
        return not (too_late or too_early)

    @property
    def is_json(self) -> bool:
        """Whether bodies become what their JSON holds."""
        return self.body_type.startswith("struct<")

    @property
    def schema(self) -> str:
        """The columns as Spark's DDL."""
        return ", ".join(self.column_types)

    @property
    def column_types(self) -> list[str]:
        """Each column's name and type, in order."""
        types = COLUMN_TYPES | BAD_TYPES | {"body": self.body_type, BODY_ERROR: "string"}
        return [f"{name} {types[name]}" for name in self.columns]


def _words(text: str) -> list[str]:
    """Comma-separated; neither topics nor columns may have a comma in their names."""
    return [word for word in (part.strip() for part in text.split(",")) if word]


def _body_type(given: Mapping[str, str]) -> str:
    """Spark's type of `body`. Raises SettingIllegal for a schema of what JSON does not have."""
    kind = _choice(given, "bodyformat", ("raw", "utf8", "json"))
    fields = given.get("schema", "").strip()
    if (kind == "json") != bool(fields):
        text = "options bodyFormat=json and schema='id INT, total DOUBLE' go together"
        raise SettingIllegal(text, name="schema")
    if fields:
        check_fields(fields)
    return {"raw": "binary", "utf8": "string", "json": f"struct<{fields}>"}[kind]


def _known_columns(body_type: str, *, reports: bool) -> tuple[str, ...]:
    of_bodies = (BODY_ERROR,) if body_type.startswith("struct<") else ()
    return (*COLUMN_TYPES, *of_bodies, *(BAD_TYPES if reports else ()))


def _columns(text: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    if text is None:
        return known
    words = _words(text)
    wrong = [word for word in words if word not in known]
    if wrong or not words or len(set(words)) < len(words):
        text = f"option 'columns' = {text!r}; there are {', '.join(known)}"
        raise SettingIllegal(text, name="columns")
    if BODY_ERROR in words and "body" not in words:
        raise SettingIllegal(f"column {BODY_ERROR} is beside column body only", name="columns")
    return tuple(words)


def _flag(given: Mapping[str, str], name: str) -> bool:
    return _choice(given, name, ("false", "true")) == "true"


def _choice(given: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = str(given.get(name, choices[0])).lower()
    if value not in choices:
        words = " or ".join(choices)
        raise SettingIllegal(f"option {_KNOWN[name]!r} = {value!r} is not {words}", name=name)
    return value


def _queues(text: str) -> list[int]:
    words = _words(text)
    if not all(map(_is_number, words)):
        raise SettingIllegal(f"option 'queue' = {text!r} is no list of queue ids", name="queue")
    return [int(word) for word in words]


def _filter(text: str) -> str:
    """Checked here, so that the driver says what is wrong. Raises FilterSyntaxError."""
    if text.strip():
        parse_sql(text.strip())
    return text.strip()


def _limit(given: Mapping[str, str], name: str) -> int | None:
    """At least 1; None if it is not given."""
    return max(_number(given, name, 1), 1) if name in given else None


def _number(given: Mapping[str, str], name: str, default: int) -> int:
    value = str(given.get(name, default))
    if not _is_number(value) or int(value) > OFFSET_MAX:
        raise SettingIllegal(f"option {_KNOWN[name]!r} = {value!r} is no number", name=name)
    return int(value)


def _is_number(text: str) -> bool:
    """Whether it is a number of ASCII digits, no more of them than OFFSET_MAX has."""
    return text.isascii() and text.isdecimal() and len(text) <= len(str(OFFSET_MAX))


def _time_ms(given: Mapping[str, str], name: str) -> int | None:
    """Unix ms as digits, or ISO 8601; without a zone it is UTC.

    The first one that is not before it: start <= t < end holds for the same whole milliseconds t.
    """
    value = given.get(name)
    if value is None:
        return None
    if _is_number(value.removeprefix("-")):
        return int(value)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        text = f"option {_KNOWN[name]!r} = {value!r} is neither Unix ms nor ISO 8601"
        raise SettingIllegal(text, name=name) from None
    return milliseconds(moment if moment.tzinfo else moment.replace(tzinfo=UTC), up=True)
