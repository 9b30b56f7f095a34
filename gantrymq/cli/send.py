"""`gantrymq send`: try a topic, or feed lines into it."""

from __future__ import annotations

import base64
import json
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from gantrymq.cli.options import Shared, grouped, home_of, print_json
from shm.errors import MessageIllegal

if TYPE_CHECKING:
    from concurrent.futures import Future

    from clients.message import SendReceipt

HELP = """Send messages: --body, or each line of standard input.

\b
Example: echo hello | gantrymq send orders --tag paid
Example: gantrymq send orders --body '{"id": 42}' --key 42 --property region=eu
Example: gantrymq send orders --lines json < messages.jsonl
         (objects with body or body_base64, and optionally tag, keys, properties, delay)
Example: gantrymq send reminders --body 'call' --delay 90 --json
         (recall_handle is what `gantrymq delayed recall` takes)
Exit codes: 0 every message is stored; 2 a message or an option is wrong; 69 no broker; 70 the
store failed; 74 the disk is full.
"""
#: Receipts that may be outstanding while lines are read.
_IN_FLIGHT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What all messages get besides their bodies."""

    tag: Annotated[str | None, typer.Option(help="Tag of all messages.")] = None
    key: Annotated[list[str] | None, typer.Option(help="Key; may be given repeatedly.")] = None
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="Repeatable.")
    ] = None
    delay: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Deliver them after so long.")
    ] = None

    def fields(self) -> dict[str, Any]:
        """As arguments of a message."""
        pairs = _pairs(self.properties or [])
        return {
            "tag": self.tag, "keys": self.key or [], "properties": pairs, "delay": self.delay,
        }  # fmt: skip


@grouped
def send(
    topic: Annotated[str, typer.Argument(help="The topic; created if settings allow.")],
    marks: Marks,
    shared: Shared,
    body: Annotated[str | None, typer.Option(help="One message's body.")] = None,
    lines: Annotated[
        str, typer.Option(help="What a line of standard input is: text (a body) or json.")
    ] = "text",
    durability: Annotated[
        str | None, typer.Option(help="What receipts wait for: written or durable.")
    ] = None,
) -> None:
    """Send and wait for every receipt."""
    if lines not in ("text", "json"):
        raise typer.BadParameter("choose text or json", param_hint="--lines")
    if body is not None:
        messages = iter([{**marks.fields(), "body": body.encode()}])
    else:
        messages = _messages(sys.stdin.buffer, lines, marks.fields())
    from clients.message import Message
    from clients.producer import Producer

    count = 0
    waiting: deque[Future[SendReceipt]] = deque()
    with Producer(home=home_of(shared.home)) as producer:
        for fields in messages:
            message = Message(topic, **fields)
            waiting.append(producer.send_async(message, durability=durability))
            count += 1
            if len(waiting) > _IN_FLIGHT:
                _show(waiting.popleft().result(), shared.as_json)
        while waiting:
            _show(waiting.popleft().result(), shared.as_json)
    if not shared.as_json:
        sys.stdout.write(f"{count} sent to {topic}\n")


def _show(receipt: SendReceipt, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "message_id": receipt.message_id,
                "offset_msg_id": receipt.offset_msg_id,
                "queue": receipt.message_queue.queue_id,
                "queue_offset": receipt.queue_offset,
                "recall_handle": receipt.recall_handle,
            }
        )


def _messages(stream: BinaryIO, lines: str, shared: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(stream, 1):
        text = line.rstrip(b"\r\n")
        yield {"body": text, **shared} if lines == "text" else _from_json(text, number, shared)


def _from_json(text: bytes, number: int, shared: dict[str, Any]) -> dict[str, Any]:
    try:
        given = json.loads(text)
        data = _body(given)
    except (ValueError, KeyError, TypeError) as error:
        raise MessageIllegal(
            f'line {number} is no object with "body": {error}', line=number
        ) from error
    unknown = given.keys() - {"body", "body_base64", *shared}
    if unknown:
        raise MessageIllegal(f"line {number} has unknown fields {sorted(unknown)}", line=number)
    given.pop("body_base64", None)
    return {**shared, **given, "body": data}


def _body(given: dict[str, Any]) -> bytes:
    """A text as UTF-8, anything else as JSON; bytes as base64. Raises ValueError, KeyError, ..."""
    if "body" not in given and "body_base64" in given:
        return base64.b64decode(given["body_base64"], validate=True)
    body = given["body"]
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, equals, _value in pairs:
        if not equals:
            raise typer.BadParameter(f"{name}: write name=value", param_hint="--property")
    return {name: value for name, _equals, value in pairs}
