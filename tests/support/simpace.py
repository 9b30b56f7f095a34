"""How often simulated agents do what goes by the clock."""

from __future__ import annotations

from brokerd import retention
from workers.reader import indexer
from workers.scheduler import progress as progressnote
from workers.transactions import progress as transactionnote

retention.PACE.grace = 1_000_000
retention.PACE.patience = 300_000_000


def hurry() -> None:
    """What goes by the clock comes more often here: a run of a second or two sees much of it."""
    indexer.interval_ns = 5_000_000
    progressnote.interval_ns = transactionnote.interval_ns = 100_000_000
    retention.PACE.first = retention.PACE.between = retention.PACE.look = 20_000_000


def tarry() -> None:
    """Seconds of rest cost little: what goes by the clock comes as seldom as in a real broker."""
    progressnote.interval_ns = transactionnote.interval_ns = 2_000_000_000
    retention.PACE.first = retention.PACE.between = retention.PACE.look = 1_000_000_000
