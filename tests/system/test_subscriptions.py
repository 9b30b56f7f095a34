"""Members of one group agree on topics and filters, whether they pull or push."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

import pytest

from gantrymq.clients.consumer import PullConsumer
from gantrymq.clients.message import Message
from gantrymq.clients.producer import Producer
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.subscription import FilterExpression, FilterType, Subscription
from gantrymq.shm.errors import GroupIllegal
from gantrymq.temporary import Broker
from tests.support.push import FIRST, PATIENCE_S
from tests.support.trials import mends
from tests.support.watchdog import poll_until


def pull(broker: Broker, group: str, wanted: Subscription) -> PullConsumer:
    return PullConsumer(group, wanted, home=broker.home, consume_from=FIRST)


def push(broker: Broker, group: str, wanted: Subscription) -> PushConsumer:
    return PushConsumer(group, wanted, print, home=broker.home, consume_from=FIRST)


KINDS: dict[str, Callable[[Broker, str, Subscription], PullConsumer | PushConsumer]] = {
    "pull": pull,
    "push": push,
}
#: Of topics {0} and {1}: what one member wants, and another.
OTHERS: dict[str, tuple[Callable[[str, str], Subscription], Callable[[str, str], Subscription]]] = {
    "all and a tag": (lambda a, b: [a], lambda a, b: {a: "x"}),
    "two tags": (lambda a, b: {a: "x"}, lambda a, b: {a: "x || y"}),
    "one topic more": (lambda a, b: [a], lambda a, b: [a, b]),
    "other topics": (lambda a, b: [a], lambda a, b: [b]),
    "a tag and SQL92": (
        lambda a, b: {a: "x"},
        lambda a, b: {a: FilterExpression("TAGS = 'x'", FilterType.SQL92)},
    ),
}


@mends("A3")
@pytest.mark.parametrize("second", KINDS)
@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("wishes", OTHERS)
def test_a_member_with_another_subscription_is_refused(
    broker: Broker, topic: str, first: str, second: str, wishes: str
) -> None:
    """Pull and push, and across; the text names both."""
    wanted, other = (make(topic, topic + "-2") for make in OTHERS[wishes])
    group = "g-" + topic
    with KINDS[first](broker, group, wanted), ExitStack() as stack:
        with pytest.raises(GroupIllegal, match="same subscription, or use another group") as caught:
            stack.enter_context(KINDS[second](broker, group, other))
        for subscription in (wanted, other):
            for name in subscription:
                text = subscription[name] if isinstance(subscription, Mapping) else "*"
                shown = text.text if isinstance(text, FilterExpression) else text
                assert name in str(caught.value)
                assert str(shown) in str(caught.value)
        stack.enter_context(KINDS[second](broker, group, wanted))  # the same is let in


@mends("A3")
def test_a_group_that_pulls_sees_all_that_it_wants(broker: Broker, topic: str) -> None:
    """As it was found: of 40 messages tagged `y` the group saw 20."""
    group = "g-" + topic
    with PullConsumer(group, [topic], home=broker.home, consume_from=FIRST) as consumer:
        with pytest.raises(GroupIllegal):
            PullConsumer(group, {topic: "x"}, home=broker.home)
        with Producer(home=broker.home) as producer:
            producer.send_batch([Message(topic, b"%d" % n, tag="y") for n in range(3)])
            for number in range(3, 40):
                producer.send(topic, b"%d" % number, tag="y")
        seen: set[int] = set()

        def all_seen() -> bool:
            seen.update(int(body) for body in consumer.poll(timeout=0.1).bodies)
            return len(seen) == 40

        poll_until(all_seen, "all messages were seen", PATIENCE_S)


def test_who_comes_after_all_have_left_goes_on_at_their_offsets(broker: Broker, topic: str) -> None:
    """RocketMQ's rule: offsets are the group's, whatever its filter was, and the new one holds."""
    group = "g-" + topic
    with Producer(home=broker.home) as producer:
        producer.send_batch(topic, [b"x1", b"x2"], tag="x")
        with PullConsumer(group, {topic: "x"}, home=broker.home, consume_from=FIRST) as first:
            assert sorted(_bodies(first, 2)) == [b"x1", b"x2"]
            producer.send_batch(topic, [b"y1", b"y2"], tag="y")
            assert len(first.poll(timeout=0.2)) == 0
            first.commit()
        producer.send_batch(topic, [b"y3", b"y4"], tag="y")
        with PullConsumer(group, {topic: "y"}, home=broker.home, consume_from=FIRST) as second:
            assert sorted(_bodies(second, 2)) == [b"y3", b"y4"]
            assert len(second.poll(timeout=0)) == 0


def _bodies(consumer: PullConsumer, count: int) -> list[bytes]:
    found: list[bytes] = []

    def came() -> bool:
        found.extend(bytes(body) for body in consumer.poll(timeout=0.1).bodies)
        return len(found) >= count

    poll_until(came, f"{count} messages came", PATIENCE_S)
    return found
