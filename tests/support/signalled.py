"""Sends amid sends: `python -m tests.support.signalled HOME NAME COUNT`.

A signal comes up to a thousand times a second, and its handler sends as the main program does,
each to topics of its own. Prints what each topic must hold, as JSON; raises what a send raises.
"""

from __future__ import annotations

import itertools
import json
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator

from gantrymq import Closed, GantryError, Message, Producer

PERIOD_S = 0.001


def sends(producer: Producer, name: str) -> Iterator[Callable[[int], tuple[str, int]]]:
    """Every way of sending, again and again; each returns its topic and how many it has sent."""

    def keyed(number: int) -> tuple[str, int]:
        topic = f"{name}-keyed{number % 5}"  # a new route now and then, and Python's way
        producer.send(topic, topic.encode(), keys=[f"k{number}"])
        return topic, 1

    def urgent(number: int) -> tuple[str, int]:
        producer.send(f"{name}-urgent", f"{name}-urgent".encode(), tag=f"t{number % 300}")
        return f"{name}-urgent", 1

    def oneway(number: int) -> tuple[str, int]:
        topic = f"{name}-oneway"
        producer.send_oneway(topic, topic.encode(), properties={"n": str(number)})
        producer.send_oneway(topic, topic.encode())
        return topic, 2

    def later(number: int) -> tuple[str, int]:
        topic = f"{name}-later"
        futures = [producer.send_async(topic, topic.encode(), queue_id=n % 2) for n in range(3)]
        assert all(future.result().queue_offset >= 0 for future in futures), number
        return topic, 3

    def batch(number: int) -> tuple[str, int]:
        topic = f"{name}-batch"
        messages = [Message(topic, topic.encode(), keys=(str(number),)) for _ in range(3)]
        assert len(producer.send_batch(messages)) == 3
        return topic, 3

    def new(number: int) -> tuple[str, int]:
        topic = f"{name}-new{number}"
        if number > 400:
            return keyed(number)
        producer.send(topic, topic.encode())
        return topic, 1

    return itertools.cycle((keyed, urgent, oneway, later, batch, urgent, new))


def storm(home: str, name: str, count: int) -> Counter[str]:
    """Send until the handler has done so `count` times."""
    stored: Counter[str] = Counter()
    numbers, failed = itertools.count(), list[BaseException]()
    with Producer(home) as producer:
        mine, amid = sends(producer, name + "-main"), sends(producer, name + "-amid")

        def hear(_number: int, _frame: object) -> None:
            handled[0] += 1
            try:
                topic, sent = next(amid)(handled[0])
                stored[topic] += sent
            except BaseException as error:
                failed.append(error)
            signal.setitimer(signal.ITIMER_REAL, PERIOD_S)

        handled = [0]
        signal.signal(signal.SIGALRM, hear)
        signal.setitimer(signal.ITIMER_REAL, PERIOD_S)
        try:
            while handled[0] < count and not failed:
                topic, sent = next(mine)(next(numbers))
                stored[topic] += sent
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    for error in failed:
        raise error
    return stored


def closings(home: str, name: str, count: int) -> int:
    """Close producers in a handler, amid whatever they do; how often a send was told of it."""
    told = 0
    for number in range(count):
        producer = Producer(home)
        ways = sends(producer, name)
        closed: list[BaseException | None] = []

        signal.signal(signal.SIGALRM, _closer(producer, closed))
        signal.setitimer(signal.ITIMER_REAL, PERIOD_S * (1 + number % 7) / 3)
        try:
            while not closed:
                next(ways)(number % 4)
            producer.send(f"{name}-urgent", b"x")
        except Closed:
            told += 1
        except GantryError as error:
            raise AssertionError(f"{closed} made it {error!r}") from error
        if closed != [None]:
            raise AssertionError(f"closing in a handler: {closed}")
    return told


def _closer(
    producer: Producer, closed: list[BaseException | None]
) -> Callable[[int, object], None]:
    """Return a handler that closes a producer and notes what that has raised."""

    def hear(_number: int, _frame: object) -> None:
        try:
            producer.close()
            closed.append(None)
        except BaseException as error:
            closed.append(error)

    return hear


def main() -> None:
    """Run both."""
    home, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    stored = storm(home, name, count)
    told = closings(home, name + "-closing", count // 10)
    print(json.dumps({"stored": stored, "told": told}))


if __name__ == "__main__":
    main()
