"""`gantrymq dlq resend`, `export` and `purge`: what an operator does with dead letters."""

from __future__ import annotations

import base64
import json
import os
import secrets
import sys
from collections import Counter, defaultdict
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, Final

from gantrymq.cli.answers import Answers
from gantrymq.cli.dlq_letters import DeadLetters, Letter, Wanted
from gantrymq.cli.leave import complain
from gantrymq.cli.output import home_of, print_json
from gantrymq.clients.message import GROUP_PROPERTY, as_sent
from gantrymq.clients.stored_body import plain_body
from gantrymq.shm.codes import ExitCode
from gantrymq.shm.errors import GantryError, Rejected
from gantrymq.shm.ownfiles import naming
from gantrymq.shm.storeplace import require_outside_stores
from gantrymq.workers.groups.deadletternote import (
    add,
    count_from,
    locked,
    write_note,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from gantrymq.clients.message import Message, SendReceipt
    from gantrymq.clients.producer import Producer

_AT_ONCE: Final = 500
#: So many letters are named of those that failed for the same reason.
_NAMED: Final = 10


class _Failures:
    """Letters that cannot be sent or written, by why; the others are."""

    def __init__(self) -> None:
        self._offsets: defaultdict[str, list[int]] = defaultdict(list)

    def add(self, letter: Letter, error: Rejected) -> None:
        """One letter."""
        self._offsets[str(error)].append(letter.place[1])

    def total(self) -> int:
        """How many they are."""
        return sum(map(len, self._offsets.values()))

    def tell(self, what: str) -> None:
        """Say which, as `--at` takes them, and why."""
        for text, offsets in self._offsets.items():
            named = ", ".join(map(str, offsets[:_NAMED]))
            more = " and more" if len(offsets) > _NAMED else ""
            complain(f"{len(offsets)} not {what}: {text} (--at {named}{more})")

    @property
    def code(self) -> int:
        """The exit code."""
        return ExitCode.DOES_NOT_HOLD if self._offsets else ExitCode.OK


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
        self._failed = _Failures()
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
            self._failed.add(letter, error)

    def send(self, producer: Producer, letters: list[Letter]) -> None:
        """Send some, wait for their receipts, remember those that are stored."""
        flying: list[tuple[Letter, str, Future[SendReceipt]]] = []
        done: list[Letter] = []
        try:
            for letter in letters:
                try:
                    message = _message(letter)
                    # What is noted as sent outlives a power cut: so does what was sent.
                    sent = producer.send_async(message, durability="durable")
                    flying.append((letter, message.topic, sent))
                except Rejected as error:
                    self._failed.add(letter, error)
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
                self._failed.add(letter, error)
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
        sent = self._sent.total()
        if as_json:
            print_json(
                {
                    "group": self._group,
                    "dry_run": dry_run,
                    "resent": sent,
                    "topics": dict(self._sent),
                    "resent_before": self._before,
                    "failed": self._failed.total(),
                }
            )
        else:
            for topic, count in sorted(self._sent.items()):
                sys.stdout.write(f"{topic}  {count}\n")
            before = f", {self._before} were before" if self._before else ""
            what = "would be sent again; nothing was changed" if dry_run else "sent again"
            sys.stdout.write(f"{sent} {what}{before}\n")
        self._failed.tell("sent")
        return self._failed.code

    def tell_broken_off(self) -> None:
        """After an error: what went, and what the next run may send twice."""
        self._failed.tell("sent")
        if self._sent:
            complain(f"sent again before that: {self._sent.total()}; they are not sent twice")
        if self._answers.missing:
            complain(
                f"sent again without an answer: {self._answers.missing}; the next run sends them"
                " once more"
            )


def export(
    group: str, wanted: Wanted, file: Path, *, home: Path | None, dry_run: bool, as_json: bool
) -> int:
    """Write dead letters as lines that `gantrymq send --lines json` takes; the exit code.

    Raises Rejected, Corrupt, OSError; then there is no file.
    """
    require_outside_stores(file, "file")
    dead = DeadLetters(home_of(home))
    dead.queues(group)  # is there such a group?
    dead.require_named(group, wanted)
    _require_free(file)
    with nullcontext() if dry_run else _new_file(file) as out:
        counts, failed = _write(dead.letters(group, wanted), out)
    if as_json:
        told = {"group": group, "file": str(file), "dry_run": dry_run}
        told |= {"exported": counts.total(), "topics": counts, "failed": failed.total()}
        print_json(told)
    else:
        for topic, count in sorted(counts.items()):
            sys.stdout.write(f"{topic}  {count}\n")
        what = "would be written; no file was made" if dry_run else f"written to {file}"
        sys.stdout.write(f"{counts.total()} {what}\n")
    failed.tell("written")
    return failed.code


def _write(letters: Iterator[Letter], out: IO[str] | None) -> tuple[Counter[str], _Failures]:
    """How many were written, by topic, and which cannot be."""
    counts: Counter[str] = Counter()
    failed = _Failures()
    for letter in letters:
        try:
            line = json.dumps(_line(letter), ensure_ascii=False)
        except Rejected as error:
            failed.add(letter, error)
            continue
        if out is not None:
            out.write(line + "\n")
        counts[letter.topic or "-"] += 1
    return counts, failed


@contextmanager
def _new_file(file: Path) -> Iterator[IO[str]]:
    """A file that gets its name once it is whole: who repeats what a kill has ended finds none."""
    partial = file.with_name(f"{file.name}.{secrets.token_hex(4)}.partial")
    with naming(file), partial.open("x", encoding="utf-8") as out:
        try:
            yield out
            out.flush()
            _require_free(file)
            partial.rename(file)
        finally:
            partial.unlink(missing_ok=True)


def _require_free(file: Path) -> None:
    """Raise what a new file of that name would be refused with, as far as can be seen without."""
    if os.path.lexists(file):
        raise Rejected(f"{file} is there already: name a new file")
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
