"""What docs/clients.md says of threads, processes, signals, the interpreter's end and asyncio."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from gantrymq.clients.consumer import PullConsumer
from gantrymq.clients.message import NO_PROPERTIES, Message, SendReceipt
from gantrymq.clients.producer import Producer
from gantrymq.shm.errors import Closed
from gantrymq.temporary import Broker
from tests.support.adversary import Victim
from tests.support.applications import FIRST, PATIENCE_S, bodies_of, run
from tests.support.forked import run_program

# ------------------------------------------------------------------------------------------ threads


def test_threads_share_a_producer(broker: Broker, unique_name: str) -> None:
    """Every way of sending at once; each receipt is its own message's."""
    topic = unique_name

    def send(producer: Producer, thread: int) -> int:
        for number in range(100):
            producer.send_oneway(topic, b"o %d %d" % (thread, number))
            producer.send(topic, b"s %d %d" % (thread, number), queue_id=thread)
            asked = producer.send_async(topic, b"a %d %d" % (thread, number), queue_id=thread)
            batch = [Message(topic, b"b %d %d %d" % (thread, number, n)) for n in range(3)]
            assert len({receipt.message_id for receipt in producer.send_batch(batch)}) == 3
            assert asked.result(PATIENCE_S).message_queue.queue_id == thread
        return thread

    with Producer(broker.home) as producer, ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda n: send(producer, n), range(4))) == [0, 1, 2, 3]
        producer.flush()
    found = Counter(bodies_of(broker.home, topic, 2400))
    assert len(found) == 2400
    assert set(found.values()) == {1}


def test_threads_share_futures(broker: Broker, unique_name: str) -> None:
    with Producer(broker.home) as producer, ThreadPoolExecutor(4) as pool:
        futures = [producer.send_async(unique_name, b"%d" % n) for n in range(200)]
        places = [
            list(pool.map(lambda future: future.result(PATIENCE_S), futures)) for _ in range(2)
        ]
        done, waiting = wait(futures, PATIENCE_S)
    assert places[0] == places[1]
    assert (len(done), len(waiting)) == (200, 0)


def test_a_consumer_is_handed_from_thread_to_thread(broker: Broker, unique_name: str) -> None:
    """One at a time may use it, whichever made it."""
    with Producer(broker.home) as producer:
        for number in range(40):
            producer.send(unique_name, b"%d" % number)
    found: list[bytes] = []
    turn = threading.Lock()
    with PullConsumer("g-" + unique_name, [unique_name], home=broker.home, consume_from=FIRST) as c:

        def take() -> None:
            while True:
                with turn:
                    if len(found) == 40:
                        return
                    found.extend(bytes(body) for body in c.poll(3, timeout=PATIENCE_S).bodies)

        with ThreadPoolExecutor(4) as pool:
            for task in [pool.submit(take) for _ in range(4)]:
                task.result(PATIENCE_S)
    assert Counter(found) == Counter(b"%d" % n for n in range(40))


# ---------------------------------------------------------------------------------------- processes

POOL = """
import multiprocessing, sys
from gantrymq import Message, Producer

def work(home, topic, message):
    with Producer(home) as producer:
        return [producer.send(message) for _ in range(20)]

if __name__ == "__main__":
    method, home, topic = sys.argv[1:]
    with Producer(home) as mine:  # open while the children are made
        mine.send(topic, b"parent")
        messages = [Message(topic, b"child %d" % n, tag="t") for n in range(2)]
        with multiprocessing.get_context(method).Pool(2) as pool:
            made = pool.starmap(work, [(home, topic, message) for message in messages])
        mine.send(topic, b"parent")
    print(len({receipt.message_id for one in made for receipt in one}))
"""


def in_a_process_of_its_own(
    program: Path, method: str, *arguments: object
) -> subprocess.CompletedProcess[str]:
    """A fork does for a program whose children are forks; others start it again by its name."""
    if method == "fork":
        return run_program(program, method, *arguments, strict=True)
    return subprocess.run(
        [sys.executable, "-W", "error", program, method, *map(str, arguments)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_pool_of_processes_sends(
    broker: Broker, unique_name: str, method: str, tmp_path: Path
) -> None:
    """Messages go to the children and receipts come back; each child has its own producer."""
    program = tmp_path / "pool.py"
    program.write_text(POOL)
    done = in_a_process_of_its_own(program, method, broker.home, unique_name)
    assert (done.stdout, done.stderr) == ("40\n", "")
    expected = Counter({b"parent": 2, b"child 0": 20, b"child 1": 20})
    assert Counter(bodies_of(broker.home, unique_name, 42)) == expected


def test_a_forked_child_cannot_use_its_parents_consumer(broker: Broker, unique_name: str) -> None:
    """Its use raises Closed, its end commits nothing and gives nothing back."""
    with Producer(broker.home) as producer:
        producer.send(unique_name, b"first")
        with PullConsumer(
            "g-" + unique_name, [unique_name], home=broker.home, consume_from=FIRST
        ) as consumer:
            held = consumer.assignment()
            assert len(consumer.poll(timeout=PATIENCE_S)) == 1

            def work() -> None:
                for use in (
                    consumer.commit,
                    consumer.fileno,
                    lambda: consumer.poll(timeout=0),
                    lambda: consumer.seek(held[0], "begin"),
                    lambda: consumer.assign(held[:1]),
                ):
                    with pytest.raises(Closed):
                        use()
                with pytest.raises(Closed):
                    next(iter(consumer))
                consumer.close()

            assert Victim(work).end() == 0
            producer.send(unique_name, b"second")
            assert [bytes(b) for b in consumer.poll(timeout=PATIENCE_S).bodies] == [b"second"]
            assert consumer.assignment() == held
            assert consumer.lost_commits == 0


def test_clients_are_not_sent_to_other_processes(broker: Broker, unique_name: str) -> None:
    """Their memory and descriptors are one process's: pickling says so at once."""
    with (
        Producer(broker.home) as producer,
        PullConsumer("g-" + unique_name, [unique_name], home=broker.home) as consumer,
    ):
        for client in (producer, consumer):
            with pytest.raises(TypeError, match="cannot pickle"):
                pickle.dumps(client)
        receipt = producer.send(unique_name, b"x")
        message = consumer.poll(timeout=PATIENCE_S)[0]
    for made in (receipt, message, Message("t", b"x"), Message("t", b"x", properties={"a": "b"})):
        assert pickle.loads(pickle.dumps(made)) == made
    plain = pickle.loads(pickle.dumps(Message("t", b"x")))
    assert plain.properties is NO_PROPERTIES, "the native put knows it by that"


# -------------------------------------------------------------------------------- the end of Python


def test_what_was_sent_before_the_interpreter_ends_arrives(
    broker: Broker, unique_name: str
) -> None:
    """Without `close` or `flush`, with futures that nobody asked and a consumer that is open."""
    program = """
import sys
from gantrymq import ConsumeFrom, Producer, PullConsumer
home, topic = sys.argv[1:]
producer = Producer(home)
consumer = PullConsumer("g-" + topic, [topic], home=home, consume_from=ConsumeFrom.FIRST_OFFSET)
for number in range(500):
    producer.send_oneway(topic, b"%d" % number)
    producer.send_async(topic, b"async %d" % number).add_done_callback(lambda future: None)
for message in consumer:
    print(message.topic)
    break
"""
    assert run(program, broker.home, unique_name) == unique_name + "\n"
    found = Counter(bodies_of(broker.home, unique_name, 1000))
    assert len(found) == 1000
    assert set(found.values()) == {1}


# ------------------------------------------------------------------------------------------ asyncio


def test_receipts_are_awaited(broker: Broker, unique_name: str) -> None:
    async def main(producer: Producer) -> list[int]:
        sent = [
            asyncio.wrap_future(producer.send_async(unique_name, b"%d" % n, queue_id=1))
            for n in range(200)
        ]
        receipts = await asyncio.wait_for(asyncio.gather(*sent), PATIENCE_S)
        batch = producer.send_batch_async(unique_name, [b"x"] * 3, queue_id=1)
        waiting: asyncio.Future[Sequence[SendReceipt]] = asyncio.wrap_future(batch)
        together = await asyncio.wait_for(waiting, PATIENCE_S)
        return [receipt.queue_offset for receipt in (*receipts, *together)]

    with Producer(broker.home) as producer:
        assert asyncio.run(main(producer)) == list(range(203))


def test_an_event_loop_wakes_up_for_messages(broker: Broker, unique_name: str) -> None:
    """`loop.add_reader`: polled until empty, it is readable again when something comes."""

    async def main(producer: Producer, consumer: PullConsumer) -> list[bytes]:
        seen: asyncio.Queue[bytes] = asyncio.Queue()

        def take() -> None:
            while len(batch := consumer.poll(timeout=0)):
                for body in batch.bodies:
                    seen.put_nowait(bytes(body))

        take()
        loop = asyncio.get_running_loop()
        loop.add_reader(consumer.fileno(), take)
        found = []
        for number in range(50):
            await asyncio.wrap_future(producer.send_async(unique_name, b"%d" % number))
            found.append(await asyncio.wait_for(seen.get(), PATIENCE_S))
        loop.remove_reader(consumer.fileno())
        return found

    with (
        Producer(broker.home) as producer,
        PullConsumer("g-" + unique_name, [unique_name], home=broker.home) as consumer,
    ):
        assert asyncio.run(main(producer, consumer)) == [b"%d" % n for n in range(50)]
