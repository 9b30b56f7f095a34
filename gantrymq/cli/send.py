"""`gantrymq send`: try a topic, or feed lines into it."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, cast

import typer

from gantrymq.cli.answers import Answers
from gantrymq.cli.leave import complain, drop_output
from gantrymq.cli.options import Shared, grouped, home_of, print_json, print_text
from gantrymq.shm.codes import ExitCode
from gantrymq.shm.errors import GantryError, MessageIllegal
from gantrymq.shm.jsontext import parse_json

if TYPE_CHECKING:
    from concurrent.futures import Future

    from gantrymq.clients.message import Durability, SendReceipt

HELP = """Send messages: --body, or each line of standard input.

\b
Example: echo hello | gantrymq send orders --tag paid
Example: gantrymq send orders --body '{"id": 42}' --key 42 --property region=eu
Example: gantrymq send orders --lines json < messages.jsonl
         (objects with body or body_base64, and optionally tag, keys, properties, delay)
Example: gantrymq send reminders --body 'call' --delay 90 --json
         (recall_handle is what `gantrymq delayed recall` takes)
What ends it before all lines are sent is told with the number of messages that are stored, and of
those of which that is not known: once the broker is gone nobody waits for them.
Exit codes: 0 every message is stored; 2 a message or an option is wrong; 69 no broker; 70 the
store failed; 74 the disk is full, or standard output takes no more.
"""
#: What fields of a line may be; what is in them is judged with the message.
_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "tag": (str, NoneType), "keys": (list,), "properties": (dict,), "delay": (int, float, NoneType),
}  # fmt: skip
_WANTED: Final = {
    "tag": "a text", "keys": "a list of texts", "properties": "an object", "delay": "a number",
}  # fmt: skip
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
    body: Annotated[
        bytes | None,
        typer.Option(help="One message's body.", parser=os.fsencode, metavar="TEXT"),
    ] = None,
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
        messages = iter([("", {**marks.fields(), "body": body})])
    else:
        messages = _messages(sys.stdin.buffer, lines, marks.fields())
    from gantrymq.clients.message import Message
    from gantrymq.clients.producer import Producer

    receipts = _Receipts(shared.as_json)
    level = cast("Durability | None", durability)
    with Producer(home=home_of(shared.home)) as producer:
        try:
            for place, fields in messages:
                with _at(place):
                    sent = producer.send_async(Message(topic, **fields), durability=level)
                receipts.expect(sent)
                if receipts.failure is not None:
                    break
            receipts.take(0)
        except BaseException:
            try:
                receipts.take_rest()
            finally:
                receipts.tell()
            raise
    receipts.close(topic)
    if receipts.failure is not None:
        sys.exit(ExitCode.IO_ERROR)


class _Receipts:
    """Shows receipts, and knows how many messages are stored: who repeats the rest has to know."""

    def __init__(self, as_json: bool) -> None:
        self.stored = 0
        #: Why standard output takes nothing any more.
        self.failure: OSError | None = None
        self._as_json = as_json
        self._waiting: deque[Future[SendReceipt]] = deque()
        self._answers = Answers()

    def expect(self, receipt: Future[SendReceipt]) -> None:
        """One that is on its way. Raises what sends raise."""
        self._waiting.append(receipt)
        self.take(_IN_FLIGHT)

    def take(self, most: int) -> None:
        """Wait until no more than so many are on their way. Raises what sends raise."""
        while len(self._waiting) > most:
            try:
                receipt = self._answers.of(self._waiting[0])
            except GantryError:
                self._waiting.popleft()
                raise
            self._waiting.popleft()  # after the wait: who breaks it off asks again
            self.stored += 1
            if self._as_json:
                self._print(partial(_show, receipt))

    def take_rest(self) -> None:
        """After an error: those that are stored all the same."""
        while self._waiting:
            with suppress(GantryError):
                self.take(0)

    def tell(self) -> None:
        """After an error: how many are stored, and of how many nobody knows that."""
        if self.stored:
            complain(f"messages stored before that: {self.stored}; they stay")
        unknown = self._answers.missing + len(self._waiting)
        if unknown:
            complain(f"messages without an answer: {unknown}; they may be stored or not")

    def close(self, topic: str) -> None:
        """Say how many it was."""
        if not self._as_json:
            self._print(lambda: print_text(f"{self.stored} sent to {topic}\n"))
        if self.failure is not None:
            drop_output()
            complain(
                f"standard output: {self.failure}; messages stored: {self.stored}, and no more"
            )

    def _print(self, write: Callable[[], None]) -> None:
        if self.failure is None:
            try:
                write()
            except OSError as error:
                self.failure = error


def _show(receipt: SendReceipt) -> None:
    print_json(
        {
            "message_id": receipt.message_id,
            "offset_msg_id": receipt.offset_msg_id,
            "queue": receipt.message_queue.queue_id,
            "queue_offset": receipt.queue_offset,
            "recall_handle": receipt.recall_handle,
        }
    )


@contextmanager
def _at(place: str) -> Iterator[None]:
    """Say of what is wrong with a message where it is."""
    try:
        yield
    except MessageIllegal as error:
        raise MessageIllegal(f"{place}{error}", **error.fields) from error


def _messages(
    stream: BinaryIO, lines: str, shared: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of each line its place, and the message's fields. Raises MessageIllegal."""
    for number, line in enumerate(stream, 1):
        place, text = f"line {number}: ", line.rstrip(b"\r\n")
        with _at(place):
            fields = {"body": text, **shared} if lines == "text" else _from_json(text, shared)
        yield place, fields


def _from_json(text: bytes, shared: dict[str, Any]) -> dict[str, Any]:
    try:
        given = parse_json(text)
    except ValueError as error:
        raise MessageIllegal(f"this is no JSON: {error}") from error
    if not isinstance(given, dict):
        raise MessageIllegal('this is no object: {"body": ...} is wanted')
    _check_fields(given, shared)
    data = _body(given)
    given.pop("body_base64", None)
    return {**shared, **given, "body": data}


def _check_fields(given: dict[str, Any], shared: dict[str, Any]) -> None:
    unknown = given.keys() - {"body", "body_base64", *shared}
    if unknown:
        raise MessageIllegal(f"there are unknown fields {sorted(unknown)}")
    if ("body" in given) == ("body_base64" in given):
        what = "both body and body_base64" if "body" in given else "neither body nor body_base64"
        raise MessageIllegal(f"there is {what}: give one")
    for name, value in given.items():
        if name in _KINDS and not isinstance(value, _KINDS[name]):
            shown = json.dumps(value)
            raise MessageIllegal(f"{name} is {shown}, {_WANTED[name]} is wanted")


def _body(given: dict[str, Any]) -> bytes:
    """A text as UTF-8, anything else as JSON; bytes as base64. Raises MessageIllegal."""
    if "body_base64" in given:
        try:
            return base64.b64decode(given["body_base64"], validate=True)
        except (ValueError, TypeError) as error:
            raise MessageIllegal(f"body_base64 is no base64: {error}") from error
    body = given["body"]
    try:
        return body.encode() if isinstance(body, str) else json.dumps(body).encode()
    except UnicodeEncodeError as error:
        raise MessageIllegal(f"body is no text that UTF-8 has: {error}") from error


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, equals, _value in pairs:
        if not equals:
            raise typer.BadParameter(f"{name}: write name=value", param_hint="--property")
    return {name: value for name, _equals, value in pairs}
