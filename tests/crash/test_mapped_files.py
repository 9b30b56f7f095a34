"""F17: what happens to who has a file mapped that somebody removes or cuts. We never cut one."""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
from contextlib import closing, suppress
from mmap import PAGESIZE
from pathlib import Path

import pytest

from gantrymq import Broker, ConsumeFrom, Producer, PullConsumer
from gantrymq.cli.board import running_board
from gantrymq.clients.home import store_of
from gantrymq.shm import layout
from gantrymq.shm.errors import Corrupt, StoreFailed
from gantrymq.shm.storage import PosixStorage
from tests.support.adversary import Victim
from tests.support.agents import restarts_of
from tests.support.small_stores import SEGMENT_BYTES, small_broker
from tests.support.watchdog import poll_until

SENT = 400
PATIENCE_S = 30.0
FIRST = ConsumeFrom.FIRST_OFFSET


def fill(broker: Broker) -> Path:
    """Several segments of one queue, all dispatched and indexed; the first segment's file."""
    with Producer(broker.home) as producer:
        for number in range(SENT):
            producer.send("cut", body(number), queue_id=0)
    board = running_board(broker.home)
    appended = board.word(layout.BOARD_APPENDED)
    assert appended > 2 * SEGMENT_BYTES
    poll_until(lambda: board.word(layout.BOARD_INDEXED) == appended, "all is indexed")
    return store_of(broker.home) / f"commitlog/{0:020}"


def read_all(broker: Broker) -> None:
    """As a group that has read nothing yet."""
    with PullConsumer("fresh", ["cut"], home=broker.home, consume_from=FIRST) as consumer:
        while len(consumer.poll(timeout=PATIENCE_S)):
            pass


def body(number: int) -> bytes:
    return b"%06d" % number * 40


def require_life_goes_on(broker: Broker) -> None:
    """Sends and, from what is whole, messages; no agent fell over."""
    with PullConsumer("later", ["cut"], home=broker.home) as consumer:
        consumer.poll(timeout=0)
        with Producer(broker.home) as producer:
            producer.send("cut", b"after", queue_id=0)
        batch = consumer.poll(timeout=PATIENCE_S)
        assert [bytes(part) for part in batch.bodies] == [b"after"]
    with pytest.raises(Corrupt, match="store verify") as met:
        read_all(broker)
    assert met.value.fields["path"] == f"commitlog/{0:020}"
    assert set(restarts_of(broker.home).values()) == {0}


def test_a_segment_that_is_unlinked_stays_with_who_has_it_mapped() -> None:
    with small_broker() as broker:
        segment = fill(broker)
        with PullConsumer("mapped", ["cut"], home=broker.home, consume_from=FIRST) as consumer:
            found = [bytes(part) for part in consumer.poll(10, timeout=PATIENCE_S).bodies]
            segment.rename(broker.home / "taken away")
            (broker.home / "taken away").unlink()
            while len(found) < SENT:
                batch = consumer.poll(timeout=PATIENCE_S)
                found += [bytes(part) for part in batch.bodies]
        assert found == [body(number) for number in range(SENT)]
        require_life_goes_on(broker)


def test_a_segment_that_is_cut_ends_who_looks_behind_its_end_and_nobody_else() -> None:
    """The kernel's SIGBUS reaches a client that had it mapped; the broker writes without maps."""
    with small_broker() as broker:
        segment = fill(broker)

        def work() -> None:
            faulthandler.disable()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            with PullConsumer("mapped", ["cut"], home=broker.home, consume_from=FIRST) as consumer:
                assert len(consumer.poll(10, timeout=PATIENCE_S)) == 10
                os.kill(os.getpid(), signal.SIGSTOP)
                consumer.poll(SENT, timeout=PATIENCE_S)

        victim = Victim(work)
        victim.wait_until_stopped()
        os.truncate(segment, 4096)
        victim.resume()
        assert victim.end() == -signal.SIGBUS
        require_life_goes_on(broker)
        broker.stop()
        with pytest.raises(StoreFailed, match=r"store verify.*--salvage"):
            broker.start()


def test_maps_made_before_a_kill_hold_through_recovery() -> None:
    """Nothing that a client may have mapped gets shorter, not even for a moment (F2, F24)."""
    sizes = {"mapped_file_size_commit_log": SEGMENT_BYTES, "mapped_file_size_consume_queue": 60_000}
    with Broker.temporary(**sizes, max_hash_slot_num=1000, max_index_num=9000) as broker:
        segment = fill(broker)
        over = broker.home / "over"

        def work() -> None:
            faulthandler.disable()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            with PullConsumer("mapped", ["cut"], home=broker.home, consume_from=FIRST) as consumer:
                found = {bytes(part) for part in consumer.poll(10, timeout=PATIENCE_S).bodies}
                storage = PosixStorage(str(store_of(broker.home)))
                views = []
                for path in segment.parent.parent.rglob("[0-9]" * 17 + "*"):
                    # An agent may have written under this name first, and renamed it since.
                    name = str(path.relative_to(storage.root))
                    with suppress(FileNotFoundError), closing(storage.open(name)) as file:
                        views.append(file.view())
                os.kill(os.getpid(), signal.SIGSTOP)
                while not over.exists():
                    for view in views:
                        view[::PAGESIZE].any()
                while len(found) < SENT:
                    found |= {bytes(part) for part in consumer.poll(timeout=PATIENCE_S).bodies}
            assert found == {body(number) for number in range(SENT)}

        victim = Victim(work)
        victim.wait_until_stopped()
        victim.resume()
        for _ in range(2):
            broker.process.kill()
            broker.process.wait()
            broker.start()
        over.touch()
        assert victim.end() == 0
