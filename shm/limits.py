"""How many and how big. Relations between the numbers are asserted below with their reasons."""

from __future__ import annotations

from typing import Final

BODY_BYTES_MAX: Final = 4 * 1024 * 1024  # SF-18, setting max_message_size
RECORD_OVERHEAD_BYTES_MAX: Final = 65_536  # SF-18
PROPERTIES_BYTES_MAX: Final = 32_767  # SF-18, trailer included
TOPIC_BYTES_MAX: Final = 127  # SF-35, CQ-100
RETRY_TOPIC_BYTES_MAX: Final = 255  # SF-36
GROUP_BYTES_MAX: Final = 120  # CQ-100
QUEUES_PER_TOPIC_MAX: Final = 1024
UNIQ_KEY_PROPERTY_BYTES: Final = 42  # "UNIQ_KEY" 01 32 hex digits 02
TRAILER_BYTES: Final = 20  # SF-22
FILLER_BYTES_MIN: Final = 8  # SF-20

DELIVERIES_MAX: Final = 0xFFFF  # of one message that are counted, as the ledger has them
DELIVER_MS_MAX: Final = 253_402_300_799_999  # the last millisecond of the year 9999, UTC
#: Of a retry, and of a delay level: 1,000 years, which with now is still before 9999.
RETRY_AFTER_MAX_MS: Final = 1_000 * 365 * 86_400_000
#: How late delivered messages were is counted by these bounds, in ms, and beyond the last.
LATENESS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 60_000)
DELAY_LEVELS_MIN: Final = 18  # queues of SCHEDULE_TOPIC_XXXX, whatever message_delay_level says

TOPICS_MAX: Final = 4096
BOARD_QUEUES_MAX: Final = 65_536
GROUPS_MAX: Final = 16_384
ROUTES_MAX: Final = 1024
ROUTE_BLOCK_BYTES_MAX: Final = 240
INTEREST_MAX: Final = 1024  # queues a session can wait for by name; more = wake for any
PROGRESS_MAX: Final = 1024  # queues whose offsets are words of the arena; those of more are told
PROGRESS_WINDOW: Final = 512  # messages from `committed` on that have a bit each in `acked`

WRITER_UP_BYTES: Final = 1 << 20
WRITER_UP_BYTES_MAX: Final = 1 << 26  # of a producer that has sent what needs more
WRITER_DOWN_BYTES: Final = 1 << 19
GROUPS_UP_BYTES: Final = 1 << 16
GROUPS_DOWN_BYTES: Final = 1 << 16
SCHEDULER_RING_BYTES: Final = 1 << 12  # either direction
TRANSACTION_RING_BYTES: Final = 1 << 16  # either direction; half of it holds a burst of ENDs

STAGING_BYTES: Final = 6 * 1024 * 1024  # a largest record and then some
DRAIN_BYTES: Final = 256 * 1024  # staging filled beyond this ends a batch
#: The reader takes so many records at one time; more the more queues they touch, so that each has
#: a write of some KiB, as far as there is room.
DISPATCH_RECORDS: Final = 65_536
DISPATCH_RECORDS_PER_QUEUE: Final = 256
DISPATCH_RECORDS_MAX: Final = 262_144
#: Work of filters, bytes looked at and steps, a nanosecond or less each, that the reader does at
#: one time: for the bits of new messages, and for those of older ones that a late filter gets.
EXTEND_WORK: Final = 8 << 20
CATCH_UP_WORK: Final = 1 << 20
#: The indexer takes so many records at one time, 100 to 200 us, and writes what it has gathered
#: after so long: the later, the more entries share a page of slots.
INDEX_RECORDS: Final = 1024
INDEX_INTERVAL_NS: Final = 500_000_000
NAP_NS: Final = 200_000
#: The reader naps so many times as long as its last cycle took, where that is longer: a cycle costs
#: others their turn on a processor, and costs hardly more for twice the records.
NAP_CYCLES: Final = 8
#: An agent naps after so many records in a cycle, or after cycles with work so close together.
NAP_RECORDS: Final = 8
NAP_WITHIN_NS: Final = 400_000
FLOOD_RECORDS: Final = 64
FLOOD_NAP_NS: Final = 1_000_000
#: Beside a reader that is late with the log by so much, a lane has so many bytes of it in a cycle,
#: and a cycle is followed by a nap: about 16 MB/s each.
READER_LATE_NS: Final = 10_000_000
SHARE_BYTES: Final = 16_384
FLUSH_INTERVAL_NS: Final = 100_000_000
SPIN_ROUNDS: Final = 4_000
SPIN_DURABLE_ROUNDS: Final = 8_000  # a sync of the log takes a few hundred microseconds

#: The broker writes these in SF-29's place: no client may set them (SF-30).
RESERVED_KEYS: Final = frozenset(
    """KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET
    BUYER_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG ORIGIN_MESSAGE_ID RECONSUME_TIME
    MAX_RECONSUME_TIMES MSG_REGION TRACE_ON CLUSTER UNIQ_KEY EXTEND_UNIQ_INFO CONSUME_START_TIME
    INNER_NUM INNER_BASE DUP_INFO CHECK_IMMUNITY_TIME_IN_SECONDS TRAN_PREPARED_QUEUE_OFFSET
    __transactionId__ TRANSACTION_CHECK_TIMES INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL
    ARRIVE_TIME PUSH_REPLY_TIME MSG_TYPE POP_CK POP_CK_OFFSET 1ST_POP_TIME __SHARDINGKEY
    PROPERTY_FORWARD_QUEUE_ID REDIRECT INNER_MULTI_DISPATCH INNER_MULTI_QUEUE_OFFSET TRACE_CONTEXT
    TIMER_DELAY_SEC TIMER_DELAY_MS TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS
    TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP
    __CRC32# DLQ_REASON DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID _SYS_MSG_PRIORITY_ ORIGIN_GROUP
    TIMER_ROLL_LABEL TRANS_OFFSET GANTRY_TX GANTRY_TX_DELAY""".split()  # noqa: SIM905 - 60 names read best as text
)

#: Of these the clients' ends write tag, keys and message group.
CLIENTS_KEYS: Final = frozenset({"TAGS", "KEYS", "__SHARDINGKEY"})

# A drained batch may end just short of DRAIN_BYTES and then take one largest record.
assert STAGING_BYTES >= DRAIN_BYTES + BODY_BYTES_MAX + RECORD_OVERHEAD_BYTES_MAX
# Ring cursors are masked.
_RINGS: Final = (
    WRITER_UP_BYTES, WRITER_DOWN_BYTES, GROUPS_UP_BYTES, GROUPS_DOWN_BYTES, SCHEDULER_RING_BYTES,
    TRANSACTION_RING_BYTES,
)  # fmt: skip
assert all(n & (n - 1) == 0 for n in _RINGS)
