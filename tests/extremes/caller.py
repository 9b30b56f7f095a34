"""One interpreter that calls the public API with anything: `python -m tests.extremes.caller`.

It exits with 0 when each call came back with a value or a documented error, in time. Arguments:
home, how many calls, seed, and the way: `plain`, `threads`, `callbacks`, `closed`, `away`.
"""

from __future__ import annotations

import faulthandler
import random
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gantrymq import Client, GantryError, Message, Producer, PullConsumer
from tests.extremes.values import value_of
from tests.support.callrecipes import RECIPES, Recipe, Scene
from tests.support.extremes import NUMBERS
from tests.support.faces import callables, hints_of
from tests.support.push import FIRST, PATIENCE_S
from tests.system import test_arguments
from tests.system.test_arguments import FIELDS, OURS, SENDS, WRONG

#: A call that takes longer hangs: timeouts of clients here are far shorter.
HANGS_S = 120.0
#: Of so many calls one is of those that open a session, or take as long.
HEAVY_ONE_IN = 2000
HEAVY = (
    "Producer", "Producer.close", "PullConsumer", "PullConsumer.close", "Client", "Client.close",
    "PushConsumer", "PushConsumer.start", "PushConsumer.run", "PushConsumer.stop",
    "PushConsumer.close", "PushConsumer.assignment", "Producer.recall_message", "PullConsumer.poll",
    "PullConsumer.assign", "Transaction.commit", "Transaction.rollback", "Transaction.commit_async",
    "Client.query", "Found.page", "Client.search_offset", "MessageBatch.to_arrow", "Client.get",
)  # fmt: skip
THREADS = 3


class PlantedError(Exception):
    """What an argument's own method raises: it may come out of the call as it is."""


class Reenters:
    """Looks like anything, and calls the producer when it is looked at."""

    depth = 0

    def __init__(self, scene: Scene, dice: random.Random) -> None:
        self._scene, self._dice = scene, dice

    def _act(self) -> int:
        if Reenters.depth < 3:
            Reenters.depth += 1
            try:
                way, scene = self._dice.randrange(5), self._scene
                if way == 0:
                    raise PlantedError
                if way == 1:
                    scene.producer.send_oneway(scene.topic, b"again", tag="a")
                elif way == 2:
                    scene.producer.send_batch([Message(scene.topic, b"again", tag="b")] * 3)
                elif way == 3:
                    scene.producer.send_async(scene.topic, b"again").done()
            finally:
                Reenters.depth -= 1
        return self._dice.choice((0, 1, 3))

    def __index__(self) -> int:
        return self._act()

    __len__ = __int__ = __index__

    def __float__(self) -> float:
        return float(self._act())

    def __bool__(self) -> bool:
        return self._act() > 0

    def __iter__(self) -> Iterator[Any]:
        return iter(["x"] * (self._act() % 4))

    def __getitem__(self, _key: object) -> object:
        if self._act() == 0:
            raise IndexError
        return "x"

    def keys(self) -> list[str]:
        self._act()
        return ["x"]

    def items(self) -> list[tuple[str, str]]:
        self._act()
        return [("x", "y")]

    def __str__(self) -> str:
        self._act()
        return "x"

    __repr__ = __fspath__ = __str__

    def __bytes__(self) -> bytes:
        self._act()
        return b"x"

    def __eq__(self, _other: object) -> bool:
        return self._act() > 0

    def __hash__(self) -> int:
        return self._act()

    def __call__(self, *_given: object) -> None:
        self._act()


class OddText(Reenters, str):  # type: ignore[misc]
    """A text whose methods do."""

    def __new__(cls, _scene: Scene, _dice: random.Random) -> OddText:
        return str.__new__(cls, "odd")

    def encode(self, *_given: Any) -> bytes:  # noqa: ANN401
        self._act()
        return b"odd"


class OddBytes(Reenters, bytes):  # type: ignore[misc]
    """Likewise bytes."""

    def __new__(cls, _scene: Scene, _dice: random.Random) -> OddBytes:
        return bytes.__new__(cls, b"odd")


class OddList(Reenters, list):  # type: ignore[misc,type-arg]
    """Likewise a list, which gets shorter and longer while it is gone through."""

    def __init__(self, scene: Scene, dice: random.Random) -> None:
        Reenters.__init__(self, scene, dice)
        self.extend([b"odd", Message("x", b"x"), "x"])

    def _act(self) -> int:
        self.append(b"more") if self._dice.random() < 0.5 else self.clear()
        return super()._act()

    def __hash__(self) -> int:  # type: ignore[override]
        return self._act()


class OddNumber(Reenters, int):
    """Likewise a number."""

    def __new__(cls, _scene: Scene, _dice: random.Random) -> OddNumber:
        return int.__new__(cls, 1)


class Caller:
    """Makes calls one after the other."""

    def __init__(self, scene: Scene, seed: int, *, is_away: bool = False) -> None:
        self.scene = scene
        self.is_away = is_away
        self.dice = random.Random(seed)
        self.recipes: dict[str, Recipe] = {
            name: recipe for name, recipe in RECIPES.items() if not name.startswith("Broker")
        }
        self.names = [name for name in self.recipes if name not in HEAVY]
        self.heavy = [name for name in self.recipes if name in HEAVY]
        assert not set(self.recipes) & set(OURS)
        found = callables()
        self.hints = {name: hints_of(name, found[name]) for name in self.recipes}
        self.made: dict[str, tuple[Callable[..., object], dict[str, object]]] = {}
        self.faults: list[str] = []

    def value(self, hint: object) -> object:
        """Anything at all."""
        way = self.dice.randrange(10)
        if way < 4:
            return self.dice.choice(list(WRONG.values()))
        if way < 6:
            kind = self.dice.choice((Reenters, OddText, OddBytes, OddList, OddNumber))
            return kind(self.scene, self.dice)
        if way < 7:
            return self.dice.choice(NUMBERS)
        if way < 8:
            return "".join(map(chr, (self.dice.randrange(0x11_0000) for _ in range(5))))
        return value_of(hint, self.dice)

    def call(self) -> None:
        """One call; whatever it does that it may not goes into `faults`."""
        dice = self.dice
        is_heavy = dice.randrange(HEAVY_ONE_IN) == 0
        if not is_heavy and dice.random() < 0.3:
            return self._judge("a message", self._send_odd, {})
        name = dice.choice(self.heavy if is_heavy else self.names)
        hints = self.hints[name]
        if name not in self.made or is_heavy:
            try:
                self.made[name] = self.recipes[name](self.scene)
            except GantryError:
                return None  # closed, or there is no broker: what the recipe needs is not to be had
        call, good = self.made[name]
        names = dice.sample(list(hints), min(len(hints), dice.choice((0, 1, 1, 1, 2, 4))))
        given = good | {parameter: self.value(hints[parameter]) for parameter in names}
        for parameter in given.keys() & {"timeout", "consume_timeout"}:
            if self.is_away or dice.random() < 0.9:  # else nothing ends a wait without end
                given[parameter] = dice.choice((0, 0.001, -1, None, "x"))
        return self._judge(name, lambda: call(**given), given)

    def _send_odd(self) -> object:
        parts: dict[str, Any] = {"topic": self.scene.topic, "body": b"x"}
        for field in self.dice.sample(FIELDS, self.dice.choice((1, 1, 2, 3))):
            parts[field] = self.value(object)
        return self.dice.choice(list(SENDS.values()))(self.scene, Message(**parts))

    def _judge(self, name: str, act: Callable[[], object], given: dict[str, object]) -> None:
        try:
            act()
        except (GantryError, PlantedError):
            pass
        except BaseException as error:
            trace = "".join(traceback.format_exception(error)[-3:])
            kinds = {key: type(value).__name__ for key, value in given.items()}
            self.faults.append(f"{name}({kinds}): {trace}")


def played(caller: Caller, count: int) -> None:
    """So many calls."""
    for number in range(count):
        if number % 64 == 0:
            faulthandler.dump_traceback_later(HANGS_S, exit=True)
        caller.call()


def in_threads(scene: Scene, count: int, seed: int) -> list[str]:
    """Several threads share the clients."""
    callers = [Caller(scene, seed + number) for number in range(THREADS)]
    threads = [
        threading.Thread(target=played, args=(caller, count // THREADS)) for caller in callers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [fault for caller in callers for fault in caller.faults]


def in_callbacks(scene: Scene, count: int, seed: int) -> list[str]:
    """Each few calls are made by the callback of a receipt."""
    caller = Caller(scene, seed)
    for _ in range(0, count, 16):
        future = scene.producer.send_async(scene.topic, b"x")
        done = threading.Event()

        def act(_future: object, done: threading.Event = done) -> None:
            try:
                played(caller, 16)
            finally:
                done.set()

        future.add_done_callback(act)
        future.result(PATIENCE_S)
        assert done.wait(HANGS_S)
    return caller.faults


def main() -> None:
    """As the module says."""
    home, count, seed, way = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    faulthandler.enable()
    topic = f"anything-{seed}"
    broker: Any = SimpleNamespace(home=home, start=lambda: None)
    timeout = 0.005 if way == "away" else 20.0
    producer = Producer(home, producer_group=topic, timeout=timeout)
    pull = PullConsumer(topic, [topic], home=home, consume_from=FIRST, timeout=timeout)
    client = Client(home)
    receipt = producer.send(topic, b"x", timeout=20.0)
    batch = pull.poll(timeout=PATIENCE_S)
    scene = Scene(broker, topic, producer, pull, client, batch, receipt.message_id)
    if way == "away":
        vars(test_arguments)["PATIENCE_S"] = timeout  # no receipt comes
    if way == "closed":
        for thing in (producer, pull, client):
            thing.close()
    print("ready", flush=True)
    sys.stdin.readline()
    if way == "threads":
        faults = in_threads(scene, count, seed)
    elif way == "callbacks":
        faults = in_callbacks(scene, count, seed)
    else:
        caller = Caller(scene, seed, is_away=way == "away")
        played(caller, count)
        faults = caller.faults
    faulthandler.dump_traceback_later(HANGS_S, exit=True)
    for thing in (producer, pull, client):
        with suppress(GantryError):
            thing.close()
    print(f"{len(faults)} of {count} calls ended as none may", *faults[:20], sep="\n", flush=True)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
