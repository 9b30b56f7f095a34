"""Methods that outlive what they are of: `python -m tests.support.methodends HOME SEED COUNT ...`.

Draws orders in which producers, consumers, what keeps their methods, and the process end, and
follows them. Whatever a method says to that is an exception of ours; the process must live.
"""

from __future__ import annotations

import copy
import functools
import gc
import logging
import os
import random
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from gantrymq import GantryError, Message, Producer, PullConsumer, Unavailable
from tests.support.watchdog import poll_until

#: Methods with what they are called with; those of machine code, also private ones, come first.
CALLS: dict[str, tuple[Any, ...]] = {
    "send_oneway": ("t", b"x"),
    "send_async": ("t", b"x"),
    "send_batch_async": ("t", [b"x", b"y"]),
    "_link.fast.urgent": ("t", b"x"),
    "_link.fast.urgent_durable": ("t", b"x"),
    "_link.fast.half": ("t", b"x", b"", 1),
    "_link.fast.batch": ([b"x"], "t", None, 1),
    "_link.fast.batch_urgent": ("t", [b"x"]),
    "send": ("t", b"x"),
    "send_batch": ("t", [b"x"]),
    "flush": (),
    "close": (),
    "transaction": (),
    "recall_message": ("t", "no handle"),
}
CONSUMER_CALLS: dict[str, tuple[Any, ...]] = {
    "poll": (3, 0),
    "commit": (),
    "assignment": (),
    "close": (),
}
#: What a call may end with: the producer is closed, half of it is gone, or the call made no sense.
#: TypeError and AttributeError are what Python says of objects that it takes apart.
EXPECTED = (GantryError, TypeError, AttributeError, ValueError)
#: Descriptors of a session; so many traps of those that were laid last stay.
SESSION, TRAPS = 8, 80
Call = Callable[[], object]


def method_of(owner: object, name: str) -> Callable[..., object]:
    """Return a method by a dotted name."""
    found: Callable[..., object] = functools.reduce(getattr, name.split("."), owner)  # type: ignore
    return found


def attempt(call: Call) -> None:
    """Call it; what it raises is of no interest, as long as it was foreseen."""
    try:
        call()
    except EXPECTED:
        return


def _attempt_late(call: Call, _ended: object) -> None:
    attempt(call)


class Handler(logging.Handler):
    """Sends what is logged, as an application's would."""

    def __init__(self, send: Callable[..., object]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Send the text."""
        attempt(lambda: self._send("t", record.getMessage().encode()))


class Traps:
    """Empty files that take numbers of descriptors which others may have given back."""

    def __init__(self) -> None:
        self._open: list[int] = []

    def lay(self) -> None:
        """Lay as many as a session has descriptors."""
        self._open += [os.memfd_create("trap", os.MFD_CLOEXEC) for _ in range(SESSION)]

    def look(self) -> None:
        """Raise if somebody has written into one; the oldest go."""
        for descriptor in self._open:
            if os.fstat(descriptor).st_size:
                raise AssertionError("a descriptor was written to that was somebody else's")
        while len(self._open) > TRAPS:
            os.close(self._open.pop(0))


traps = Traps()


class Caller:
    """Calls when it is deleted; in a cycle with itself, so that the collector does that."""

    def __init__(self, call: Call, *, cycle: bool) -> None:
        self.call = call
        self.me = self if cycle else None

    def __del__(self) -> None:
        traps.lay()  # in place of what others of the cycle have let go of
        attempt(self.call)


class Order:
    """One life of a producer, and of what has its methods."""

    def __init__(self, home: str, dice: random.Random) -> None:
        self._dice = dice
        self._home = home
        self.said: list[str] = []
        self._kept: list[Call] = []
        self._things: list[object] = []
        self._owner: Any = None
        self._calls: dict[str, tuple[Any, ...]] = {}

    def begin(self) -> None:
        """Make a producer, now and then a consumer; memory of those before may have to go first."""
        poll_until(self._has_begun, "there is room for one more session")

    def _has_begun(self) -> bool:
        try:
            self._begin()
        except Unavailable:
            gc.collect()
        return self._owner is not None

    def _begin(self) -> None:
        if self._dice.random() < 0.03:
            self.said.append("consumer")
            group = f"g{os.getpid()}-{self._dice.getrandbits(40)}"
            self._owner, self._calls = PullConsumer(group, ["t"], home=self._home), CONSUMER_CALLS
            return
        self._owner, self._calls = Producer(self._home), CALLS
        if self._dice.random() < 0.7:
            self.said.append("warm")
            self._owner.send("t", b"first")

    def step(self) -> None:
        """Do one of all that can be done."""
        names = [name for name in dir(self) if name.startswith("do_")]
        name = self._dice.choice(names)
        self.said.append(name)
        getattr(self, name)()

    def _drawn(self) -> Call | None:
        if self._owner is None:
            return None
        name = self._dice.choice(list(self._calls))
        self.said.append(name)
        return functools.partial(method_of(self._owner, name), *self._calls[name])

    def do_keep(self) -> None:
        """Keep a method."""
        self._kept += filter(None, [self._drawn()])

    def do_call(self) -> None:
        """Call one that is kept, or of the producer."""
        call = self._dice.choice(self._kept) if self._kept else self._drawn()
        if call:
            attempt(call)

    def do_forget_producer(self) -> None:
        """Nobody but its methods refers to it any more."""
        self._owner = None

    def do_collect(self) -> None:
        """Look for cycles."""
        gc.collect(self._dice.randrange(2))

    def do_forget_method(self) -> None:
        """Keep one less."""
        if self._kept:
            self._kept.pop(self._dice.randrange(len(self._kept)))

    def do_thread(self) -> None:
        """Call in another thread."""
        thread = threading.Thread(target=self.do_call)
        thread.start()
        thread.join()

    def do_close(self) -> None:
        """Close the producer that may be used later."""
        if self._owner is not None:
            attempt(self._owner.close)

    def do_log(self) -> None:
        """Keep a method in a handler of logs, and log."""
        if self._owner is not None and self._calls is CALLS:
            handler = Handler(self._owner.send_oneway)
            self._things.append(handler)
            handler.handle(logging.LogRecord("n", 20, "p", 1, "text", None, None))

    def do_finalizer(self) -> None:
        """Let the end of something call."""
        call = self._drawn()
        if call:
            caller = Caller(call, cycle=self._dice.random() < 0.5)
            if self._dice.random() < 0.5:
                self._things.append(caller)
            if self._dice.random() < 0.3 and self._owner is not None:
                self._owner.of_a_cycle = caller

    def do_weak(self) -> None:
        """Let the end of the producer itself call a method of it, or of another."""
        call = self._kept[0] if self._kept else None
        if self._owner is not None and call is not None:
            self._things.append(weakref.ref(self._owner, functools.partial(_attempt_late, call)))

    def do_copy(self) -> None:
        """Copy the producer, which is refused."""
        if self._owner is not None:
            attempt(lambda: self._kept.append(copy.copy(self._owner).send_oneway))

    def do_made_without_init(self) -> None:
        """Call a method of what never was a producer."""
        hollow = Producer.__new__(Producer)
        attempt(lambda: hollow.send_oneway("t", b"x"))
        attempt(lambda: hollow.send_async("t", b"x"))
        attempt(lambda: hollow.send_batch_async([Message("t", b"x")]))

    def do_forget_things(self) -> None:
        """Let handlers and finalizers go."""
        self._things.clear()

    def do_fork(self) -> None:
        """Now and then go on in a child, which then ends as a process of Python does."""
        if self._dice.random() < 0.1:
            self.fork(self._dice.randrange(6))

    def fork(self, steps: int) -> None:
        """Let a child of this process take steps and end; raise if it dies."""
        pid = os.fork()
        if pid:
            _, status = os.waitpid(pid, 0)
            code = os.waitstatus_to_exitcode(status)
            if code:
                raise AssertionError(f"a child ended with {code}")
            return
        for _ in range(steps):
            self.step()
        globals()["alive_at_the_end"] = self  # the interpreter's end finds all of it
        sys.exit(0)


def main() -> None:
    """Follow COUNT orders; then let the interpreter end amid some more."""
    home, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    logging.raiseExceptions = False
    sys.unraisablehook = lambda _: None  # what Python says of finalizers that fail at its end
    for number in range(count):
        order = Order(home, random.Random(seed * 1_000_003 + number))
        # Should this process die, the last line says of what.
        os.pwrite(1, f"{seed * 1_000_003 + number:<20}\n".encode(), 0)
        order.begin()
        for _ in range(order._dice.randrange(1, 9)):
            order.step()
        traps.look()
        if number % 100 == 0:
            order.fork(3)
        if number % 20 == 0:
            gc.collect()
    globals()["alive_at_the_end"] = order


if __name__ == "__main__":
    main()
