"""Methods of machine code live as long as anybody has them, whatever else has ended.

Each test that could kill an interpreter gives it one of its own.
"""

from __future__ import annotations

import gc
import inspect
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest

from gantrymq.clients.fastcall import FastPut, is_available
from gantrymq.clients.message import NO_PROPERTIES, Message
from gantrymq.clients.producer import Producer
from gantrymq.temporary import Broker
from tests.support.applications import PATIENCE_S, bodies_of
from tests.support.tree import ROOT
from tests.support.trials import mends

#: Orders of ends, by a seed that no run has had, over several processes; `make soak` has far more.
ORDERS, PROCESSES = int(os.environ.get("GANTRYMQ_TEST_ENDS", "400")), 2
#: Enough producers for a definition that each of them leaves behind to be plain to see.
PRODUCERS = 20_000

_REPROS = {
    "a method alone": "s = Producer(h).send_oneway; gc.collect(); [s('t', b'x') for _ in 'ab']",
    "a future's": "s = Producer(h).send_async; gc.collect(); s('t', b'x').result()",
    "a batch's": "s = Producer(h).send_batch_async; gc.collect(); s('t', [b'x']).result()",
    "partial": "s = functools.partial(Producer(h).send_oneway, 't'); [s(b'x') for _ in 'ab']",
    "private": "s = Producer(h)._put_urgent; gc.collect(); [s('t', b'x') for _ in 'ab']",
    "at the end": "s = Producer(h).send_oneway; s('t', b'x'); atexit.register(s, 't', b'y')",
    "finalizer at the end": (
        "E = type('E', (), {'__del__': lambda e: e.s('t', b'x')}); e = E();"
        " p = Producer(h); p.send('t', b'x'); e.s = p.send_oneway; e.me = e; p.e = e"
    ),
    "a daemon's sleep": (
        "c = PullConsumer('g-daemon', ['none-comes'], home=h);"
        " threading.Thread(target=c.poll, daemon=True).start(); time.sleep(0)"
    ),
}


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=10 * PATIENCE_S,
    )  # fmt: skip


_USED_AGAIN = """
import gc, os, sys
from gantrymq import Closed, Producer
from gantrymq.shm.kernels import fastput
kept = []
class Keeper:
    def __init__(self, producer):
        self.producer, producer.of_a_cycle = producer, self
    def __del__(self):
        kept.append(self.producer)
producer = Producer(sys.argv[1])
producer.send(sys.argv[2], b"before")
state = producer._link.fast.state if producer._link.fast else None
Keeper(producer)
del producer
gc.collect()
[producer] = kept
if sys.argv[2].endswith("soon"):
    producer._link.session.look_due = 1 << 62  # the session that it has is used on,
    producer._link.ring_if_wanted = lambda _turn: None  # as where the writer is awake
    producer.send_oneway(sys.argv[2], b"behind")
else:
    producer.send(sys.argv[2], b"behind")
assert state is None or not state[fastput.ENABLED], "nobody tells its end again"
producer.send_oneway(sys.argv[2], b"left")
pid = os.fork()
if not pid:
    try:
        producer.send_oneway(sys.argv[2], b"of the child")
    except Closed:
        os._exit(0)
    os._exit(1)
assert os.waitpid(pid, 0)[1] == 0, "a child has what is its parent's"
producer.close()
"""


@mends("S101", "S125")
@pytest.mark.parametrize("when", ["soon", "later"])
def test_a_producer_that_a_finalizer_uses_again_goes_on(broker: Broker, when: str) -> None:
    """With its session, or a new one; a child of its process has none, as of any producer."""
    done = _python("-c", _USED_AGAIN, str(broker.home), f"again-{when}")
    assert done.returncode == 0, done.stderr
    assert sorted(bodies_of(broker.home, f"again-{when}", 3)) == [b"before", b"behind", b"left"]


@mends("A1")
@pytest.mark.parametrize("program", _REPROS.values(), ids=_REPROS)
def test_a_method_outlives_its_producer(broker: Broker, program: str) -> None:
    head = (
        "import atexit, functools, gc, sys, threading, time;"
        " from gantrymq import Producer, PullConsumer; h = sys.argv[1]; "
    )
    ended = _python("-c", head + program, str(broker.home))
    assert (ended.returncode, ended.stderr) == (0, "")


@mends("A1")
def test_any_order_of_ends_leaves_the_interpreter_alive(
    broker: Broker, fresh_seed: int, tmp_path: Path
) -> None:
    def follow(number: int) -> tuple[int, str, str]:
        said = tmp_path / f"last-{number}"
        counted = (str(broker.home), str(fresh_seed + number), str(ORDERS // PROCESSES))
        with said.open("w") as out:
            ended = subprocess.run(
                [sys.executable, "-m", "tests.support.methodends", *counted],
                cwd=ROOT, stdout=out, stderr=subprocess.PIPE, text=True, check=False,
            )  # fmt: skip
        return ended.returncode, said.read_text().strip(), ended.stderr[-2000:]

    with ThreadPoolExecutor(2) as pool:
        for code, last, error in pool.map(follow, range(PROCESSES)):
            assert code == 0, f"order {last}: {error}"


@mends("A1")
def test_producers_leave_no_definitions_behind() -> None:
    """In blocks of Python's memory; a broker would add nothing but time."""

    def nothing(*_: object, **__: object) -> None: ...

    def make(count: int) -> int:
        for _ in range(count):
            fast = FastPut(nothing, nothing, nothing, nothing, nothing)  # type: ignore[arg-type]
            fast.know_messages(Message, NO_PROPERTIES)
            fast.give_to(Producer.__new__(Producer))
            assert fast.urgent is not None
        gc.collect()
        return sys.getallocatedblocks()

    before = make(100)
    assert make(PRODUCERS) - before < PRODUCERS // 10


# --------------------------------------------------------------------------------- as Python's own


class _Louder(Producer):
    """Overrides what is machine code in its base."""

    def send_oneway(self, message: Message | str, body: object = None, **parts: object) -> None:
        super().send_oneway(message, bytes(body).upper(), **parts)  # type: ignore


@mends("A11.3")
def test_a_subclass_overrides_methods_of_machine_code(broker: Broker, topic: str) -> None:
    with _Louder(broker.home) as producer:
        put = producer._link.lane.put_end
        for _ in range(3):
            producer.send_oneway(topic, b"shout")
        assert producer._link.lane.put_end > put
    assert bodies_of(broker.home, topic, 3) == [b"SHOUT"] * 3


@mends("A11.3")
@pytest.mark.parametrize("name", ["send_oneway", "send_async", "send_batch_async", "send"])
def test_a_patch_of_the_class_is_honoured(broker: Broker, topic: str, name: str) -> None:
    with Producer(broker.home) as producer:
        with mock.patch.object(Producer, name) as patched:
            getattr(producer, name)(topic, [b"x"])
        patched.assert_called_once_with(topic, [b"x"])
        assert producer.send(topic, b"x").queue_offset == 0


@mends("A11.3")
def test_a_tracer_sees_each_call(broker: Broker, topic: str) -> None:
    with Producer(broker.home) as producer:
        seen = []
        sys.setprofile(lambda _frame, event, what: seen.append((event, what)))
        try:
            producer.send_oneway(topic, b"x")
        finally:
            sys.setprofile(None)
        names = [getattr(what, "__name__", "") for event, what in seen if event == "c_call"]
    assert names[0] == "send_oneway" or not is_available()


@mends("A11.3")
@pytest.mark.parametrize("name", ["send_oneway", "send_async", "send_batch_async"])
def test_methods_of_machine_code_tell_their_parameters(broker: Broker, name: str) -> None:
    with Producer(broker.home) as producer:
        bound = inspect.signature(getattr(producer, name))
        of_class = inspect.signature(getattr(Producer, name))
        shown = inspect.getdoc(getattr(producer, name))
    assert list(of_class.parameters)[1:] == list(bound.parameters)
    assert {"message", "messages"} & set(bound.parameters)
    assert bound.parameters["parts"].kind is inspect.Parameter.VAR_KEYWORD
    assert shown is not None
    assert "ithout" in shown


@mends("A11.3")
def test_a_method_of_the_class_takes_producers_only() -> None:
    for name in ("send_oneway", "send_async", "send_batch_async"):
        with pytest.raises((TypeError, AttributeError)):
            getattr(Producer, name)(threading.Lock(), "t", b"x")
