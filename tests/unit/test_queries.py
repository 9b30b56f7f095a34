"""Queries against a model that reads the whole log: any key, time and page, however the index is.

Rules SF-78 to SF-82, CQ-60, CQ-62, LW-60.
"""

from __future__ import annotations

import random
import subprocess
import sys
from bisect import bisect_left
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gantrymq.brokerd.config import Settings, load
from gantrymq.clients.arguments import moment
from gantrymq.clients.logfiles import LogFiles
from gantrymq.clients.message import MessageQueue
from gantrymq.clients.queries.bytime import Boundary, offset_at
from gantrymq.clients.queries.found import Found
from gantrymq.clients.queries.ids import find_message
from gantrymq.clients.queries.moments import milliseconds, moment_or, parse_moment
from gantrymq.clients.queries.request import Request
from gantrymq.clients.queries.view import RunningStore, StoppedStore, StoreView
from gantrymq.shm import layout
from gantrymq.shm.codes import Level
from gantrymq.shm.errors import Corrupt, Rejected, TopicNotFound
from gantrymq.shm.indexnote import Shape, read_note, save_note
from gantrymq.shm.properties import index_hash
from gantrymq.shm.ranges import EVERYTHING, OPEN, Ranges, write_ranges
from gantrymq.shm.record import STRUCTURE, Record
from gantrymq.shm.segment import open_log
from gantrymq.shm.storage import PosixStorage
from tests.support.indexing import Indexing
from tests.support.interrupts import FINALIZED, Interrupt, interrupt_each
from tests.support.keyed import SEGMENT_BYTES, TOPICS, WORDS, write_keyed_log
from tests.support.memory_sessions import add_topic
from tests.support.sealed import segment_of, write_segment
from tests.support.trials import mends

SLOTS, ENTRIES = 64, 150
QUEUE = MessageQueue("orders", 0)


def settings() -> Settings:
    sizes = {
        "mapped_file_size_commit_log": SEGMENT_BYTES,
        "max_message_size": 2048,
        "max_hash_slot_num": SLOTS,
        "max_index_num": ENTRIES,
    }
    return load(given=sizes, environment={}).settings


class Place:
    """A store with a log of keys, as a running broker shows it; the index may lag behind."""

    def __init__(self, home: Path, dice: random.Random, *, ours: bool = True) -> None:
        self.home, self.storage = home, PosixStorage(str(home / "store"))
        self.end = write_keyed_log(home / "store", dice, 4)
        scanned = open_log(self.storage).scan(0, self.end, STRUCTURE)
        self.records = [item for _, item in scanned if isinstance(item, Record)]
        if ours:
            write_ranges(self.storage, EVERYTHING)
        self.indexing = Indexing(self.storage, settings(), 0)
        board = self.indexing.board
        for topic in TOPICS:
            add_topic(board, topic, 1)
        self.view: StoreView = RunningStore(home, self.storage, board)
        self.view.__dict__["shape"] = Shape(SLOTS, ENTRIES)

    def index_up_to(self, position: int) -> None:
        self.indexing.follow(position)
        self.indexing.run()
        board = self.indexing.board
        assert board.word(layout.BOARD_INDEXED) == position
        board.set_word(layout.BOARD_APPENDED, self.end)

    def found(self, request: Request) -> list[int]:
        """Positions, in the order of the answer, by pages of three."""
        answer = Found(partial(request.results, self.view), None)
        pages = iter(lambda: answer.page(3), [])
        positions = [message.position for page in pages for message in page]
        assert answer.unsearched == ()
        return positions

    def wanted(self, request: Request) -> list[int]:
        """What the records alone say."""
        return [
            record.physical_offset
            for record in reversed(self.records)
            if record.transaction != layout.SYS_ROLLBACK
            and record.topic == request.topic
            and request.begin_ms <= record.store_timestamp <= request.end_ms
            and (request.before is None or record.physical_offset < request.before)
            and _has(record, request)
        ]


def _has(record: Record, request: Request) -> bool:
    named = record.property_map()
    if request.message_id is not None:
        return named.get("UNIQ_KEY") == request.message_id
    return request.key in named.get("KEYS", "").split(" ")


def frequent(place: Place) -> Request:
    """Of a key that many messages have."""
    requests = [Request(topic=t, key=w) for t in TOPICS for w in WORDS if w and " " not in w]
    return max(requests, key=lambda request: len(place.wanted(request)))


def any_request(dice: random.Random, place: Place) -> Request:
    words = [word for word in WORDS if word and " " not in word]
    ids = [record.property_map().get("UNIQ_KEY") for record in place.records]
    request = Request(topic=dice.choice(TOPICS), key=dice.choice([*words, "again", "no such"[:2]]))
    if dice.random() < 0.3:
        message_id = dice.choice([text for text in ids if text])
        request = replace(request, key=None, message_id=message_id)
    if dice.random() < 0.6:
        times = [dice.choice(place.records).store_timestamp + dice.choice((-1, 0, 1)) for _ in "12"]
        request = replace(request, begin_ms=min(times), end_ms=max(times))
    if dice.random() < 0.3:
        request = replace(request, before=dice.choice(place.records).physical_offset)
    return replace(request, index=dice.random() < 0.9)


@pytest.mark.parametrize("ours", [True, False])
def test_any_query_is_exact_however_far_the_index_is(tmp_path: Path, seed: int, ours: bool) -> None:
    """LW-60: keys of one hash, a key twice in a message, what is not indexed yet."""
    dice = random.Random(seed)
    place = Place(tmp_path, dice, ours=ours)
    hits = 0
    for part in (0, 0.3, 0.7, 1):
        at = bisect_left([r.physical_offset for r in place.records], part * place.end)
        place.index_up_to(place.records[at].physical_offset if part < 1 else place.end)
        for _ in range(40):
            request = any_request(dice, place)
            wanted = place.wanted(request)
            assert place.found(request) == wanted, request
            hits += len(wanted)
    assert hits > 100
    place.indexing.stop()


def stopped(place: Place, position: int) -> Place:
    """The same store without a broker; its index ends at a position."""
    place.index_up_to(position)
    left(place)
    assert place.view.indexed == position
    return place


def left(place: Place) -> None:
    """Let there be no broker."""
    place.indexing.stop()
    for topic in TOPICS:
        place.storage.make_directory(f"consumequeue/{topic}")
    place.view = StoppedStore(place.storage, Shape(1, 1))


def test_a_stopped_store_is_searched_behind_its_index(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    place = Place(tmp_path, dice)
    stopped(place, dice.choice(place.records).physical_offset)
    for _ in range(25):
        request = any_request(dice, place)
        assert place.found(request) == place.wanted(request), request


@mends("S126")
def test_a_stopped_store_whose_index_has_lost_its_beginning_is_searched(
    tmp_path: Path, seed: int
) -> None:
    """Keys had gone with segments that a power cut has brought back."""
    dice = random.Random(seed)
    place = Place(tmp_path, dice)
    place.index_up_to(place.end)
    left(place)
    known = read_note(place.storage)
    assert known is not None
    save_note(place.storage, known[0], replace(known[1], low=place.end // 2))
    place.view = StoppedStore(place.storage, Shape(1, 1))
    assert place.view.indexed == place.view.low
    for _ in range(25):
        request = any_request(dice, place)
        assert place.found(request) == place.wanted(request), request


def test_an_index_that_has_all_is_asked_without_kernels(tmp_path: Path, seed: int) -> None:
    place = Place(tmp_path, random.Random(seed))
    stopped(place, place.end)
    program = (
        "import sys; from gantrymq.clients.queries.client import Client\n"
        "with Client(sys.argv[1]) as client: found = client.query('orders', 'k1').page(1000)\n"
        "assert not {'numpy', 'gantrymq.clients.queries.logscan'} & set(sys.modules)\n"
        "print(*(message.position for message in found))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    wanted = place.wanted(Request(topic="orders", key="k1"))
    assert wanted
    assert [int(position) for position in answer.stdout.split()] == wanted


def test_a_running_store_s_topics_and_ranges_are_those_of_now(tmp_path: Path, seed: int) -> None:
    """They are kept between queries, but not before the broker has opened its range."""
    place = Place(tmp_path, random.Random(seed), ours=False)
    view = place.view
    assert isinstance(view, RunningStore)
    assert view.topics() == list(TOPICS)
    add_topic(view.board, "newer", 1)
    assert view.topics() == [*TOPICS, "newer"]
    assert not view.reader.ranges.contains(0)
    write_ranges(place.storage, Ranges(((0, 1),)))
    assert view.reader.ranges.contains(0)
    write_ranges(place.storage, EVERYTHING)
    assert view.reader.ranges.contains(place.end)
    assert view.reader is view.reader


@mends("S158")
def test_entries_that_were_never_written_end_no_chain(tmp_path: Path, seed: int) -> None:
    """Zeroes look like the last entry of a chain in slot 0, and nowhere else."""
    place = Place(tmp_path, random.Random(seed))
    place.index_up_to(place.end)
    place.indexing.stop()
    files = sorted((tmp_path / "store" / "index").iterdir())
    shape = Shape(SLOTS, ENTRIES)
    ids = [(r.topic, r.property_map().get("UNIQ_KEY", "")) for r in place.records]
    requests = [Request(topic=topic, message_id=text) for topic, text in ids if text]
    requests += [Request(topic=TOPICS[0], key=f"no-such-{n}") for n in range(10 * SLOTS)]
    in_slot_0 = [
        request
        for request in requests
        if index_hash(request.topic, request.message_id or request.key or "") % SLOTS == 0
    ]
    for path in files[:-1]:
        whole, told = path.read_bytes(), False
        for number in (1, 2, ENTRIES // 2, ENTRIES - 1):
            at = shape.entry_at(number)
            path.write_bytes(whole[:at] + bytes(len(whole) - at))
            for request in in_slot_0:
                answer = Found(partial(request.results, place.view), None)
                found = [message.position for message in answer]
                assert found == place.wanted(request), request
                told |= bool(answer.reasons)
        path.write_bytes(whole)
        assert told == any(whole[shape.slot_at(0) :][: layout.INDEX_SLOT_BYTES])


def test_a_file_that_does_not_hold_is_not_believed(tmp_path: Path, seed: int) -> None:
    """Damage that a chain shows: the log is asked in its place, and why is said."""
    dice = random.Random(seed)
    place = Place(tmp_path, dice)
    place.index_up_to(place.end)
    place.indexing.stop()
    files = sorted((tmp_path / "store" / "index").iterdir())
    front = layout.INDEX_HEADER_BYTES + layout.INDEX_SLOT_BYTES * SLOTS
    whole = files[1].read_bytes()
    told = 0
    for number in range(80):
        data = bytearray(whole)
        if number % 4 == 0:  # slots ahead of their entries, as a power cut may leave them
            at = layout.INDEX_HEADER_BYTES + layout.INDEX_SLOT_BYTES * dice.randrange(SLOTS)
            data[at : at + 4] = (ENTRIES + 1).to_bytes(4, "big")
        elif number % 4 == 1:  # entries that were never written
            entry = dice.randrange(2, ENTRIES)
            data[front + 20 * entry :] = bytes(len(data) - front - 20 * entry)
        elif number % 4 == 2:  # a chain that goes on instead of back
            at = front + 20 * dice.randrange(1, ENTRIES) + layout.INDEX_PREV
            data[at : at + 4] = (ENTRIES - 1).to_bytes(4, "big")
        else:
            del data[dice.randrange(100, len(data)) :]
        files[1].write_bytes(data)
        request = replace(any_request(dice, place), index=True)
        answer = Found(partial(request.results, place.view), None)
        assert [message.position for message in answer] == place.wanted(request), request
        told += bool(answer.reasons)
        assert all(files[1].name in reason for reason in answer.reasons)
    assert told > 10


@mends("S161")
@pytest.mark.parametrize("size", [0, 100, SEGMENT_BYTES // 2, SEGMENT_BYTES + 1])
def test_a_segment_of_another_length_is_named(tmp_path: Path, seed: int, size: int) -> None:
    """By it positions would be looked for in wrong files, as if their messages had expired."""
    dice = random.Random(seed)
    place = stopped(place := Place(tmp_path, dice), place.end)
    bases = sorted((tmp_path / "store" / "commitlog").iterdir())
    for path in bases[:-1]:
        whole = path.read_bytes()
        path.write_bytes(whole[:size].ljust(size, b"\0"))
        with pytest.raises(Corrupt, match=f"commitlog/{path.name} has {size} bytes"):
            StoppedStore(place.storage, Shape(1, 1))
        path.write_bytes(whole)
    assert StoppedStore(place.storage, Shape(1, 1)).segment_bytes == SEGMENT_BYTES


def test_what_is_left_out_is_said(tmp_path: Path, seed: int) -> None:
    place = Place(tmp_path, random.Random(seed))
    request = Request(topic="orders", key="a", scan_bytes=1)
    answer = Found(partial(request.results, place.view), None)
    place.index_up_to(place.records[0].physical_offset)
    newest = place.records[-1].physical_offset // SEGMENT_BYTES * SEGMENT_BYTES
    found = [message.position for message in answer]
    assert found == [at for at in place.wanted(request) if at >= newest]
    assert answer.unsearched == (
        (newest - SEGMENT_BYTES, newest),
        (newest - 2 * SEGMENT_BYTES, newest - SEGMENT_BYTES),
        (0, newest - 2 * SEGMENT_BYTES),
    )
    assert answer.reasons == ("the index ends below",)


@mends("S32")
@pytest.mark.parametrize("place_in_record", [0, 7, layout.RECORD.offset("flag")])
def test_a_damaged_message_is_named_and_the_others_come(
    tmp_path: Path, seed: int, place_in_record: int
) -> None:
    place = Place(tmp_path, random.Random(seed))
    place.index_up_to(place.end)
    request = frequent(place)
    wanted = place.wanted(request)
    broken = next(r for r in place.records if r.physical_offset == wanted[1])
    base = broken.physical_offset // SEGMENT_BYTES * SEGMENT_BYTES
    path = tmp_path / "store" / "commitlog" / f"{base:020d}"
    data = bytearray(path.read_bytes())
    data[broken.physical_offset - base + place_in_record] ^= 0x80
    path.write_bytes(data)
    answer = Found(partial(request.results, place.view), None)
    assert next(answer).position == wanted[0]
    with pytest.raises(Corrupt, match=f"record at {wanted[1]} is damaged"):
        next(answer)
    assert [message.position for message in answer] == wanted[2:]
    place.indexing.stop()


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (Request(topic="orders", key=""), "empty"),
        (Request(topic="orders", key="two words"), "one of them at a time"),
        (Request(topic="orders", key="a\x01b"), "separates properties"),
        (Request(topic="orders", key="\udcff"), "no Unicode text"),
        (Request(topic="orders", key="x" * 32_768), "has 32768 bytes"),
        (Request(topic="orders", message_id=""), "message_id is empty"),
        (Request(topic="orders", key="a", message_id="b"), "not both"),
        (Request(topic="orders", begin_ms=2, end_ms=1), "swap them"),
        (Request(topic="orders", before=-1), "0 and more"),
        (Request(topic="orders", key="a", scan_bytes=-1), "0 and more"),
    ],
    ids=lambda item: item if isinstance(item, str) else "request",
)
def test_what_no_message_can_have_is_refused(tmp_path: Path, request_: Request, said: str) -> None:
    view = StoppedStore(PosixStorage(str(tmp_path)), Shape(SLOTS, ENTRIES))
    with pytest.raises(Rejected, match=said):
        request_.results(view)
    with pytest.raises(TopicNotFound, match="no topic orders"):
        Request(topic="orders", key="x" * 32_767).results(view)


def test_times_are_read_in_their_forms() -> None:
    assert parse_moment("1700000000123") == moment("begin", 1_700_000_000_123) == 1_700_000_000_123
    assert parse_moment("2026-01-31T08:00+00:00") == 1_769_846_400_000
    assert parse_moment("2038-11-16T03:17:07.173+00:00") == 2_173_490_227_173
    for text in ("yesterday", "", "1700000000123456", "٣", "2026-13-01"):
        with pytest.raises(Rejected, match=r"no time: give Unix milliseconds"):
            parse_moment(text)
    for given in (1.5, True, "2026"):
        with pytest.raises(Rejected, match=r"begin is .*give a datetime"):
            moment("begin", given)


@mends("S292")
@pytest.mark.parametrize("year", [1, 1969, 1970, 2026, 2300, 9998])
def test_a_part_of_a_millisecond_counts(year: int) -> None:
    """Its own millisecond is begun with, the next one ended before; whole ones stay."""
    whole = datetime(year, 12, 31, 23, 59, 59, 999_000, UTC)
    whole_ms = (whole - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    for micros in (0, 1, 500, 999):
        inside = whole + timedelta(microseconds=micros)
        assert milliseconds(inside, up=True) == whole_ms + (micros > 0)
        assert milliseconds(inside) == moment("end", inside) == whole_ms
        assert parse_moment(inside.isoformat()) == whole_ms
        assert moment_or(inside.isoformat(), None, up=True) == whole_ms + (micros > 0)


# ------------------------------------------------------------------------------------- by time


def timed_log(store: Path, times: list[int], ours_from: int) -> LogFiles:
    """A queue of messages stored at these times; from a number on they are ours."""
    records = [Record(topic="orders", body=b"x", store_timestamp=ms) for ms in times]
    view, placed = segment_of(records, 64 * 1024, sealed=False)
    write_segment(store, 0, view)
    folder = store / "consumequeue" / "orders" / "0"
    folder.mkdir(parents=True)
    for first in range(0, len(placed), 16):
        units = b"".join(
            layout.CQ_UNIT.pack(physical_offset=r.physical_offset, size=r.total_size, tags_code=0)
            for r in placed[first : first + 16]
        )
        (folder / f"{20 * first:020d}").write_bytes(units.ljust(320, b"\0"))
    storage = PosixStorage(str(store))
    start = placed[ours_from].physical_offset if ours_from < len(placed) else None
    write_ranges(storage, Ranges(() if start is None else ((start, OPEN),)))
    return LogFiles(str(store), StoppedStore(storage, Shape(SLOTS, ENTRIES)))


def naive(times: list[int], low: int, time_ms: int, boundary: Boundary) -> int:
    """CQ-62 by looking at every message."""
    numbers = range(low, len(times))
    if boundary is Boundary.LOWER:
        return next((n for n in numbers if times[n] >= time_ms), len(times))
    return next((n for n in reversed(numbers) if times[n] <= time_ms), low)


@pytest.mark.parametrize("ours_from", [0, 40, 100])
def test_a_set_clock_misleads_no_search_by_time(tmp_path: Path, seed: int, ours_from: int) -> None:
    """CQ-62, LW-12: another broker's times go back; the first message then or later is found."""
    dice = random.Random(seed)
    times: list[int] = []
    now = 1_700_000_000_000
    for number in range(100):
        now += dice.choice((0, 0, 1, 5, 1000))
        if number < ours_from and dice.random() < 0.1:
            now += dice.choice((-1, 1)) * dice.choice((1, 500, 3_600_000))  # somebody sets it
        if number == ours_from:
            now = max([now, *times])
        times.append(now)
    files = timed_log(tmp_path, times, ours_from)
    for time_ms in sorted({*times, *(ms + 1 for ms in times), times[0] - 1}):
        for boundary in Boundary:
            low = dice.choice((0, 7, 60))
            found = offset_at(files, QUEUE, low, len(times), time_ms, boundary)
            assert found == naive(times, low, time_ms, boundary), (time_ms, boundary)


def test_times_of_a_stretch_are_those_of_its_messages(tmp_path: Path) -> None:
    times = [1_700_000_000_000 + n * n for n in range(50)]
    files = timed_log(tmp_path, times, 0)
    assert np.array_equal(files.all_store_ms(QUEUE, 3, 49), times[3:49])
    assert [files.store_ms(QUEUE, n) for n in range(50)] == times
    (tmp_path / "consumequeue" / "orders" / "0" / f"{320:020d}").unlink()  # expired
    gone = LogFiles(str(tmp_path), StoppedStore(PosixStorage(str(tmp_path)), Shape(1, 1)))
    assert gone.all_store_ms(QUEUE, 14, 34).tolist() == [*times[14:16], *[0] * 16, *times[32:34]]


class Pages:
    """Positions in the order of an answer, by pages; a call that is broken off gives nothing."""

    def __init__(self, place: Place, request: Request) -> None:
        self.answer = Found(partial(request.results, place.view), None)
        self.positions: list[int] = []
        self.is_over = False

    def turn(self) -> None:
        page = self.answer.page(4)
        self.positions += [message.position for message in page]
        self.is_over = not page


@mends("S121", "S157")
@FINALIZED
@pytest.mark.parametrize("indexed", [0, 0.9, 0.99])
def test_what_a_handler_breaks_off_comes_again(tmp_path: Path, seed: int, indexed: float) -> None:
    """At any place of a page, whether the index or the log has what is found."""
    place = Place(tmp_path, random.Random(seed))
    place.index_up_to(place.records[int(indexed * len(place.records))].physical_offset)
    request = Request(topic="orders", key="a")
    wanted = place.wanted(request)[:12]

    def play(interrupt: Interrupt) -> None:
        pages = Pages(place, request)
        with interrupt:
            while len(pages.positions) < len(wanted):
                pages.turn()
        while len(pages.positions) < len(wanted):
            pages.turn()
            assert not pages.is_over, "the end came early"
        assert pages.positions[: len(wanted)] == wanted

    for _ in range(3):
        interrupt_each(play)


@mends("S121")
def test_a_handler_may_go_on_with_an_answer_amid_a_page(tmp_path: Path, seed: int) -> None:
    """Each message comes once, there or here."""
    place = Place(tmp_path, random.Random(seed))
    place.index_up_to(place.records[len(place.records) // 2].physical_offset)
    request = Request(topic="orders", key="a")
    pages = Pages(place, request)

    def play(interrupt: Interrupt) -> None:
        pages.__init__(place, request)  # type: ignore[misc]
        with interrupt:
            while not pages.is_over:
                pages.turn()
        assert sorted(pages.positions, reverse=True) == place.wanted(request)

    interrupt_each(play, handler=pages.turn)


@mends("S122")
def test_a_page_with_a_damaged_message_loses_no_other(tmp_path: Path, seed: int) -> None:
    place = Place(tmp_path, random.Random(seed))
    place.index_up_to(place.end)
    request = frequent(place)
    wanted = place.wanted(request)
    base = wanted[2] // SEGMENT_BYTES * SEGMENT_BYTES
    path = tmp_path / "store" / "commitlog" / f"{base:020d}"
    data = bytearray(path.read_bytes())
    data[wanted[2] - base + 7] ^= 0x80
    path.write_bytes(data)
    answer = Found(partial(request.results, place.view), None)
    assert [message.position for message in answer.page(50)] == wanted[:2]
    assert answer.before == wanted[1]
    with pytest.raises(Corrupt, match=f"record at {wanted[2]} is damaged"):
        answer.page(50)
    found = [message.position for page in iter(lambda: answer.page(5), []) for message in page]
    assert found == wanted[3:]
    place.indexing.stop()


@mends("S184")
def test_nothing_is_found_before_it_is_durable_where_its_topic_wants_that(
    tmp_path: Path, seed: int
) -> None:
    """P4, by whatever way: key, id and place; what is written counts in the other topics."""
    dice = random.Random(seed)
    place = Place(tmp_path, dice)
    place.index_up_to(dice.choice(place.records).physical_offset)
    board = place.indexing.board
    safe = TOPICS[0]
    board.set_half(board.topic_at(0) + layout.TOPIC_LEVEL, Level.DURABLE)
    request = frequent(place)
    for topic in TOPICS:
        request = replace(request, topic=topic)
        positions = place.wanted(request)
        ends = {r.physical_offset: r.physical_offset + r.total_size for r in place.records}
        for durable in (0, place.end, *(ends[position] for position in positions[::3])):
            board.set_word(layout.BOARD_DURABLE, durable)
            shown = [at for at in positions if topic != safe or ends[at] <= durable]
            assert place.found(request) == shown
            for at in positions:
                record = next(r for r in place.records if r.physical_offset == at)
                for text in (str(at), record.offset_message_id):
                    if at in shown:
                        assert find_message(place.view, text).physical_offset == at
                    else:
                        with pytest.raises(Rejected, match="not durable yet"):
                            find_message(place.view, text)
