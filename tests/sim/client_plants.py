"""Bugs for the real client code: each is one that somebody may well write."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gantrymq.clients.assigned import Assigned
from gantrymq.clients.attachment import Attachment
from gantrymq.clients.consumer import PullConsumer
from gantrymq.clients.fetcher import Fetcher
from gantrymq.clients.filtertable import FilterTable
from gantrymq.clients.lane import WriterLane
from gantrymq.clients.push.chunks import Chunk, Failure
from gantrymq.clients.push.handoff import Handoff
from gantrymq.clients.receipts import Pending
from gantrymq.clients.writerlink import WriterLink
from gantrymq.shm import layout
from gantrymq.shm.filter import EVERYTHING, TagFilter, parse_tags
from gantrymq.shm.kernels import frames
from tests.sim.plants import put_over
from tests.support import realclients


def numbered_anew() -> None:
    """What had no answer is put into the next session's ring under new numbers."""
    refill = WriterLane.refill

    def careless(lane: WriterLane, entries: bytes) -> None:
        data = bytearray(entries)
        at = 0
        while at < len(data):
            lane.words[frames.SEQ] += 1
            seq = int(lane.words[frames.SEQ])
            place = at + layout.ENTRY.offset("seq")
            data[place : place + 8] = seq.to_bytes(8, "little")
            at += int.from_bytes(data[at : at + 4], "little")
        refill(lane, bytes(data))

    put_over(WriterLane, "refill", careless)


def committed_when_polled() -> None:
    """What a poll returns is passed before the application has seen it."""
    poll = PullConsumer.poll

    def hasty(consumer: PullConsumer, *given: Any, **named: Any) -> Any:  # noqa: ANN401
        batch = poll(consumer, *given, **named)
        consumer._pass_all()
        consumer._guarded(Attachment.report)
        return batch

    put_over(PullConsumer, "poll", hasty)


def acknowledged_when_taken() -> None:
    """A chunk is done with once a thread has it, before the listener returns."""
    take = Handoff.take

    def hasty(handoff: Handoff) -> Chunk | None:
        chunk = take(handoff)
        if chunk is not None and chunk.rows:
            run = chunk.run
            with handoff.lock:
                run.window.finish([(run.low(chunk.rows[0]), run.high(chunk.rows[-1]))])
        return chunk

    put_over(Handoff, "take", hasty)


def interest_forgotten() -> None:
    """Who attaches again does not say which queues to be woken for."""
    announce = Attachment._announce_interest
    announced: set[str] = set()

    def forgetful(attachment: Attachment) -> None:
        who = f"{realclients.process_name()}: {attachment.session.epoch}"
        first = not any(known.startswith(f"{realclients.process_name()}: ") for known in announced)
        if first or who in announced:
            announced.add(who)
            announce(attachment)

    put_over(Attachment, "_announce_interest", forgetful)


def settled_twice() -> None:
    """Of several threads that decide a future each sets it and tells."""

    def careless(receipt: Any, outcome: Any) -> None:  # noqa: ANN401
        error = getattr(outcome, "error", None)
        if error is not None:
            receipt._exception = error
        else:
            receipt._result = outcome
        receipt._state = "FINISHED"
        for callback in receipt.__dict__.get("_done_callbacks", ()):
            callback(receipt)

    put_over(Pending, "_finish", careless)


def level_of_another_unheard() -> None:
    """Who waits for its completion sleeps on if another thread takes it, but it is not durable."""
    wait = WriterLink._wait_receipt

    def careless(link: WriterLink, receipt: Any, deadline: int) -> bool:  # noqa: ANN401
        if receipt.wanted_end:
            return wait(link, receipt, deadline)
        return link._sleep_armed(
            deadline, lambda: receipt.settle() or not link.lane.arm_completed()
        )

    put_over(WriterLink, "_wait_receipt", careless)


def order_forgotten() -> None:
    """Ordered consumption: whatever thread is free takes the next chunk of a queue."""
    put_over(Handoff, "put_in_order", Handoff.put)


def failed_passed_over() -> None:
    """Ordered consumption: what is behind a message that failed does not wait for it."""
    finish = Handoff.finish

    def hasty(handoff: Handoff, chunk: Chunk, end: int, failure: Failure | None = None) -> None:
        if failure is not None:
            chunk.rows.popleft()
            end, failure = end + 1, None
        finish(handoff, chunk, end, failure)

    put_over(Handoff, "finish", hasty)


def filter_forgotten() -> None:
    """Queues that come when others are there already are fetched from without the filter."""
    follow = Fetcher.follow
    everything = FilterTable.of(parse_tags(EVERYTHING))

    def forgetful(fetcher: Fetcher, held: Iterable[Assigned]) -> None:
        if fetcher._held:
            fetcher._tables = dict.fromkeys(fetcher._tables, everything)
        follow(fetcher, held)

    put_over(Fetcher, "follow", forgetful)


def first_tag_alone() -> None:
    """Of several tags of a subscription only one is looked for."""
    ordered = TagFilter.ordered

    def hasty(chosen: TagFilter) -> list[tuple[int, bytes]]:
        return ordered(chosen)[:1]

    put_over(TagFilter, "ordered", hasty)


PLANTS: dict[str, Callable[[], None]] = {
    plant.__name__: plant
    for plant in (
        numbered_anew,
        committed_when_polled,
        acknowledged_when_taken,
        interest_forgotten,
        settled_twice,
        level_of_another_unheard,
        order_forgotten,
        failed_passed_over,
        filter_forgotten,
        first_tag_alone,
    )
}
