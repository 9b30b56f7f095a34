"""How often simulated agents do what goes by the clock."""

from __future__ import annotations

import random

from gantrymq.brokerd import pagecache, retention
from gantrymq.workers.groups import ledger, ledgersuccessor
from gantrymq.workers.housekeeper import agent as housekeeper
from gantrymq.workers.housekeeper import indexer, pace
from gantrymq.workers.reader import catchup, extensions
from gantrymq.workers.scheduler import agent as scheduler
from gantrymq.workers.scheduler import progress as progressnote
from gantrymq.workers.scheduler import recalls, timerbuckets, timerfiling, timers
from gantrymq.workers.transactions import agent as checker
from gantrymq.workers.transactions import progress as transactionnote

#: Settings by which what real brokers fill in hours is full soon.
FULL_SOON = {"log_page_cache": 8 * 1024, "max_hash_slot_num": 40, "max_index_num": 100}
#: How often an agent looks for what rings no bell. A real one does each millisecond, or more seldom
#: where a look costs much: a hundred steps of others here, most of which would be its own.
LOOK_NS = 5_000_000
#: The same while nothing but time passes.
REST_LOOK_NS = 250_000_000
_LOOKS = (
    (scheduler, "UNRUNG_NS"), (checker, "UNRUNG_NS"), (housekeeper, "LOOK_NS"),
    (recalls, "TRACE_AGAIN_NS"),
)  # fmt: skip
_INTERVALS = tuple((m, "interval_ns") for m in (indexer, progressnote, transactionnote))
_PACE = tuple((retention.PACE, name) for name in ("grace", "patience", "first", "between", "look"))
#: Work of filters at one time: two records' or three's of `simbits.EXPRESSION`.
_WORK = ((extensions, "work_max"), (catchup, "work_max"))
_INDEX = ((indexer, "pending_max"), (indexer, "slots_after"))
_LEDGER = ((ledger, "compact_bytes"), (ledgersuccessor, "step_pieces"))
_TIMERS = (
    (timers, "UNITS_MAX"), (timers, "FILED_UNITS"), (timerfiling, "BUCKETS_MAX"),
    (timerbuckets, "PIECE"),
)  # fmt: skip
_PAGES = ((pagecache, "STEP_BYTES"), (pace, "FIRST_SHARE"))
_CHANGED = (*_LOOKS, *_INTERVALS, *_PACE, *_WORK, *_INDEX, *_PAGES, *_LEDGER, *_TIMERS)
_REAL = [(owner, name, getattr(owner, name)) for owner, name in _CHANGED]


def hurry() -> None:
    """What goes by the clock comes more often here: a run of a second or two sees much of it."""
    for module, name in _LOOKS:
        setattr(module, name, LOOK_NS)
    indexer.interval_ns = 5_000_000
    pace.FIRST_SHARE = 0.5
    extensions.work_max = catchup.work_max = 300
    pagecache.STEP_BYTES = 4096
    indexer.pending_max, indexer.slots_after = 24, 40  # a file has 100
    progressnote.interval_ns = transactionnote.interval_ns = 100_000_000
    retention.PACE.grace = 1_000_000
    retention.PACE.patience = 300_000_000
    retention.PACE.first = retention.PACE.between = retention.PACE.look = 20_000_000
    for owner, name, value in _REAL:
        if (owner, name) in _TIMERS:
            setattr(owner, name, value)


def compact_soon(dice: random.Random) -> None:
    """A ledger of some entries counts as large, as a rule, and is made anew in many steps."""
    ledger.compact_bytes = dice.choice([500, 3_000, 10_000])
    ledgersuccessor.step_pieces = dice.choice([1, 3, 10])


def file_few(dice: random.Random) -> None:
    """Timers are read and filed some at a time, as where very many come: each at its own stage."""
    for module, name in _TIMERS:
        setattr(module, name, dice.choice([1, 3, 1_000]))


def tarry() -> None:
    """Seconds of rest cost little: what goes by the clock comes as seldom as in a real broker."""
    for module, name in _LOOKS:
        setattr(module, name, REST_LOOK_NS)
    progressnote.interval_ns = transactionnote.interval_ns = 2_000_000_000
    retention.PACE.first = retention.PACE.between = retention.PACE.look = 1_000_000_000


def be_real() -> None:
    """As in a real broker: for what runs in this process after the simulator."""
    for owner, name, value in _REAL:
        setattr(owner, name, value)
