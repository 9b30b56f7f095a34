"""Makes the native put of shm/kernels/fastput.py methods of producers."""

from __future__ import annotations

import ctypes
import inspect
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import jit, layout
from gantrymq.shm.codes import Level
from gantrymq.shm.held import Descriptor
from gantrymq.shm.jit import JIT_OFF, HoldsState
from gantrymq.shm.kernels import fastbatch, fastput, ring

if TYPE_CHECKING:
    from gantrymq.clients.receipts import ReceiptFuture
    from gantrymq.clients.transactions.transaction import HalfReceipt


@cache
def is_available() -> bool:
    """Whether this Python can: with a GIL, the JIT on, and objects as machine code reads them."""
    locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    return bool(locked) and not JIT_OFF and _is_state_found()


def _is_state_found() -> bool:
    """Look where an owner, a tuple and an array keep what methods of machine code look for."""

    class Owner(HoldsState):
        """With a dictionary and weak references, as producers have them."""

    owner, array = Owner(), np.zeros(1, np.int64)
    held = owner._native = (array, array)
    return (
        _word(owner, jit.STATE_SLOT_AT) == id(held)
        and _word(held, jit.FIRST_ITEM_AT) == id(array)
        and _word(array, jit.ARRAY_DATA_AT) == array.ctypes.data
    )


def _word(thing: object, at: int) -> int:
    """A word of an object, 0 behind its end."""
    size = type(thing).__basicsize__ + 8 * type(thing).__itemsize__
    return int.from_bytes(ctypes.string_at(id(thing), size)[at : at + 8], sys.byteorder)


def make_native(owner: type[HoldsState], **codes: jit.Method) -> None:
    """Let machine code be methods of a class in place of those of these names.

    What they cannot do they leave to Python (`FastPut`). They look as methods of built-in types,
    and tell their parameters and docstrings.
    """
    for name, code in codes.items():
        described = _described(vars(owner)[name])
        setattr(owner, name, jit.method_of(owner, name, code, described))


def _described(function: Callable[..., object]) -> str:
    """A docstring with a text signature, from which `inspect.signature` takes the parameters."""
    plain = [
        parameter.replace(annotation=parameter.empty)
        for parameter in inspect.signature(function).parameters.values()
    ]
    shown = str(inspect.Signature(plain)).replace("(self", "($self", 1)
    return f"{function.__name__}{shown}\n--\n\n{inspect.getdoc(function) or ''}"


class FastPut(HoldsState):
    """State and private methods of the native put.

    `hold` gives the state to a producer, whose methods then use it. It holds whatever the state
    has addresses of that does not change; what does change is used while ENABLED only, which ends
    before the collector takes anything apart.
    """

    _is_collected = False

    def __init__(
        self,
        oneway: Callable[..., None],
        urgent: Callable[..., ReceiptFuture],
        urgent_durable: Callable[..., ReceiptFuture],
        asynchronous: Callable[..., ReceiptFuture],
        half: Callable[..., HalfReceipt],
    ) -> None:
        """The methods are Python's way, for calls in another form."""
        self.state: NDArray[np.int64] = np.zeros(fastput.STATE_WORDS, np.int64)
        form = np.zeros(ring.FORM_WORDS, np.int64)
        self._kept: dict[int, tuple[tuple[str, str | None, int, Level], ...]] = {}
        self.state[fastput.FORM] = form.ctypes.data
        self.state[fastput.ONEWAY_METHOD] = id(oneway)
        self.state[fastput.URGENT_METHOD] = id(urgent)
        self.state[fastput.DURABLE_METHOD] = id(urgent_durable)
        self.state[fastput.ASYNC_METHOD] = id(asynchronous)
        self.state[fastput.HALF_METHOD] = id(half)
        self.state[fastput.EXTRA_DATA] = self.state.ctypes.data
        self.state[fastput.NONE] = id(None)
        self.state[fastput.ONE] = 1
        texts = tuple(map(sys.intern, ("tag", "durability", "written", "durable")))
        first, last = fastput.LEVEL_NAME, fastput.DURABLE_TEXT + 1
        self.state[fastput.TAG_NAME] = id(texts[0])
        self.state[first:last] = [id(text) for text in texts[1:]]
        part_names = tuple(map(sys.intern, ("delivery_timestamp", "delay", "delay_level")))
        first = fastput.PART_NAMES
        self.state[first : first + 3] = [id(name) for name in part_names]
        self._page: object = None
        self._bell: Descriptor | None = None
        self._is_attached = self._is_held_back = False
        self._hold(form, oneway, urgent, urgent_durable, asynchronous, half, texts, part_names)

    def _hold(self, *things: object) -> None:
        """Hold them as long as anybody has the state."""
        held: tuple[object, ...] = getattr(self, "_native", (self.state,))
        self._native = (*held, *things)

    def give_to(self, owner: HoldsState) -> None:
        """Let the methods of an object use this state, as it is now made."""
        owner._native = self._native

    def __del__(self, enabled: int = fastput.ENABLED) -> None:
        # Called before the collector empties anything: from now on methods go Python's way, for
        # good, whoever may still keep this object: it is not told twice. A signal handler may have
        # raised as this was made.
        self._is_collected = True
        if "state" in vars(self):
            self.state[enabled] = 0

    def make_receipts(self, kind: type, of_half: type) -> None:
        """Let puts make objects of classes that take no arguments, `half` of the second one.

        They set `_page`, `_seq` and `_topic`, `_level` if that is not WRITTEN, `_mode` and `_value`
        of a delay.
        """
        attributes = ("_page", "_seq", "_topic", "_level", "_mode", "_value")
        names = tuple(map(sys.intern, attributes))
        self._hold(kind, of_half, names, Level.DURABLE)
        self.state[fastput.DURABLE_LEVEL] = id(Level.DURABLE)
        self.state[fastput.FUTURE] = id(kind)
        self.state[fastput.FUTURE_OF_HALF] = id(of_half)
        places = (
            fastput.NAME_PAGE, fastput.NAME_SEQ, fastput.NAME_TOPIC, fastput.NAME_LEVEL,
            fastput.NAME_MODE, fastput.NAME_VALUE,
        )  # fmt: skip
        for place, name in zip(places, names, strict=True):
            self.state[place] = id(name)

    def make_batches(
        self,
        kind: type,
        asynchronous: Callable[..., object],
        urgent: Callable[..., object],
    ) -> None:
        """Let batches be put and their futures made by one call, once `know_messages` may be.

        `kind` is as for `make_receipts`, and has the attribute `_count`. The methods are for calls
        in another form.
        """
        name = sys.intern("_count")
        self._hold(kind, asynchronous, urgent, name)
        self.state[fastput.FUTURE_OF_BATCH] = id(kind)
        self.state[fastput.BATCH_METHOD] = id(asynchronous)
        self.state[fastput.BATCH_URGENT_METHOD] = id(urgent)
        self.state[fastput.NAME_COUNT] = id(name)

    def know_messages(self, kind: type, properties: object) -> None:
        """Let `batch` read messages: objects of a class, and its default for properties.

        Where they keep their parts is seen in one whose parts are all different objects; if that
        is not plain to see, all batches go the Python way.
        """
        names = (
            "topic", "body", "tag", "keys", "properties", "queue_id", "message_group",
            "delivery_timestamp", "delay", "delay_level",
        )  # fmt: skip
        parts = {name: object() for name in names}
        probe = kind(**parts)
        words = memoryview(ctypes.string_at(id(probe), kind.__basicsize__)).cast("q").tolist()
        wanted = [id(part) for part in (kind, *parts.values())]
        if any(words.count(address) != 1 for address in wanted):
            return
        places = (
            fastput.AT_CLASS, fastput.AT_TOPIC, fastput.AT_BODY, fastput.AT_TAG, fastput.AT_KEYS,
            fastput.AT_PROPERTIES, fastput.AT_QUEUE, fastput.AT_GROUP, fastput.AT_TIMESTAMP,
            fastput.AT_DELAY, fastput.AT_DELAY_LEVEL,
        )  # fmt: skip
        containers = _look_at_containers()
        if containers is None:
            return
        for place, address in zip(places, wanted, strict=True):
            self.state[place] = words.index(address)
        self.state[fastput.AT_COUNT : fastput.BYTES_CLASS + 1] = containers
        self._hold(kind, properties)
        self.state[fastput.NO_KEYS] = id(())
        self.state[fastput.NO_PROPERTIES] = id(properties)
        self.state[fastput.MESSAGE] = id(kind)
        self.state[fastput.INT_CLASS], self.state[fastput.FLOAT_CLASS] = id(int), id(float)

    def turn_page(self, page: object, last: int) -> None:
        """The page of seqs up to `last`; meanwhile puts go the Python way."""
        self.state[fastput.PAGE_LAST] = 0
        self._page = page
        self.state[fastput.PAGE] = id(page)
        self.state[fastput.PAGE_LAST] = last

    def is_beyond_page(self, seq: int) -> bool:
        """Whether the page of a seq is newer than the one that is turned to."""
        return seq > int(self.state[fastput.PAGE_LAST])

    def attach(
        self, arena: NDArray[np.uint8], lane: NDArray[np.int64], bell: Descriptor | None,
        board: NDArray[np.uint8], changes: int,
    ) -> None:  # fmt: skip
        """Use a session from now on; its routes are learned anew.

        `changes` of topics were counted on its board when it began.
        """
        self._memory = (arena, lane, board)
        self.state[fastput.CHANGES_AT] = board.ctypes.data + layout.BOARD_TOPIC_CHANGES
        self.forget_routes(changes)
        self.state[fastput.ARENA] = arena.ctypes.data
        self.state[fastput.LANE] = lane.ctypes.data
        self._bell = bell  # None: it is closed, as after a signal handler
        self.state[fastput.BELL] = -1 if bell is None else bell.number
        self.note_look()
        self._is_attached = True
        self._enable()

    def forget_routes(self, changes: int) -> None:
        """Learn all routes anew: so many changes of topics are counted now."""
        # No call between these steps: as `learn`.
        kept = self._kept
        self._kept = {}
        self.state[fastput.ROUTES :] = 0
        del kept
        self.state[fastput.CHANGES] = changes

    def note_look(self) -> None:
        """Somebody has looked just now whether the broker is there: puts need not, for a while."""
        self.state[fastput.LOOKED] = (
            time.clock_gettime_ns(fastput.CLOCK_REALTIME_COARSE) // 1_000_000
        )

    def detach(self) -> None:
        """Send everything the Python way from now on."""
        self._is_attached = False
        self._enable()
        self._bell = None
        self.turn_page(None, 0)  # it knows the producer: what is closed goes without the collector

    def hold_back(self, held: bool) -> None:
        """Likewise, while earlier sends wait for the broker."""
        self._is_held_back = held
        self._enable()

    def _enable(self) -> None:
        allowed = self._is_attached and not self._is_held_back and not self._is_collected
        self.state[fastput.ENABLED] = int(allowed)

    def learn(self, topic: str, tag: str | None, route: int, level: Level) -> None:
        """Remember a route by the identity of these very objects, which are kept alive.

        `level` is what receipts wait for when a call does not say.
        """
        pair = (id(topic), 0 if tag is None else id(tag))
        first = int(fastput.cache_set(*pair))
        before = self._kept.setdefault(first, ())
        others = [way for way in before if way[0] is not topic or way[1] is not tag]
        ways = ((topic, tag, route, level), *others[: fastput.ROUTE_WAYS - 1])
        words = np.zeros(4 * fastput.ROUTE_WAYS, np.int64)
        for number, (name, mark, *what) in enumerate(ways):
            words[4 * number : 4 * number + 4] = id(name), 0 if mark is None else id(mark), *what
        behind = first + len(words)
        # No call from here on: a signal handler, which may learn and forget too, comes before both
        # steps or after. The state names nothing that is not kept alive: another text in its place
        # would be taken for that topic.
        kept = self._kept
        if first in kept and kept[first] is before:
            kept[first] = ways
            self.state[first:behind] = words

    # Machine code stands in place of these.

    def urgent(self, topic: str, body: object, *, tag: str | None = None) -> ReceiptFuture:
        """Put a message for a sender who waits; its receipt."""
        raise NotImplementedError

    def urgent_durable(self, topic: str, body: object, *, tag: str | None = None) -> ReceiptFuture:
        """As `urgent`; the flusher is to sync at once."""
        raise NotImplementedError

    def half(
        self, topic: str, body: object, block: bytes, flags: int, *, tag: str | None = None
    ) -> HalfReceipt:
        """Put the half of a transaction; its receipt."""
        raise NotImplementedError

    def batch(self, items: list[Any], topic: str | None, tag: str | None, flags: int) -> int:
        """Put what may be a batch in the common form: see shm/kernels/fastbatch.py."""
        raise NotImplementedError

    def batch_urgent(self, *given: Any, **parts: Any) -> Any:  # noqa: ANN401
        """Put a batch for a sender who waits; its future."""
        raise NotImplementedError


if is_available():
    make_native(
        FastPut,
        urgent=fastput.urgent,
        urgent_durable=fastput.urgent_durable,
        half=fastput.half,
        batch=fastbatch.batch,
        batch_urgent=fastbatch.batch_urgent,
    )


def _look_at_containers() -> tuple[int, ...] | None:
    """Where lists and bytes keep their parts: what AT_COUNT to BYTES_CLASS are; None if unclear."""
    count = 11
    probe: list[object] = [object() for _ in range(count)]
    text = bytes(range(100, 100 + count))
    wanted = b"".join(id(item).to_bytes(8, sys.byteorder) for item in probe)
    found = memoryview(ctypes.string_at(id(probe), list.__basicsize__)).cast("q").tolist()
    whole = ctypes.string_at(id(text), bytes.__basicsize__ + count)
    head = memoryview(whole[: bytes.__basicsize__ // 8 * 8]).cast("q").tolist()
    if list.__basicsize__ < 32 or found[2] != count or head[2] != count:  # of every var object
        return None
    if found[1] != id(list) or head[1] != id(bytes) or whole.count(text) != 1:
        return None
    if ctypes.string_at(found[3], 8 * count) != wanted:
        return None
    return 2, 3, whole.index(text), id(list), id(bytes)
