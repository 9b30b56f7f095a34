"""Requests of an asyncio server become messages, and a reader in the same loop sees them.

Shows: `await asyncio.wrap_future(producer.send_async(...))`, so that a request is answered once its
message is stored while others go on; `loop.add_reader(consumer.fileno(), ...)`. The server listens
on a Unix socket; a few clients of it run here, too.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from gantrymq import Broker, ConsumeFrom, Producer, PullConsumer

CLIENTS, REQUESTS = 10, 20


async def client(address: str, name: int) -> list[str]:
    """Post lines, one after the other; each answer is an offset."""
    reader, writer = await asyncio.open_unix_connection(address)
    answers = []
    for number in range(REQUESTS):
        writer.write(f"client {name}, request {number}\n".encode())
        answers.append((await reader.readline()).decode().strip())
    writer.close()
    return answers


async def main(home: Path, address: str) -> None:
    """Serve the clients, then wait until all their requests have come back by the topic."""
    loop, seen = asyncio.get_running_loop(), asyncio.Queue[bytes]()
    first = ConsumeFrom.FIRST_OFFSET
    with (
        Producer(home) as producer,
        PullConsumer("log", ["requests"], home=home, consume_from=first) as consumer,
    ):

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                receipt = await asyncio.wrap_future(producer.send_async("requests", line.strip()))
                writer.write(f"{receipt.message_queue.queue_id}:{receipt.queue_offset}\n".encode())
            writer.close()

        def take() -> None:
            while batch := consumer.poll(timeout=0):  # until it is empty: only then is the
                for body in batch.bodies:  # descriptor readable again
                    seen.put_nowait(bytes(body))

        take()
        loop.add_reader(consumer.fileno(), take)
        async with await asyncio.start_unix_server(serve, address):
            answers = await asyncio.gather(*(client(address, name) for name in range(CLIENTS)))
            bodies = {await seen.get() for _ in range(CLIENTS * REQUESTS)}
        loop.remove_reader(consumer.fileno())
    places = {answer for one in answers for answer in one}
    print(len(places), "requests answered,", len(bodies), "seen")


with tempfile.TemporaryDirectory() as folder, Broker.temporary() as broker:
    asyncio.run(main(broker.home, f"{folder}/web.sock"))
