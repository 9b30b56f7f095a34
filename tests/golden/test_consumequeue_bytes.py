"""ConsumeQueue files of the golden sets are what the log alone says they are, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import cq_oracle
from tests.support.golden import CLEAN_SETS, CRASH_SETS, GoldenStore, dump_lines

Golden = Callable[[str], GoldenStore]
Files = dict[str, bytes]


def files_in(directory: Path) -> Files:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def queue_directories(golden: GoldenStore, kind: str = "consumequeue") -> set[tuple[str, int]]:
    root = golden.store / kind
    return {(path.parent.name, int(path.name)) for path in root.glob("*/*")}


def extensions_of(golden: GoldenStore) -> dict[tuple[str, int], cq_oracle.Extension]:
    """Extension files to be; their bitmaps are taken from the dump (SF-74)."""
    if golden.settings["enableConsumeQueueExt"] != "true":
        return {}
    file_bytes = int(golden.settings["mappedFileSizeConsumeQueueExt"])
    found: dict[tuple[str, int], cq_oracle.Extension] = {}
    for line in dump_lines(golden.name, "cq"):
        key = (line["topic"], line["queueId"])
        bitmap = bytes.fromhex(line["ext"]["bitMap"])
        found.setdefault(key, cq_oracle.Extension(file_bytes, [])).bitmaps.append(bitmap)
    return found


def rebuilt(
    golden: GoldenStore, extensions: dict[tuple[str, int], cq_oracle.Extension]
) -> dict[tuple[str, int], bytes]:
    (summary,) = dump_lines(golden.name, "summary")
    stored = list(cq_oracle.records(golden.store / "commitlog", summary["maxPhyOffset"]))
    assert len(stored) == summary["records"]
    batch_topics = {line["topic"] for line in dump_lines(golden.name, "bcq")}
    plain = [record for record in stored if record.topic not in batch_topics]
    return cq_oracle.queue_bytes(plain, golden.settings, extensions)


@pytest.mark.parametrize("name", CLEAN_SETS)
def test_files_are_what_the_log_says(golden: Golden, name: str) -> None:
    """SF-61 to SF-65, SF-71, SF-72: names, lengths, units, zeroes behind them."""
    store = golden(name)
    extensions = extensions_of(store)
    queues = rebuilt(store, extensions)
    assert queues.keys() == queue_directories(store)
    file_bytes = int(store.settings["mappedFileSizeConsumeQueue"])
    for (topic, queue_id), data in queues.items():
        found = files_in(store.store / "consumequeue" / topic / str(queue_id))
        assert found == cq_oracle.split_into_files(data, file_bytes), (topic, queue_id)


@pytest.mark.parametrize("name", ["crc", "crc-533", "filter"])
def test_extension_files_are_what_the_log_says(golden: Golden, name: str) -> None:
    """SF-71, SF-72; the bitmaps are given."""
    store = golden(name)
    extensions = extensions_of(store)
    rebuilt(store, extensions)
    assert extensions.keys() == queue_directories(store, "consumequeue_ext")
    for (topic, queue_id), extension in extensions.items():
        found = files_in(store.store / "consumequeue_ext" / topic / str(queue_id))
        wanted = cq_oracle.split_into_files(bytes(extension.data), extension.file_bytes)
        assert found == wanted, (topic, queue_id)


@pytest.mark.parametrize("name", CRASH_SETS)
def test_files_of_a_killed_broker_begin_as_the_log_says(golden: Golden, name: str) -> None:
    """Units of the valid log are a prefix or more; one queue is behind (SF-117)."""
    store = golden(name)
    queues = rebuilt(store, {})
    assert queues.keys() == queue_directories(store)
    behind = 0
    for (topic, queue_id), data in queues.items():
        files = files_in(store.store / "consumequeue" / topic / str(queue_id))
        on_disk = b"".join(files[file] for file in sorted(files)).rstrip(b"\0")
        units = min(-(-len(on_disk) // 20) * 20, len(data))
        assert on_disk.ljust(units, b"\0")[:units] == data[:units], (topic, queue_id)
        behind += units < len(data)
    assert behind == (name == "crash")
