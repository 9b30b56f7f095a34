"""Segments expire beside a back-up and before one: the copy starts, is whole, and goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gantrymq.brokerd import backuplog as module
from gantrymq.brokerd.backup import backup
from gantrymq.brokerd.salvage import salvage
from gantrymq.brokerd.verify import verify
from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.home import store_of
from gantrymq.clients.producer import Producer
from gantrymq.shm import layout
from gantrymq.shm.board import Board
from gantrymq.shm.codes import ExitCode
from gantrymq.shm.errors import Rejected
from tests.support.agents import wait_until_shown
from tests.support.brokers import ServingBroker
from tests.support.faulty_broker import FaultyBroker, fault
from tests.support.trials import mends
from tests.support.watchdog import poll_until

SEGMENT = 1 << 16
SMALL = {
    "mapped_file_size_commit_log": SEGMENT, "mapped_file_size_consume_queue": 2000,
    "default_topic_queue_nums": 1, "log_level": "info",
}  # fmt: skip
COUNT = 2000
#: Of a topic that has messages in the first segment only.
EARLY = 5


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[FaultyBroker]:
    """With about twenty segments."""
    with FaultyBroker(tmp_path / "home", **SMALL) as one:
        one.wait_until_ready()
        with Producer(one.home) as producer:
            for _ in range(EARLY):
                producer.send("early", b"early")
            for start in range(0, COUNT, 100):
                producer.send_batch("orders", [body(start + n) for n in range(100)])
        wait_until_shown(one.home)
        yield one


def body(number: int) -> bytes:
    return b"%06d" % number + bytes(200)


def expire(broker: FaultyBroker, segments: int) -> None:
    """Have at least so many segments go, with all their blocks; then it stops."""
    wanted = segments * SEGMENT
    low, expired = broker.board.word, store_of(broker.home) / "gantry" / "expired"
    broker.fail(fault("used", 86, ""))
    poll_until(lambda: low(layout.BOARD_LOW) >= wanted, "segments go")
    broker.fail(fault("used", 40, ""))
    poll_until(lambda: _is_over(broker.board, store_of(broker.home)), "they are gone")
    poll_until(lambda: not list(expired.iterdir()), "their blocks, too")


def _is_over(board: Board, store: Path) -> bool:
    bases = [int(path.name) for path in (store / "commitlog").iterdir()]
    return min(bases) == board.word(layout.BOARD_LOW)


def require_goes_on(home: Path, low: int) -> None:
    """A broker starts on the copy, with all messages from its first segment on in their places."""
    with ServingBroker(home, **SMALL) as broker:
        board = broker.wait_until_ready().board
        assert board.word(layout.BOARD_LOW) == low
        wait_until_shown(home)
        found = read(home, board)
        assert found == {offset: body(offset) for offset in range(min(found), COUNT)}
        with Producer(home) as producer:
            assert producer.send("early", b"more").queue_offset == EARLY
            assert producer.send("orders", b"more").queue_offset == COUNT
        assert broker.stop()[0] == ExitCode.OK
    report = verify(store_of(home))
    assert report.findings == [], str(report)


def read(home: Path, board: Board) -> dict[int, bytes]:
    """Bodies of `orders` by queue offset."""
    found: dict[int, bytes] = {}
    topic = board.topic_named("orders")
    assert topic is not None
    first = ConsumeFrom.FIRST_OFFSET
    with PullConsumer("all", ["orders"], home=home, consume_from=first) as consumer:

        def is_there() -> bool:
            messages = consumer.poll(max_messages=500, timeout=0.2)
            found.update((m.queue_offset, bytes(m.body)) for m in messages)
            return COUNT - 1 in found

        poll_until(is_there, "all is read")
    return found


def once_at(position: int, act: Callable[[], None]) -> Callable[[int, int, str], None]:
    """A back-up's progress that acts when so much is copied."""
    done = False

    def look(count: int, _total: int, _what: str) -> None:
        nonlocal done
        if count > position and not done:
            done = True
            act()

    return look


@mends("S16")
@pytest.mark.parametrize("begun", [0, 1, 2])
def test_segments_that_expire_beside_a_backup_are_not_in_it(
    broker: FaultyBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: int
) -> None:
    """While the first, the second, the third is copied, four go: the copy begins behind them."""
    monkeypatch.setattr(module, "_PIECE_BYTES", SEGMENT // 8)
    progress = once_at(begun * SEGMENT + SEGMENT // 2, lambda: expire(broker, 4))
    copied = backup(broker.home, tmp_path / "copy", progress)
    assert copied.low == broker.board.word(layout.BOARD_LOW) >= 4 * SEGMENT
    assert copied.segments == len(list((store_of(tmp_path / "copy") / "commitlog").iterdir()))
    require_goes_on(Path(copied.home), copied.low)


@mends("S16")
def test_a_backup_of_which_all_expires_is_thrown_away(
    broker: FaultyBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log goes on, and what was to be copied is gone before it is."""
    monkeypatch.setattr(module, "_PIECE_BYTES", SEGMENT // 8)

    def grow_and_expire() -> None:
        durable = broker.board.word(layout.BOARD_DURABLE)
        with Producer(broker.home) as producer:
            for _ in range(10):
                producer.send_batch("orders", [bytes(200)] * 100)
        wait_until_shown(broker.home)
        expire(broker, durable // SEGMENT + 1)

    with pytest.raises(Rejected, match="expired"):
        backup(broker.home, tmp_path / "copy", once_at(0, grow_and_expire))
    assert list(tmp_path.iterdir()) == [broker.home]


@mends("S18")
@pytest.mark.parametrize("stopped", [False, True])
def test_queues_whose_messages_have_all_expired_go_on_where_they_were(
    broker: FaultyBroker, tmp_path: Path, stopped: bool
) -> None:
    expire(broker, 2)
    if stopped:
        assert broker.stop()[0] == ExitCode.OK
    copied = backup(broker.home, tmp_path / "copy")
    assert copied.low >= 2 * SEGMENT
    require_goes_on(Path(copied.home), copied.low)


@mends("S18")
def test_they_do_in_a_salvaged_store(broker: FaultyBroker, tmp_path: Path) -> None:
    expire(broker, 2)
    assert broker.stop()[0] == ExitCode.OK
    done = salvage(store_of(broker.home), store_of(tmp_path / "copy"))
    assert not done.files
    require_goes_on(tmp_path / "copy", done.log_start)
