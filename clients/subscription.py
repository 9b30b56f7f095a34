"""What a consumer subscribes to: topics, and which of their messages."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import Enum

from gantrymq.clients.message import Texts, check_topic, is_name, items_of, plain
from gantrymq.shm import limits
from gantrymq.shm.errors import FilterSyntaxError, GroupIllegal, MessageIllegal, shown
from gantrymq.shm.filter import EVERYTHING, Filter, TagFilter, parse_sql, parse_tags
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.groupwire import SUBSCRIPTION_CHARACTERS
from gantrymq.shm.properties import HIDDEN_TOPICS, SYSTEM_GROUP_PREFIX
from gantrymq.shm.sql92.dialect import Dialect


class FilterType(Enum):
    """How a filter's text is read."""

    TAG = "tag"
    SQL92 = "sql92"


@dataclass(frozen=True, slots=True)
class FilterExpression:
    """Which messages of a topic: by tags, "a || b", or "*" for all; or by an SQL92 expression.

    `dialect` is "sql", or "rocketmq" for RocketMQ's rules within our limits of size
    (shm/sql92/dialect.py has what differs, docs/clients.md the limits). Raises FilterSyntaxError
    when it is made of other types; a text of tags may be None, for all (FL-1).
    """

    text: str | None = EVERYTHING
    type: FilterType = FilterType.TAG
    dialect: str = Dialect.SQL.value

    def __post_init__(self) -> None:
        """Judge all parts but the text's grammar."""
        dialect_of(self.dialect)
        if not isinstance(self.type, FilterType):
            known = " or ".join(str(kind) for kind in FilterType)
            raise FilterSyntaxError(f"type is {shown(self.type)}: use {known}", position=0)
        if not isinstance(self.text, str) and (
            self.text is not None or self.type is FilterType.SQL92
        ):
            raise FilterSyntaxError(
                f"text: a filter's text is a str, not {type(self.text).__name__}", position=0
            )
        if isinstance(self.text, str) and not self.text.isascii() and not is_unicode(self.text):
            raise FilterSyntaxError(
                f"text is {shown(self.text)}: it has a lone surrogate, which no message has",
                position=0,
            )

    def parse(self) -> Filter:
        """The filter. Raises FilterSyntaxError."""
        if self.type is FilterType.SQL92:
            return parse_sql(str(self.text), dialect_of(self.dialect))
        return parse_tags(self.text)

    def matches(self, properties: Mapping[str, str]) -> bool | None:
        """What it says of a message's properties, TAGS and KEYS among them; None for unknown.

        In dialect "rocketmq" None is also where RocketMQ fails. Raises FilterSyntaxError;
        MessageIllegal if a value is no str: properties are texts.
        """
        if not isinstance(properties, Mapping):
            raise MessageIllegal(
                f"properties is {shown(properties)}: give a mapping of names to texts"
            )
        for name, value in properties.items():
            if not isinstance(value, str):
                raise MessageIllegal(
                    f"properties: the value of {name!r} is {type(value).__name__}, not str",
                    property=name,
                )
        found = self.parse()
        if isinstance(found, TagFilter):
            return found.matches(properties.get("TAGS"))
        return found.matches(properties)


def dialect_of(name: str) -> Dialect:
    """A dialect by its name. Raises FilterSyntaxError."""
    try:
        return Dialect(name)
    except ValueError as error:
        require_ours(error)
        known = " or ".join(repr(dialect.value) for dialect in Dialect)
        raise FilterSyntaxError(f"dialect is {shown(name)}: use {known}", position=0) from None


#: Topics, or what of each: tags (None: all), or an expression.
Subscription = Mapping[str, str | FilterExpression | None] | Set[str] | Texts


def check_group(group: object, what: str = "group") -> None:
    """Names of groups (CQ-100). Raises GroupIllegal."""
    if not isinstance(group, str) or not is_name(plain(group)):
        raise GroupIllegal(
            f"{what} is {shown(group)}, which is no group name: letters, digits and _-%| only"
        )
    group = plain(group)
    if group.startswith(SYSTEM_GROUP_PREFIX):
        raise GroupIllegal(
            f"{what}: groups {SYSTEM_GROUP_PREFIX}... are the broker's own: take another name",
            group=group,
        )
    if len(group) > limits.GROUP_BYTES_MAX:
        raise GroupIllegal(
            f"{what}: the name has {len(group)} bytes, {limits.GROUP_BYTES_MAX} are allowed",
            group=group,
        )


def parse_subscription(subscription: Subscription, what: str = "subscription") -> dict[str, Filter]:
    """A filter per topic. Raises GroupIllegal, MessageIllegal, FilterSyntaxError."""
    if not isinstance(subscription, Mapping):
        given = items_of(subscription)
        if given is None:
            raise GroupIllegal(
                f"{what} is {shown(subscription)}: give a list of topics, or a mapping of topics"
                " to tags"
            )
        topics = list(given)
        for topic in topics:
            check_topic(topic, f"{what}: a topic")
        subscription = dict.fromkeys(map(plain, topics), EVERYTHING)
    if not subscription:
        raise GroupIllegal(f"{what} is empty: name at least one topic")
    filters = {}
    for name, wanted in subscription.items():
        check_topic(name, f"{what}: a topic")
        topic = plain(name)
        if topic in HIDDEN_TOPICS:
            raise GroupIllegal(
                f"topic {topic} is the broker's own: what it holds is not due, or not decided, yet."
                " Subscribe to the topics that messages are sent to; `gantrymq delayed list` and"
                " `gantrymq tx list` show what waits",
                topic=topic,
            )
        filters[topic] = _parsed(f"{what}: the filter of {topic}", wanted)
    return filters


def _parsed(what: str, wanted: str | FilterExpression | None) -> Filter:
    try:
        expression = wanted if isinstance(wanted, FilterExpression) else FilterExpression(wanted)
        return expression.parse()
    except FilterSyntaxError as error:
        raise FilterSyntaxError(f"{what}: {error}", **error.fields) from None


def is_unicode(text: str) -> bool:
    """False for a text with a lone surrogate, which has no bytes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        require_ours(error)
        return False
    return True


def describe(filters: Mapping[str, Filter], *, orderly: bool = False, max_attempts: int = 0) -> str:
    """The subscription and its terms as people are shown them, the same for the same ones.

    `max_attempts` is 0 for a consumer that pulls: it has no such terms.
    """
    parts = [f"{topic}: {_text_of(wanted)}" for topic, wanted in sorted(filters.items())]
    terms = f" ({'orderly, ' if orderly else ''}max_attempts {max_attempts})" * bool(max_attempts)
    return "; ".join(parts)[: SUBSCRIPTION_CHARACTERS - len(terms)] + terms


def _text_of(wanted: Filter) -> str:
    if isinstance(wanted, TagFilter):
        return EVERYTHING if wanted.tags is None else " || ".join(sorted(wanted.tags))
    return f"SQL92 ({wanted.dialect.value}) {wanted.text}"


def digest(filters: Mapping[str, Filter]) -> int:
    """A number that members of one group have in common; never 0."""
    text = repr(sorted((topic, _key_of(wanted)) for topic, wanted in filters.items()))
    hashed = hashlib.blake2b(text.encode(), digest_size=7).digest()
    return int.from_bytes(hashed, "little") | 1


def _key_of(wanted: Filter) -> object:
    if isinstance(wanted, TagFilter):
        return None if wanted.tags is None else sorted(wanted.tags)
    return (wanted.dialect.value, wanted.text)
