"""What a single rule of the table cannot say of settings: texts with a form, and pairs that fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gantrymq.shm import limits
from gantrymq.shm.errors import SettingIllegal
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.layout import FILLER, RECORD_BYTES_MIN
from gantrymq.shm.properties import parse_delay_levels

#: Those that RocketMQ takes.
PRECISIONS_MS: Final = (100, 200, 500, 1000)
PRECISIONS_BETWEEN: Final = (PRECISIONS_MS[0], PRECISIONS_MS[-1])


def parse_hours(text: str) -> frozenset[int]:
    """Hours of the day in RocketMQ's deleteWhen, `04;16` (SF-99). Raises ValueError."""
    hours = frozenset(int(part) for part in text.split(";") if part.strip())
    if not hours <= frozenset(range(24)):
        raise ValueError(f"{text!r}: hours are 0 to 23")
    return hours


def _above(delays: tuple[int, ...], longest: int) -> int:
    """Number of the first level that is longer."""
    return next(number for number, delay in enumerate(delays, 1) if delay > longest)


def _check_delays(values: dict[str, Any], origins: Mapping[str, str]) -> None:
    """Delays that RocketMQ understands as well."""
    name = "message_delay_level"
    try:
        delays = parse_delay_levels(values[name])
    except (ValueError, KeyError) as error:
        require_ours(error)
        delays = ()
    if not 1 <= len(delays) <= limits.QUEUES_PER_TOPIC_MAX or min(delays) < 0:
        raise SettingIllegal(
            f"{name} = {values[name]!r} ({origins[name]}): give numbers with s, m, h or d and"
            ' blanks between them, "1s 5s 10s" for example',
            setting=name,
        )
    longest = limits.RETRY_AFTER_MAX_MS
    if max(delays) > longest:
        raise SettingIllegal(
            f"{name} = {values[name]!r} ({origins[name]}): level {_above(delays, longest)} is"
            f" too long: give {longest // 86_400_000}d, 1,000 years, at most",
            setting=name,
        )
    name = "timer_precision_ms"
    if values[name] not in PRECISIONS_MS:
        raise SettingIllegal(
            f"{name} = {values[name]} ({origins[name]}): choose 100, 200, 500 or 1000",
            setting=name,
        )


def check_relations(values: dict[str, Any], origins: Mapping[str, str]) -> None:
    """Raise SettingIllegal, naming the setting and the mend; may lower what is a default.

    A largest record and the filler behind it must fit into a segment (SF-20).
    """
    try:
        parse_hours(values["delete_when"])
    except ValueError as error:
        require_ours(error)
        raise SettingIllegal(
            f"delete_when = {values['delete_when']!r} ({origins['delete_when']}): give hours of the"
            " day, 0 to 23, separated by ;",
            setting="delete_when",
        ) from None
    _check_delays(values, origins)
    room = values["mapped_file_size_commit_log"] - RECORD_BYTES_MIN - FILLER.size
    if values["max_message_size"] > room:
        if origins["max_message_size"].startswith("default"):
            values["max_message_size"] = room
            return
        raise SettingIllegal(
            f"max_message_size = {values['max_message_size']}: a segment of "
            f"{values['mapped_file_size_commit_log']} bytes (mapped_file_size_commit_log) has room "
            f"for {room}; lower the one or raise the other",
            setting="max_message_size",
        )
