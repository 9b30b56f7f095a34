"""Everything that is stored or exchanged as a number.

Values are never reused: add below the last one.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag


class EntryKind(IntEnum):
    """What an entry of a ring is."""

    PAD = 0  # the rest of the ring before the wrap
    SEND = 1  # a client's message; the writer makes its properties from route, seq and extras
    APPEND = 2  # a broker agent's record with all fields given (delays, retries, golden tests)
    COMPLETION = 3
    REQUEST = 4  # session -> groups, body is a control message
    NOTICE = 5  # groups -> session
    BATCH_COMPLETION = 6  # of all members of a batch that is stored
    PARK = 7  # a client's message for later: SEND with an extension that says when


class ParkMode(IntEnum):
    """How a PARK entry says when its message is to be delivered."""

    NONE = 0  # never in an entry
    LEVEL = 1  # by a level of message_delay_level, from 1; above the highest: the highest (DT-10)
    AT = 2  # at a time, Unix ms
    AFTER = 3  # ms after the record's storeTimestamp
    HALF = 4  # when its transaction is committed; the value is 0


class EntryFlag(IntFlag):
    """Bits of an entry's flags."""

    RECEIPT = 1  # the client wants a completion also when all is well
    DURABLE = 2  # the flusher shall sync at once
    URGENT = 4  # wakes a napping agent
    BATCH = 8  # member of an all-or-nothing batch; `batch` counts members left, this one included
    TELL = 16  # of an APPEND: ends with a layout.TELL, whose session hears of it from the writer


class Status(IntEnum):
    """How a submitted entry ended."""

    OK = 0
    DUPLICATE = (
        1  # already in the log from before a restart; position and offset are the stored ones
    )
    ILLEGAL_SIZE = 2
    ILLEGAL_PROPERTIES = 3
    UNKNOWN_ROUTE = 4
    UNKNOWN_QUEUE = 5
    STORE_FAILED = 6
    DISK_FULL = 7
    BATCH_REFUSED = 8  # another member of the batch was refused
    UNKNOWN_POSITION = 9  # in the log from before a restart, but its position is no longer known
    NOT_STORED = 10  # refused before a restart, the reason is no longer known
    ILLEGAL_DELAY = 11  # a level below 1, a time below 0 or behind DELIVER_MS_MAX


class ClientState(IntEnum):
    """A client's sleep flag in a lane."""

    AWAKE = 0
    ARMED = 1  # ring my bell at the next change
    ARMED_FOR_ROOM = 2  # in a lane of control messages: also when one of mine is taken


class AgentState(IntEnum):
    """How an agent of a lane waits; the client rings accordingly."""

    HOT = 0
    NAPPING = 1
    ARMED = 2


class BrokerState(IntEnum):
    """State word of the board."""

    STARTING = 0
    READY = 1
    STOPPING = 2
    STOPPED = 3
    FAILED = 4


class Role(IntEnum):
    """Processes on the board's process table."""

    SUPERVISOR = 0
    WRITER = 1
    FLUSHER = 2
    READER = 3
    GROUPS = 4
    SCHEDULER = 5
    TXN_CHECKER = 6
    HOUSEKEEPER = 7


class Level(IntEnum):
    """Durability: what a topic's consumers may see, and what a receipt waits for."""

    WRITTEN = 0
    DURABLE = 1


class Stop(IntEnum):
    """Why a kernel that walks records or entries stopped."""

    DONE = 0  # nothing more is there
    LIMIT = 1  # a bound of the call was reached; call again
    ROLL = 2  # the segment is full; a filler was written
    ROUTE = 3  # the next entry uses a route that is not loaded yet
    HOSTILE = 4  # the ring breaks the rules; the session is cut off
    BACKPRESSURE = 5  # no room for the completion
    END = 6  # the log's end: zeroes
    INVALID = 7  # bytes that are no record
    FILLER = 8  # the end of a segment
    UNKNOWN_TOPIC = 9
    TRUNCATED = 10  # the view ends inside
    REMOVED = 11  # below the low watermark
    FAILED = 12  # the store has failed: nothing is taken any more
    ASKED = 13  # a filter leaves a record to its reference in Python
    EXTENSION = 14  # a unit's extension is in another file


class Owed(IntFlag):
    """What the writer has still to do for a batch that is published."""

    RING_READER = 1
    RING_FLUSHER = 2
    RING_CLIENTS = 4
    SETTLED = 8  # `settled` does not follow `appended` by itself
    RING_LISTENERS = 16


class ExitCode(IntEnum):
    """What processes and commands exit with (sysexits where it has a number)."""

    OK = 0
    DOES_NOT_HOLD = 1
    USAGE = 2
    NO_BROKER = 69
    STORE = 70
    IO_ERROR = 74
    STORE_BUSY = 75
    NOT_PERMITTED = 77
