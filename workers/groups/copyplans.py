"""What becomes of failed messages: a copy to be put, an answer at once, or a refusal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from gantrymq.shm.errors import Corrupt, MessageIllegal
from gantrymq.shm.groupwire import DEAD_LETTER
from gantrymq.shm.innerbatch import is_inner_batch
from gantrymq.shm.limits import DELIVERIES_MAX
from gantrymq.shm.properties import DLQ_PREFIX
from gantrymq.shm.soundrecord import Sound
from gantrymq.workers.groups.pending import Asked, InFlight, Name, Pending
from gantrymq.workers.groups.progress import Progress, QueueKey
from gantrymq.workers.groups.retrycopy import CopyMaker, Failure, TooLong, TopicMissing, missing
from gantrymq.workers.groups.usualcopies import UsualCopies
from gantrymq.workers.outlet import entry_of, topic_slot_of

if TYPE_CHECKING:
    from gantrymq.shm.record import Record
    from gantrymq.workers.groups.membership import Membership
    from gantrymq.workers.groups.records import LiveReader
    from gantrymq.workers.groups.unstorable import Unstorable

#: What a request names by board queue and lease: group, queue, and how far they are.
Held = tuple[str, QueueKey, Progress]

#: Bytes of copies on their way at one time: beyond, what is asked waits.
COPIES_BYTES_MAX: Final = 32 << 20
#: Of longer delays copies are made one by one.
DELAY_MS_MAX: Final = 1 << 48


class CopyPlans:
    """Plans requests; copies that are to be put are in `flight` from then on."""

    def __init__(
        self, membership: Membership, reader: LiveReader, maker: CopyMaker, flight: InFlight,
        unstorable: Unstorable,
    ) -> None:  # fmt: skip
        self._ledger = membership.ledger
        self._topics = membership.topics
        self._reader = reader
        self._maker = maker
        self._usual = UsualCopies(reader, membership.board, membership.topics)
        self._flight = flight
        self._unstorable = unstorable

    def plan(self, asked: Asked, held: Held, room: int) -> list[Pending]:
        """Decide what becomes of up to `room` messages of a request; copies that are to be put."""
        group, key, _progress = held
        self._topics.refresh()  # nothing goes into a topic that is deleted by now
        asked.parking = self._maker.parking(group)
        asked.durable = self._maker.is_durable(key[0])
        failures = list(islice(asked.request.failures(), asked.taken, asked.taken + room))
        try:
            made = self._made(asked, held, failures)
        except OSError:  # one by one it shows which of them cannot be read
            made = {}
        slow = [failure[0] for failure in failures if failure[0] not in made]
        records = self._reader.records_of(*key, slow)
        launched: list[Pending] = []
        who, flight, taken = asked.who, self._flight, 0
        for failure in failures:
            if flight.bytes >= COPIES_BYTES_MAX:
                break
            taken += 1
            found = made.get(failure[0])
            if found is not None:
                asked.sending[failure[0]] = found.attempt
            else:
                found = self._planned_slowly(asked, held, failure, next(records))
            if found is not None:
                found.asked.append(who)
                found.durable = asked.durable
                flight.add(found)
                launched.append(found)
        asked.taken += taken
        self._unstorable.ask_for_topics()
        return launched

    def gone(self, planned: Iterable[Pending]) -> list[tuple[Pending, TopicMissing]]:
        """Dead letters that were planned for a topic that was deleted since, and why not put.

        Another topic may have its slot. Those of retries are parked in topics that stay.
        """
        self._topics.refresh()
        found: list[tuple[Pending, TopicMissing]] = []
        for pending in filter(attrgetter("dead"), planned):
            topic = f"{DLQ_PREFIX}{pending.where[0]}"
            if topic_slot_of(pending.entry) != self._topics.slot_of(topic):
                self._unstorable.want(topic)
                found.append((pending, missing(topic)))
        self._unstorable.ask_for_topics()
        return found

    def found(self, name: Name, copy: Record) -> Pending:
        """A copy that lies in the log, as if it had just been put."""
        group, key, offset = name
        dead = copy.topic.startswith(DLQ_PREFIX)
        found = Pending((group, key), offset, b"", copy.origin, copy.reconsume_times, dead)
        found.durable = self._maker.is_durable(key[0])
        return found

    def _made(
        self, asked: Asked, held: Held, failures: Sequence[tuple[int, int, str]]
    ) -> dict[int, Pending]:
        """Copies of messages of which nothing is known but that they failed."""
        (group, key, progress), most = held, asked.request.max_attempts
        known, started, is_done = self._flight.of(group, key), progress.started, progress.is_done
        usual = [
            failure
            for failure in failures
            if failure[0] < started
            and failure[1] <= DELAY_MS_MAX
            and failure[0] not in known
            and failure[0] not in progress.sending
            and not is_done(failure[0])
        ]
        if not usual or most <= 0 or len({failure[0] for failure in usual}) < len(usual):
            return {}
        died = [progress.attempts_of(failure[0]) for failure in usual] if progress.attempts else ()
        room = COPIES_BYTES_MAX - self._flight.bytes
        made = self._usual.make(key, usual, died, (most, room), asked.parking)
        where = group, key
        return {
            offset: Pending(where, offset, entry, origin, attempt, dead == 1)
            for offset, entry, origin, attempt, dead in made
        }

    def _planned_slowly(
        self, asked: Asked, held: Held, failure: tuple[int, int, str],
        record: Sound | Corrupt | None,
    ) -> Pending | None:  # fmt: skip
        (group, key, progress), (offset, delay, why) = held, failure
        name = (group, key, offset)
        known = self._flight.get(name)
        if known is not None:
            known.asked.append(asked.who)
            return None
        if offset >= progress.started:
            text = f"offset {offset} of {key[0]}/{key[1]} was not handed out"
            asked.refused[MessageIllegal.__name__, text].append(offset)
            return None
        how = (delay, asked.request.max_attempts, why)
        try:
            found = self._copy(asked, name, record, how, progress)
        except (MessageIllegal, Corrupt) as error:
            if isinstance(error, TopicMissing):
                self._unstorable.want(str(error.fields["topic"]))
            self._unstorable.refused(name, str(error))
            kind = Corrupt if isinstance(error, Corrupt) else MessageIllegal
            asked.refused[kind.__name__, str(error)].append(offset)
            return None
        if isinstance(found, bool):
            asked.done.append((offset, found))
            return None
        if offset not in progress.sending:
            asked.sending[offset] = found.attempt
        return found

    def _copy(
        self, asked: Asked, name: Name, record: Sound | Corrupt | None,
        how: tuple[int, int, str], progress: Progress,
    ) -> bool | Pending:  # fmt: skip
        """A copy to be put; only whether it is a dead letter if there is nothing to do any more.

        `how`: delay, most attempts and reason. Raises MessageIllegal, Corrupt.
        """
        group, key, offset = name
        if isinstance(record, Corrupt):
            raise record
        if record is not None and is_inner_batch(record.sys_flag):
            raise MessageIllegal(
                f"offset {offset} of {key[0]}/{key[1]} lies in an inner batch: no copy of it alone"
                " can be told from those of the batch's other messages",
                topic=key[0],
            )
        if record is None:  # retention was quicker than its consumers
            self._ledger.finish(group, key, (offset, offset + 1))
            return False
        most = how[1]
        attempt = record.reconsume_times + progress.attempts_of(offset) + 1
        if 0 < most < attempt:  # used up before: this was no delivery more
            attempt = max(record.reconsume_times, most)
        attempt = min(attempt, DELIVERIES_MAX)
        if offset in progress.sending:
            attempt = progress.sending[offset][0]
        failure = Failure(group, attempt, *how)
        if progress.is_done(offset):
            return failure.is_dead
        try:
            copy = self._maker.copy(record, failure, asked.parking)
        except TooLong as error:  # of no use to wait for: it may die now, but not be lost
            failure = failure._replace(delay=DEAD_LETTER, why=f"{error}; {failure.why}")
            copy = self._maker.copy(record, failure, asked.parking)
            self._unstorable.dead_early(name, str(error))
        entry, origin, dead = entry_of(copy, 0), copy.origin, failure.is_dead
        return Pending(name[:2], offset, entry, origin, attempt, dead)
