"""What a consumer subscribes to: topics, and which of their messages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from clients.message import check_topic, is_name
from shm import limits
from shm.errors import FilterSyntaxError, GroupIllegal
from shm.filter import EVERYTHING, TagFilter, parse_tags
from shm.groupwire import SUBSCRIPTION_CHARACTERS
from shm.properties import HALF_TOPIC, NOTES_TOPIC, OP_TOPIC

#: Of the broker's own topics these show what nobody may see before its transaction is committed.
_HIDDEN_TOPICS: Final = frozenset({HALF_TOPIC, OP_TOPIC, NOTES_TOPIC})


class FilterType(Enum):
    """How a filter's text is read."""

    TAG = "tag"
    SQL92 = "sql92"


@dataclass(frozen=True, slots=True)
class FilterExpression:
    """Which messages of a topic: by tags, "a || b", or "*" for all."""

    text: str = EVERYTHING
    type: FilterType = FilterType.TAG

    def parse(self) -> TagFilter:
        """The filter. Raises FilterSyntaxError."""
        if self.type is not FilterType.TAG:
            raise FilterSyntaxError(
                f"{self.text!r}: filters by {self.type.name} are not supported yet: filter by tags,"
                " or in the listener",
                position=0,
            )
        return parse_tags(self.text)


Subscription = Iterable[str] | Mapping[str, str] | Mapping[str, FilterExpression]


def check_group(group: str) -> None:
    """Names of groups (CQ-100). Raises GroupIllegal."""
    if not isinstance(group, str) or not is_name(group):
        raise GroupIllegal(f"{group!r} is no group name: letters, digits and _-%| only (CQ-100)")
    if len(group) > limits.GROUP_BYTES_MAX:
        raise GroupIllegal(
            f"group name has {len(group)} bytes, {limits.GROUP_BYTES_MAX} are allowed", group=group
        )


def parse_subscription(subscription: Subscription) -> dict[str, TagFilter]:
    """A filter per topic. Raises GroupIllegal, MessageIllegal, FilterSyntaxError."""
    if isinstance(subscription, str):
        raise GroupIllegal("subscription is a list of topics or a mapping of topics to tags")
    if not isinstance(subscription, Mapping):
        subscription = dict.fromkeys(subscription, EVERYTHING)
    if not subscription:
        raise GroupIllegal("the subscription is empty: name at least one topic")
    filters = {}
    for topic, wanted in subscription.items():
        check_topic(topic)
        if topic in _HIDDEN_TOPICS:
            raise GroupIllegal(
                f"topic {topic} is the broker's own: what it holds is not decided yet. Subscribe to"
                " the topics that messages are sent to; `gantrymq tx list` shows what is open",
                topic=topic,
            )
        expression = wanted if isinstance(wanted, FilterExpression) else FilterExpression(wanted)
        filters[topic] = expression.parse()
    return filters


def describe(filters: Mapping[str, TagFilter]) -> str:
    """The subscription as people are shown it, always the same for the same one."""
    parts = []
    for topic, wanted in sorted(filters.items()):
        tags = EVERYTHING if wanted.tags is None else " || ".join(sorted(wanted.tags))
        parts.append(f"{topic}: {tags}")
    return "; ".join(parts)[:SUBSCRIPTION_CHARACTERS]


def digest(filters: Mapping[str, TagFilter], *terms: object) -> int:
    """A number that members of one group have in common; never 0."""
    tags = {t: None if f.tags is None else sorted(f.tags) for t, f in filters.items()}
    text = repr((sorted(tags.items()), terms))
    hashed = hashlib.blake2b(text.encode(), digest_size=7).digest()
    return int.from_bytes(hashed, "little") | 1
