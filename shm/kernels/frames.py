"""Private words of agents and clients that their kernels read and move: indexes into int64 arrays.

Not shared memory: each array belongs to one process. They keep what must not be believed from an
arena (cursors above all) and let a kernel take a handful of parameters.
"""

from __future__ import annotations

from typing import Final

# A lane end, at the agent or at the client (LANE_WORDS).
CONTROL: Final = 0  # where the lane's words are in the arena
UP: Final = 1  # where the up ring is
UP_MASK: Final = 2  # its size - 1
DOWN: Final = 3
DOWN_MASK: Final = 4
UP_CURSOR: Final = 5  # own end of the up ring: the client's tail, the agent's head
UP_SEEN: Final = 6  # the other's end when last looked
DOWN_CURSOR: Final = 7  # own end of the down ring: the agent's tail, the client's head
DOWN_SEEN: Final = 8
SEQ: Final = 9  # client: last seq put; agent: last seq in the log
RING: Final = 10  # 1: the last call wants the peer's bell rung
COMPLETED: Final = 11  # client: last seq with a completion; agent: not used
DONE: Final = 12  # agent: entries taken so far
BLOCKED: Final = 13  # agent: 1 while the down ring has no room
BAD: Final = 14  # client: refusals among the completions last taken
SILENT: Final = 15  # agent: 1 once the session is over: nothing goes into its down ring any more
KNOWN_FROM: Final = 16  # agent: a seq from here on that is in no stored row was never stored; or 0
LEFT: Final = 17  # client: members of the batch at DOWN_CURSOR whose completions are not taken
LANE_WORDS: Final = 24

# Behind them, a lane of the writer (WRITER_LANE_WORDS). `_AT`: addresses of arrays that its Lane
# holds, so that one kernel call goes through all lanes.
ARENA_AT: Final = 24
ROUTES_AT: Final = 25
ROUTES_LENGTH: Final = 26  # words
BLOCKS_AT: Final = 27
IDENTITY_AT: Final = 28
STORED_AT: Final = 29
STORED_ROWS: Final = 30
MAY_APPEND: Final = 31  # 1: a session of the broker's own
HOT: Final = 32  # 1: its ring is looked at in each cycle
OVER: Final = 33  # 1: nothing more is taken from it
DRAINED: Final = 34  # 1: entries of it are in the batch
RESUMED_SEQ: Final = 35  # last seq in the log when the lane was taken over
TOLD_SEQ: Final = 36  # last seq that was answered, and when; 0 once the table of producers has it
TOLD_MS: Final = 37
REFUSED_SEQ: Final = 38  # the last seq that was not stored, of an agent
OWES: Final = 39  # bytes of the log that it has had beyond its share (SHARE)
WRITER_LANE_WORDS: Final = 40

# A batch of the writer (BATCH_WORDS).
FILLED: Final = 0  # bytes in staging
POSITION: Final = 1  # log position of staging's first byte
SEGMENT_END: Final = 2  # log position behind the active segment
SEGMENT_BYTES: Final = 3
STORE_MS: Final = 4  # storeTimestamp of this batch
RECORDS: Final = 5  # records in staging
REFUSED: Final = 6  # entries refused
WANTED: Final = 7  # highest end of a record that somebody waits for to be durable
STAGING_LIMIT: Final = 8  # a batch ends when FILLED passes this
BODY_MAX: Final = 9  # setting max_message_size
REFUSE: Final = 10  # a Status with which all entries are refused, or 0
QUEUES_AT: Final = 11  # where the board's queue table is
TAKEN_LIMIT: Final = 12  # entries of one lane per call
STAGING_BYTES: Final = 13  # set by the kernel from its arguments and the lane, as the next three
ROUTES_SIZE: Final = 14
STORED_COUNT: Final = 15
INTERNAL: Final = 16  # 1: this session may APPEND
FLAGS_SEEN: Final = 17  # flags of the entries taken, ored together
CYCLE_BEGINS: Final = 18  # 1: set by the caller once for each duty cycle
WOKEN: Final = 19  # 1: lanes announce a sleep that is over
TAKEN: Final = 20  # entries taken in this cycle
MORE: Final = 21  # 1: a lane has more than this cycle takes
AT_LANE: Final = 22  # number of the lane that a stop or a step is about
DRAINED_LANES: Final = 23  # lanes with entries in the batch
STAGE: Final = 24  # how far the telling of a batch has come (complete.py)
NEXT_LANE: Final = 25  # where it goes on
STEPWISE: Final = 26  # 1: return after each step of it
CLOSING: Final = 27  # 1: the batch ends with a filler, and the log with the segment
HELD: Final = 28  # 1: `settled` does not follow `appended`: its owner stores it
OWED: Final = 29  # codes.Owed so far
RINGING: Final = 30  # clients to ring: numbers of their lanes stand behind the table's addresses
PROCESS_AT: Final = 31  # where the writer's process slot is on the board; its counters:
CYCLES: Final = 32
BUSY: Final = 33
WORK: Final = 34
REFUSED_EVER: Final = 35
BYTES_EVER: Final = 36
FAULTS: Final = 37
BUSY_CYCLE: Final = 38  # the last cycle that BUSY counts
SCHEDULE_TOPIC: Final = 39  # topic slots where messages wait for their time, -1: there is none
TIMER_TOPIC: Final = 40
DELAY_LEVELS: Final = 41  # how many levels there are
TIMER_PRECISION_MS: Final = 42
HALF_TOPIC: Final = 43
LISTENERS_AT: Final = 44  # address of the listeners, LISTENER_WORDS each
LISTENERS: Final = 45  # how many there are
TELLS: Final = 46  # pairs of session and serial, from TELLS_AT on: to be told once all is appended
TELLS_AT: Final = 48
TELLS_MAX: Final = 8
SHARE: Final = TELLS_AT + 2 * TELLS_MAX  # bytes of the log for each lane in a cycle; 0: no matter
BATCH_WORDS: Final = SHARE + 1

# A session that asks the txn-checker for decisions, as the writer tells it of them.
LISTENER_SESSION: Final = 0
LISTENER_ARENA: Final = 1  # address
LISTENER_ASLEEP: Final = 2  # 1: to be rung
LISTENER_WORDS: Final = 3

# The writer's copy of a session's routes: ROUTE_WORDS per route.
ROUTE_TOPIC: Final = 0  # topic slot; ROUTE_UNKNOWN, ROUTE_REFUSED
ROUTE_BLOCK_AT: Final = 1  # where its properties are in the block bytes
ROUTE_BLOCK_LENGTH: Final = 2
ROUTE_TURN: Final = 3  # counts sends without a queue id
ROUTE_WORDS: Final = 4
ROUTE_UNKNOWN: Final = -1
ROUTE_REFUSED: Final = -2

# A record known from the log, for an entry that was appended before a restart: STORED_WORDS each.
STORED_SEQ: Final = 0
STORED_QUEUE: Final = 1
STORED_OFFSET: Final = 2
STORED_POSITION: Final = 3
STORED_END: Final = 4
STORED_MS: Final = 5
STORED_WORDS: Final = 6

# The writer's bytes of a session: what stands in front of the seq, and the hosts.
IDENTITY_PREFIX: Final = 0  # "UNIQ_KEY" 01 and 20 hex digits
IDENTITY_PREFIX_BYTES: Final = 29
IDENTITY_BORN_HOST: Final = 32  # 8 bytes
IDENTITY_STORE_HOST: Final = 40  # 8 bytes
IDENTITY_BYTES: Final = 48

# What the client drains of its completions: COMPLETION_WORDS each.
OUT_SEQ: Final = 0
OUT_STATUS: Final = 1
OUT_QUEUE: Final = 2
OUT_OFFSET: Final = 3
OUT_POSITION: Final = 4
OUT_END: Final = 5
OUT_MS: Final = 6
OUT_FLAGS: Final = 7  # RECEIPT if the entry had it
COMPLETION_WORDS: Final = 8
