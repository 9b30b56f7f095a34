"""`gantrymq dlq resend`, `export` and `purge`: what an operator does with dead letters."""

from __future__ import annotations

import base64
import json
import sys
from collections import Counter
from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from gantrymq.cli.answers import Answers
from gantrymq.cli.dlq_letters import DeadLetters, Letter, Wanted
from gantrymq.cli.leave import complain
from gantrymq.cli.output import home_of, print_json
from gantrymq.clients.message import GROUP_PROPERTY, as_sent
from gantrymq.clients.stored_body import plain_body
from gantrymq.shm.codes import ExitCode
from gantrymq.shm.errors import GantryError, Rejected
from gantrymq.shm.storeplace import require_outside_stores
from gantrymq.workers.groups.deadletternote import (
    add,
    count_from,
    locked,
    write_note,
)

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from gantrymq.clients.message import Message, SendReceipt
    from gantrymq.clients.producer import Producer

_AT_ONCE: Final = 500


def resend(group: str, wanted: Wanted, *, home: Path | None, dry_run: bool, as_json: bool) -> int:
    """Send dead letters again, each once; the exit code. Raises GantryError, OSError."""
    dead = DeadLetters(home_of(home))
    dead.require_named(group, wanted)
    run = _Resend(dead, group)
    if dry_run:
        for letter in dead.letters(group, wanted):
            run.count(letter)
    else:
        from gantrymq.clients.producer import Producer

        with locked(dead.store), Producer(home=dead.home) as producer:
            dead.refresh()
            waiting = (item for item in dead.letters(group, wanted) if run.is_due(item))
            try:
                while letters := list(islice(waiting, _AT_ONCE)):
                    run.send(producer, letters)
            except BaseException:
                run.tell_broken_off()
                raise
    return run.tell(dry_run=dry_run, as_json=as_json)


class _Resend:
    """Counts of one run; what went is remembered after each part."""

    def __init__(self, dead: DeadLetters, group: str) -> None:
        self._dead, self._group = dead, group
        self._sent: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._before = 0
        self._answers = Answers()

    def is_due(self, letter: Letter) -> bool:
        """Whether it was not sent again before."""
        self._before += letter.resent
        return not letter.resent

    def count(self, letter: Letter) -> None:
        """What `send` would do, by what is known without sending."""
        if not self.is_due(letter):
            return
        try:
            self._sent[_message(letter).topic] += 1
        except Rejected as error:
            self._failed[str(error)] += 1

    def send(self, producer: Producer, letters: list[Letter]) -> None:
        """Send some, wait for their receipts, remember those that are stored."""
        flying: list[tuple[Letter, str, Future[SendReceipt]]] = []
        done: list[Letter] = []
        try:
            for letter in letters:
                try:
                    message = _message(letter)
                    flying.append((letter, message.topic, producer.send_async(message)))
                except Rejected as error:
                    self._failed[str(error)] += 1
        finally:
            try:
                trouble = self._await(flying, done)
            finally:
                self._remember(done)
        if trouble is not None:
            raise trouble

    def _await(
        self, flying: list[tuple[Letter, str, Future[SendReceipt]]], done: list[Letter]
    ) -> GantryError | None:
        trouble = None
        for letter, topic, future in flying:
            try:
                self._answers.of(future)
            except Rejected as error:
                self._failed[str(error)] += 1
            except GantryError as error:
                trouble = error
            else:
                done.append(letter)
                self._sent[topic] += 1
        return trouble

    def _remember(self, letters: list[Letter]) -> None:
        for letter in letters:
            queue_id, offset = letter.place
            add(self._dead.note.of(self._group, queue_id).resent, [(offset, offset + 1)])
        if letters:
            write_note(self._dead.storage, self._dead.note)

    def tell(self, *, dry_run: bool, as_json: bool) -> int:
        """Print the counts; the exit code."""
        sent, failed = self._sent.total(), self._failed.total()
        if as_json:
            print_json(
                {
                    "group": self._group,
                    "dry_run": dry_run,
                    "resent": sent,
                    "topics": dict(self._sent),
                    "resent_before": self._before,
                    "failed": failed,
                }
            )
        else:
            for topic, count in sorted(self._sent.items()):
                sys.stdout.write(f"{topic}  {count}\n")
            before = f", {self._before} were before" if self._before else ""
            what = "would be sent again; nothing was changed" if dry_run else "sent again"
            sys.stdout.write(f"{sent} {what}{before}\n")
        self._tell_failed()
        return ExitCode.DOES_NOT_HOLD if failed else ExitCode.OK

    def tell_broken_off(self) -> None:
        """After an error: what went, and what the next run may send twice."""
        self._tell_failed()
        if self._sent:
            complain(f"sent again before that: {self._sent.total()}; they are not sent twice")
        if self._answers.missing:
            complain(
                f"sent again without an answer: {self._answers.missing}; the next run sends them"
                " once more"
            )

    def _tell_failed(self) -> None:
        for text, count in self._failed.items():
            complain(f"{count} not sent: {text}")


def export(
    group: str, wanted: Wanted, file: Path, *, home: Path | None, dry_run: bool, as_json: bool
) -> None:
    """Write dead letters as lines that `gantrymq send --lines json` takes. Raises Rejected, ..."""
    require_outside_stores(file, "file")
    dead = DeadLetters(home_of(home))
    dead.queues(group)  # is there such a group?
    dead.require_named(group, wanted)
    counts: Counter[str] = Counter()
    try:
        if dry_run:
            _require_place(file)
        with nullcontext() if dry_run else file.open("x", encoding="utf-8") as out:
            for letter in dead.letters(group, wanted):
                line = json.dumps(_line(letter), ensure_ascii=False)
                if out is not None:
                    out.write(line + "\n")
                counts[letter.topic or "-"] += 1
    except FileExistsError:
        raise Rejected(f"{file} is there already: name a new file") from None
    if as_json:
        told = {"group": group, "file": str(file), "dry_run": dry_run}
        print_json(told | {"exported": counts.total(), "topics": counts})
        return
    for topic, count in sorted(counts.items()):
        sys.stdout.write(f"{topic}  {count}\n")
    what = "would be written; no file was made" if dry_run else f"written to {file}"
    sys.stdout.write(f"{counts.total()} {what}\n")


def _require_place(file: Path) -> None:
    """Raise what making a file would raise, as far as can be seen without."""
    if file.exists():
        raise FileExistsError
    file.parent.stat()


def purge(group: str, wanted: Wanted, *, home: Path | None, dry_run: bool, as_json: bool) -> None:
    """Hide dead letters for good. Raises Rejected, Corrupt, OSError."""
    dead = DeadLetters(home_of(home))
    with locked(dead.store):
        dead.refresh()
        dead.require_named(group, wanted)
        count = 0
        chosen: dict[int, list[tuple[int, int]]] = {}
        if wanted.is_all:
            for queue_id, low, high, marks in dead.queues(group):
                count += high - low - count_from(marks.purged, low)
                chosen[queue_id] = [(0, high)]
        else:
            for letter in dead.letters(group, wanted):
                queue_id, offset = letter.place
                chosen.setdefault(queue_id, []).append((offset, offset + 1))
                count += 1
        if count and not dry_run:
            for queue_id, ranges in chosen.items():
                add(dead.note.of(group, queue_id).purged, ranges)
            write_note(dead.storage, dead.note)
    if as_json:
        print_json({"group": group, "dry_run": dry_run, "purged": count})
        return
    sys.stdout.write(
        f"{count} would be purged; nothing was changed\n" if dry_run else f"{count} purged\n"
    )


def _message(letter: Letter) -> Message:
    """As its producer sent it. Raises Rejected."""
    from gantrymq.clients.message import Message

    if letter.topic is None:
        raise Rejected("nothing says which topic it was sent to: `dlq export`, then `send`")
    properties = letter.properties
    return Message(
        letter.topic,
        _body(letter),
        tag=properties.get("TAGS"),
        keys=tuple(properties.get("KEYS", "").split()),
        properties=as_sent("", properties)[1],
        message_group=properties.get(GROUP_PROPERTY),
    )


def _body(letter: Letter) -> bytes:
    try:
        return bytes(plain_body(letter.record.body, letter.record.sys_flag))
    except (ValueError, ModuleNotFoundError) as error:
        raise Rejected(f"its body cannot be unpacked: {error}") from error


def _line(letter: Letter) -> dict[str, Any]:
    message = _message_or_raw(letter)
    body = message.pop("body")
    try:
        return {"body": body.decode(), **message}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode(), **message}


def _message_or_raw(letter: Letter) -> dict[str, Any]:
    properties = letter.properties
    return {
        "body": _body(letter),
        "tag": properties.get("TAGS"),
        "keys": properties.get("KEYS", "").split(),
        "properties": as_sent("", properties)[1],
    }
