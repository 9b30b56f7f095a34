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
INTERNAL: Final = 12  # 1: this session may APPEND
TAKEN_LIMIT: Final = 13  # entries of one lane per call
STAGING_BYTES: Final = 14  # set by the kernel from its arguments, as the next two
ROUTES_SIZE: Final = 15
STORED_COUNT: Final = 16
FLAGS_SEEN: Final = 17  # flags of the entries taken, ored together
BATCH_WORDS: Final = 24

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
