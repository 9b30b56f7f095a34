"""The golden sets in tests/golden/data: stores of a real RocketMQ, and what it reads from them."""

from __future__ import annotations

import io
import json
import lzma
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent.parent / "golden" / "data"

#: Every set; named here, so that none can get lost without a test failing.
CLEAN_SETS = (
    *("batch", "batch-533", "crc", "crc-533", "delay", "delay-533", "filter", "odd"),
    *("plain", "plain-533", "retry", "retry-533", "timer", "timer-533", "tx", "tx-533"),
)
CRASH_SETS = ("crash", "crash-torn")
SETS = (*CLEAN_SETS, *CRASH_SETS)

#: Our name of a setting -> RocketMQ's.
_SIZES = {
    "mapped_file_size_commit_log": "mappedFileSizeCommitLog",
    "mapped_file_size_consume_queue": "mappedFileSizeConsumeQueue",
    "max_hash_slot_num": "maxHashSlotNum",
    "max_index_num": "maxIndexNum",
}


@dataclass(frozen=True)
class GoldenStore:
    """An unpacked archive."""

    name: str
    directory: Path

    @property
    def store(self) -> Path:
        """The store's root."""
        return self.directory / "store"

    @property
    def settings_file(self) -> Path:
        """The settings that differ from the defaults."""
        return self.directory / "settings"

    @property
    def settings(self) -> dict[str, str]:
        """The same, read."""
        lines = self.settings_file.read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)

    @property
    def sizes(self) -> dict[str, int]:
        """Those of files and of the index, by the names of our settings."""
        settings = self.settings
        return {ours: int(settings[theirs]) for ours, theirs in _SIZES.items()}

    @property
    def segment_bytes(self) -> int:
        """Length of a commit-log file."""
        return int(self.settings["mappedFileSizeCommitLog"])


def unpack(name: str, directory: Path) -> GoldenStore:
    """Unpack a set's archive into a directory of the caller."""
    with tarfile.open(fileobj=io.BytesIO(_archive(name))) as archive:
        # As documented for Pythons that may have no filters, which came with 3.11.4.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(directory)
    return GoldenStore(name, directory)


@cache
def _archive(name: str) -> bytes:
    """The archive without its compression, two megabytes at most."""
    return lzma.decompress((DATA / f"{name}.tar.xz").read_bytes())


@cache
def dump_text(name: str, stage: str = "recovered") -> tuple[str, ...]:
    """Lines of the dump that RocketMQ's classes made."""
    suffix = "" if stage == "recovered" else f"-{stage}"
    with lzma.open(DATA / f"{name}.dump{suffix}.jsonl.xz", "rt", encoding="ascii") as lines:
        return tuple(line.rstrip("\n") for line in lines)


def dump_lines(name: str, *kinds: str) -> list[dict[str, Any]]:
    """Objects of the dump, of some kinds or of all."""
    begins = tuple(f'{{"kind":"{kind}",' for kind in kinds) or ""
    return [json.loads(line) for line in dump_text(name) if line.startswith(begins)]


@cache
def sent_lines(name: str) -> list[dict[str, Any]]:
    """What the generator sent, and what the broker answered."""
    with lzma.open(DATA / f"{name}.sent.jsonl.xz", "rt", encoding="ascii") as lines:
        return [json.loads(line) for line in lines]


def is_inner_batch(line: dict[str, Any]) -> bool:
    """Whether a `record` of the dump holds several messages (RD-70)."""
    return "INNER_NUM" in line["properties"]


def members_sent(name: str, line: dict[str, Any]) -> list[dict[str, Any]]:
    """Lines of the messages that went into an inner batch, in their order."""
    sent = [item for item in sent_lines(name) if item.get("offsetMsgId") == line["offsetMsgId"]]
    assert len(sent) == int(line["properties"]["INNER_NUM"])
    return sorted(sent, key=lambda item: int(item["inBatch"]))
