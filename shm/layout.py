"""Where every byte is: shared memory first, then the files of the store.

The only file that spells a layout. Tables below, plain `int` offsets of the words that kernels
touch behind them (numba freezes module-level ints). docs/layout.md is made from these tables.
Nothing here imports numpy or numba.
"""

from __future__ import annotations

from typing import Final

from gantrymq.shm import limits
from gantrymq.shm.structs import LINE_BYTES, Field, Struct, fingerprint

# ---------------------------------------------------------------------------------- ring entries

ENTRY: Final = Struct(
    "ring_entry",
    48,
    (
        Field("length", "u4", "bytes of the entry, header and padding to 8 included"),
        Field("kind", "u2", "codes.EntryKind"),
        Field("flags", "u2", "codes.EntryFlag"),
        Field("seq", "u8", "dense per producer, from 1"),
        Field("born_ms", "i8", "client's wall clock, Unix ms"),
        Field("route", "u4", "number of a ready slot of the route table"),
        Field("queue", "i4", "queue id, or -1: the writer takes the topic's queues in turn"),
        Field("body_bytes", "u4", "the body follows the header"),
        Field("extra_bytes", "u4", "properties in SF-27's form follow the body"),
        Field("app_flag", "i4", "RocketMQ's `flag`, opaque"),
        Field("batch", "u4", "with flag BATCH: members from this one to the last; else 0"),
    ),
    note="An entry never wraps: a PAD entry (its first 8 bytes) fills the rest of the ring.",
)
ENTRY_BYTES: Final = ENTRY.size
ENTRY_KIND: Final = ENTRY.offset("kind")
ENTRY_FLAGS: Final = ENTRY.offset("flags")
ENTRY_SEQ: Final = ENTRY.offset("seq")
ENTRY_BORN: Final = ENTRY.offset("born_ms")
ENTRY_ROUTE: Final = ENTRY.offset("route")
ENTRY_QUEUE: Final = ENTRY.offset("queue")
ENTRY_BODY: Final = ENTRY.offset("body_bytes")
ENTRY_EXTRA: Final = ENTRY.offset("extra_bytes")
ENTRY_APP_FLAG: Final = ENTRY.offset("app_flag")
ENTRY_BATCH: Final = ENTRY.offset("batch")
PAD_BYTES_MIN: Final = 8

APPEND: Final = Struct(
    "append_extension",
    56,
    (
        Field("sys_flag", "i4", "SF-25's bits; IPv6 bits say how long the hosts are"),
        Field("reconsume_times", "i4", ""),
        Field("prepared_offset", "i8", "RocketMQ's preparedTransactionOffset, or -1 - origin"),
        Field("born_host", 20, "address and port as stored; 8 or 20 bytes count"),
        Field("store_host", 20, "likewise"),
    ),
    note="Between header and body of an APPEND entry. Its extras are the whole property string.",
)
APPEND_BYTES: Final = APPEND.size
APPEND_SYS_FLAG: Final = APPEND.offset("sys_flag")
APPEND_RECONSUME: Final = APPEND.offset("reconsume_times")
APPEND_PREPARED: Final = APPEND.offset("prepared_offset")
APPEND_BORN_HOST: Final = APPEND.offset("born_host")
APPEND_STORE_HOST: Final = APPEND.offset("store_host")

TELL: Final = Struct(
    "tell_extension",
    24,
    (
        Field("session", "u8", "of a client with a transactions lane"),
        Field("serial", "u8", "of its END, of which this entry is the last record"),
        Field("since", "u8", "seq of the first entry that belongs to it"),
    ),
    note="The last bytes of an APPEND entry with flag TELL. Once all from `since` on is in the log"
    " the writer stores `serial` in that session's `told`. A hint: the txn-checker answers, too.",
)
TELL_BYTES: Final = TELL.size
TELL_SESSION: Final = TELL.offset("session")
TELL_SERIAL: Final = TELL.offset("serial")
TELL_SINCE: Final = TELL.offset("since")

PARK: Final = Struct(
    "park_extension",
    16,
    (
        Field("mode", "u4", "codes.ParkMode"),
        Field("reserved", "u4", "0"),
        Field(
            "value", "i8", "level, Unix ms, or ms from the time at which it is stored; of HALF 0"
        ),
    ),
    note="Between header and body of a PARK entry, whose route and queue are those of delivery.",
)
PARK_BYTES: Final = PARK.size
PARK_MODE: Final = PARK.offset("mode")
PARK_VALUE: Final = PARK.offset("value")

COMPLETION: Final = Struct(
    "completion",
    56,
    (
        Field("length", "u4", "56"),
        Field("kind", "u2", "EntryKind.COMPLETION"),
        Field("flags", "u2", "0"),
        Field("seq", "u8", "of the entry that it answers; rises"),
        Field("queue_offset", "i8", "ordinal in the queue, -1 if refused"),
        Field("position", "i8", "of the record in the log, -1 if refused"),
        Field("end", "i8", "position behind the record: durable when board.durable reaches it"),
        Field("queue", "i4", "queue id; if refused the one that the entry named"),
        Field("status", "u4", "codes.Status"),
        Field("store_ms", "i8", "storeTimestamp; if refused the entry's route"),
    ),
)
COMPLETION_BYTES: Final = COMPLETION.size
COMPLETION_SEQ: Final = COMPLETION.offset("seq")
COMPLETION_QUEUE_OFFSET: Final = COMPLETION.offset("queue_offset")
COMPLETION_POSITION: Final = COMPLETION.offset("position")
COMPLETION_END: Final = COMPLETION.offset("end")
COMPLETION_QUEUE: Final = COMPLETION.offset("queue")
COMPLETION_STATUS: Final = COMPLETION.offset("status")
COMPLETION_STORE_MS: Final = COMPLETION.offset("store_ms")

BATCH_COMPLETION: Final = Struct(
    "batch_completion",
    64,
    (
        Field("length", "u4", "64 and 4 for each member, padding to 8 included"),
        Field("kind", "u2", "EntryKind.BATCH_COMPLETION"),
        Field("flags", "u2", "0"),
        Field("seq", "u8", "of the first member; the others follow each other"),
        Field("queue_offset", "i8", "of the first member; the others follow each other"),
        Field("position", "i8", "of the first record; the others lie side by side"),
        Field("end", "i8", "position behind the last record"),
        Field("queue", "i4", "queue id"),
        Field("status", "u4", "codes.Status, of all"),
        Field("store_ms", "i8", "storeTimestamp"),
        Field("count", "u4", "members"),
        Field("reserved", "u4", "0"),
    ),
    note="A completion with a count; the size of each record follows, a u4 each.",
)
BATCH_COMPLETION_BYTES: Final = BATCH_COMPLETION.size
BATCH_COMPLETION_COUNT: Final = BATCH_COMPLETION.offset("count")

MESSAGE: Final = Struct(
    "control_entry",
    16,
    (
        Field("length", "u4", "bytes, header and padding to 8 included"),
        Field("kind", "u2", "REQUEST or NOTICE"),
        Field("flags", "u2", "0"),
        Field("body_bytes", "u4", "msgpack body follows"),
        Field("reserved", "u4", "0"),
    ),
    note="What sessions and `groups` say to each other: msgpack bodies, shm/groupwire.py.",
)
MESSAGE_BYTES: Final = MESSAGE.size
MESSAGE_BODY: Final = MESSAGE.offset("body_bytes")

# ----------------------------------------------------------------------------------------- arena

LANE: Final = Struct(
    "lane",
    512,
    (
        Field("up_tail", "u8", "next byte to write in the up ring; only grows", "client"),
        Field("pad0", 120, "zero"),
        Field("down_head", "u8", "next byte to read in the down ring; only grows", "client"),
        Field("client_armed", "u4", "ClientState: ring my bell at the next change", "client"),
        Field("pad1", 116, "zero"),
        Field("up_head", "u8", "next byte to read in the up ring; only grows", "agent"),
        Field("agent_state", "u4", "codes.AgentState", "agent"),
        Field("pad2", 116, "zero"),
        Field("down_tail", "u8", "next byte to write in the down ring; only grows", "agent"),
        Field("adopted", "u8", "counts agents that took this lane over, from 1", "agent"),
        Field("last_seq", "u8", "last seq of this producer in the log when adopted", "agent"),
        Field("next_down", "u8", "what down_tail becomes before up_head does", "agent"),
        Field("next_up", "u8", "up_head, once down_tail is next_down", "agent"),
        Field("pad3", 88, "zero"),
    ),
    note="Cursors count bytes since the lane's birth; masked they are ring offsets. After its"
    " writer's death a cursor stays as it is: what lies beyond it was never published.",
)
LANE_BYTES: Final = LANE.size
LANE_UP_TAIL: Final = LANE.offset("up_tail")
LANE_DOWN_HEAD: Final = LANE.offset("down_head")
LANE_CLIENT_ARMED: Final = LANE.offset("client_armed")
LANE_UP_HEAD: Final = LANE.offset("up_head")
LANE_AGENT_STATE: Final = LANE.offset("agent_state")
LANE_DOWN_TAIL: Final = LANE.offset("down_tail")
LANE_ADOPTED: Final = LANE.offset("adopted")
LANE_LAST_SEQ: Final = LANE.offset("last_seq")
LANE_NEXT_DOWN: Final = LANE.offset("next_down")
LANE_NEXT_UP: Final = LANE.offset("next_up")

ARENA: Final = Struct(
    "arena_header",
    640,
    (
        Field("magic", "u8", "ARENA_MAGIC", "supervisor, once"),
        Field("fingerprint", "u8", "of this file", "supervisor, once"),
        Field("epoch", "u8", "life of the broker that made it", "supervisor, once"),
        Field("session", "u8", "session id", "supervisor, once"),
        Field("bytes", "u8", "size of the arena", "supervisor, once"),
        Field("pad0", 88, "zero"),
        Field("wait_armed", "u4", "1: ring when a queue of the interest list grows", "client"),
        Field("wait_pad", "u4", "zero"),
        Field(
            "durable_wanted", "u8", "ring when board.durable reaches this; 0 = nothing", "client"
        ),
        Field("interest_count", "u4", "queues in the list; more than INTEREST_MAX = any", "client"),
        Field("progress_count", "u4", "slots of the progress table that were ever used", "client"),
        Field("pad1", 104, "zero"),
        Field(
            "evicted", "u4", "1: this session is over, nothing here is read any more", "supervisor"
        ),
        Field("pad2", 124, "zero"),
        Field("revoked", "u8", "counts lease notices; checked before each delivery", "groups"),
        Field("pad3", 120, "zero"),
        Field(
            "told",
            64,
            "slots (serial mod 8) of a u8: an END whose decision is in the log",
            "writer",
        ),
        Field("pad4", 64, "zero"),
    ),
    note="One session's memory: header, interest list, progress table, route table, writer lane,"
    " groups lane, scheduler lane, transactions lane, rings.",
)
ARENA_BYTES: Final = ARENA.size
ARENA_WAIT_ARMED: Final = ARENA.offset("wait_armed")
ARENA_DURABLE_WANTED: Final = ARENA.offset("durable_wanted")
ARENA_INTEREST_COUNT: Final = ARENA.offset("interest_count")
ARENA_PROGRESS_COUNT: Final = ARENA.offset("progress_count")
ARENA_EVICTED: Final = ARENA.offset("evicted")
ARENA_REVOKED: Final = ARENA.offset("revoked")
ARENA_TOLD: Final = ARENA.offset("told")
TOLD_MASK: Final = 7  # of its slots
ARENA_MAGIC: Final = 0x6761_6E74_7279_4131  # "gantryA1"

INTEREST_AT: Final = ARENA_BYTES  # u4 board queue numbers
PROGRESS_AT: Final = INTEREST_AT + 4 * limits.INTEREST_MAX

PROGRESS: Final = Struct(
    "progress_slot",
    128,
    (
        Field(
            "lease", "u8", "whose offsets these are; 0: nobody's, or just being changed", "client"
        ),
        Field("queue", "u8", "board queue number", "client"),
        Field("committed", "i8", "next offset to consume; falls only by a seek", "client"),
        Field("started", "i8", "messages below are handed out, or about to be", "client"),
        Field("reserved", 32, "zero"),
        Field(
            "acked", 64, "bit (offset mod 512): done with, for offsets in [committed, started)",
            "client",
        ),
    ),
    note="One for each queue under lease. A message's bit is cleared before `started` passes it; it"
    " stays within 512 of `committed` where bits are used (a consumer that finishes in"
    " order leaves them zero). Read `started`, then bits, then `committed`: what is done with may"
    " look undone for a moment while its client lives, never the other way round. `groups` looks"
    " twice a second at least, when it is rung, and when the session has ended.",
)  # fmt: skip
PROGRESS_BYTES: Final = PROGRESS.size
PROGRESS_LEASE: Final = PROGRESS.offset("lease")
PROGRESS_QUEUE: Final = PROGRESS.offset("queue")
PROGRESS_COMMITTED: Final = PROGRESS.offset("committed")
PROGRESS_STARTED: Final = PROGRESS.offset("started")
PROGRESS_ACKED: Final = PROGRESS.offset("acked")

ROUTES_AT: Final = PROGRESS_AT + PROGRESS_BYTES * limits.PROGRESS_MAX

ROUTE: Final = Struct(
    "route",
    256,
    (
        Field("ready", "u4", "1 once the slot is complete; never changed afterwards", "client"),
        Field("topic", "u4", "number of a topic slot on the board", "client"),
        Field("block_bytes", "u4", "bytes of properties", "client"),
        Field("reserved", "u4", "zero", "client"),
        Field("block", 240, "properties in SF-27's form, a tag for example", "client"),
    ),
    note="The writer copies and checks a slot when it first meets its number, and never looks"
    " again.",
)
ROUTE_BYTES: Final = ROUTE.size
ROUTE_READY: Final = ROUTE.offset("ready")
ROUTE_TOPIC: Final = ROUTE.offset("topic")

WRITER_LANE_AT: Final = ROUTES_AT + ROUTE_BYTES * limits.ROUTES_MAX
GROUPS_LANE_AT: Final = WRITER_LANE_AT + LANE_BYTES
SCHEDULER_LANE_AT: Final = GROUPS_LANE_AT + LANE_BYTES
TRANSACTIONS_LANE_AT: Final = SCHEDULER_LANE_AT + LANE_BYTES
RINGS_AT: Final = TRANSACTIONS_LANE_AT + LANE_BYTES
# Rings follow, up and down of each: writer, groups, scheduler, transactions (shm/arena.py).
assert RINGS_AT % LINE_BYTES == 0

# ----------------------------------------------------------------------------------------- board

BOARD: Final = Struct(
    "board_header",
    2048,
    (
        Field("magic", "u8", "BOARD_MAGIC", "supervisor, once"),
        Field("fingerprint", "u8", "of this file", "supervisor, once"),
        Field("epoch", "u8", "random, with a boot counter in its low 16 bits", "supervisor, once"),
        Field("boot_id", 16, "of the machine's boot", "supervisor, once"),
        Field("topics_max", "u4", "slots of the topic table", "supervisor, once"),
        Field("queues_max", "u4", "slots of the queue table", "supervisor, once"),
        Field("segment_bytes", "u8", "mappedFileSizeCommitLog", "supervisor, once"),
        Field("cq_bytes", "u8", "mappedFileSizeConsumeQueue", "supervisor, once"),
        Field("started_ms", "i8", "wall clock at start", "supervisor, once"),
        Field(
            "recovered_end",
            "i8",
            "log's end as recovery left it: what is behind was appended in this life",
            "supervisor, once",
        ),
        Field(
            "wall_ahead_ns",
            "i8",
            "how far the wall clock was ahead of CLOCK_BOOTTIME at the start; behind lives that"
            " were killed since the machine was booted, at the first one's",
            "supervisor, once",
        ),
        Field("pad0", 40, "zero"),
        Field("state", "u4", "codes.BrokerState", "supervisor; any agent sets FAILED"),
        Field("failed_errno", "u4", "errno behind FAILED; ESTALE: moved", "who failed; supervisor"),
        Field("topic_count", "u4", "topic slots that were ever used; only grows", "supervisor"),
        Field("queue_count", "u4", "queue slots that were ever used; only grows", "supervisor"),
        Field("session_count", "u4", "attached sessions", "supervisor"),
        Field("topic_changes", "u4", "slots of topics that changed; only grows", "supervisor"),
        Field("pad1", 104, "zero"),
        Field("appended", "i8", "log positions below are records; only grows", "writer"),
        Field("store_ms", "i8", "storeTimestamp of the last record", "writer"),
        Field("pad2", 112, "zero"),
        Field("settled", "i8", "below, completions are in the rings too; only grows", "writer"),
        Field("pad3", 120, "zero"),
        Field("durable_wanted", "i8", "somebody waits for this position", "writer"),
        Field("pad4", 120, "zero"),
        Field("durable", "i8", "log positions below survive a power cut; only grows", "flusher"),
        Field("flusher_armed", "u4", "flusher sleeps until durable_wanted > durable", "flusher"),
        Field("pad5", 116, "zero"),
        Field("dispatched", "i8", "log positions below have their units; only grows", "reader"),
        Field(
            "reader_armed", "u4", "reader sleeps: ring it after appended or durable grows", "reader"
        ),
        Field("bitmap_changes", "u4", "counts changes of gantry/bitmaps.json", "reader"),
        Field("pad6", 112, "zero"),
        Field("low", "i8", "log positions below are gone or going; only grows", "retention"),
        Field("disk_full", "u4", "1: usage is above the warning level, sends fail", "retention"),
        Field("disk_used", "u4", "percent of the disk in use, as last seen", "retention"),
        Field(
            "timers_wanted",
            "i8",
            "retention waits until no timer or open half below this position counts",
            "retention",
        ),
        Field("pad7", 104, "zero"),
        Field(
            "indexed",
            "i8",
            "log positions below have their index entries; -1: no index is kept; goes back when the"
            " housekeeper is replaced",
            "housekeeper",
        ),
        Field("pad8", 120, "zero"),
        Field(
            "half_progress",
            "i8",
            "half messages below this queue offset are decided, and that is durable; -1: not known",
            "txn-checker",
        ),
        Field(
            "op_progress", "i8", "op messages below tell of no half at or above it", "txn-checker"
        ),
        Field("open_halves", "u8", "half messages without a decision", "txn-checker"),
        Field("oldest_half_ms", "i8", "storeTimestamp of the oldest; 0: none", "txn-checker"),
        Field("given_up", "u8", "given up and not settled by an operator", "txn-checker"),
        Field(
            "checks_sent", "u8", "checks of transactions, since the broker started", "txn-checker"
        ),
        Field("pad9", 80, "zero"),
        Field("filter_changes", "u4", "counts changes of config/consumerFilter.json", "groups"),
        Field("pad10", 124, "zero"),
        Field("pending_levels", "u8", "records of delay levels that wait", "scheduler"),
        Field(
            "pending_timers",
            "u8",
            "timers that wait; since a start those moved before and, some, twice, until their time",
            "scheduler",
        ),
        Field("delivered", "u8", "parked records delivered, since the broker started", "scheduler"),
        Field("late_sum_ms", "u8", "ms that those with a known time were late", "scheduler"),
        Field("late_max_ms", "u8", "the most of it", "scheduler"),
        Field(
            "late_counts",
            8 * (len(limits.LATENESS_MS) + 1),
            "u8 each: those up to limits.LATENESS_MS[i] late, not in one before; the last: later",
            "scheduler",
        ),
        Field("pad11", 112, "zero"),
        Field("reserved", 384, "zero"),
    ),
)
BOARD_BYTES: Final = BOARD.size
BOARD_RECOVERED_END: Final = BOARD.offset("recovered_end")
BOARD_STATE: Final = BOARD.offset("state")
BOARD_FAILED_ERRNO: Final = BOARD.offset("failed_errno")
BOARD_TOPIC_COUNT: Final = BOARD.offset("topic_count")
BOARD_QUEUE_COUNT: Final = BOARD.offset("queue_count")
BOARD_SESSION_COUNT: Final = BOARD.offset("session_count")
BOARD_TOPIC_CHANGES: Final = BOARD.offset("topic_changes")
BOARD_APPENDED: Final = BOARD.offset("appended")
BOARD_STORE_MS: Final = BOARD.offset("store_ms")
BOARD_SETTLED: Final = BOARD.offset("settled")
BOARD_DURABLE_WANTED: Final = BOARD.offset("durable_wanted")
BOARD_DURABLE: Final = BOARD.offset("durable")
BOARD_FLUSHER_ARMED: Final = BOARD.offset("flusher_armed")
BOARD_DISPATCHED: Final = BOARD.offset("dispatched")
BOARD_READER_ARMED: Final = BOARD.offset("reader_armed")
BOARD_BITMAP_CHANGES: Final = BOARD.offset("bitmap_changes")
BOARD_FILTER_CHANGES: Final = BOARD.offset("filter_changes")
BOARD_LOW: Final = BOARD.offset("low")
BOARD_INDEXED: Final = BOARD.offset("indexed")
BOARD_HALF_PROGRESS: Final = BOARD.offset("half_progress")
BOARD_OP_PROGRESS: Final = BOARD.offset("op_progress")
BOARD_OPEN_HALVES: Final = BOARD.offset("open_halves")
BOARD_OLDEST_HALF_MS: Final = BOARD.offset("oldest_half_ms")
BOARD_GIVEN_UP: Final = BOARD.offset("given_up")
BOARD_CHECKS_SENT: Final = BOARD.offset("checks_sent")
BOARD_PENDING_LEVELS: Final = BOARD.offset("pending_levels")
BOARD_PENDING_TIMERS: Final = BOARD.offset("pending_timers")
BOARD_DELIVERED: Final = BOARD.offset("delivered")
BOARD_LATE_SUM_MS: Final = BOARD.offset("late_sum_ms")
BOARD_LATE_MAX_MS: Final = BOARD.offset("late_max_ms")
BOARD_LATE_COUNTS: Final = BOARD.offset("late_counts")
BOARD_DISK_FULL: Final = BOARD.offset("disk_full")
BOARD_DISK_USED: Final = BOARD.offset("disk_used")
BOARD_TIMERS_WANTED: Final = BOARD.offset("timers_wanted")
BOARD_MAGIC: Final = 0x6761_6E74_7279_4231  # "gantryB1"

PROCESS: Final = Struct(
    "process_slot",
    128,
    (
        Field("pid", "u4", "0: not running", "supervisor"),
        Field("restarts", "u4", "since the broker started", "supervisor"),
        Field("started_ms", "i8", "wall clock", "supervisor"),
        Field("heartbeat", "u8", "counts the agent's duty cycles", "the agent"),
        Field("busy", "u8", "duty cycles that found work", "the agent"),
        Field("work", "u8", "units of work done (records, requests)", "the agent"),
        Field("refused", "u8", "entries or requests refused", "the agent"),
        Field("bytes", "u8", "bytes of records handled", "the agent"),
        Field("faults", "u8", "sessions cut off for breaking a ring's rules", "the agent"),
        Field("stuck", "u8", "messages worked on for longer than consume_timeout", "groups"),
        Field("hand_serial", "u8", "number of the request in hand; 0: of some", "the agent"),
        Field("hand_session", "u8", "whose request is carried out; 0: nobody's", "the agent"),
        Field(
            "suspects",
            36,
            "three times, newest first: session, serial (low bits), deaths; each u4",
            "the agent",
        ),
        Field("pad", 4, "zero"),
    ),
    note="What an agent has in hand when it dies of itself is suspected to be why: its successor"
    " counts it among `suspects`, and sets a request aside that has ended two. A death by SIGKILL"
    " is nobody's fault: the supervisor clears `hand_session` then.",
)
PROCESSES_MAX: Final = 16
PROCESSES_AT: Final = BOARD_BYTES
PROCESS_BYTES: Final = PROCESS.size
PROCESS_HEARTBEAT: Final = PROCESS.offset("heartbeat")
PROCESS_BUSY: Final = PROCESS.offset("busy")
PROCESS_WORK: Final = PROCESS.offset("work")
PROCESS_REFUSED: Final = PROCESS.offset("refused")
PROCESS_COUNTED_BYTES: Final = PROCESS.offset("bytes")
PROCESS_FAULTS: Final = PROCESS.offset("faults")
PROCESS_HAND_SERIAL: Final = PROCESS.offset("hand_serial")
PROCESS_HAND_SESSION: Final = PROCESS.offset("hand_session")
PROCESS_SUSPECTS: Final = PROCESS.offset("suspects")

TOPIC: Final = Struct(
    "topic_slot",
    320,
    (
        Field("ready", "u4", "1 once the slot is complete", "supervisor"),
        Field("queue_base", "u4", "its first slot in the queue table", "supervisor"),
        Field("queue_count", "u4", "queues that exist", "supervisor"),
        Field("write_queues", "u4", "queues that sends without a queue id go to", "supervisor"),
        Field("level", "u4", "codes.Level", "supervisor"),
        Field("perm", "u4", "CQ-103", "supervisor"),
        Field("name_bytes", "u4", "length of the name", "supervisor"),
        Field(
            "system",
            "u4",
            "1: clients may not send to it; DELETED: it was deleted, and its records may be in the"
            " log; LEAVING: agents, too, put nothing into it any more",
            "supervisor",
        ),
        Field(
            "made", "u4", "another number: the name was deleted and is another topic", "supervisor"
        ),
        Field("reserved", 28, "zero"),
        Field("name", 256, "UTF-8", "supervisor"),
    ),
)
LEAVING: Final = 2
DELETED: Final = 3
TOPICS_AT: Final = PROCESSES_AT + PROCESSES_MAX * PROCESS_BYTES
TOPIC_BYTES: Final = TOPIC.size
TOPIC_READY: Final = TOPIC.offset("ready")
TOPIC_QUEUE_BASE: Final = TOPIC.offset("queue_base")
TOPIC_QUEUE_COUNT: Final = TOPIC.offset("queue_count")
TOPIC_WRITE_QUEUES: Final = TOPIC.offset("write_queues")
TOPIC_LEVEL: Final = TOPIC.offset("level")
TOPIC_PERM: Final = TOPIC.offset("perm")
TOPIC_NAME_BYTES: Final = TOPIC.offset("name_bytes")
TOPIC_SYSTEM: Final = TOPIC.offset("system")
TOPIC_MADE: Final = TOPIC.offset("made")
TOPIC_NAME: Final = TOPIC.offset("name")

QUEUE: Final = Struct(
    "queue_slot",
    256,
    (
        Field("max_offset", "i8", "consumers may read units below; only grows", "reader"),
        Field("written", "i8", "units in the ConsumeQueue files; only grows", "reader"),
        Field("min_offset", "i8", "first unit that consumers may read", "supervisor"),
        Field("topic", "u4", "topic slot", "supervisor, once"),
        Field("queue_id", "u4", "", "supervisor, once"),
        Field(
            "recovered_end",
            "i8",
            "queue offset behind its last record as recovery left the log; 0: made since",
            "supervisor, once",
        ),
        Field(
            "starts",
            "i8",
            "log position of its first record; those below are of a topic that is gone",
            "supervisor, once",
        ),
        Field("pad0", 80, "zero"),
        Field("next_offset", "i8", "queue offset of the next record", "writer"),
        Field("pad1", 120, "zero"),
    ),
)
QUEUE_BYTES: Final = QUEUE.size
QUEUE_MAX_OFFSET: Final = QUEUE.offset("max_offset")
QUEUE_WRITTEN: Final = QUEUE.offset("written")
QUEUE_MIN_OFFSET: Final = QUEUE.offset("min_offset")
QUEUE_TOPIC: Final = QUEUE.offset("topic")
QUEUE_ID: Final = QUEUE.offset("queue_id")
QUEUE_RECOVERED_END: Final = QUEUE.offset("recovered_end")
QUEUE_STARTS: Final = QUEUE.offset("starts")
QUEUE_NEXT_OFFSET: Final = QUEUE.offset("next_offset")


def queues_at(topics_max: int) -> int:
    """Where the queue table starts on a board with that many topic slots."""
    return TOPICS_AT + topics_max * TOPIC_BYTES


def board_bytes(topics_max: int, queues_max: int) -> int:
    """Size of a board."""
    return queues_at(topics_max) + queues_max * QUEUE_BYTES


# ------------------------------------------------------------------------- store: RocketMQ's files

RECORD: Final = Struct(
    "record_head",
    88,
    (
        Field("total_size", "i4", "whole record, itself included"),
        Field("magic", "u4", "RECORD_MAGIC_V1 or _V2"),
        Field("body_crc", "u4", "SF-5"),
        Field("queue_id", "i4", ""),
        Field("flag", "i4", "the application's"),
        Field("queue_offset", "i8", "0 for prepared and rollback records"),
        Field("physical_offset", "i8", "of this record's first byte"),
        Field("sys_flag", "i4", "spec section 3.3"),
        Field("born_timestamp", "i8", "Unix ms"),
        Field("born_host", 8, "IPv4 address and i32 port; 12 bytes longer with IPv6"),
        Field("store_timestamp", "i8", "Unix ms"),
        Field("store_host", 8, "likewise"),
        Field("reconsume_times", "i4", ""),
        Field("prepared_transaction_offset", "i8", "half's position, or -1 - origin"),
        Field(
            "body_length", "i4", "body, topic length and topic, properties length and all follow"
        ),
    ),
    order=">",
    note="Offsets hold for two IPv4 hosts (SF-16).",
)
RECORD_HEAD_BYTES: Final = RECORD.size
RECORD_MAGIC: Final = RECORD.offset("magic")
RECORD_BODY_CRC: Final = RECORD.offset("body_crc")
RECORD_QUEUE_ID: Final = RECORD.offset("queue_id")
RECORD_FLAG: Final = RECORD.offset("flag")
RECORD_QUEUE_OFFSET: Final = RECORD.offset("queue_offset")
RECORD_PHYSICAL_OFFSET: Final = RECORD.offset("physical_offset")
RECORD_SYS_FLAG: Final = RECORD.offset("sys_flag")
RECORD_BORN_MS: Final = RECORD.offset("born_timestamp")
RECORD_BORN_HOST: Final = RECORD.offset("born_host")
RECORD_STORE_MS: Final = RECORD.offset("store_timestamp")
RECORD_STORE_HOST: Final = RECORD.offset("store_host")
RECORD_RECONSUME: Final = RECORD.offset("reconsume_times")
RECORD_PREPARED: Final = RECORD.offset("prepared_transaction_offset")
RECORD_BODY_LENGTH: Final = RECORD.offset("body_length")
HOST_BYTES_V4: Final = 8
HOST_BYTES_V6: Final = 20
RECORD_MAGIC_V1: Final = 0xDAA320A7
RECORD_MAGIC_V2: Final = 0xDAA320AB
FILLER_MAGIC: Final = 0xCBD43194
RECORD_BYTES_MIN: Final = 91  # SF-16 with empty body, topic and properties

SYS_COMPRESSED: Final = 0x1
#: Both are set where a body is messages, one behind the other (RD-70).
SYS_INNER_BATCH: Final = 0x40 | 0x80
SYS_BORN_V6: Final = 0x10
SYS_STORE_V6: Final = 0x20
SYS_TRANSACTION: Final = 0xC
SYS_PREPARED: Final = 0x4
SYS_COMMIT: Final = 0x8
SYS_ROLLBACK: Final = 0xC

FILLER: Final = Struct(
    "filler",
    8,
    (
        Field("size", "i4", "bytes left in the file, these included"),
        Field("magic", "u4", "FILLER_MAGIC"),
    ),
    order=">",
)

CQ_UNIT: Final = Struct(
    "consume_queue_unit",
    20,
    (
        Field("physical_offset", "i8", ""),
        Field("size", "i4", "of the record"),
        Field(
            "tags_code", "i8", "Java hash of TAGS (SF-62), a delivery time (SF-63), or an address"
        ),
    ),
    order=">",
)
CQ_UNIT_BYTES: Final = CQ_UNIT.size
CQ_POSITION: Final = CQ_UNIT.offset("physical_offset")
CQ_SIZE: Final = CQ_UNIT.offset("size")
CQ_TAGS: Final = CQ_UNIT.offset("tags_code")
CQ_FILLER_SIZE: Final = 0x7FFFFFFF  # SF-65

CQ_EXT_UNIT: Final = Struct(
    "consume_queue_ext_unit",
    20,
    (
        Field("size", "i2", "20 + bitmap bytes"),
        Field("tags_code", "i8", ""),
        Field("store_timestamp", "i8", "Unix ms"),
        Field("bitmap_bytes", "i2", "the bitmap follows"),
    ),
    order=">",
)
CQ_EXT_UNIT_BYTES: Final = CQ_EXT_UNIT.size
CQ_EXT_TAGS: Final = CQ_EXT_UNIT.offset("tags_code")
CQ_EXT_STORE_MS: Final = CQ_EXT_UNIT.offset("store_timestamp")
CQ_EXT_BITMAP_BYTES: Final = CQ_EXT_UNIT.offset("bitmap_bytes")
CQ_EXT_BITMAP: Final = CQ_EXT_UNIT.size
CQ_EXT_ADDRESS_BASE: Final = -(1 << 63)  # SF-71
CQ_EXT_ADDRESS_MASK: Final = (1 << 63) - 1  # a unit's tagsCode without it
CQ_EXT_ADDRESS_MAX: Final = -2147483649

BATCH_CQ_UNIT: Final = Struct(
    "batch_consume_queue_unit",
    46,
    (
        Field("physical_offset", "i8", ""),
        Field("size", "i4", ""),
        Field("tags_code", "i8", ""),
        Field("store_timestamp", "i8", "Unix ms"),
        Field("base_offset", "i8", "queue offset of the batch's first message"),
        Field("batch_size", "i2", ""),
        Field("compacted_offset", "i4", "-1: none"),
        Field("reserved", "i4", "0"),
    ),
    order=">",
)

CHECKPOINT: Final = Struct(
    "checkpoint",
    40,
    (
        Field("physic_msg_timestamp", "i8", "Unix ms"),
        Field("logics_msg_timestamp", "i8", "Unix ms"),
        Field("index_msg_timestamp", "i8", "Unix ms"),
        Field("master_flushed_offset", "i8", ""),
        Field("confirm_phy_offset", "i8", ""),
    ),
    order=">",
)
CHECKPOINT_FILE_BYTES: Final = 4096

# -------------------------------------------------------------- store: our own files, gantry/

GANTRY_CHECKPOINT: Final = Struct(
    "gantry_checkpoint",
    128,
    (
        Field("magic", "u8", "GANTRY_CHECKPOINT_MAGIC"),
        Field("serial", "u8", "rises; the valid slot with the higher one counts"),
        Field("boot_id", 16, "of the machine's boot that wrote it"),
        Field("epoch", "u8", "life of the broker"),
        Field("durable", "i8", "log positions below are on the disk"),
        Field("store_ms", "i8", "storeTimestamp of the last durable record"),
        Field("dispatched", "i8", "log positions below have their units"),
        Field("clean", "u4", "1: written by a clean stop"),
        Field("ledger_open", "u4", "1: ... that had no room for the ledger's last entries"),
        Field("reserved", 52, "zero"),
        Field("crc", "u4", "CRC-32 of the bytes before"),
    ),
    order=">",
    note="Three slots, 4096 bytes apart. Two are written in turn and not synced; the third, which"
    " is at a start and with each segment, outlives a power cut that tears both.",
)
GANTRY_CHECKPOINT_MAGIC: Final = 0x6761_6E74_7279_4331
GANTRY_CHECKPOINT_SLOT_BYTES: Final = 4096

SIDECAR: Final = Struct(
    "sidecar_header",
    128,
    (
        Field("magic", "u8", "SIDECAR_MAGIC"),
        Field("version", "u4", "1"),
        Field("records", "u4", "fillers not counted"),
        Field("base", "i8", "position of the segment's first byte"),
        Field("segment_bytes", "i8", ""),
        Field("end", "i8", "position behind the last record"),
        Field("first_ms", "i8", "storeTimestamp of the first record"),
        Field("last_ms", "i8", "storeTimestamp of the last record"),
        Field("topics", "u4", "names in the dictionary"),
        Field("blocks", "u4", "CRCs, one per MiB of the segment"),
        Field("dictionary_bytes", "u4", "u2 length and UTF-8 per name"),
        Field("reserved", 56, "zero"),
        Field("crc", "u4", "CRC-32 of the whole sidecar with this field zero"),
    ),
    order=">",
    note="Then: u4 position of each record in the segment, u2 topic number of each, the dictionary,"
    " u4 CRC-32 of each MiB of the segment.",
)
SIDECAR_MAGIC: Final = 0x6761_6E74_7279_5331
SIDECAR_BLOCK_BYTES: Final = 1 << 20

LEDGER: Final = Struct(
    "ledger_entry",
    48,
    (
        Field("kind", "u2", "codes in workers/groups/ledger.py"),
        Field("attempt", "u2", "deliveries begun"),
        Field("group", "u4", "number given by a GROUP entry"),
        Field("topic", "u4", "number given by a TOPIC entry"),
        Field("queue_id", "u4", ""),
        Field("offset", "i8", "queue offset"),
        Field("value", "i8", "kind's own"),
        Field("session", "u8", "who"),
        Field(
            "name_bytes", "u4", "bytes of a name that follow a GROUP or TOPIC entry, padded to 8"
        ),
        Field("crc", "u4", "CRC-32 of the entry with this field zero, and the name"),
    ),
    order=">",
    note="Append only. At the first bad CRC a torn tail is cut; if entries behind it (SYNCED,"
    " CLOSED) say that it was durable, it is damage.",
)

PRODUCER: Final = Struct(
    "producer_entry",
    32,
    (
        Field("producer", 10, "80 random bits, first half of UNIQ_KEY"),
        Field("reserved", 6, "zero"),
        Field("last_seq", "u8", "last seq in the log"),
        Field("store_ms", "i8", "its storeTimestamp"),
    ),
    order=">",
)
PRODUCERS_HEAD: Final = Struct(
    "producers_header",
    32,
    (
        Field("magic", "u8", "PRODUCERS_MAGIC"),
        Field("position", "i8", "log positions below are covered"),
        Field("count", "u8", "entries that follow"),
        Field("reserved", "u4", "zero"),
        Field("crc", "u4", "CRC-32 of the whole file with this field zero"),
    ),
    order=">",
)
PRODUCERS_MAGIC: Final = 0x6761_6E74_7279_5031

# -------------------------------------------------------------------- store: derived files

TRAILER: Final = Struct(
    "crc_trailer",
    limits.TRAILER_BYTES,
    (
        Field("key", 8, "`__CRC32#`"),
        Field("separator", "u1", "1"),
        Field("digits", 10, "decimal digits of the CRC (SF-5), least significant first"),
        Field("end", "u1", "2"),
    ),
    order=">",
    note="The last bytes of a record's properties (SF-22); the CRC covers all before them (SF-23).",
)
TRAILER_KEY: Final = b"__CRC32#"

INDEX_HEADER: Final = Struct(
    "index_header",
    40,
    (
        Field("begin_timestamp", "i8", "storeTimestamp of the first message, Unix ms"),
        Field("end_timestamp", "i8", "storeTimestamp of the last message, Unix ms"),
        Field("begin_phy_offset", "i8", "position of the first message"),
        Field("end_phy_offset", "i8", "position of the last message"),
        Field("hash_slot_count", "i4", "slots in use"),
        Field("index_count", "i4", "next entry number; starts at 1, 0 means 1"),
    ),
    order=">",
    note="Then maxHashSlotNum slots (i4, newest entry number or 0) and maxIndexNum entries.",
)
INDEX_HEADER_BYTES: Final = INDEX_HEADER.size
INDEX_SLOT_BYTES: Final = 4

INDEX_ENTRY: Final = Struct(
    "index_entry",
    20,
    (
        Field("key_hash", "i4", "SF-78"),
        Field("physical_offset", "i8", ""),
        Field("time_diff", "i4", "seconds since begin_timestamp"),
        Field("prev", "i4", "previous entry number in the slot's chain, 0 = end"),
    ),
    order=">",
)
INDEX_ENTRY_BYTES: Final = INDEX_ENTRY.size
INDEX_POSITION: Final = INDEX_ENTRY.offset("physical_offset")
INDEX_TIME: Final = INDEX_ENTRY.offset("time_diff")
INDEX_PREV: Final = INDEX_ENTRY.offset("prev")

TIMER_CHECKPOINT: Final = Struct(
    "timer_checkpoint",
    56,
    (
        Field("last_read_time_ms", "i8", ""),
        Field("last_timer_log_flush_pos", "i8", ""),
        Field("last_timer_queue_offset", "i8", ""),
        Field("master_timer_queue_offset", "i8", ""),
        Field("state_version", "i8", ""),
        Field("timestamp", "i8", ""),
        Field("counter", "i8", ""),
    ),
    order=">",
)

TIMER_LOG_UNIT: Final = Struct(
    "timer_log_unit",
    52,
    (
        Field("size", "i4", "52"),
        Field("prev", "i8", "position of the slot's previous unit, -1: none"),
        Field("magic", "i4", "1, + 2 rolled, + 4 delete"),
        Field("write_time", "i8", "Unix ms"),
        Field("delay", "i4", "slot time - write time, ms"),
        Field("physical_offset", "i8", "of the parked record"),
        Field("record_size", "i4", ""),
        Field("topic_hash", "i4", "Java hash of REAL_TOPIC"),
        Field("reserved", "i8", "0"),
    ),
    order=">",
)

TIMER_LOG_END: Final = Struct(
    "timer_log_end",
    16,
    (
        Field("size", "i4", "bytes left in the file, these included"),
        Field("zero", "i8", "0"),
        Field("magic", "u4", "FILLER_MAGIC"),
    ),
    order=">",
)

TIMER_SLOT: Final = Struct(
    "timer_slot",
    32,
    (
        Field("time", "i8", "in units of the precision"),
        Field("first_pos", "i8", "timer-log position of the slot's first unit"),
        Field("last_pos", "i8", "and of its last"),
        Field("num", "i4", "units in the slot"),
        Field("magic", "i4", ""),
    ),
    order=">",
)

# -------------------------------------------------------------------------------------- all tables

SHARED: Final = (
    ENTRY, APPEND, TELL, PARK, COMPLETION, BATCH_COMPLETION, MESSAGE, LANE, ARENA, PROGRESS, ROUTE,
    BOARD, PROCESS, TOPIC, QUEUE,
)  # fmt: skip
STORE: Final = (
    RECORD, FILLER, CQ_UNIT, CQ_EXT_UNIT, BATCH_CQ_UNIT, CHECKPOINT,
    GANTRY_CHECKPOINT, SIDECAR, LEDGER, PRODUCERS_HEAD, PRODUCER,
    TRAILER, INDEX_HEADER, INDEX_ENTRY, TIMER_CHECKPOINT, TIMER_LOG_UNIT, TIMER_LOG_END, TIMER_SLOT,
)  # fmt: skip

#: Attaching to an arena or board with another fingerprint is refused.
FINGERPRINT: Final = fingerprint(
    SHARED,
    {
        "routes_at": ROUTES_AT,
        "rings_at": RINGS_AT,
        "topics_at": TOPICS_AT,
        "frames": 2,  # another number where a frame of shm/wire.py gets another meaning
    },
)


def markdown() -> str:
    """docs/layout.md."""
    parts = [
        "# Layouts\n\nMade from shm/layout.py by"
        " `python -m gantrymq.shm.layout > docs/layout.md`.\n"
    ]
    parts.append("## Shared memory\n")
    parts += [table.markdown() for table in SHARED]
    parts.append("## Files\n")
    parts += [table.markdown() for table in STORE]
    return "\n".join(parts)


if __name__ == "__main__":
    print(markdown(), end="")
