"""A recipe for each public callable: the call, and arguments that are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gantrymq
from gantrymq import (
    Broker,
    Client,
    FilterExpression,
    FilterType,
    Message,
    MessageBatch,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    TransactionResolution,
)
from gantrymq.shm.errors import ArgumentIllegal
from gantrymq.shm.limits import WRITER_UP_BYTES
from tests.support.push import FIRST, PATIENCE_S


@dataclass
class Scene:
    """What recipes work on."""

    broker: Broker
    topic: str
    producer: Producer
    pull: PullConsumer
    client: Client
    batch: MessageBatch
    message_id: str
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(1 << 30)))

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, 0)

    def fresh(self) -> str:
        """A group that nobody is in."""
        return f"{self.topic}-{next(self.numbers)}"


Call = Callable[..., object]
Recipe = Callable[[Scene], tuple[Call, dict[str, object]]]


def closing(make: Call) -> Call:
    """Make it, use it, and close it: what it was made with is refused by the constructor only."""

    def call(**given: object) -> None:
        with make(**given) as made:  # type: ignore[attr-defined]
            if isinstance(made, Producer):
                try:
                    made.send("x", b"x")
                    made.flush()
                except ArgumentIllegal as error:
                    raise AssertionError("the constructor has taken it") from error

    return call


def sending(send: Call) -> Call:
    """As people call it: message and body by place."""

    def call(message: object, body: object = None, **parts: object) -> object:
        given = (message,) if body is None and isinstance(message, Message) else (message, body)
        sent = send(*given, **parts)
        return sent.result(PATIENCE_S) if hasattr(sent, "result") else sent

    return call


def batching(send: Call) -> Call:
    """Both forms."""

    def call(messages: object, bodies: object = None, **parts: object) -> object:
        sent = send(messages, bodies, **parts) if bodies is not None else send(messages, **parts)
        return sent.result(PATIENCE_S) if hasattr(sent, "result") else sent

    return call


def polling(scene: Scene) -> Call:
    """There is always something to be had."""

    def call(**given: object) -> None:
        for queue in scene.pull.assignment():
            scene.pull.seek(queue, "begin")
        scene.pull.poll(**given)  # type: ignore[arg-type]

    return call


def ended(scene: Scene, end: str) -> Call:
    """An end of a transaction with a message."""

    def call(**given: object) -> None:
        transaction = scene.producer.begin_transaction()
        scene.producer.send(scene.topic, b"x", transaction=transaction)
        try:
            getattr(transaction, end)(**given)
        finally:
            getattr(transaction, end)()

    return call


def receipt_of(scene: Scene) -> Any:  # noqa: ANN401
    return scene.producer.send_async(scene.topic, b"x")


def listen(_message: Message) -> None:
    """Takes what comes."""


def pushing(scene: Scene) -> Call:
    def call(**given: Any) -> None:  # noqa: ANN401
        consumer = None
        try:
            with PushConsumer(**given) as consumer:
                pass
        except BaseException:
            if consumer is not None:  # who has it ends it: a handler may raise as `__exit__` begins
                consumer.stop()
            raise

    return call


def stopping(**given: Any) -> None:  # noqa: ANN401
    PushConsumer("g", ["t"], listen).stop(**given)


def paged(scene: Scene) -> Call:
    return lambda **given: scene.client.query(scene.topic).page(**given)


def queried(scene: Scene) -> Call:
    def call(**given: Any) -> None:  # noqa: ANN401
        if given.get("message_id") is not None:
            given.pop("key", None)
        list(scene.client.query(**given))

    return call


def answered(**given: Any) -> object:  # noqa: ANN401
    """Wrong values are told before the place is."""
    message = ReceivedMessage("t", b"x")
    try:
        return message.retry_after(**given)
    except ArgumentIllegal:
        raise
    except gantrymq.Rejected:
        return None


RECIPES: dict[str, Recipe] = {
    "Producer": lambda s: (
        closing(Producer),
        {
            "home": s.broker.home,
            "producer_group": s.fresh(),
            "transaction_checker": lambda _: TransactionResolution.UNKNOWN,
        },
    ),
    "Producer.send": lambda s: (sending(s.producer.send), {"message": s.topic, "body": b"x"}),
    "Producer.send_async": lambda s: (
        sending(s.producer.send_async), {"message": s.topic, "body": b"x"},
    ),
    "Producer.send_oneway": lambda s: (
        sending(s.producer.send_oneway), {"message": s.topic, "body": b"x"},
    ),
    "Producer.send_batch": lambda s: (
        batching(s.producer.send_batch), {"messages": s.topic, "bodies": [b"x", b"y"]},
    ),
    "Producer.send_batch_async": lambda s: (
        batching(s.producer.send_batch_async), {"messages": s.topic, "bodies": [b"x", b"y"]},
    ),
    "Producer.flush": lambda s: (s.producer.flush, {}),
    "Producer.transaction": lambda s: (s.producer.transaction, {}),
    "Producer.begin_transaction": lambda s: (s.producer.begin_transaction, {}),
    "Producer.recall_message": lambda s: (
        s.producer.recall_message,
        {
            "topic": s.topic,
            "recall_handle": s.producer.send(s.topic, b"x", delay=3600).recall_handle,
        },
    ),
    "Producer.close": lambda s: (closing(Producer), {"home": s.broker.home}),
    "Transaction.commit": lambda s: (ended(s, "commit"), {}),
    "Transaction.rollback": lambda s: (ended(s, "rollback"), {}),
    "Transaction.commit_async": lambda s: (ended(s, "commit_async"), {}),
    "ReceiptFuture.result": lambda s: (receipt_of(s).result, {}),
    "ReceiptFuture.exception": lambda s: (receipt_of(s).exception, {}),
    "ReceiptFuture.add_done_callback": lambda s: (receipt_of(s).add_done_callback, {"fn": id}),
    "ReceiptFuture.done": lambda s: (receipt_of(s).done, {}),
    "ReceiptFuture.running": lambda s: (receipt_of(s).running, {}),
    "ReceiptFuture.cancel": lambda s: (receipt_of(s).cancel, {}),
    "PullConsumer": lambda s: (
        closing(PullConsumer),
        {"group": s.fresh(), "subscription": [s.topic], "home": s.broker.home},
    ),
    "PullConsumer.poll": lambda s: (polling(s), {}),
    "PullConsumer.commit": lambda s: (s.pull.commit, {}),
    "PullConsumer.assignment": lambda s: (s.pull.assignment, {}),
    "PullConsumer.assign": lambda s: (
        s.pull.assign, {"queues": [MessageQueue(s.topic, n) for n in range(4)]},
    ),
    "PullConsumer.position": lambda s: (s.pull.position, {"queue": s.queue}),
    "PullConsumer.seek": lambda s: (s.pull.seek, {"queue": s.queue, "to": 0}),
    "PullConsumer.pause": lambda s: (s.pull.pause, {"queues": []}),
    "PullConsumer.resume": lambda s: (s.pull.resume, {"queues": [s.queue]}),
    "PullConsumer.fileno": lambda s: (s.pull.fileno, {}),
    "PullConsumer.close": lambda s: (
        PullConsumer(s.fresh(), [s.topic], home=s.broker.home).close, {},
    ),
    "PushConsumer": lambda s: (
        pushing(s),
        {
            "group": "g-pushed", "subscription": [s.topic], "listener": listen,
            "home": s.broker.home, "concurrency": 1,
        },
    ),
    "PushConsumer.start": lambda s: (pushing(s), RECIPES["PushConsumer"](s)[1]),
    "PushConsumer.run": lambda s: (stopping, {}),
    "PushConsumer.stop": lambda s: (stopping, {}),
    "PushConsumer.close": lambda s: (stopping, {}),
    "PushConsumer.assignment": lambda s: (stopping, {}),
    "Client": lambda s: (closing(Client), {"home": s.broker.home}),
    "Client.query": lambda s: (queried(s), {"topic": s.topic, "key": "k"}),
    "Client.get": lambda s: (s.client.get, {"message_id": s.message_id, "topic": s.topic}),
    "Client.queues": lambda s: (s.client.queues, {"topic": s.topic}),
    "Client.min_offset": lambda s: (s.client.min_offset, {"queue": s.queue}),
    "Client.max_offset": lambda s: (s.client.max_offset, {"queue": s.queue}),
    "Client.search_offset": lambda s: (s.client.search_offset, {"queue": s.queue, "moment": 0}),
    "Client.close": lambda s: (closing(Client), {"home": s.broker.home}),
    "Found.page": lambda s: (paged(s), {}),
    "MessageBatch.message_at": lambda s: (s.batch.message_at, {"row": 0}),
    "MessageBatch.to_arrow": lambda s: (s.batch.to_arrow, {}),
    "Message.retry_after": lambda s: (answered, {"seconds": 1}),
    "FilterExpression": lambda s: (FilterExpression, {}),
    "FilterExpression.parse": lambda s: (FilterExpression("a").parse, {}),
    "FilterExpression.matches": lambda s: (
        FilterExpression("a = 1", FilterType.SQL92).matches, {"properties": {"a": "1"}},
    ),
    "Broker.temporary": lambda s: (settings_judged, {}),
    "Broker.start": lambda s: (s.broker.start, {}),
    "Broker.stop": lambda s: (lambda: None, {}),
    "Broker.close": lambda s: (lambda: None, {}),
}  # fmt: skip


#: What does not fit into the ring that a producer begins with.
LARGE = bytes(WRITER_UP_BYTES // 2 + 1)


def growing(name: str) -> Recipe:
    """The first large send of a producer, which goes on with another session for it."""

    def recipe(scene: Scene) -> tuple[Call, dict[str, object]]:
        producer = Producer(scene.broker.home)
        producer.send(scene.topic, b"x")
        many = name == "send_batch"

        def call(payload: object) -> None:
            with producer:
                getattr(producer, name)(scene.topic, payload)

        return call, {"payload": [LARGE] if many else LARGE}

    return recipe


#: Calls whose way another one of the same name is: each needs a producer of its own.
GROWING: dict[str, Recipe] = {
    f"large {name}": growing(name) for name in ("send", "send_async", "send_oneway", "send_batch")
}


def settings_judged(**settings: Any) -> None:  # noqa: ANN401
    """As `Broker.temporary` does before anything is started."""
    from gantrymq.temporary import judge_settings

    judge_settings(settings)


@contextmanager
def a_scene(broker: Broker, topic: str) -> Iterator[Scene]:
    """With a topic and a producer group of that name."""
    with (
        Producer(broker.home, producer_group=topic) as producer,
        PullConsumer(topic, [topic], home=broker.home, consume_from=FIRST) as pull,
        Client(broker.home) as client,
    ):
        for number in range(8):
            receipt = producer.send(topic, b"x", queue_id=number % 4)
        batch = pull.poll(timeout=PATIENCE_S)
        yield Scene(broker, topic, producer, pull, client, batch, receipt.message_id)
