"""`gantrymq tx commit`, `rollback` and `recheck`: what an operator decides."""

from __future__ import annotations

import getpass
import os
import sys
from typing import TYPE_CHECKING

from gantrymq.cli.board import running_board
from gantrymq.cli.leave import complain
from gantrymq.cli.output import home_of, print_json
from gantrymq.cli.tx_show import look
from gantrymq.shm.codes import ExitCode
from gantrymq.shm.errors import GantryError, Rejected
from gantrymq.workers.transactions.indoubt import named

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gantrymq.workers.transactions.indoubt import Doubt


def settle_all(
    action: str, which: Sequence[str], who: str | None, *, home: Path | None, as_json: bool
) -> int:
    """Settle each that can be, whatever becomes of the others; the exit code."""
    where = home_of(home)
    running_board(where)
    chosen, unknown = _chosen(look(where).read(), which)
    missed = _settle(action, who or _who(), chosen, where, as_json=as_json) if chosen else 0
    if unknown:
        return ExitCode.USAGE
    return ExitCode.DOES_NOT_HOLD if missed else ExitCode.OK


def _chosen(doubts: Sequence[Doubt], which: Sequence[str]) -> tuple[list[Doubt], int]:
    """What is meant, each once, and how many of the names mean nothing."""
    chosen: dict[int, Doubt] = {}
    unknown = 0
    for text in which:
        try:
            chosen |= {doubt.position: doubt for doubt in _whole(doubts, text)}
        except Rejected as error:
            unknown += 1
            complain(str(error))
    return [*chosen.values()], unknown


def _settle(action: str, who: str, chosen: list[Doubt], home: Path, *, as_json: bool) -> int:
    """How many are not settled so. Raises what none can be settled for."""
    from gantrymq.clients.transactions.settle import Settler

    missed = 0
    with Settler(home, who) as settler:
        for doubt in chosen:
            try:
                outcome = settler.settle(doubt.position, action)
            except Rejected as error:
                missed += 1
                complain(f"{doubt.message_id}: {error}")
                continue
            except GantryError:
                complain(f"{doubt.message_id}: not settled, or not known to be; nor those behind")
                raise
            if as_json:
                told = {"message_id": doubt.message_id, "position": doubt.position}
                print_json({**told, "outcome": outcome})
            else:
                sys.stdout.write(f"{doubt.message_id}  {outcome.replace('_', ' ')}\n")
    return missed


def _whole(doubts: Sequence[Doubt], text: str) -> list[Doubt]:
    """What an id means, and all else of its transaction: they share the decision."""
    found = named(doubts, text)
    names = {doubt.transaction_id for doubt in found} - {None}
    rest = [doubt for doubt in doubts if doubt.transaction_id in names]
    return [*found, *rest]


def _who() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        name = str(os.getuid())
    return f"{name}@{os.uname().nodename}"
