"""What cannot be carried, to a RocketMQ or from one: by name and count, before anything changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.brokerd.handover.names import REVIVE_GROUP, REVIVE_PREFIX, TIMERS
from gantrymq.brokerd.handover.pending import messages
from gantrymq.shm.configfile import read_config, table_in
from gantrymq.shm.errors import Incompatible
from gantrymq.shm.properties import SCHEDULE_TOPIC, TIMER_TOPIC, parse_delay_levels
from gantrymq.shm.storage import read_file
from gantrymq.workers.groups.offsetfile import read_offsets

if TYPE_CHECKING:
    from gantrymq.brokerd.config import Settings
    from gantrymq.brokerd.handover.pending import Pending
    from gantrymq.shm.storage import Storage

_ROCKSDB: Final = "rocksdbstore"
_ROCKSDB_HALVES: Final = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
_ORDER_FILE: Final = "consumerOrderInfo.json"


def require_carriable(storage: Storage, settings: Settings, pending: Pending) -> None:
    """Raises Incompatible with all that stands in the way."""
    found = [
        text
        for text in (
            _pop(storage, settings, pending),
            _ordered_pop(storage),
            _transactions(pending),
            _rocksdb_timers(storage, pending),
            _levels_to_carry(settings, pending),
        )
        if text
    ]
    if found:
        raise Incompatible(f"nothing was changed: {'; '.join(found)}", found=len(found))


def _pop(storage: Storage, settings: Settings, pending: Pending) -> str:
    """Checkpoints that are not settled: parked until their time, or behind the revive's offset."""
    count = 0
    offsets = read_offsets(storage)
    for (topic, queue_id), found in pending.checkpoints.items():
        done = offsets.get((topic, REVIVE_GROUP), {}).get(queue_id, -1)
        count += sum(offset > done for offset in found)
    for _queue, records in pending.waiting(TIMER_TOPIC):
        for properties in messages(storage, settings.mapped_file_size_commit_log, records):
            revive = properties.get("REAL_TOPIC", "").startswith(REVIVE_PREFIX)
            count += revive and properties.get("TAGS") == "ck"
    if not count:
        return ""
    return (
        f"POP consumers hold messages by {count} open checkpoints: stop these consumers, let the"
        " RocketMQ run until their invisible time is over, and stop it cleanly"
    )


def _ordered_pop(storage: Storage) -> str:
    table = table_in(read_config(storage, _ORDER_FILE), "table", f"config/{_ORDER_FILE}")
    queues = [state for states in table.values() for state in states.values() if _is_open(state)]
    if not queues:
        return ""
    return (
        f"ordered POP consumers hold messages of {len(queues)} queues ({_ORDER_FILE}): stop them,"
        " and delete the file and its .bak to have these messages delivered again"
    )


def _is_open(state: object) -> bool:
    """Whether an ordered POP has given out messages that nobody has acknowledged (CQ-92).

    So it counts where that cannot be told.
    """
    given = state.get("o") if isinstance(state, dict) else 1
    acknowledged = state.get("cm", 0) if isinstance(state, dict) else 0
    if not isinstance(given, list | None) or not isinstance(acknowledged, int):
        return True
    return bool(((1 << len(given or ())) - 1) & ~acknowledged)


def _transactions(pending: Pending) -> str:
    """Those that a RocketMQ keeps outside of the log (transRocksDBEnable); others are carried."""
    first, last = pending.queues.get((_ROCKSDB_HALVES, 0), (0, 0))
    if last <= first:
        return ""
    return (
        f"{last - first} transactions are kept in RocksDB ({_ROCKSDB_HALVES}): let the RocketMQ run"
        " with transRocksDBEnable=false until they are decided"
    )


def _rocksdb_timers(storage: Storage, pending: Pending) -> str:
    """With timerRocksDBEnable the timer log stays empty (HO-22)."""
    parked = pending.parked.get(TIMERS)
    if parked is None or not len(parked.pending) or not storage.list(_ROCKSDB):
        return ""
    names = storage.list("timerlog")
    if names and any(read_file(storage, f"timerlog/{names[0]}")[:4]):
        return ""
    return (
        f"{len(parked.pending)} timers seem to be kept in {_ROCKSDB}/ (timerRocksDBEnable), for"
        " timerlog/ is empty"
    )


def _levels_to_carry(settings: Settings, pending: Pending) -> str:
    strange = _strange_levels(settings, pending)
    return f"{strange}: set it as the RocketMQ had it" if strange else ""


def require_levels(settings: Settings, pending: Pending) -> None:
    """What waits must do so in levels that the RocketMQ to come has (HO-10).

    It starts no task for others, so it never delivers what is there. Raises Incompatible.
    """
    strange = _strange_levels(settings, pending)
    if strange:
        raise Incompatible(
            f"nothing was handed over: {strange} ({settings.message_delay_level}), and a RocketMQ"
            " with it never delivers them: hand over with --set message_delay_level=... that has"
            " these levels, and give it to the RocketMQ, or start GantryMQ and let it deliver them"
            " first",
            setting="message_delay_level",
        )


def _strange_levels(settings: Settings, pending: Pending) -> str:
    known = len(parse_delay_levels(settings.message_delay_level))
    strange = {
        queue_id + 1: len(records)
        for queue_id, records in pending.waiting(SCHEDULE_TOPIC)
        if len(records) and queue_id >= known
    }
    if not strange:
        return ""
    told = ", ".join(f"{level} ({count} messages)" for level, count in strange.items())
    return f"delay levels {told} are not in message_delay_level"
