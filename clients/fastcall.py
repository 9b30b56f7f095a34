"""Makes the native put of shm/kernels/fastput.py a Python function of one producer."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shm.codes import Level
from shm.jit import JIT_OFF, builtin_method
from shm.kernels import fastbatch, fastput, ring


def is_available() -> bool:
    """Whether this Python can: with a GIL, and with the JIT on."""
    locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    return bool(locked) and not JIT_OFF


class FastPut:
    """State and functions of the native put; keeps alive whatever they hold addresses of."""

    def __init__(
        self,
        oneway: Callable[..., None],
        urgent: Callable[..., int],
        urgent_durable: Callable[..., int],
        asynchronous: Callable[..., object],
        half: Callable[..., int],
    ) -> None:
        self.state: NDArray[np.int64] = np.zeros(fastput.STATE_WORDS, np.int64)
        self._form = np.zeros(ring.FORM_WORDS, np.int64)
        self._methods = (oneway, urgent, urgent_durable, asynchronous, half)
        self._kept: dict[int, list[tuple[str, str | None]]] = {}
        self.state[fastput.FORM] = self._form.ctypes.data
        self.state[fastput.ONEWAY_METHOD] = id(oneway)
        self.state[fastput.URGENT_METHOD] = id(urgent)
        self.state[fastput.DURABLE_METHOD] = id(urgent_durable)
        self.state[fastput.ASYNC_METHOD] = id(asynchronous)
        self.state[fastput.HALF_METHOD] = id(half)
        self.state[fastput.EXTRA_DATA] = self.state.ctypes.data
        self.state[fastput.NONE] = id(None)
        self.state[fastput.ONE] = 1
        self._texts = tuple(map(sys.intern, ("tag", "durability", "written", "durable")))
        first, last = fastput.LEVEL_NAME, fastput.DURABLE_TEXT + 1
        self.state[fastput.TAG_NAME] = id(self._texts[0])
        self.state[first:last] = [id(text) for text in self._texts[1:]]
        self._part_names = tuple(map(sys.intern, ("delivery_timestamp", "delay", "delay_level")))
        first = fastput.PART_NAMES
        self.state[first : first + 3] = [id(name) for name in self._part_names]
        self._owner = self.state.ctypes.data
        self.oneway = self._function("send_oneway", fastput.oneway.address)
        self.urgent = self._function("urgent", fastput.urgent.address)
        self.urgent_durable = self._function("durable", fastput.urgent_durable.address)
        self.asynchronous = self._function("send_async", fastput.asynchronous.address)
        #: `half(topic, body, properties, flags, tag=...)`.
        self.half = self._function("half", fastput.half.address)
        #: `batch(items, topic or None, tag, flags)`: see shm/kernels/fastbatch.py.
        self.batch = self._function("batch", fastbatch.batch.address)
        self._receipts: tuple[object, ...] = ()
        self._page: object = None

    def make_receipts(self, kind: type, turn: Callable[[int], object]) -> None:
        """Let `asynchronous` make objects of a class that takes no arguments.

        It sets `_page`, `_seq` and `_topic`, `_level` if that is not WRITTEN, `_mode` and `_value`
        of a delay; `turn(seq)` gives the page of a seq and calls `turn_page`.
        """
        attributes = ("_page", "_seq", "_topic", "_level", "_mode", "_value")
        names = tuple(map(sys.intern, attributes))
        self._receipts = (kind, turn, names, Level.DURABLE)
        self.state[fastput.DURABLE_LEVEL] = id(Level.DURABLE)
        self.state[fastput.FUTURE] = id(kind)
        self.state[fastput.TURN_METHOD] = id(turn)
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
        self._batches = (kind, asynchronous, urgent, name)
        self.state[fastput.FUTURE_OF_BATCH] = id(kind)
        self.state[fastput.BATCH_METHOD] = id(asynchronous)
        self.state[fastput.BATCH_URGENT_METHOD] = id(urgent)
        self.state[fastput.NAME_COUNT] = id(name)
        self.batch_asynchronous = self._function(
            "send_batch_async", fastbatch.batch_asynchronous.address
        )
        self.batch_urgent = self._function("batch_urgent", fastbatch.batch_urgent.address)

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
        self._message = (kind, properties)
        self.state[fastput.NO_KEYS] = id(())
        self.state[fastput.NO_PROPERTIES] = id(properties)
        self.state[fastput.MESSAGE] = id(kind)
        self.state[fastput.INT_CLASS], self.state[fastput.FLOAT_CLASS] = id(int), id(float)

    def turn_page(self, page: object, last: int) -> None:
        """The page of seqs up to `last`; its caller keeps it alive as long as it may be used."""
        self._page = page
        self.state[fastput.PAGE] = id(page)
        self.state[fastput.PAGE_LAST] = last

    def is_beyond_page(self, seq: int) -> bool:
        """Whether the page of a seq is newer than the one that is turned to."""
        return seq > int(self.state[fastput.PAGE_LAST])

    def attach(self, arena: NDArray[np.uint8], lane: NDArray[np.int64], bell: int) -> None:
        """Use a session from now on; its routes are learned anew."""
        self.state[fastput.ROUTES :] = 0
        self._kept.clear()
        self._memory = (arena, lane)
        self.state[fastput.ARENA] = arena.ctypes.data
        self.state[fastput.LANE] = lane.ctypes.data
        self.state[fastput.BELL] = bell
        self.state[fastput.ENABLED] = 1

    def detach(self) -> None:
        """Send everything the Python way from now on."""
        self.state[fastput.ENABLED] = 0

    def learn(self, topic: str, tag: str | None, route: int, level: Level) -> None:
        """Remember a route by the identity of these very objects, which are kept alive.

        `level` is what receipts wait for when a call does not say.
        """
        pair = (id(topic), 0 if tag is None else id(tag))
        first = int(fastput.cache_set(*pair))
        kept = self._kept.setdefault(first, [])
        ways = self.state[first : first + 4 * fastput.ROUTE_WAYS].reshape(-1, 4)
        for way, known in enumerate(kept):
            if known[0] is topic and known[1] is tag:
                ways[way] = (*pair, route, level)
                return
        ways[1:] = ways[:-1].copy()
        ways[0] = (*pair, route, level)
        kept.insert(0, (topic, tag))
        del kept[fastput.ROUTE_WAYS :]

    def _function(self, name: str, address: int) -> Any:  # noqa: ANN401 - a builtin function
        function, kept = builtin_method(name, address, self._owner)
        self.__dict__.setdefault("_definitions", []).append(kept)
        return function


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
