"""`gantrymq handover` and `gantrymq adopt`: leave for a real RocketMQ, come from one."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gantrymq.cli.options import HomeOption, JsonOption, SettingsOption, home_of, print_json

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell; nothing is changed.")]
HANDOVER_HELP = """\
Make a stopped store one that a RocketMQ goes on with, nothing lost, nothing twice.

Positions of delay levels, timers and groups are worked out from the log and written as RocketMQ
writes them; after a kill the store is recovered first. It tells what waits, and what the RocketMQ's
settings must be. The RocketMQ must be started within seven days: else run it again. GantryMQ can
still be started on the store instead. Settings are those of the last start, but for --set. What
waits in a delay level that they do not have is refused by name and count.

\b
Example: gantrymq handover --home ./mq --dry-run
Exit codes: 0 done; 2 no such store, or one that a RocketMQ would refuse, or not deliver all of;
70 the log is damaged; 74 an I/O error; 75 a broker holds the store.
"""
ADOPT_HELP = """Take over the store of a RocketMQ that was stopped or killed.

Everything that waits is counted from the log: delay levels, timers, retries. What GantryMQ does not
carry is refused by name and count, before anything is changed: messages that POP consumers hold,
transactions and timers in RocksDB, delays of levels that it does not know. STORE is the RocketMQ's
storePathRootDir; to start GantryMQ on it, it must be called `store` in the broker's home. What the
RocketMQ was set to otherwise than by default, as message_delay_level, is said by --set.

\b
Example: gantrymq adopt ./mq/store --dry-run
Exit codes: 0 done; 2 it cannot be carried, or is no store; 70 the log is damaged; 74 an I/O error;
75 a broker holds the store.
"""


def handover(
    home: HomeOption = None,
    settings: SettingsOption = None,
    dry_run: DryRun = False,
    precision: Annotated[
        int | None,
        typer.Option(help="The RocketMQ's timerPrecisionMs; else as timer_precision_ms.", min=1),
    ] = None,
    roll_window: Annotated[int, typer.Option(help="Its timerRollWindowSlot.", min=2)] = 172_800,
    timer_log_bytes: Annotated[int, typer.Option(help="Its mappedFileSizeTimerLog.", min=120)] = 100
    << 20,
    as_json: JsonOption = False,
) -> None:
    """Make a stopped store one that a RocketMQ goes on with."""
    from gantrymq.brokerd.config import parse_assignments
    from gantrymq.brokerd.handover.leaving import Target
    from gantrymq.brokerd.handover.leaving import handover as run
    from gantrymq.cli.store_verify import show_progress

    target = Target(time.time_ns() // 1_000_000, precision, roll_window, timer_log_bytes)
    progress = show_progress if sys.stderr.isatty() else None
    given = parse_assignments(settings or [])
    done = run(home_of(home), target, given=given, dry_run=dry_run, progress=progress)
    _show(done, as_json=as_json)


def adopt(
    store: Annotated[
        Path, typer.Argument(metavar="STORE", help="Root of the RocketMQ's store.", exists=True)
    ],
    settings: SettingsOption = None,
    dry_run: DryRun = False,
    as_json: JsonOption = False,
) -> None:
    """Take over the store of a RocketMQ that was stopped or killed."""
    from gantrymq.brokerd.config import parse_assignments
    from gantrymq.brokerd.handover.coming import adopt as run
    from gantrymq.cli.store_verify import show_progress

    progress = show_progress if sys.stderr.isatty() else None
    given = parse_assignments(settings or [])
    _show(run(store, given=given, dry_run=dry_run, progress=progress), as_json=as_json)


def _show(done: object, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(done))  # type: ignore[call-overload] # both are dataclasses
    else:
        sys.stdout.write(f"{done}\n")
