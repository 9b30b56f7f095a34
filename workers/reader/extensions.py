"""ConsumeQueueExt files as the reader writes them (SF-71 to SF-74): extensions first, then units.

An extension is written before the unit that has its address. What lies behind the extension of a
queue's last unit belongs to nobody and is written over.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import layout, limits
from gantrymq.shm.bitmapnote import extension_directory
from gantrymq.shm.errors import StoreFailed
from gantrymq.shm.kernels import dispatch, extend
from gantrymq.shm.lognames import positions_in
from gantrymq.shm.queuenames import queue_directory
from gantrymq.shm.storage import clear_behind, map_file
from gantrymq.workers.reader.filters import Filters, Listed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gantrymq.shm.board import Board
    from gantrymq.shm.storage import File, Storage

OPEN_FILES_MAX: Final = 1024
#: A bit more than the units of a call need: where a file ends there is a mark of two bytes.
_SPARE_BYTES: Final = 4096

#: Of filters at one time, as fetch.SPENT counts it. A variable: the simulator's is small.
work_max = limits.EXTEND_WORK


class Extensions:
    """Makes and writes extensions of all queues but those of system topics."""

    def __init__(
        self, storage: Storage, board: Board, settings: Any, with_filters: bool = True  # noqa: ANN401
    ) -> None:  # fmt: skip
        self._storage = storage
        self._board = board
        self.filters: Filters | None = None
        self.file_bytes: int = settings.mapped_file_size_consume_queue_ext
        if settings.enable_calc_filter_bit_map and with_filters:
            self.filters = Filters(storage, board, settings)
        bitmap = self.filters.form.bits // 8 if self.filters else 0
        self._unit_bytes = layout.CQ_EXT_UNIT_BYTES + bitmap
        self._ends = np.full(board.queues_max, -1, np.int64)
        self._lists = np.zeros(board.queues_max, np.int64)  # by queue: an address of `_listed`
        self._listed: Mapping[str, Listed] = {}
        self._known: set[int] = set()
        self._form = np.zeros(extend.FORM_WORDS, np.int64)
        self._form[extend.FILE_BYTES] = self.file_bytes
        self._form[extend.BITMAP_BYTES] = bitmap
        self._form[extend.WORK_MAX] = work_max
        #: Records that may be dispatched next, so that the filters' work stays within its bound.
        self.room = limits.DISPATCH_RECORDS_MAX
        self._out = np.zeros(0, np.uint8)
        self._pieces = np.zeros(0, np.int64)
        self._count = 0
        self._open: OrderedDict[tuple[int, int], File] = OrderedDict()
        self._with_new_bits: set[str] = set()  # files that have got some, and are not synced yet

    def refresh(self, position: int, now_ns: int = 0) -> None:
        """Before records from `position` on are dispatched. Raises OSError."""
        if self.filters is not None and self.filters.refresh(position, now_ns):
            self.take_topics()

    def take_topics(self) -> None:
        """Whenever topics have been read anew, before a record of theirs is dispatched.

        Consumers believe a bit that is not set: no record of a topic with filters may be without.
        """
        if self.filters is None:
            return
        # Let kernels go by these lists: the addresses, and what holds what they mean, at once.
        listed = self.filters.lists
        lists = np.zeros_like(self._lists)
        for topic in self._board.topics():
            if topic.name in listed:
                queues = slice(topic.queue_base, topic.queue_base + topic.queue_count)
                lists[queues] = listed[topic.name].address
        self._lists, self._listed = lists, listed

    def make(
        self, view: NDArray[np.uint8], base: int, touched: NDArray[np.int64], count: int,
        units: NDArray[np.uint8], records: int,
    ) -> bool:  # fmt: skip
        """Make extensions of the units that `dispatch_log` has made; they get their addresses.

        False if the filters' work has come to its bound before all were asked of all: then the
        same is to be done for fewer of these `records`, `room` says for how many. Of a single
        record whose filters take that long, those that were not asked have their bits set. Raises
        OSError.
        """
        rows = touched[: count * dispatch.TOUCH_WORDS].reshape(count, -1)
        for queue in rows[:, dispatch.TOUCH_QUEUE].tolist():
            if queue not in self._known:
                self._find_end(queue)
        made = int(rows[:, dispatch.TOUCH_COUNT].sum())
        self._make_room(made, count)
        self._form[extend.BASE], self._form[extend.TOUCHED] = base, count
        self._count = extend.extend_units(
            view, self._form, touched, self._ends, self._lists, units, self._out, self._pieces
        )
        return self._keep_pace(records)

    def _keep_pace(self, records: int) -> bool:
        """Make `room` fit to what so many records took; False if that was too much."""
        spent, most = int(self._form[extend.SPENT]), int(self._form[extend.WORK_MAX])
        if spent >= most and records > 1:
            self.room = max(1, records // 4)
            return False
        if spent < most // 4:
            self.room = min(2 * self.room, limits.DISPATCH_RECORDS_MAX)
        return True

    def write(self) -> None:
        """Write what `make` has made; `advance` follows once the units are written, too.

        Raises OSError.
        """
        data = self._out.data
        for queue, address, start, end in self._rows():
            self._write(queue, address, data[start:end])

    def advance(self) -> None:
        """Units with the addresses of the last `write` are written: go on behind."""
        for queue, address, start, end in self._rows():
            self._ends[queue] = address + end - start
        self._count = 0

    def _rows(self) -> list[list[int]]:
        rows: list[list[int]] = self._pieces[: self._count * extend.PIECE_WORDS].reshape(
            -1, extend.PIECE_WORDS
        ).tolist()  # fmt: skip
        return rows

    def _make_room(self, units: int, queues: int) -> None:
        per_file = max(1, self.file_bytes // self._unit_bytes - 1)
        pieces = 2 * queues + units // per_file + 1
        wanted = units * self._unit_bytes + 2 * pieces + _SPARE_BYTES
        if self._out.size < wanted:
            self._out = np.empty(2 * wanted, np.uint8)
        if self._pieces.size < pieces * extend.PIECE_WORDS:
            self._pieces = np.zeros(2 * pieces * extend.PIECE_WORDS, np.int64)

    def _write(self, queue: int, address: int, data: memoryview) -> None:
        """A piece lies within a file; the mark at a file's end is its last two bytes of data."""
        base = address // self.file_bytes * self.file_bytes
        self._file(queue, base).write_at(data, address - base)

    def set_bits(self, queue: int, address: int, positions: tuple[int, ...]) -> bool:
        """Add bits to a bitmap that is there; False if it is gone, or has another length."""
        base = address // self.file_bytes * self.file_bytes
        unit = bytearray(self._unit_bytes)
        try:
            file = self._file(queue, base, make=False)
        except FileNotFoundError:
            return False  # retention was here
        self._with_new_bits.add(file.name)  # also if a reader that died has set them
        if file.read_into(unit, address - base) != len(unit):
            return False
        fields = layout.CQ_EXT_UNIT.unpack(unit)
        if (
            fields["size"] != len(unit)
            or fields["bitmap_bytes"] != len(unit) - layout.CQ_EXT_UNIT_BYTES
        ):
            return False
        for position in positions:
            unit[layout.CQ_EXT_BITMAP + position // 8] |= 1 << position % 8
        # Written also if they are set: after a failed sync of a life before, a page counts as clean
        # that is not on the disk, and the next sync would not write it.
        bitmap = memoryview(unit)[layout.CQ_EXT_BITMAP :]
        file.write_at(bitmap, address - base + layout.CQ_EXT_BITMAP)
        return True

    def sync_bits(self) -> bool:
        """Sync a file of those with bits added later; False if there is none. Raises StoreFailed.

        Their names are on the disk since the units with their addresses are, or are made again.
        """
        if not self._with_new_bits:
            return False
        name = self._with_new_bits.pop()
        try:
            file = self._storage.open(name, write=True)
        except FileNotFoundError:
            return True  # retention was here
        try:
            file.sync()
        except OSError as error:  # final, also if space was short
            raise StoreFailed(f"sync of {name}: {error}", errno=error.errno) from error
        finally:
            file.close()
        return True

    # ---------------------------------------------------------------------------------- the files

    def _file(self, queue: int, base: int, *, make: bool = True) -> File:
        name = f"{self._folder(queue)}/{base:020d}"
        file = self._open.get((queue, base))
        if file is None:
            self._close_passed(queue, base)
            file = self._open[queue, base] = self._opened(name, make=make)
            if len(self._open) > OPEN_FILES_MAX:
                self._open.popitem(last=False)[1].close()
        else:
            self._open.move_to_end((queue, base))
        return file

    def _opened(self, name: str, *, make: bool) -> File:
        try:
            file = self._storage.open(name, write=True)
        except FileNotFoundError:
            if not make:
                raise
            file = self._storage.create(name)
        if file.size() < self.file_bytes:
            file.truncate(self.file_bytes)
        return file

    def _close_passed(self, queue: int, base: int) -> None:
        """A file that is full may be removed some day: held open, it would keep its blocks."""
        passed = self._open.pop((queue, base - self.file_bytes), None)
        if passed is not None:
            passed.close()

    def _folder(self, queue: int) -> str:
        topic, queue_id = self._queue(queue)
        return extension_directory(topic.name, queue_id)

    def _queue(self, queue: int) -> Any:  # noqa: ANN401 - TopicSlot, queue id
        row = self._board.queue(queue)
        topic = self._board.topic(row["topic"])
        if topic is None:
            raise ValueError(f"queue {queue} belongs to no topic")
        return topic, row["queue_id"]

    def _find_end(self, queue: int) -> None:
        """Where a queue's next extension goes: behind that of its last unit that has one."""
        self._known.add(queue)
        topic, queue_id = self._queue(queue)
        if topic.system:
            return
        folder = extension_directory(topic.name, queue_id)
        end = self._end_of(queue, topic.name, queue_id, folder)
        self._ends[queue] = end
        for name in positions_in(self._storage, folder):
            base = int(name)
            if base >= end and base > 0:
                self._storage.unlink(f"{folder}/{name}")
            elif base + self.file_bytes > end:
                file = self._storage.open(f"{folder}/{name}", write=True)
                clear_behind(file, max(0, end - base), self.file_bytes)
                file.close()

    def _end_of(self, queue: int, topic: str, queue_id: int, folder: str) -> int:
        """Behind all addresses that units of the queue have, also where their files are gone.

        An address may never come twice: a unit would get the bits of another message.
        """
        written = self._board.word(self._board.queue_at(queue) + layout.QUEUE_WRITTEN)
        if not written:
            return 0  # no unit has an address: all that is there belongs to nobody
        address = self._last_address(queue_directory(self._storage, topic, queue_id), written)
        if address is None:
            names = positions_in(self._storage, folder)
            return int(names[-1]) + self.file_bytes if names else 0
        size = self._size_at(folder, address)
        return address + size if size else (address // self.file_bytes + 1) * self.file_bytes

    def _last_address(self, folder: str, written: int) -> int | None:
        """The address of the last unit that has one; as a rule that is the very last unit."""
        end = written * layout.CQ_UNIT_BYTES
        for name in reversed(positions_in(self._storage, folder)):
            base = int(name)
            if base >= end:
                continue
            units = map_file(self._storage, f"{folder}/{name}")
            units = units[: min(end - base, self._board.cq_bytes)]
            whole = units[: units.size // layout.CQ_UNIT_BYTES * layout.CQ_UNIT_BYTES]
            codes = whole.view(layout.CQ_UNIT.dtype)["tags_code"]
            found = np.flatnonzero(codes[-1:] <= layout.CQ_EXT_ADDRESS_MAX)
            if not found.size:
                found = np.flatnonzero(codes <= layout.CQ_EXT_ADDRESS_MAX)
                codes = codes[: found[-1] + 1] if found.size else codes
            if found.size:
                return int(codes[-1]) - layout.CQ_EXT_ADDRESS_BASE
        return None

    def _size_at(self, folder: str, address: int) -> int:
        """Bytes of the extension at an address; 0 if there is none."""
        base = address // self.file_bytes * self.file_bytes
        name = f"{folder}/{base:020d}"
        if not self._storage.exists(name):
            return 0
        file = self._storage.open(name)
        head = bytearray(layout.CQ_EXT_UNIT_BYTES)
        file.read_into(head, address - base)
        file.close()
        fields = layout.CQ_EXT_UNIT.unpack(head)
        whole = fields["size"] == layout.CQ_EXT_UNIT_BYTES + fields["bitmap_bytes"]
        return int(fields["size"]) if whole else 0

    def close(self) -> None:
        """Close all files."""
        for file in self._open.values():
            file.close()
        self._open.clear()
