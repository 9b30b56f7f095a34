"""A broker agent's own way into the log: copies go up, outcomes come down.

The session outlives the agent's process, and the writer deduplicates nothing of it: what makes
derived records exactly once is their origin in the log (design: identity). So after a start of
this agent, or of a writer, the outlet trusts nothing that its rings hold: the agent waits until
`reconcile` says that the log holds all that will ever come of earlier puts, reads there which of
its copies exist, and puts the rest again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import layout, limits
from gantrymq.shm.board import Board
from gantrymq.shm.codes import EntryFlag, EntryKind
from gantrymq.shm.kernels import frames
from gantrymq.shm.kernels.ready import put_entries
from gantrymq.shm.kernels.ring import arm, publish_and_check, take_completions
from gantrymq.shm.kernels.words import load_word, store_half, store_word
from gantrymq.shm.record import origin_field, with_room_for_trailer
from gantrymq.workers.agent import Bells
from gantrymq.workers.session import Session

#: Outcomes taken at one time.
_ROWS: Final = 1024


class Copy(NamedTuple):
    """A record as it is to be stored; hosts are 8 or 20 bytes, as bits of `sys_flag` say."""

    topic: int  # slot on the board
    queue_id: int
    body: bytes
    properties: bytes  # stored form (SF-27); an old checksum trailer in it is dropped (SF-22)
    origin: int  # position of the record that it comes from
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int
    #: Of the topic that has the slot, where that may be deleted before this is put.
    topic_name: str = ""


class Outcome(NamedTuple):
    """What became of a copy; `status` is codes.Status, places are -1 if it was refused."""

    tag: object
    status: int
    position: int
    end: int
    queue_offset: int
    store_ms: int


class Outlet:
    """The agent's end of its own session's lane with the writer."""

    def __init__(self, session: Session, bells: Bells) -> None:
        self.session = session
        self.trusted = False
        self._bell, self._flusher_bell = bells.writer, bells.flusher
        self._arena = session.arena
        self._control = session.plan.writer.control
        self._waiting: dict[int, object] = {}
        self._rows = np.zeros(_ROWS * frames.COMPLETION_WORDS, np.int64)
        self._adopted = 0
        self.words = np.zeros(frames.LANE_WORDS, np.int64)
        self._begin()

    def _begin(self) -> None:
        """Stand where the lane's words say that this end stands."""
        plan, words = self.session.plan.writer, self.words
        words[:] = 0
        words[frames.CONTROL] = plan.control
        words[frames.UP], words[frames.UP_MASK] = plan.up, plan.up_bytes - 1
        words[frames.DOWN], words[frames.DOWN_MASK] = plan.down, plan.down_bytes - 1
        words[frames.UP_CURSOR] = self._word(layout.LANE_UP_TAIL)
        words[frames.UP_SEEN] = self._word(layout.LANE_UP_HEAD)
        words[frames.DOWN_CURSOR] = self._word(layout.LANE_DOWN_HEAD)
        # An entry takes more bytes than seqs: this is above all that were ever used here.
        words[frames.SEQ] = words[frames.COMPLETED] = words[frames.UP_CURSOR]

    def _word(self, field: int) -> int:
        return int(load_word(self._arena, self._control + field))

    # ------------------------------------------------------------------------------------- trust

    @property
    def waiting(self) -> int:
        """Copies without an outcome."""
        return len(self._waiting)

    def is_lost(self) -> bool:
        """Whether a writer has come since: what waits may be in the log or not.

        From then on nothing can be put until `reconcile` has said so.
        """
        if self.trusted and self._word(layout.LANE_ADOPTED) != self._adopted:
            self.trusted = False
        return not self.trusted

    def reconcile(self) -> bool:
        """True once all that was ever put and will be stored lies below the board's `appended`.

        Outcomes that were on their way are dropped.
        """
        adopted = self._word(layout.LANE_ADOPTED)
        if not adopted or self._word(layout.LANE_UP_HEAD) != self._word(layout.LANE_UP_TAIL):
            return False
        down = self._word(layout.LANE_DOWN_TAIL)
        store_word(self._arena, self._control + layout.LANE_DOWN_HEAD, down)
        self._waiting.clear()
        self._begin()
        self._adopted = adopted
        self.trusted = self._word(layout.LANE_ADOPTED) == adopted
        return self.trusted

    # ------------------------------------------------------------------------------ putting, taking

    def put(self, copy: Copy, tag: object) -> bool:
        """Hand a copy to the writer; False if its ring is full. `tag` comes with the outcome."""
        return self.put_entries([entry_of(copy, 0)], [tag]) == 1

    def takes(self, entry: bytes) -> bool:
        """Whether an entry fits into the ring at all; one of another broker's log may not."""
        return 2 * len(entry) <= int(self.words[frames.UP_MASK]) + 1

    def put_entries(self, entries: Sequence[bytes], tags: Iterable[object]) -> int:
        """Hand copies to the writer, as `entry_of` makes them, each with its tag.

        Returns how many its ring had room for.
        """
        assert self.trusted, "reconcile comes first"
        room = int(self.words[frames.UP_MASK]) + 1
        fitting = sum(1 for end in accumulate(map(len, entries)) if end <= room)
        data = b"".join(entries[: max(1, fitting)])
        seq = int(self.words[frames.SEQ])
        count = put_entries(self._arena, self.words, np.frombuffer(data, np.uint8))
        assert count >= 0, "`takes` was asked of what may be large"
        self._waiting.update(zip(range(seq + 1, seq + 1 + count), tags, strict=False))
        self.ring_if_asked()
        return count

    def ring_if_asked(self) -> None:
        """Wake the writer if the last call of a kernel over `words` says so."""
        if self.words[frames.RING]:
            self._bell.ring()

    def poll_rows(self) -> NDArray[np.int64]:
        """Completions that have come, in order of the puts: COMPLETION_WORDS columns.

        The rows are good until the next call. None come once the outlet is lost: the writer of now
        may have answered later puts than those that it has passed over.
        """
        count = 0
        if self.trusted:
            count = take_completions(self._arena, self.words, self._rows)
            self.ring_if_asked()
            if self.is_lost():  # asked after taking: a writer adopts before it answers
                count = 0
        rows = self._rows[: count * frames.COMPLETION_WORDS]
        return rows.reshape(count, frames.COMPLETION_WORDS)

    @property
    def tagged(self) -> Collection[int]:
        """Seqs of the copies that `put` has put, as far as they have no outcome."""
        return self._waiting.keys()

    def poll(self) -> list[Outcome]:
        """Outcomes that have come, in order of the puts."""
        return self.outcomes_of(self.poll_rows())

    def outcomes_of(self, completions: NDArray[np.int64]) -> list[Outcome]:
        """Outcomes of the copies that `put` has put, among rows of `poll_rows`."""
        return [
            Outcome(
                self._waiting.pop(row[frames.OUT_SEQ]),
                row[frames.OUT_STATUS],
                row[frames.OUT_POSITION],
                row[frames.OUT_END],
                row[frames.OUT_OFFSET],
                row[frames.OUT_MS],
            )
            for row in completions.tolist()
            if row[frames.OUT_SEQ] in self._waiting
        ]

    # ------------------------------------------------------------------------------------ sleeping

    def arm(self) -> bool:
        """Announce sleep until the next outcome; False if there is one."""
        flag = self._control + layout.LANE_CLIENT_ARMED
        word = self._control + layout.LANE_DOWN_TAIL
        return bool(arm(self._arena, flag, 1, word, int(self.words[frames.DOWN_CURSOR])))

    def want_durable(self, end: int, board: Board) -> None:
        """Ask the flusher to sync now, and to ring when the log is durable up to `end`."""
        word, flag = layout.ARENA_DURABLE_WANTED, layout.BOARD_FLUSHER_ARMED
        # SYNC POINT: sleep (other end: the flusher's `arm`)
        if publish_and_check(self._arena, word, end, board.array(), flag):
            self._flusher_bell.ring()

    def disarm(self) -> None:
        """Awake."""
        store_half(self._arena, self._control + layout.LANE_CLIENT_ARMED, 0)


_HEAD: Final = layout.ENTRY.codec(
    "length", "kind", "flags", "seq", "born_ms", "route", "queue", "body_bytes", "extra_bytes",
    "app_flag",
)  # fmt: skip
_FORM: Final = layout.APPEND.codec(
    "sys_flag", "reconsume_times", "prepared_offset", "born_host", "store_host"
)
_PADDING: Final = [bytes(count) for count in range(8)]
_KIND: Final = int(EntryKind.APPEND)
_FLAGS: Final = int(EntryFlag.RECEIPT)


def entry_of(copy: Copy, seq: int) -> bytes:
    """The bytes of a copy's APPEND entry."""
    body, properties = copy.body, copy.properties
    bare = layout.ENTRY_BYTES + layout.APPEND_BYTES + len(body) + len(properties)
    padding = _PADDING[-bare % 8]
    head = _HEAD.pack(
        bare + len(padding), _KIND, _FLAGS, seq, copy.born_ms, copy.topic, copy.queue_id,
        len(body), len(properties), copy.flag,
    )  # fmt: skip
    form = _FORM.pack(
        copy.sys_flag, copy.reconsume_times, origin_field(copy.origin),
        copy.born_host, copy.store_host,
    )  # fmt: skip
    return b"".join((head, form, body, properties, padding))


def topic_slot_of(entry: bytes) -> int:
    """The board's slot of the topic that an entry of `entry_of` is for."""
    return int.from_bytes(entry[layout.ENTRY_ROUTE : layout.ENTRY_ROUTE + 4], "little")


def is_storable(copy: Copy, topic: str, segment_bytes: int) -> bool:
    """Whether the writer stores a copy under a topic of that name (SF-18, SF-20).

    One of its own log always was; with our trailer, under a longer name, or if another broker wrote
    it, it may be too large by now.
    """
    name, properties = len(topic.encode()), len(with_room_for_trailer(copy.properties))
    name += 2 if name > limits.TOPIC_BYTES_MAX else 1
    hosts = len(copy.born_host) + len(copy.store_host) - 2 * layout.HOST_BYTES_V4
    size = layout.RECORD_HEAD_BYTES + hosts + len(copy.body) + name + 2 + properties
    return (
        len(copy.body) <= limits.BODY_BYTES_MAX
        and properties <= limits.PROPERTIES_BYTES_MAX
        and size + limits.FILLER_BYTES_MIN <= segment_bytes
    )
