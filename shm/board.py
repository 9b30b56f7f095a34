"""Edge to the operating system: the board, a named POSIX shared memory region.

The broker alone writes it; clients and the command line map it read-only, also when the broker
hangs. Loads neither numpy nor numba: agents take `board.array()` for their kernels.
"""

from __future__ import annotations

import errno
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict, Unpack

from gantrymq.shm import layout, ownfiles
from gantrymq.shm.errors import BrokerGone, Incompatible, NotPermitted
from gantrymq.shm.fromhandlers import Suppressed, require_ours

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NAME_PREFIX = "/gantrymq-"
#: Where the system has named regions as files.
_REGIONS: Final = Path("/dev/shm")
_MOUNT: Final = "mount a tmpfs at /dev/shm with mode 1777 (`gantrymq doctor` looks at it)"
#: How the name of a topic slot begins that belongs to nobody now.
NOBODYS = "\0"


@dataclass(frozen=True, slots=True)
class TopicSlot:
    """A topic as the board shows it."""

    slot: int
    name: str
    queue_base: int
    queue_count: int
    write_queues: int
    level: int
    perm: int
    system: bool
    #: Deleted, and on its way out: nobody puts anything into it.
    leaving: bool = False
    #: Deleted; `leaving` or not.
    deleted: bool = False
    #: Another number: the name was deleted since, and made again.
    made: int = 0


class _Table(NamedTuple):
    """Topics as they were at some time, and the bytes that said so."""

    state: tuple[int, int, int]
    raw: bytes
    slots: tuple[TopicSlot | None, ...]
    names: dict[str, TopicSlot]


class Board:
    """A mapped board. Its numbers are read and written as native 8-byte words."""

    def __init__(self, memory: memoryview, name: str = "") -> None:
        self.memory = memory
        self.name = name
        if len(memory) < layout.BOARD_BYTES:
            raise Incompatible(f"{name} is no board: it has {len(memory)} bytes", name=name)
        header = layout.BOARD.unpack(memory)
        if header["magic"] != layout.BOARD_MAGIC or header["fingerprint"] != layout.FINGERPRINT:
            raise Incompatible(
                "the board was made by another version of gantrymq: stop that broker first",
                name=name,
            )
        self.epoch: int = header["epoch"]
        self.boot_id: bytes = header["boot_id"]
        self.topics_max: int = header["topics_max"]
        self.queues_max: int = header["queues_max"]
        self.segment_bytes: int = header["segment_bytes"]
        self.cq_bytes: int = header["cq_bytes"]
        self.started_ms: int = header["started_ms"]
        #: Of the even wall by which delays pass (workers.scheduler.timeline), if no note says it.
        self.wall_ahead_ns: int = header["wall_ahead_ns"]
        self.queues_at = layout.queues_at(self.topics_max)
        whole = len(memory) // 8 * 8
        self._words = memory[:whole].cast("q")
        self._halves = memory[:whole].cast("I")
        self._table = _Table((-1, -1, -1), b"", (), {})

    def array(self) -> NDArray[np.uint8]:
        """The board as bytes, for kernels; read-only where the map is."""
        import numpy as np

        return np.frombuffer(self.memory, np.uint8)

    def word(self, offset: int) -> int:
        """A 64-bit word."""
        return self._words[offset // 8]

    def set_word(self, offset: int, value: int) -> None:
        """Store a 64-bit word. Only its owner calls this."""
        self._words[offset // 8] = value

    def half(self, offset: int) -> int:
        """A 32-bit word."""
        return self._halves[offset // 4]

    def set_half(self, offset: int, value: int) -> None:
        """Store a 32-bit word. Only its owner calls this."""
        self._halves[offset // 4] = value

    def count_change(self, offset: int) -> None:
        """Count one more change in a 32-bit word. Only its owner calls this."""
        self.set_half(offset, self.half(offset) + 1 & 0xFFFFFFFF)

    @property
    def segments(self) -> int:
        """How many segments the log has, from the lowest to the active one."""
        appended, low = self.word(layout.BOARD_APPENDED), self.word(layout.BOARD_LOW)
        first, end = low // self.segment_bytes, -(-appended // self.segment_bytes)
        return max(0, end - first)

    def queue_at(self, queue: int) -> int:
        """Where a queue's slot starts."""
        return self.queues_at + queue * layout.QUEUE_BYTES

    def topic_at(self, topic: int) -> int:
        """Where a topic's slot starts."""
        return layout.TOPICS_AT + topic * layout.TOPIC_BYTES

    def process_at(self, role: int) -> int:
        """Where a process's slot starts."""
        return layout.PROCESSES_AT + role * layout.PROCESS_BYTES

    def queue(self, queue: int) -> dict[str, int]:
        """The words of a queue's slot."""
        return layout.QUEUE.unpack(self.memory, self.queue_at(queue))

    def recovered_end(self, topic: str, queue_id: int) -> int:
        """Queue offset behind the last record that recovery has found; 0 of a queue made since."""
        found = self.topic_named(topic)
        if found is None or queue_id >= found.queue_count:
            return 0
        return self.word(self.queue_at(found.queue_base + queue_id) + layout.QUEUE_RECOVERED_END)

    def is_dispatched_anew(self) -> bool:
        """Whether queues say where all older messages are that a start has found in the log.

        A power cut may have taken units of the log's end. Until the reader has made these again, a
        message that is there looks as if it were gone.
        """
        return self.word(layout.BOARD_DISPATCHED) >= self.word(layout.BOARD_RECOVERED_END)

    def process(self, role: int) -> dict[str, int]:
        """The words of a process's slot."""
        return layout.PROCESS.unpack(self.memory, self.process_at(role))

    def topic(self, slot: int) -> TopicSlot | None:
        """A topic, or None while its slot is not complete."""
        row: dict[str, Any] = layout.TOPIC.unpack(self.memory, self.topic_at(slot))
        if not row["ready"]:
            return None
        return TopicSlot(
            slot,
            row["name"][: row["name_bytes"]].decode(errors="surrogateescape"),
            row["queue_base"],
            row["queue_count"],
            row["write_queues"],
            row["level"],
            row["perm"],
            bool(row["system"]),
            row["system"] == layout.LEAVING,
            row["system"] in (layout.LEAVING, layout.DELETED),
            row["made"],
        )

    def topics(self) -> list[TopicSlot]:
        """All complete topics in slot order. Read again only where they have changed."""
        return [topic for topic in self._follow().slots if topic is not None]

    def topic_named(self, name: str) -> TopicSlot | None:
        """A topic by its name; one that was deleted has no `perm`. None if there never was one."""
        return self._follow().names.get(name)

    def queues_used(self) -> int:
        """Queue slots that topics have, deleted ones that have not left yet as well."""
        return sum(t.queue_count for t in self.topics() if not t.name.startswith(NOBODYS))

    @property
    def topic_changes(self) -> tuple[int, int, int]:
        """What is another when topics or their queues are: how many there are, and changes."""
        return (
            self.half(layout.BOARD_TOPIC_COUNT),
            self.half(layout.BOARD_QUEUE_COUNT),
            self.half(layout.BOARD_TOPIC_CHANGES),
        )

    def _follow(self) -> _Table:
        """The topics of now. What is counted as a change was made before it was counted."""
        known, state = self._table, self.topic_changes
        if known.state == state:
            return known
        raw = self.memory[layout.TOPICS_AT : self.topic_at(state[0])].tobytes()
        is_same = raw.startswith(known.raw)  # but for new ones, with thousands before them
        slots = known.slots if is_same else self._read_changed(known, raw)
        new = tuple(map(self.topic, range(len(slots), len(raw) // layout.TOPIC_BYTES)))
        names = known.names.copy() if is_same else {}  # another thread may be at it, too
        for topic in filter(None, new if is_same else slots + new):
            names.setdefault(topic.name, topic)
        self._table = found = _Table(state, raw, slots + new, names)
        return found

    def _read_changed(self, known: _Table, raw: bytes) -> tuple[TopicSlot | None, ...]:
        """Slots that were known, those of other bytes now read again."""
        size = layout.TOPIC_BYTES
        return tuple(
            topic if raw[at : at + size] == known.raw[at : at + size] else self.topic(at // size)
            for at, topic in zip(range(0, len(raw), size), known.slots, strict=False)
        )


class BoardConstants(TypedDict):
    """Words of a board that never change."""

    epoch: int
    boot_id: bytes
    topics_max: int
    queues_max: int
    segment_bytes: int
    cq_bytes: int
    started_ms: int
    wall_ahead_ns: int


def format_board(memory: memoryview, **constants: Unpack[BoardConstants]) -> None:
    """Write a fresh board's constant words; `memory` is all zero before."""
    memory[: layout.BOARD_BYTES] = layout.BOARD.pack(
        magic=layout.BOARD_MAGIC, fingerprint=layout.FINGERPRINT, **constants
    )


def create_region(name: str, size: int) -> memoryview:
    """Make and map a named region with memory behind it, so that no use of it can fail later.

    Raises OSError, with what to do, if /dev/shm is missing, too small or full, or this process may
    make no such file.
    """
    path = place_of(name)
    try:
        with ownfiles.create_file(path) as region:
            try:
                os.posix_fallocate(region.number, 0, size)
                return memoryview(mmap.mmap(region.number, size))
            except BaseException:
                path.unlink(missing_ok=True)
                raise
    except OSError as error:
        require_ours(error)
        if error.errno not in _REFUSALS:
            raise
        text = _REFUSALS[error.errno].format(size=size)
        raise OSError(error.errno, f"no board can be made: {text}") from error


_NO_ROOM: Final = (
    "it takes {size} bytes of /dev/shm. Free some there, make it larger (mount -o"
    " remount,size=...), or lower topics_max and board_queues_max"
)
#: Why no region can be made, and what to do.
_REFUSALS: Final = {
    errno.ENOSPC: _NO_ROOM,
    errno.ENOMEM: _NO_ROOM,
    errno.EFBIG: "it takes {size} bytes, and this process may make no such file. Raise the limit on"
    " the size of files (ulimit -f, LimitFSIZE=)",
    errno.ENOENT: f"the system has no /dev/shm: {_MOUNT}",
    errno.EACCES: f"this user may make no file in /dev/shm: {_MOUNT}",
}


def place_of(name: str) -> Path:
    """The file of a region, whose name leads nowhere else."""
    return _REGIONS / os.path.basename(name)


def attach_board(name: str, *, write: bool = False, owner: int = -1) -> Board:
    """Map an existing board of this user's, of root's, or of `owner`'s where this is root.

    Anybody may make a region of any name: what another user has put there is not believed, and
    could be cut short while it is read. Raises BrokerGone if there is none of that name,
    NotPermitted, Incompatible.
    """
    try:
        with ownfiles.open_file(place_of(name), os.O_RDWR if write else os.O_RDONLY) as region:
            ownfiles.require_mappable(name, os.fstat(region.number), owner)
            access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
            return Board(memoryview(mmap.mmap(region.number, 0, access=access)), name)
    except FileNotFoundError as error:
        require_ours(error)
        raise BrokerGone(f"there is no board {name} in /dev/shm", name=name) from None
    except PermissionError as error:
        require_ours(error)
        raise NotPermitted(f"the board {name} belongs to another user", name=name) from None


def list_boards(prefix: str) -> dict[str, os.stat_result]:
    """What has a name that begins so, whoever has made it, and what the system says of it."""
    found = {}
    with Suppressed(FileNotFoundError), os.scandir(_REGIONS) as entries:
        for entry in entries:
            if f"/{entry.name}".startswith(prefix):
                with Suppressed(FileNotFoundError):  # removed meanwhile
                    found[f"/{entry.name}"] = entry.stat(follow_symlinks=False)
    return found


def unlink_board(name: str) -> None:
    """Remove a board's name; maps stay valid. A name that is gone already is fine."""
    place_of(name).unlink(missing_ok=True)
