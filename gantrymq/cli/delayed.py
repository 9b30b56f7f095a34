"""`gantrymq delayed ...`: messages that wait for their time, and cancelling them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from gantrymq.cli.completion import topic_names
from gantrymq.cli.delayed_kind import Kind
from gantrymq.cli.options import HomeOption, JsonOption, Shared, grouped

if TYPE_CHECKING:
    from gantrymq.cli.delayed_chosen import Wanted

app = typer.Typer(help="Look at delayed messages, and cancel them.", no_args_is_help=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which messages: all that is given must hold."""

    topic: Annotated[
        str | None, typer.Option("--topic", help="To this topic.", autocompletion=topic_names)
    ] = None
    tag: Annotated[str | None, typer.Option(help="With this tag.")] = None
    key: Annotated[str | None, typer.Option(help="With this key.")] = None
    kind: Annotated[Kind | None, typer.Option(help="Which wait so.")] = None
    begin: Annotated[
        str | None,
        typer.Option(
            "--from", "--since",
            help="Due then or later: 2026-01-31T08:00 (+01:00 may follow), or Unix ms.",
        ),
    ] = None  # fmt: skip
    until: Annotated[str | None, typer.Option("--until", "--before", help="Due before then.")] = (
        None
    )

    @property
    def wanted(self) -> Wanted:
        """Times as numbers. Raises Rejected."""
        from gantrymq.cli.delayed_chosen import Wanted
        from gantrymq.clients.queries.moments import moment_or

        return Wanted(
            topic=self.topic,
            tag=self.tag,
            key=self.key,
            kind=self.kind,
            from_ms=moment_or(self.begin, None),
            until_ms=moment_or(self.until, None, up=True),
        )


@app.command(
    "list",
    help="""List messages that wait for their time, the next one first.

All of them, as the log and the scheduler's note tell: parked ones that were neither delivered nor
cancelled when it was read; retries that wait are among them (topic %RETRY%GROUP). A message that is
delivered meanwhile may still be shown. All parked timers that retention has kept are read: a
million takes seconds. Where no broker runs the store itself is read, all of its log.

\b
due            when it is delivered (`due_ms` in JSON: Unix ms)
kind           exact, or the delay level; `absent`: it was due, but its topic is gone. With --kind
               choose `exact`, `level` or `absent`
recall_handle  what `delayed recall` takes; levels have none

\b
Example: gantrymq delayed list --topic orders --limit 5
Example: gantrymq delayed list --tag paid --kind exact --from 2026-01-31T08:00 --json
Exit codes: 0 done; 2 no time; 69 no broker, and no store; 70 the log is damaged.
""",
)
@grouped
def list_delayed(
    filters: Filters,
    shared: Shared,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=0, help="How many are shown: 20, all with --handles."),
    ] = None,
    handles: Annotated[
        bool, typer.Option("--handles", help="Print recall handles only, one a line.")
    ] = False,
) -> None:
    """List messages that wait for their time."""
    from gantrymq.cli.delayed_show import show_delayed

    wanted, home = filters.wanted, shared.home
    show_delayed(wanted, home=home, limit=limit, handles=handles, as_json=shared.as_json)


@app.command(
    help="""Cancel a delayed message: it is never delivered, if it was not already.

HANDLE is the `recall_handle` of its receipt, or of `delayed list`; `-` reads handles from standard
input, one a line: what is no handle is named, and the others are cancelled. Messages with a delay
level cannot be cancelled. The broker must run: a recall is a record of its log. A dry run looks
which of them wait, as `delayed list` does, without a broker too.

\b
Example: gantrymq delayed list --topic orders --handles > h; gantrymq delayed recall orders - < h
Example: gantrymq delayed recall orders - --dry-run < h
Exit codes: 0 all are cancelled, or would be; 1 one was delivered already, or nothing that waits has
the handle; 2 it, or one of them, is no handle of this topic; 69 no broker, or no answer.
"""
)
def recall(
    topic: Annotated[
        str, typer.Argument(help="The topic it was sent to.", autocompletion=topic_names)
    ],
    handle: Annotated[str, typer.Argument(help="Its recall handle, or -.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count only; cancel nothing.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel a delayed message."""
    from gantrymq.cli.delayed_recall import recall_all

    raise typer.Exit(recall_all(home, topic, handle, dry_run=dry_run, as_json=as_json))
