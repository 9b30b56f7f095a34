"""Every file that a store may have in `gantry/`, by what a copy of the store does with it.

A new file gets its line here: who makes copies (back-up, salvage) and who checks stores go by it.
Also what a store has besides, as far as its names are known.
"""

from __future__ import annotations

from typing import Final

FOLDER: Final = "gantry"
#: What cannot be made again: every copy must have it.
TRUTH: Final = ("ledger", "dead_letters.json", "deleted_topics.json", "first_units.json")
#: True of the log as it is: a copy of the same log has it, another log's is made of that.
OF_THE_LOG: Final = ("imported.json",)
#: Whose the log is, and up to where: each copy gets its own.
IDENTITY: Final = ("store.json", "ranges.json", "checkpoint")
#: The first start makes it of the log (brokerd/rebuild.py deletes it).
DERIVED: Final = (
    "queues.json", "index.json", "bitmaps.json", "schedule.json", "transactions.json",
    "producers", "segments", "timers", "memberqueues",
)  # fmt: skip
#: Of this place alone: who holds its log, what is on its way off the disk, room on the disk.
OF_THIS_PLACE: Final = ("pins", "expired", "reserve")
#: What a broker that runs or was killed may have under way.
UNDER_WAY: Final = ("spare", "spare.writer", "spare.flusher")
#: What commands have in the making, perhaps while a broker starts. One that a kill has left is
#: replaced by the next such command.
OF_COMMANDS: Final = ("dead_letters.json.new",)

#: Which of these are folders.
FOLDERS: Final = frozenset({"segments", "timers", "memberqueues", "pins", "expired"})

#: All that a stopped store may have.
KNOWN: Final = frozenset({*TRUTH, *OF_THE_LOG, *IDENTITY, *DERIVED, *OF_THIS_PLACE, *OF_COMMANDS})

#: Files beside the folders.
OF_THE_ROOT: Final = ("checkpoint", "abort", "lock")
#: The table that each file of ours in `config/` is about.
CONFIG_TABLES: Final = {
    "topics.json": "topicConfigTable",
    "subscriptionGroup.json": "subscriptionGroupTable",
    "consumerOffset.json": "offsetTable",
}
#: What RocketMQ has in `config/` besides (section 12).
OTHER_CONFIG: Final = frozenset(
    {
        *("lmqConsumerOffset.json", "delayOffset.json", "consumerFilter.json"),
        *("consumerOrderInfo.json", "topicQueueMapping.json", "messageRequestMode.json"),
        *("timercheck", "timermetrics", "transactionMetrics", "broker.properties"),
        *("tieredStoreMetadata.json", "popCheckpoint.json"),
    }
)


def path_of(name: str) -> str:
    """Where a file of these lists is, from the store's root."""
    return f"{FOLDER}/{name}"
