"""What `gantrymq query` prints. Needs no parser of options."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from gantrymq.cli.output import home_of, print_json, print_rows
from gantrymq.cli.records import local_time, message_of
from gantrymq.clients.queries.moments import moment_or, parse_moment
from gantrymq.clients.queries.request import Request
from gantrymq.clients.queries.search import SCAN_BYTES
from gantrymq.clients.queries.view import NO_END, StoppedStore, StoreView, look
from gantrymq.shm.indexreader import EVER_MS

if TYPE_CHECKING:
    from pathlib import Path

    from gantrymq.clients.queries.found import Results

_BODY_SHOWN: Final = 40


def show_found(
    topic: str,
    *,
    home: Path | None,
    as_json: bool,
    limit: int = 32,
    scan_bytes: int | None = None,
    no_index: bool = False,
    **wanted: Any,  # noqa: ANN401 - key, id, begin, end, before
) -> None:
    """Print a page. Raises Rejected, TopicNotFound, BrokerGone, Corrupt, OSError."""
    request = _request(topic, wanted, scan_bytes, no_index)
    results = request.results(store_at(home))
    rows: list[dict[str, Any]] = []
    last = 0
    for record in results:
        if len(rows) == limit:
            break
        last = results.before or 0
        rows.append({**message_of(record), "before": last})
    else:
        last = -1
    _print(rows, last, as_json)
    tell_gaps(results)


def _request(topic: str, wanted: dict[str, Any], scan_bytes: int | None, no_index: bool) -> Request:
    if scan_bytes is None:
        scan_bytes = NO_END if no_index else SCAN_BYTES
    return Request(
        topic=topic,
        key=wanted.get("key"),
        message_id=wanted.get("id"),
        begin_ms=moment_or(wanted.get("begin"), -EVER_MS),
        end_ms=moment_or(wanted.get("end"), EVER_MS),
        before=wanted.get("before"),
        scan_bytes=scan_bytes,
        index=not no_index,
    )


def _print(rows: list[dict[str, Any]], last: int, as_json: bool) -> None:
    """`last`: where the next page begins, -1 if there is none."""
    if as_json:
        print_rows(rows, as_json=True)
        return
    print_rows([_for_people(row) for row in rows], as_json=False)
    count = f"{len(rows)} message{'s' * (len(rows) != 1)}"
    sys.stdout.write(count + (f", more with --before {last}\n" if last >= 0 else "\n"))


def _for_people(row: dict[str, Any]) -> dict[str, object]:
    body = row["body"].decode("utf-8", "replace")
    shown = "".join(letter if letter.isprintable() else "." for letter in body[:_BODY_SHOWN])
    return {
        "stored": local_time(row["store_timestamp"]),
        "queue": row["queue"],
        "offset": row["queue_offset"],
        "position": row["position"],
        "message_id": row["message_id"],
        "tag": row["tag"] or "-",
        "keys": " ".join(row["keys"]) or "-",
        "body": shown + "..." * (len(body) > _BODY_SHOWN),
    }


def tell_gaps(results: Results) -> None:
    """On standard error, what the answer leaves out and why."""
    for reason in results.reasons:
        sys.stderr.write(f"gantrymq: {reason}\n")
    left_out = sum(end - start for start, end in results.unsearched)
    if left_out:
        sys.stderr.write(
            f"gantrymq: {left_out} bytes of the log were not looked through, from position"
            f" {min(results.unsearched)[0]} on: --scan-bytes {left_out} or more does\n"
        )


def show_offsets(topic: str, moment: str, *, home: Path | None, as_json: bool) -> None:
    """Print each queue's offsets of a time. Raises Rejected, TopicNotFound, BrokerGone."""
    from gantrymq.clients.queries.bytime import Boundary, offset_in

    time_ms = parse_moment(moment)
    view = store_at(home)
    rows = []
    for span in view.spans(topic):
        row = {"queue": span.queue.queue_id, "min_offset": span.first, "max_offset": span.end}
        for boundary in Boundary:
            row[str(boundary)] = offset_in(view, span, time_ms, boundary)
        rows.append(row)
    if as_json:
        print_json({"topic": topic, "time_ms": time_ms, "queues": rows})
    else:
        print_rows(rows, as_json=False)


def store_at(home: Path | None) -> StoreView:
    """The store that a command means. Raises BrokerGone."""
    where = home_of(home)
    view = look(where)
    if isinstance(view, StoppedStore) and view.doubt:  # a RocketMQ's: its sizes are in no note
        from gantrymq.brokerd.config import load
        from gantrymq.shm.indexnote import Shape

        settings = load(where).settings
        return look(where, Shape(settings.max_hash_slot_num, settings.max_index_num))
    return view
