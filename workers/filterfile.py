"""`config/consumerFilter.json` as RocketMQ reads and writes it (store-format.md section 12).

Groups with SQL92 filters, by topic. RocketMQ's own entries are of its dialect; ours say theirs in a
field `dialect` that RocketMQ passes over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from gantrymq.shm.bloom import BloomForm
from gantrymq.shm.configfile import read_config, write_config
from gantrymq.shm.sql92.dialect import Dialect
from gantrymq.shm.valueranges import is_store_ms

if TYPE_CHECKING:
    from gantrymq.shm.storage import Storage

FILE: Final = "consumerFilter.json"
SQL92: Final = "SQL92"
#: After a load RocketMQ counts every group as dead since so long, until it speaks (section 12).
DEAD_AT_LOAD_MS: Final = 30_000


class FilterSettings(Protocol):
    """What bitmaps need of the broker's settings (FL-60)."""

    @property
    def max_error_rate_of_bloom_filter(self) -> int:
        """Percent of the records that are read in vain."""
        ...

    @property
    def expect_consumer_num_use_filter(self) -> int:
        """Groups with filters of one topic."""
        ...


@dataclass(frozen=True, slots=True)
class FilterEntry:
    """One group's filter of one topic; times are Unix ms, `dead_ms` is 0 while the group lives."""

    topic: str
    group: str
    expression: str
    dialect: str
    born_ms: int
    version: int
    dead_ms: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """Topic and group: there is one filter of each."""
        return (self.topic, self.group)


def read_filters(storage: Storage, form: BloomForm) -> list[FilterEntry]:
    """All entries of the file, or of its backup.

    None of them if the bits of one are not those of `form`, as RocketMQ does. Raises OSError.
    """
    content: Any = read_config(storage, FILE)
    topics = content.get("filterDataByTopic") if isinstance(content, dict) else None
    found = []
    try:
        for topic, data in (topics or {}).items():
            for group, entry in (data.get("groupFilterData") or {}).items():
                if not _fits(entry, form, group, topic):
                    return []
                if entry.get("expressionType", SQL92) == SQL92 and entry.get("expression"):
                    found.append(_entry(topic, group, entry))
    except (AttributeError, KeyError, TypeError, ValueError):
        return []
    return found


def _fits(entry: Mapping[str, Any], form: BloomForm, group: str, topic: str) -> bool:
    bits = entry.get("bloomFilterData") or {}
    return (bits.get("bitNum"), bits.get("bitPos")) == (form.bits, form.positions(group, topic))


def _entry(topic: str, group: str, entry: Mapping[str, Any]) -> FilterEntry:
    texts = entry["expression"], entry.get("dialect", Dialect.ROCKETMQ.value)
    # Clients of RocketMQ give a version in ms, or in ns, by their host's clock.
    times = [entry.get(name, 0) for name in ("bornTime", "clientVersion", "deadTime")]
    if not all(isinstance(text, str) for text in texts) or not all(map(is_store_ms, times)):
        raise ValueError(f"a filter of {group} in {topic}")
    return FilterEntry(topic, group, *texts, *times)


def write_filters(storage: Storage, entries: Iterable[FilterEntry], form: BloomForm) -> None:
    """Save all entries in RocketMQ's steps. Raises OSError."""
    topics: dict[str, Any] = {}
    for entry in entries:
        data = topics.setdefault(entry.topic, {"groupFilterData": {}, "topic": entry.topic})
        data["groupFilterData"][entry.group] = _fields(entry, form)
    write_config(storage, FILE, {"filterDataByTopic": topics})


def _fields(entry: FilterEntry, form: BloomForm) -> dict[str, Any]:
    dialect = None if entry.dialect == Dialect.ROCKETMQ.value else entry.dialect
    return {
        "bloomFilterData": {
            "bitNum": form.bits,
            "bitPos": form.positions(entry.group, entry.topic),
        },
        "bornTime": entry.born_ms,
        "clientVersion": entry.version,
        "consumerGroup": entry.group,
        "dead": entry.dead_ms > 0,
        "deadTime": entry.dead_ms,
        "dialect": dialect,
        "expression": entry.expression,
        "expressionType": SQL92,
        "topic": entry.topic,
    }


def bloom_form(settings: FilterSettings) -> BloomForm:
    """Length of bitmaps and bits of each filter, as the settings have them (FL-60)."""
    return BloomForm.of(
        settings.max_error_rate_of_bloom_filter, settings.expect_consumer_num_use_filter
    )
