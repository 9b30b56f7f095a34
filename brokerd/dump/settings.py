"""Sizes and options that a store was written with.

They come from a file of `key=value` lines with RocketMQ's names, or from `gantry/store.json`, or
from the lengths of the files. What none of them tells has RocketMQ's default.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gantrymq.brokerd.epoch import EARLIER_LEVELS, SIZES, STORE_FILE, read_store_file
from gantrymq.shm import layout
from gantrymq.shm.errors import SettingIllegal
from gantrymq.shm.indexnote import read_note
from gantrymq.shm.properties import parse_delay_levels
from gantrymq.shm.record import Check
from gantrymq.shm.storage import lengths_below, usual_length

if TYPE_CHECKING:
    from pathlib import Path

    from gantrymq.shm.storage import Storage

_DEFAULTS: Final = {
    "mappedFileSizeCommitLog": "1073741824",
    "mappedFileSizeConsumeQueue": "6000000",
    "mappedFileSizeConsumeQueueExt": "50331648",
    "mapperFileSizeBatchConsumeQueue": "13800000",
    "mappedFileSizeTimerLog": "104857600",
    "maxHashSlotNum": "5000000",
    "maxIndexNum": "20000000",
    "messageDelayLevel": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    "checkCRCOnRecover": "true",
    "commitLogRecoverMaxNum": "10",
    "duplicationEnable": "false",
    "enableConsumeQueueExt": "false",
    "forceVerifyPropCRC": "false",
    "messageIndexEnable": "true",
    "messageIndexSafe": "false",
}


#: What `epoch.SIZES` says of the log and its queues, of files that other settings tell of.
_OTHER_SIZES: Final = {
    "mappedFileSizeConsumeQueueExt": ("consumequeue_ext", 2, 1),
    "mapperFileSizeBatchConsumeQueue": ("batchconsumequeue", 2, layout.BATCH_CQ_UNIT.size),
    "mappedFileSizeTimerLog": ("timerlog", 0, 1),
}


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """What is known of a store's settings, by RocketMQ's names; `given` in the order found."""

    given: dict[str, str]
    measured: dict[str, str]  # lengths of files, for what is not given
    earlier_levels: tuple[str, ...] = ()  # other messageDelayLevel of units in the store

    def text(self, name: str) -> str:
        """Value as text, or RocketMQ's default."""
        return self.given.get(name) or self.measured.get(name) or _DEFAULTS[name]

    def number(self, name: str) -> int:
        """Value as a number. Raises SettingIllegal."""
        try:
            return int(self.text(name))
        except ValueError as error:
            raise SettingIllegal(f"{name}={self.text(name)} is no number", name=name) from error

    def is_on(self, name: str) -> bool:
        """Whether a switch is on."""
        return self.text(name).lower() == "true"

    @property
    def queue_file_bytes(self) -> int:
        """Length of a ConsumeQueue file: rounded up to whole units."""
        unit = layout.CQ_UNIT.size
        return -(-self.number("mappedFileSizeConsumeQueue") // unit) * unit

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """Delay of each level. Raises SettingIllegal."""
        return _delays(self.text("messageDelayLevel"))

    @property
    def earlier_delays_ms(self) -> tuple[tuple[int, ...], ...]:
        """The same of earlier settings. Raises SettingIllegal."""
        return tuple(_delays(text) for text in self.earlier_levels)

    @property
    def check(self) -> Check:
        """What recovery checks of each record."""
        return Check(
            body_crc=self.is_on("checkCRCOnRecover"),
            trailer=self.is_on("forceVerifyPropCRC"),
            dup_info=self.is_on("duplicationEnable"),
        )


def _delays(text: str) -> tuple[int, ...]:
    try:
        return parse_delay_levels(text)
    except (KeyError, ValueError) as error:
        raise SettingIllegal(f"messageDelayLevel={text!r} is no list like '1s 5m 2h'") from error


def load_settings(storage: Storage, file: Path | None = None) -> StoreSettings:
    """Find a store's settings.

    Raises SettingIllegal for a line that is none, Corrupt and Incompatible for a `store.json` with
    which no broker would start, OSError.
    """
    given: dict[str, str] = {}
    earlier: tuple[str, ...] = ()
    if file is not None:
        given = _parse_lines(file.read_text(encoding="utf-8"))
    elif storage.exists(STORE_FILE):
        given, earlier = _kept(storage)
    return StoreSettings(given, _from_lengths(storage) | _of_our_index(storage), earlier)


def measured_settings(storage: Storage) -> StoreSettings:
    """What the lengths of a store's files tell, where nothing else can be believed."""
    return StoreSettings({}, _from_lengths(storage))


def _parse_lines(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, separator, value = line.partition("=")
        if not separator:
            raise SettingIllegal(f"{line!r} is no key=value line", line=line)
        found[key.strip()] = value.strip()
    return found


def _kept(storage: Storage) -> tuple[dict[str, str], tuple[str, ...]]:
    """What our broker noted, by RocketMQ's names; earlier delay levels."""
    kept = read_store_file(storage)
    named = {_camel_case(key): str(value) for key, value in kept.items()}
    ours = {key: value for key, value in named.items() if key in _DEFAULTS}
    return ours, tuple(kept.get(EARLIER_LEVELS, ()))


def _camel_case(name: str) -> str:
    return re.sub(r"_([a-z0-9])", lambda match: match[1].upper(), name)


def _from_lengths(storage: Storage) -> dict[str, str]:
    files = {_camel_case(name): place for name, place in SIZES.items()} | _OTHER_SIZES
    lengths = {
        name: usual_length(lengths_below(storage, directory, depth), unit)
        for name, (directory, depth, unit) in files.items()
    }
    return {name: str(length) for name, length in lengths.items() if length}


def _of_our_index(storage: Storage) -> dict[str, str]:
    """Slots and entries of index files that we made; a length does not tell them."""
    known = read_note(storage)
    if known is None:
        return {}
    return {"maxHashSlotNum": str(known[0].slots), "maxIndexNum": str(known[0].entries)}
