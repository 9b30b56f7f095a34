"""Consumers that subscribe by SQL92 expressions, at a real broker."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.message import Message
from gantrymq.clients.producer import Producer
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.subscription import FilterExpression, FilterType
from gantrymq.shm.errors import FilterSyntaxError, GroupIllegal
from gantrymq.shm.kernels import fetch, poll
from gantrymq.temporary import Broker
from tests.support.push import FIRST, PATIENCE_S, Seen

COUNT = 2000
#: After so many, messages are as they were.
PERIOD = 300
NAMES = ("Köln", "Kiel", "Bonn")
#: Messages with a property that takes long to look through, and its characters.
LONG_ONES = 14
LONG = 30_000


@pytest.fixture
def topic(broker: Broker, unique_name: str) -> str:
    """A topic with messages of a price, a city, and now and then a price that is none."""
    with Producer(home=broker.home) as producer:
        producer.send_batch([message(unique_name, number) for number in range(COUNT)])
    return unique_name


def message(topic: str, number: int) -> Message:
    price = "none" if number % 100 == 7 else str(number % 50)
    properties = {"price": price, "city": NAMES[number % 3]}
    return Message(topic, b"%d" % number, tag=f"t{number % 2}", properties=properties, queue_id=0)


def sql(text: str, dialect: str = "sql") -> FilterExpression:
    return FilterExpression(text, FilterType.SQL92, dialect=dialect)


def pull(broker: Broker, topic: str, wanted: FilterExpression, count: int) -> list[int]:
    found: list[int] = []
    with PullConsumer(
        "g-" + topic, {topic: wanted}, home=broker.home, consume_from=ConsumeFrom.FIRST_OFFSET
    ) as consumer:
        while len(found) < count:
            batch = consumer.poll(timeout=PATIENCE_S)
            assert len(batch), f"{len(found)} of {count} came"
            found += [int(bytes(body)) for body in batch.bodies]
        assert len(consumer.poll(timeout=0.0)) == 0
    return found


@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        ("price > 40 AND city IN ('Kiel', 'Bonn')", "sql"),
        ("price > 40 AND city IN ('Kiel', 'Bonn')", "rocketmq"),
        ("city LIKE 'K_l%' AND price IS NOT NULL", "sql"),  # the program asks for its reference
        ("TAGS = 't1' OR price = 4", "sql"),
    ],
)
def test_just_what_the_expression_is_true_of_comes(
    broker: Broker, topic: str, text: str, dialect: str
) -> None:
    """FL-14, FL-15; `matches` says the same without a broker."""
    wanted = sql(text, dialect)
    sent = [message(topic, number) for number in range(PERIOD)]
    passes = [wanted.matches({**each.properties, "TAGS": str(each.tag)}) for each in sent]
    expected = [number for number in range(COUNT) if passes[number % PERIOD]]
    assert expected
    assert pull(broker, topic, wanted, len(expected)) == expected


def test_a_listener_gets_what_passes_and_all_is_acknowledged(broker: Broker, topic: str) -> None:
    seen = Seen()
    wanted = sql("price BETWEEN 10 AND 12")
    expected = [n for n in range(COUNT) if n % 100 != 7 and 10 <= n % 50 <= 12]
    with PushConsumer(
        "g-" + topic, {topic: wanted}, seen, home=broker.home, consume_from=FIRST
    ) as consumer:
        seen.wait_for(len(expected))
    assert sorted(seen.bodies) == expected
    assert consumer.lost_acks == 0


def test_an_expression_that_does_not_compile_is_refused_at_once(broker: Broker) -> None:
    """FL-12: it never means everything."""
    with pytest.raises(FilterSyntaxError) as caught:
        PullConsumer("g", {"orders": sql("price >> 5")}, home=broker.home)
    assert (caught.value.position, caught.value.token) == (7, ">")
    with pytest.raises(FilterSyntaxError, match="dialect"):
        PullConsumer("g", {"orders": sql("price > 5", "mysql")}, home=broker.home)


def test_members_with_different_expressions_are_refused(broker: Broker, topic: str) -> None:
    group = "g-" + topic
    with (
        PushConsumer(group, {topic: sql("price > 1")}, Seen(), home=broker.home),
        pytest.raises(GroupIllegal, match="price > 2"),
    ):
        PushConsumer(group, {topic: sql("price > 2")}, Seen(), home=broker.home).start()


def test_a_filter_that_passes_nothing_holds_no_call_up(broker: Broker, unique_name: str) -> None:
    """LW-24: each poll looks at a bounded number of messages, and the next one goes on behind.

    What is passed over counts as consumed.
    """
    count = 3 * poll.SCAN_COST // poll.RECORD_COST
    with Producer(home=broker.home) as producer:
        for _ in range(count // 500):
            producer.send_batch([Message(unique_name, b"", queue_id=0)] * 500)
    sent = count // 500 * 500
    with PullConsumer(
        "g-" + unique_name, {unique_name: sql("ghost = 1")}, home=broker.home, consume_from=FIRST
    ) as consumer:
        (queue,) = [q for q in consumer.assignment() if q.queue_id == 0]
        places = [0]
        while places[-1] < sent:
            assert len(consumer.poll(timeout=0.0)) == 0
            places.append(consumer.position(queue))
            consumer.commit()
        steps = [after - before for before, after in pairwise(places) if after > before]
    assert len(steps) > 1
    assert max(steps) <= poll.SCAN_COST // poll.RECORD_COST + 2 * poll.SCAN_UNITS


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" OR ".join(f"a CONTAINS 'abab{n}'" for n in range(100)), "ab" * (LONG // 2)),
        ("a LIKE '%x_x%' OR a LIKE '%y_y%'", "é" + "ab" * (LONG // 2)),
    ],
    ids=["by the kernel", "by its reference"],
)
def test_a_poll_ends_behind_the_record_that_uses_up_its_work(
    broker: Broker, unique_name: str, text: str, value: str
) -> None:
    """LW-24: the next one goes on there, and what passes comes."""
    with Producer(home=broker.home) as producer:
        for _ in range(LONG_ONES):
            producer.send(Message(unique_name, b"", properties={"a": value}, queue_id=0))
        passing = {"a": "abab7 x-x"}
        producer.send(Message(unique_name, b"it", properties=passing, queue_id=0))
    wanted = FilterExpression(text, FilterType.SQL92)
    places, works, found = [0], [], []
    with PullConsumer(
        "g-" + unique_name, {unique_name: wanted}, home=broker.home, consume_from=FIRST
    ) as consumer:
        (queue,) = [q for q in consumer.assignment() if q.queue_id == 0]
        while places[-1] <= LONG_ONES:
            found += [bytes(body) for body in consumer.poll(timeout=0.0).bodies]
            places.append(consumer.position(queue))
            works.append(int(consumer._live()._fetcher._form[fetch.SPENT]))
    steps = [after - before for before, after in pairwise(places)]
    assert found == [b"it"]
    bound = poll.SCAN_COST * poll.WORK_PER_UNIT
    one = max(work // step for work, step in zip(works, steps, strict=True) if step)
    assert bound // one < LONG_ONES // 3, "there is enough to end a poll several times"
    assert max(steps) <= bound // one + 2
    assert max(works) <= bound + 2 * one


@pytest.mark.parametrize("rows", [1, 7, 10_000])
def test_rare_tags_come_in_order_whatever_a_poll_asks_for(
    broker: Broker, topic: str, rows: int
) -> None:
    """FL-3, FL-4: a poll looks far beyond the rows that it wants, and takes no more than those."""
    with Producer(home=broker.home) as producer:
        producer.send_batch(
            [Message(topic, b"rare-%d" % n, tag="rare", queue_id=0) for n in range(9)]
        )
        producer.send_batch([message(topic, number) for number in range(500)])
        producer.send(Message(topic, b"rare-9", tag="rare", queue_id=0))
    found: list[bytes] = []
    with PullConsumer(
        f"g-{rows}-" + topic, {topic: "rare"}, home=broker.home, consume_from=FIRST
    ) as consumer:
        while len(found) < 10:
            batch = consumer.poll(rows, timeout=PATIENCE_S)
            assert 0 < len(batch) <= rows
            found += [bytes(body) for body in batch.bodies]
    assert found == [b"rare-%d" % n for n in range(10)]
