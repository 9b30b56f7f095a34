"""The client's put of a whole batch as a native function: one call for all its messages.

It takes batches in their common form: messages of one topic that are a body of type bytes and a
tag met before. Anything else it leaves alone, and Python's way of laying a batch out begins anew:
nothing is published before the last entry is written. As in `fastput`, the GIL is held from start
to end. Where a message keeps its parts was found out by looking at one (clients/fastcall.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shm import machine
from shm.jit import JIT_OFF, external, i8, kernel, native
from shm.kernels import frames
from shm.kernels.fastput import (
    ARENA,
    AT_BODY,
    AT_CLASS,
    AT_KEYS,
    AT_PROPERTIES,
    AT_QUEUE,
    AT_TAG,
    AT_TOPIC,
    BELL,
    CLOCK_REALTIME_COARSE,
    DATA,
    ENABLED,
    FORM,
    LANE,
    LENGTH,
    MESSAGE,
    NO_KEYS,
    NO_PROPERTIES,
    NONE,
    ONE,
    TIME,
)
from shm.kernels.ring import FULL, fill_send, publish_entries, reserve
from shm.layout import ENTRY_BYTES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Words = NDArray[np.int64]

if not JIT_OFF:
    from shm.kernels.fastput import (
        address_of,
        as_bytes,
        cached_route,
        clear_error,
        clock,
        number_object,
        write_to,
    )

    _items_count = external("PyList_Size", i8, i8)
    _item = external("PyList_GetItem", i8, i8, i8)

    @kernel()
    def _route(state: Words, topic: int, tag: int) -> int:
        """The route of a pair of objects met before, or -1; `tag` may be None's address or 0."""
        slot = cached_route(state, topic, 0 if tag == state[NONE] else tag) if topic else 0
        route: int = state[slot + 2] if slot else -1
        return route

    @kernel()
    def _is_plain(state: Words, item: int, topic: int) -> int:
        """1 if an object is a message of that topic with nothing but a body and a tag."""
        parts = machine.words_at(item)
        if parts[state[AT_CLASS]] != state[MESSAGE]:
            return 0
        if parts[state[AT_TOPIC]] != topic or not parts[state[AT_BODY]]:
            return 0
        if parts[state[AT_QUEUE]] != state[NONE]:
            return 0
        if parts[state[AT_KEYS]] != state[NO_KEYS]:
            return 0
        return 1 if parts[state[AT_PROPERTIES]] == state[NO_PROPERTIES] else 0

    @kernel()
    def _find_body(state: Words, base: int, items: int, index: int, form: Words) -> int:
        """Address and length of a body into the state, its route into the form; 0 if not plain.

        `form[6]` and `form[7]` hold topic and tag that `form[1]` is the route of; a batch that is
        given as bodies (`form[8]`) keeps them.
        """
        body = _item(items, index)
        if not form[8]:
            item = body
            if not _is_plain(state, item, form[6]):
                return 0
            parts = machine.words_at(item)
            body = parts[state[AT_BODY]]
            tag = parts[state[AT_TAG]]
            if tag != form[7]:
                form[1] = _route(state, form[6], tag)
                form[7] = tag
        if form[1] < 0:
            return 0
        if as_bytes(body, base + 8 * DATA, base + 8 * LENGTH) != 0:
            clear_error()
            return 0
        return 1

    @kernel()
    def _fill(state: Words, base: int, items: int, count: int, form: Words) -> int:
        """Write all entries behind the tail and publish them; the last seq, 0 or FULL."""
        arena = machine.bytes_at(state[ARENA])
        lane = machine.words_at(state[LANE])
        first: int = lane[frames.UP_CURSOR]
        cursor = first
        seq: int = lane[frames.SEQ]
        for index in range(count):
            if not _find_body(state, base, items, index, form):
                return 0
            size = (ENTRY_BYTES + state[LENGTH] + 7) & ~7
            if 2 * (cursor - first + size) > lane[frames.UP_MASK] + 1:
                return 0
            start = reserve(arena, lane, cursor, size)
            if start < 0:
                return FULL
            seq += 1
            form[5] = count - index
            body = machine.bytes_at(state[DATA])
            at = lane[frames.UP] + (start & lane[frames.UP_MASK])
            fill_send(arena, at, seq, form, (body, state[LENGTH], body, 0))
            cursor = start + size
        publish_entries(arena, lane, cursor, seq, form[0])
        if lane[frames.RING]:
            write_to(state[BELL], base + 8 * ONE, 8)
        return seq

    @native(i8, i8, i8, i8, i8)
    def batch(owner: int, arguments: int, count: int, names: int) -> int:
        """METH_FASTCALL | METH_KEYWORDS: `batch(items, topic, tag, flags)`, the last seq.

        0 for what is not plain (and needs the Python way), FULL for a ring without room.
        `items` is a list, not empty: of messages if `topic` is None, else of bodies. All arguments
        are Python's own call in clients/producer.py; they are not checked again.
        """
        base = address_of(owner)
        state = machine.words_at(base)
        if not state[ENABLED]:
            return number_object(0)
        call = machine.words_at(arguments)
        items = call[0]
        form = machine.words_at(state[FORM])
        form[8] = 1 if call[1] != state[NONE] else 0
        form[6] = call[1]
        form[7] = call[2]
        if not form[8]:
            item = machine.words_at(_item(items, 0))
            if item[state[AT_CLASS]] != state[MESSAGE]:
                return number_object(0)
            form[6] = item[state[AT_TOPIC]]
            form[7] = item[state[AT_TAG]]
        clock(CLOCK_REALTIME_COARSE, base + 8 * TIME)
        form[0] = address_of(call[3])
        form[1] = _route(state, form[6], form[7])
        form[2] = -1
        form[3] = state[TIME] * 1000 + state[TIME + 1] // 1_000_000
        form[4] = 0
        return number_object(_fill(state, base, items, _items_count(items), form))
