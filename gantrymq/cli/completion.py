"""What the shell completes with: names that the running broker knows. Silent without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from gantrymq.cli.options import home_of
from gantrymq.shm.errors import GantryError

if TYPE_CHECKING:
    from pathlib import Path


def topic_names(context: typer.Context, incomplete: str) -> list[str]:
    """Topics that begin so."""
    from gantrymq.cli.board import running_board

    try:
        board = running_board(_home(context))
    except (GantryError, OSError):
        return []
    names = [topic.name for topic in board.topics() if topic.perm and not topic.system]
    return sorted(name for name in names if name.startswith(incomplete))


def group_names(context: typer.Context, incomplete: str) -> list[str]:
    """Groups that begin so."""
    from gantrymq.clients.home import store_of
    from gantrymq.shm.storage import PosixStorage
    from gantrymq.workers.groups.ledgerreader import LedgerReader

    try:
        groups = LedgerReader(PosixStorage(str(store_of(_home(context))))).refresh()
    except OSError:
        return []
    return sorted(name for name in groups if name.startswith(incomplete))


def transaction_names(context: typer.Context, incomplete: str) -> list[str]:
    """Message ids of half messages in doubt that begin so."""
    from gantrymq.cli.tx_show import look

    try:
        found = look(_home(context)).read()
    except (GantryError, OSError):
        return []
    return [doubt.message_id for doubt in found if doubt.message_id.startswith(incomplete)]


def _home(context: typer.Context) -> Path:
    return home_of(context.params.get("home"))
