"""`gantrymq tx ...`: transactions in doubt, and settling them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from gantrymq.cli.completion import topic_names, transaction_names
from gantrymq.cli.options import HomeOption, JsonOption

app = typer.Typer(help="Look at transactions in doubt, and settle them.", no_args_is_help=True)


class State(StrEnum):
    """Why a half message is in doubt."""

    OPEN = "open"
    GIVEN_UP = "given_up"


_NAMES = "Its message id or transaction id (all its messages), or a log position."
WhichOne = Annotated[str, typer.Argument(help=_NAMES, autocompletion=transaction_names)]
Which = Annotated[
    list[str],
    typer.Argument(metavar="ID...", help=_NAMES, autocompletion=transaction_names),
]
Who = Annotated[
    str | None, typer.Option("--as", help="Who decides, for the log.  [default: user@host]")
]


@app.command(
    "list",
    help="""List half messages that nobody has decided, the oldest first.

Read from the files: of a broker that runs, or of a stopped store, ours or a RocketMQ's that was
adopted. A million takes a quarter of a minute.

\b
state     open: its producer is asked again and again; given_up: after transaction_check_max checks
          it waits for `tx commit`, `rollback` or `recheck`
age       since it was stored (`age_s` in JSON: seconds)
checks    how often a producer of its group was asked

\b
Example: gantrymq tx list --topic orders --state given_up
Example: gantrymq tx list --json
Exit codes: 0 done; 69 neither a broker nor a store; 70 the log is damaged; 74 an I/O error.
""",
)
def list_transactions(
    topic: Annotated[
        str | None,
        typer.Option("--topic", help="Only to this one.", autocompletion=topic_names),
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", help="Only of this producer group.")
    ] = None,
    state: Annotated[State | None, typer.Option("--state", help="Only in this one.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="How many are shown.")] = 20,
    ids: Annotated[bool, typer.Option("--ids", help="Print message ids only, one a line.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List half messages that nobody has decided."""
    from gantrymq.cli.tx_show import Wanted, show_list

    wanted = Wanted(topic, group, str(state) if state else None, limit)
    show_list(wanted, ids=ids, home=home, as_json=as_json)


@app.command(
    help="""Show a half message: whose it is, what it says, how often it was checked, who decided.

Also of one that was committed or rolled back: when, and by whom, as far as the log is kept. An
operator is named; of a producer it is not kept whether it was asked.

\b
Example: gantrymq tx list --ids --limit 1 | xargs -r gantrymq tx show --hex
Exit codes: 0 done; 2 there is no such half message; 69 neither a broker nor a store; 70 the log is
damaged; 74 an I/O error.
"""
)
def show(
    message: WhichOne,
    as_hex: Annotated[bool, typer.Option("--hex", help="Show the body's bytes.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a half message."""
    from gantrymq.cli.tx_show import show_one

    show_one(message, hex=as_hex, home=home, as_json=as_json)


_SETTLED = """
What was decided before stays: then it says so, and nothing is changed. What cannot be settled is
named, and the others are. A broker has to run; who decided, and when, is kept in the log.
"""
_CODES = """Exit codes: 0 all are settled so; 1 one was decided otherwise, or cannot be settled; 2
an id is of no half message in doubt; 69 no broker runs, or no answer came."""


def _help_of(command: str, what: str) -> str:
    return f"""{what}
{_SETTLED}
\b
Example: gantrymq tx list --state given_up --ids | xargs -r gantrymq tx {command} --as oncall
{_CODES}
"""


def _settle(
    action: str, which: list[str], who: str | None, home: HomeOption, as_json: bool
) -> None:
    from gantrymq.cli.tx_act import settle_all

    raise typer.Exit(settle_all(action, which, who, home=home, as_json=as_json))


@app.command(help=_help_of("commit", "Commit transactions: their messages are delivered."))
def commit(
    which: Which, who: Who = None, home: HomeOption = None, as_json: JsonOption = False
) -> None:
    """Commit transactions."""
    _settle("commit", which, who, home, as_json)


@app.command(
    help=_help_of("rollback", "Roll transactions back: their messages are never delivered.")
)
def rollback(
    which: Which, who: Who = None, home: HomeOption = None, as_json: JsonOption = False
) -> None:
    """Roll transactions back."""
    _settle("rollback", which, who, home, as_json)


@app.command(help=_help_of("recheck", "Have their producers asked again, from the first check on."))
def recheck(
    which: Which, who: Who = None, home: HomeOption = None, as_json: JsonOption = False
) -> None:
    """Have their producers asked again."""
    _settle("recheck", which, who, home, as_json)
