"""`gantrymq status`: reads the board only, so it also answers when the broker hangs."""

from __future__ import annotations

import typer

from gantrymq.cli.board import show
from gantrymq.cli.options import HomeOption, JsonOption
from gantrymq.shm.codes import ExitCode

HELP = """Show processes, positions, lags and sessions of the broker.

\b
Example: gantrymq status --home ./mq --json
The JSON's fields: docs/operate.md. Groups' offsets are up to five seconds old.
Exit codes: 0 the broker is ready; 69 there is none, or it is not ready; 70 its store failed.
"""


def status(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show the board."""
    code = show(home=home, as_json=as_json)
    if code != ExitCode.OK:
        raise typer.Exit(code)
