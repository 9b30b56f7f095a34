"""`gantrymq receive`: look at what a topic holds, as a member of a group."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from gantrymq.cli.leave import require_output
from gantrymq.cli.options import Shared, grouped, home_of, print_json

if TYPE_CHECKING:
    from gantrymq.clients.consumer import PullConsumer
    from gantrymq.clients.message import Message

HELP = """Receive messages of a topic, and commit them for the group.

\b
Example: gantrymq receive orders --group look --max 10
Example: gantrymq receive orders --group audit --follow --json | jq .body
A topic that is not there is made, as by a send. Without --follow it ends when nothing has come for
a second (--wait). Ctrl-C ends it, too: of the messages that it was printing then none is committed.
Exit codes: 0 done; 2 an option is wrong; 69 no broker; 70 a record is damaged;
74 standard output is closed, or takes no more: what it did not take is not committed.
"""
_AT_ONCE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """When to stop."""

    limit: Annotated[
        int | None, typer.Option("--max", min=1, help="End after that many messages.")
    ] = None
    follow: Annotated[bool, typer.Option("--follow", help="Wait for new ones, for ever.")] = False
    wait: Annotated[float, typer.Option(help="Seconds without a message before it ends.")] = 1.0


@grouped
def receive(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    group: Annotated[str, typer.Option(help="Consumer group; its offsets are kept.")],
    end: End,
    tags: Annotated[str, typer.Option(help="Tag expression, for example 'paid || open'.")] = "*",
    from_end: Annotated[
        bool, typer.Option("--from-end", help="A new group starts at the end, not the beginning.")
    ] = False,
    shared: Shared = Shared(),  # noqa: B008 - frozen
) -> None:
    """Print messages as they come."""
    from gantrymq.clients.consumer import ConsumeFrom, PullConsumer

    if not end.wait >= 0:
        raise typer.BadParameter("seconds, 0 or more", param_hint="--wait")
    require_output()
    start = ConsumeFrom.LAST_OFFSET if from_end else ConsumeFrom.FIRST_OFFSET
    home = home_of(shared.home)
    try:
        with PullConsumer(group, {topic: tags}, home=home, consume_from=start) as consumer:
            _print_all(consumer, end, as_json=shared.as_json)
    except KeyboardInterrupt:
        return  # what was handed out and is not committed, printed or not, comes again


def _print_all(consumer: PullConsumer, end: End, *, as_json: bool) -> None:
    left = end.limit
    last = time.monotonic()
    while left is None or left > 0:
        batch = consumer.poll(max_messages=min(left or _AT_ONCE, _AT_ONCE), timeout=0.2)
        for message in batch:
            _show(message, as_json)
        if len(batch):
            consumer.commit()
            last = time.monotonic()
            left = None if left is None else left - len(batch)
        elif not end.follow and time.monotonic() - last >= end.wait:
            return


def _show(message: Message, as_json: bool) -> None:
    body = bytes(message.body)
    if not as_json:
        sys.stdout.buffer.write(body + b"\n")
        sys.stdout.buffer.flush()
        return
    print_json(
        {
            "topic": message.topic,
            "queue": message.queue_id,
            "queue_offset": message.queue_offset,
            "message_id": message.message_id,
            "tag": message.tag,
            "keys": list(message.keys or ()),
            "properties": dict(message.properties or {}),
            "born_timestamp": message.born_timestamp,
            "store_timestamp": message.store_timestamp,
            "body": body,
        }
    )
