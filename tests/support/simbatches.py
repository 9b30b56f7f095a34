"""Topics of RocketMQ's type BatchCQ on a simulated disk, and what a start must make of them."""

from __future__ import annotations

from typing import Final

from gantrymq.brokerd.batchqueues import batch_topics_of
from gantrymq.brokerd.batchunits import DIRECTORY
from gantrymq.brokerd.topics import TopicConfig
from gantrymq.shm import layout
from gantrymq.shm.configfile import write_config
from gantrymq.shm.storage import Storage, read_file
from gantrymq.shm.topicfiles import LEVEL_ATTRIBUTE
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage
from tests.support.storedlog import Stored, require

FILE_BYTES: Final = 10 * layout.BATCH_CQ_UNIT.size


def write_topics(disk: Disk, topics: dict[str, tuple[int, str]]) -> None:
    """Let a fresh disk know topics of that type; `topics`: name -> (queues, durability)."""
    storage, table = SimStorage(disk), {}
    for name, (queues, level) in topics.items():
        attributes = {"queue.type": "BatchCQ", LEVEL_ATTRIBUTE: level}
        table[name] = TopicConfig(name, queues, queues, 6, attributes).to_json()
        file = storage.create(f"{DIRECTORY}/{name}/0/{0:020d}")
        file.truncate(FILE_BYTES)  # as long as all that follow
        file.sync()
    write_config(storage, "topics.json", {"topicConfigTable": table})
    folders = [f"{DIRECTORY}/{name}/0" for name in topics]
    for folder in (*folders, *(f"{DIRECTORY}/{name}" for name in topics), DIRECTORY, "config", ""):
        storage.sync_directory(folder)


def check_batch_units(storage: Storage, log: list[Stored], low: int) -> None:
    """RocketMQ has a unit for each single message of such topics, and no other (RD-72)."""
    for topic in batch_topics_of(storage):
        for queue in storage.list(f"{DIRECTORY}/{topic}"):
            folder = f"{DIRECTORY}/{topic}/{queue}"
            data = b"".join(read_file(storage, f"{folder}/{n}") for n in storage.list(folder))
            size = layout.BATCH_CQ_UNIT.size
            units = [layout.BATCH_CQ_UNIT.unpack(data, at) for at in range(0, len(data), size)]
            found = [(u["physical_offset"], u["base_offset"]) for u in units if u["size"]]
            records = [r for r in log if (r.topic, r.queue) == (topic, int(queue))]
            wanted = [(r.position, r.offset) for r in records if r.position >= low]
            found = [unit for unit in found if unit[0] >= low]
            require(found == wanted, "P14", f"{folder} has {found}, not {wanted}")
