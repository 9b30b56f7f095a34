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
from gantrymq.shm.errors import TransactionDecided
from gantrymq.workers.transactions.indoubt import named

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gantrymq.workers.transactions.indoubt import Doubt


def settle_all(
    action: str, which: Sequence[str], who: str | None, *, home: Path | None, as_json: bool
) -> int:
    """Settle each; the exit code. Raises Rejected before anything is settled if one is unknown."""
    from gantrymq.clients.transactions.settle import Settler

    where = home_of(home)
    running_board(where)
    doubts = look(where).read()
    chosen = {doubt.position: doubt for text in which for doubt in _whole(doubts, text)}
    missed = 0
    with Settler(where, who or _who()) as settler:
        for position, doubt in chosen.items():
            told = {"message_id": doubt.message_id, "position": position}
            try:
                outcome = settler.settle(position, action)
            except TransactionDecided as error:
                missed += 1
                complain(f"{doubt.message_id}: {error}")
                continue
            if as_json:
                print_json({**told, "outcome": outcome})
            else:
                sys.stdout.write(f"{doubt.message_id}  {outcome.replace('_', ' ')}\n")
    return ExitCode.DOES_NOT_HOLD if missed else ExitCode.OK


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
