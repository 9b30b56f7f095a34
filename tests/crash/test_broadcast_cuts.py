"""A broadcasting consumer that was away while a power cut took messages, and others were sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantrymq.clients.consumer import ConsumeFrom
from gantrymq.clients.home import read_board_file, store_of
from gantrymq.clients.producer import Producer
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.push.messagemodel import MessageModel
from gantrymq.shm import layout
from gantrymq.shm.board import unlink_board
from gantrymq.shm.lognames import segment_name
from tests.support.brokers import ServingBroker
from tests.support.trials import mends
from tests.support.watchdog import PATIENCE_S, poll_until

KEPT = [b"kept-%d" % number for number in range(20)]
CUT = [b"cut-%d" % number for number in range(30)]
NEW = [b"new-%d" % number for number in range(60)]


class Forked(ServingBroker):
    """One whose log is synced when somebody waits for it."""

    forked = True

    def lose_power(self) -> None:
        """What is not durable is gone, and the board with it."""
        durable = self.board.word(layout.BOARD_DURABLE)
        name = read_board_file(self.home)["board"]
        self.kill_all()
        unlink_board(name)
        path = store_of(self.home) / segment_name(0)
        data = path.read_bytes()
        path.write_bytes(data[:durable] + bytes(len(data) - durable))


def had(home: Path, count: int) -> list[bytes]:
    """What the consumer gets until it has so many, and is closed."""
    bodies: list[bytes] = []
    with PushConsumer(
        "audit", ["plain"], lambda message: bodies.append(bytes(message.body)), home=home,
        model=MessageModel.BROADCASTING, consume_from=ConsumeFrom.FIRST_OFFSET, concurrency=1,
    ):  # fmt: skip
        poll_until(lambda: len(bodies) >= count, "all come", PATIENCE_S)
    return bodies


@mends("S262")
@pytest.mark.parametrize("sent", [NEW, NEW[:5]], ids=["beyond", "below"])
@pytest.mark.parametrize("lives", [1, 2])
def test_what_was_sent_while_it_was_away_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: list[bytes], lives: int
) -> None:
    """Its offsets are synced, the log was not: in what life ever it comes back."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    home = tmp_path / "home"
    with Forked(home, flush_interval_commit_log=60_000) as broker:
        broker.wait_until_ready()
        with Producer(home) as producer:
            for body in KEPT:
                producer.send("plain", body, queue_id=0)
            producer.send("safe", b"syncs the log", durability="durable")
            assert had(home, len(KEPT)) == KEPT
            for body in CUT:
                producer.send("plain", body, queue_id=0)
        assert had(home, len(CUT)) == CUT
        broker.lose_power()
        for _ in range(lives):
            broker.again().wait_until_ready()
            with Producer(home) as producer:
                for body in sent:
                    producer.send("plain", body, queue_id=0)
            broker.stop()
        broker.again().wait_until_ready()
        assert had(home, lives * len(sent)) == sent * lives, "from the first one on, each once"
        assert broker.stop()[0] == 0


@mends("S262")
def test_a_clean_stop_repeats_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing was durable when it was closed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    home = tmp_path / "home"
    with Forked(home, flush_interval_commit_log=60_000) as broker:
        for bodies in (KEPT, CUT, NEW):
            broker.wait_until_ready()
            with Producer(home) as producer:
                for body in bodies:
                    producer.send("plain", body, queue_id=0)
            assert had(home, len(bodies)) == bodies
            broker.kill_all() if bodies is CUT else broker.stop()
            broker.again()
        broker.wait_until_ready()
        with Producer(home) as producer:
            producer.send("plain", b"last", queue_id=0)
        assert had(home, 1) == [b"last"]
        assert broker.stop()[0] == 0
