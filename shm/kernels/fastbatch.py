"""The client's put of a whole batch as a native function: one call for all its messages.

It takes batches in their common form: messages of one topic that are a body of type bytes and a
tag met before. Anything else it leaves alone, and Python's way of laying a batch out begins anew:
nothing is published before the last entry is written. As in `fastput`, the GIL is held from start
to end. Where messages, lists and bytes keep their parts was found out by looking at some
(clients/fastcall.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import machine
from gantrymq.shm.codes import EntryFlag
from gantrymq.shm.jit import JIT_OFF, kernel, method
from gantrymq.shm.kernels import frames
from gantrymq.shm.kernels.fastput import (
    ARENA,
    ASKED,
    AT_BODY,
    AT_BYTES,
    AT_CLASS,
    AT_COUNT,
    AT_DELAY,
    AT_DELAY_LEVEL,
    AT_GROUP,
    AT_ITEMS,
    AT_KEYS,
    AT_PROPERTIES,
    AT_QUEUE,
    AT_TAG,
    AT_TIMESTAMP,
    AT_TOPIC,
    BATCH_METHOD,
    BATCH_URGENT_METHOD,
    BELL,
    BYTES_CLASS,
    DURABLE,
    DURABLE_LEVEL,
    ENABLED,
    FOUND,
    FUTURE_OF_BATCH,
    LANE,
    LIST_CLASS,
    MESSAGE,
    MODE,
    NAME_COUNT,
    NAME_LEVEL,
    NAME_PAGE,
    NAME_SEQ,
    NAME_TOPIC,
    NO_KEYS,
    NO_PROPERTIES,
    NONE,
    NOT_ASKED,
    ONE,
    PAGE,
    PAGE_LAST,
    RECEIPT,
    URGENT,
)
from gantrymq.shm.kernels.ring import FULL, SEND, publish_entries, reserve
from gantrymq.shm.layout import (
    ENTRY_APP_FLAG,
    ENTRY_BODY,
    ENTRY_BORN,
    ENTRY_BYTES,
    ENTRY_ROUTE,
    ENTRY_SEQ,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Words = NDArray[np.int64]

BATCH = int(EntryFlag.BATCH)
#: A queue id of -1, the next in turn, as the upper half of a word.
_ANY_QUEUE = -(1 << 32)

if not JIT_OFF:
    from gantrymq.shm.kernels.fastput import (
        address_of,
        cached_route,
        call_object,
        number_object,
        put_time,
        release,
        retain,
        set_attribute,
        tag_of,
        write_to,
    )

    @kernel()
    def _route(state: Words, topic: int, tag: int) -> int:
        """Cache entry of a pair of objects met before, or 0; `tag` may be None's address or 0."""
        return cached_route(state, topic, 0 if tag == state[NONE] else tag) if topic else 0

    @kernel()
    def _is_plain(state: Words, parts: Words, topic: int) -> int:
        """1 if an object is a message of that topic with nothing but a body and a tag."""
        if parts[state[AT_CLASS]] != state[MESSAGE] or parts[state[AT_TOPIC]] != topic:
            return 0
        if parts[state[AT_QUEUE]] != state[NONE] or parts[state[AT_KEYS]] != state[NO_KEYS]:
            return 0
        if parts[state[AT_GROUP]] != state[NONE] or parts[state[AT_DELAY_LEVEL]] != state[NONE]:
            return 0
        if parts[state[AT_TIMESTAMP]] != state[NONE] or parts[state[AT_DELAY]] != state[NONE]:
            return 0
        return 1 if parts[state[AT_PROPERTIES]] == state[NO_PROPERTIES] else 0

    @kernel()
    def _body_of(state: Words, item: int, same: tuple[int, int, int], found: Words) -> int:
        """The body of a member, 0 if it is not plain; notes in `found` the route of another tag.

        `same`: the batch's topic, and whether its members are bodies.
        """
        topic, is_body, _flags = same
        body = item
        if not is_body:
            parts = machine.words_at(item)
            if not _is_plain(state, parts, topic):
                return 0
            body = parts[state[AT_BODY]]
            tag = parts[state[AT_TAG]]
            if tag != found[0]:
                slot = _route(state, topic, tag)
                if not slot:
                    return 0
                found[0] = tag
                found[1] = state[slot + 2]
        kind: int = machine.words_at(body)[state[AT_CLASS]]
        return body if kind == state[BYTES_CLASS] else 0

    @kernel()
    def _fill(state: Words, items: int, same: tuple[int, int, int], found: Words) -> int:
        """Write all entries behind the tail and publish them; the last seq, 0 or FULL.

        `found` holds a tag, its route, and the born time.
        """
        arena = machine.bytes_at(state[ARENA])
        lane = machine.words_at(state[LANE])
        count = machine.words_at(items)[state[AT_COUNT]]
        members = machine.words_at(machine.words_at(items)[state[AT_ITEMS]])
        first: int = lane[frames.UP_CURSOR]
        cursor = first
        seq: int = lane[frames.SEQ]
        head = SEND << 32 | same[2] << 48
        for index in range(count):
            body = _body_of(state, members[index], same, found)
            if not body:
                return 0
            length = machine.words_at(body)[state[AT_COUNT]]
            size = (ENTRY_BYTES + length + 7) & ~7
            if 2 * (cursor - first + size) > lane[frames.UP_MASK] + 1:
                return 0
            start = reserve(arena, lane, cursor, size)
            if start < 0:
                return FULL
            seq += 1
            at = lane[frames.UP] + (start & lane[frames.UP_MASK])
            # The words of `ring.fill_send`, two of four bytes by one little-endian store.
            machine.store64(arena, at, size | head)
            machine.store64(arena, at + ENTRY_SEQ, seq)
            machine.store64(arena, at + ENTRY_BORN, found[2])
            machine.store64(arena, at + ENTRY_ROUTE, found[1] | _ANY_QUEUE)
            machine.store64(arena, at + ENTRY_BODY, length)
            machine.store64(arena, at + ENTRY_APP_FLAG, (count - index) << 32)
            source = machine.bytes_at(body + state[AT_BYTES])
            machine.copy(arena, at + ENTRY_BYTES, source, 0, length)
            cursor = start + size
        publish_entries(arena, lane, cursor, seq, same[2])
        return seq

    @kernel()
    def _members(state: Words, items: int) -> int:
        """How many items a list has, 0 for anything but a list."""
        top = machine.words_at(items)
        count: int = top[state[AT_COUNT]] if top[state[AT_CLASS]] == state[LIST_CLASS] else 0
        return count

    @kernel()
    def _put(state: Words, base: int, items: int, given: tuple[int, int, int]) -> int:
        """Put a batch of a known route; the last seq, 0 or FULL.

        `given`: the topic, or 0 for messages, the tag, and flags. ASKED is the level, or becomes
        the topic's.
        """
        topic, tag, flags = given
        is_body = 1 if topic else 0
        if not is_body:
            member = machine.words_at(machine.words_at(items)[state[AT_ITEMS]])[0]
            parts = machine.words_at(member)
            if parts[state[AT_CLASS]] != state[MESSAGE]:
                return 0
            topic = parts[state[AT_TOPIC]]
            tag = parts[state[AT_TAG]]
        slot = _route(state, topic, tag)
        if not slot:
            return 0
        if state[ASKED] == NOT_ASKED:
            state[ASKED] = state[slot + 3]
        flags |= DURABLE if state[ASKED] == 1 else 0
        now = put_time(state, base, flags)
        if not now:
            return 0
        found = machine.words_at(base + 8 * FOUND)
        found[0] = tag
        found[1] = state[slot + 2]
        found[2] = now
        found[3] = topic
        seq = _fill(state, items, (topic, is_body, flags), found)
        if seq > 0 and machine.words_at(state[LANE])[frames.RING]:
            write_to(state[BELL], base + 8 * ONE, 8)
        return seq

    @method
    def batch(base: int, arguments: int, count: int, names: int) -> int:
        """METH_FASTCALL | METH_KEYWORDS: `batch(items, topic, tag, flags)`, the last seq.

        0 for what is not plain (and needs the Python way), FULL for a ring without room.
        `items` are messages if `topic` is None, else bodies. All arguments are Python's own call
        in clients/producer.py; they are not checked again.
        """
        state = machine.words_at(base)
        call = machine.words_at(arguments)
        if not state[ENABLED] or _members(state, call[0]) < 1:
            return number_object(0)
        topic = call[1] if call[1] != state[NONE] else 0
        state[ASKED] = 0
        return number_object(_put(state, base, call[0], (topic, call[2], address_of(call[3]))))

    @kernel()
    def _submit(state: Words, base: int, arguments: int, count: int, names: int, flags: int) -> int:
        """Put the batch of a call `(messages)` or `(topic, bodies)`; its last seq, or 0 or less.

        All its completions will be in PAGE; ASKED becomes the level that its receipts wait for.
        """
        tag = tag_of(state, arguments, count, names)
        if tag < 0 or state[MODE] or count > 2 or (count == 1 and tag):
            return 0
        call = machine.words_at(arguments)
        items = call[count - 1]
        members = _members(state, items)
        if members < 1 or machine.words_at(state[LANE])[frames.SEQ] + members > state[PAGE_LAST]:
            return 0
        return _put(state, base, items, (call[0] if count == 2 else 0, tag, flags))

    @kernel()
    def _future(state: Words, arguments: int, count: int, seq: int) -> int:
        """A future of the batch that was put last; 0 with an exception set."""
        # All read now: making objects may run Python, where another thread may put.
        level = state[ASKED]
        page = state[PAGE]
        topic = state[FOUND + 3]
        items = machine.words_at(arguments)[count - 1]
        retain(page)
        retain(topic)
        number = number_object(seq)
        members = number_object(_members(state, items))
        future = call_object(state[FUTURE_OF_BATCH], 0, 0, 0)
        if future != 0:
            set_attribute(future, state[NAME_PAGE], page)
            set_attribute(future, state[NAME_SEQ], number)
            set_attribute(future, state[NAME_TOPIC], topic)
            set_attribute(future, state[NAME_COUNT], members)
            if level == 1:
                set_attribute(future, state[NAME_LEVEL], state[DURABLE_LEVEL])
        release(members)
        release(number)
        release(topic)
        release(page)
        return future

    @method
    def batch_asynchronous(base: int, arguments: int, count: int, names: int) -> int:
        """METH_FASTCALL | METH_KEYWORDS: put a batch, return its future."""
        state = machine.words_at(base)
        seq = _submit(state, base, arguments, count, names, BATCH | RECEIPT)
        if seq <= 0:
            return call_object(state[BATCH_METHOD], arguments, count, names)
        return _future(state, arguments, count, seq)

    @method
    def batch_urgent(base: int, arguments: int, count: int, names: int) -> int:
        """As `batch_asynchronous`, for a sender who waits: the writer is woken from a nap."""
        state = machine.words_at(base)
        seq = _submit(state, base, arguments, count, names, BATCH | RECEIPT | URGENT)
        if seq <= 0:
            return call_object(state[BATCH_URGENT_METHOD], arguments, count, names)
        return _future(state, arguments, count, seq)
