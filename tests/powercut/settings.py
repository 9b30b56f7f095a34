"""What the broker at work and the judge of a crash state agree upon."""

from __future__ import annotations

from gantrymq.shm import layout

#: Topics: two of the usual kind, durable and written; one of type BatchCQ; one had in its order.
SAFE, PLAIN, BULK, TILLS = "payments", "orders", "parcels", "tills"
#: Groups: a push consumer's, a pull consumer's, an orderly push consumer's; who has which topics.
BILLING, AUDIT, CASHIER = "billing", "audit", "cashier"
READ_BY = {BILLING: (SAFE,), AUDIT: (SAFE, PLAIN, BULK), CASHIER: (TILLS,)}
#: Lives of the broker in a recording: a kill -9 parts them.
LIVES = 2
BATCH_FILE_BYTES = 20 * layout.BATCH_CQ_UNIT.size
#: Every so many messages of a producer fail once, or for ever.
FAILS_EVERY, DLQ_EVERY = 5, 17
MAX_ATTEMPTS = 3
RETRY_S = 0.05
PRODUCERS = 3
#: The year 2199: never due here.
FAR_MS = 7_230_000_000_000


def settings_of(profile: str) -> dict[str, object]:
    """Settings of every life on a store: a segment takes a second of work."""
    return {
        "profile": profile,
        "mapped_file_size_commit_log": 1 << 16,
        "mapped_file_size_consume_queue": 2000,
        "max_hash_slot_num": 500,
        "max_index_num": 1000,
        "topics_max": 256,
        "board_queues_max": 1024,
        "flush_interval_commit_log": 50,
        "message_delay_level": "1s 2s",
        "file_reserved_time": 300,
        "delete_when": ";".join(map(str, range(24))),
        "disk_space_clean_forcibly_ratio": 100,
        "disk_space_warning_level_ratio": 100,
        "log_level": "info",
    }
