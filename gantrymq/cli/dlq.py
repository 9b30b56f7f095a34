"""`gantrymq dlq ...`: dead letters, and what to do with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gantrymq.cli.completion import group_names
from gantrymq.cli.options import HomeOption, JsonOption, Shared, grouped

if TYPE_CHECKING:
    from gantrymq.cli.dlq_letters import Wanted

app = typer.Typer(help="Look at dead letters, and mend them.", no_args_is_help=True)

GroupArgument = Annotated[str, typer.Argument(help="The group.", autocompletion=group_names)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Count only; nothing is changed.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which dead letters: all that is given must hold."""

    topic: Annotated[str | None, typer.Option(help="Sent to this topic at first.")] = None
    tag: Annotated[str | None, typer.Option(help="With this tag.")] = None
    key: Annotated[str | None, typer.Option(help="With this key.")] = None
    reason: Annotated[str | None, typer.Option(help="Whose reason has this text.")] = None
    at: Annotated[
        list[int] | None,
        typer.Option("--at", min=0, help="At this offset of %DLQ%GROUP; may be given repeatedly."),
    ] = None
    message_id: Annotated[
        list[str] | None,
        typer.Option("--id", help="With this message id, as `dlq show` has it; likewise."),
    ] = None
    since: Annotated[
        str | None,
        typer.Option(help="Dead since then: 2026-01-31T08:00 (+01:00 may follow), or Unix ms."),
    ] = None
    until: Annotated[str | None, typer.Option("--until", "--before", help="Dead before then.")] = (
        None
    )

    @property
    def wanted(self) -> Wanted:
        """Times as numbers. Raises Rejected."""
        from gantrymq.cli.dlq_letters import Wanted
        from gantrymq.clients.queries.moments import moment_or

        return Wanted(
            topic=self.topic,
            tag=self.tag,
            key=self.key,
            reason=self.reason,
            offsets=frozenset(self.at or ()),
            ids=frozenset(self.message_id or ()),
            since_ms=moment_or(self.since, None),
            until_ms=moment_or(self.until, None, up=True),
        )


@app.command(
    "list",
    help="""List groups with dead letters: how many, how many of them were sent again, since when.

\b
Example: gantrymq dlq list --home ./mq
Exit codes: 0 done; 2 no such group; 69 no broker; 70 what was remembered is damaged.
""",
)
def list_groups(
    group: Annotated[
        str | None, typer.Argument(help="Only this group.", autocompletion=group_names)
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List groups with dead letters."""
    from gantrymq.cli.dlq_show import show_list

    if group == "":
        raise typer.BadParameter("name a group, or leave it out", param_hint="GROUP")
    show_list(group, home=home, as_json=as_json)


@app.command(
    help="""Show dead letters: which message, how often it was delivered, and why it failed.

\b
offset    its place in %DLQ%GROUP: for --at, and for --offset, from which on they are shown
dead      when it became a dead letter (`dead_ms` in JSON: Unix ms)
attempts  deliveries that failed
reason    type and text of what the listener raised, or what it answered; `-`: none was kept
resent    whether `dlq resend` has sent it again

\b
Example: gantrymq dlq show billing --reason timeout --limit 5
Example: gantrymq dlq show billing --since 2026-01-31T08:00 --json
Exit codes: 0 done; 2 no such group, letter or time; 69 no broker; 70 the store is damaged.
"""
)
@grouped
def show(
    group: GroupArgument,
    filters: Filters,
    shared: Shared,
    limit: Annotated[int, typer.Option("--limit", min=0, help="How many are shown.")] = 20,
    offset: Annotated[int, typer.Option("--offset", min=0, help="The first that is shown.")] = 0,
) -> None:
    """Show dead letters."""
    from gantrymq.cli.dlq_show import show_letters

    part = (offset, limit)
    show_letters(group, filters.wanted, part, home=shared.home, as_json=shared.as_json)


@app.command(
    help="""Send dead letters again, to the topic that they were sent to at first.

Each is a new message with body, tag, keys, properties and message group of the old one. All groups
of the topic get it, not only this one. What was sent is remembered, and not sent again by a later
run: its queue offsets in %DLQ%GROUP, in gantry/dead_letters.json of the store, after every 500. If
the command is killed, or the broker ends, up to 500 may be sent a second time by the next run.

\b
Example: gantrymq dlq resend billing --reason timeout --dry-run
Example: gantrymq dlq resend billing --tag paid
Exit codes: 0 done; 1 some were not sent: standard error says why; 2 no such group, letter or time;
69 no broker; 70 the store failed or is damaged; 74 the disk is full.
"""
)
@grouped
def resend(group: GroupArgument, filters: Filters, shared: Shared, dry_run: DryRun = False) -> None:
    """Send dead letters again."""
    from gantrymq.cli.dlq_act import resend as run

    wanted, home = filters.wanted, shared.home
    code = run(group, wanted, home=home, dry_run=dry_run, as_json=shared.as_json)
    raise typer.Exit(code)


@app.command(
    help="""Write dead letters into a new file, a JSON object a line.

A line is what `gantrymq send TOPIC --lines json` takes: body (body_base64 if it is no UTF-8), tag,
keys, properties. Such a line names no topic: choose one with --topic where there are several. What
was sent again is written too, what was purged is not. The file gets its name once it is whole.

\b
Example: gantrymq dlq export billing dead.jsonl --topic orders --dry-run
Exit codes: 0 done; 1 some were not written: standard error says which; 2 no such group,
letter or time, or the file is there; 69 no broker; 70 the store is damaged; 74 an I/O error.
"""
)
@grouped
def export(
    group: GroupArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")],
    filters: Filters,
    shared: Shared,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count only; write nothing.")] = False,
) -> None:
    """Write dead letters into a new file."""
    from gantrymq.cli.dlq_act import export as run

    wanted, home = filters.wanted, shared.home
    code = run(group, wanted, file, home=home, dry_run=dry_run, as_json=shared.as_json)
    raise typer.Exit(code)


@app.command(
    help="""Purge dead letters: `gantrymq dlq` shows them no more, and sends them no more.

Nothing is deleted: their queue offsets are remembered in gantry/dead_letters.json of the store.
Until retention removes their part of the log, consumers of %DLQ%GROUP still get them, and
`gantrymq get` still finds them. It cannot be taken back; look with --dry-run before.

\b
Example: gantrymq dlq purge billing --before 2026-01-31T08:00 --dry-run
Exit codes: 0 done; 2 no such group, letter or time; 69 no broker; 70 the store is damaged; 74 an
I/O error.
"""
)
@grouped
def purge(group: GroupArgument, filters: Filters, shared: Shared, dry_run: DryRun = False) -> None:
    """Purge dead letters."""
    from gantrymq.cli.dlq_act import purge as run

    wanted, home = filters.wanted, shared.home
    run(group, wanted, home=home, dry_run=dry_run, as_json=shared.as_json)
