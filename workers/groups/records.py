"""Single records of the live store, for an agent that derives others from them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from gantrymq.shm import layout
from gantrymq.shm.errors import Corrupt, Rejected
from gantrymq.shm.limits import PROGRESS_WINDOW
from gantrymq.shm.queuenames import queue_directory
from gantrymq.shm.record import Record
from gantrymq.shm.soundrecord import Sound, sound_fields, sound_record
from gantrymq.shm.storereader import StoreReader, Unit, is_filler
from gantrymq.workers.logviews import LogViews
from gantrymq.workers.origins import positions_of_copies

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gantrymq.shm.board import Board
    from gantrymq.shm.storage import File, Storage

FILES_KEPT: Final = 32
_UNIT: Final = layout.CQ_UNIT.codec("physical_offset", "size")


class LiveReader(StoreReader):
    """Reads records below `appended`; keeps the last few files open."""

    def __init__(self, storage: Storage, board: Board) -> None:
        super().__init__(storage)
        self._board = board
        self._files: OrderedDict[str, File] = OrderedDict()
        self._views = LogViews(storage, board)

    def position_of(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Where the record of a queue offset is, damaged or not; None if retention has removed it.

        Raises OSError.
        """
        units = self.units_from(topic, queue_id, offset, 1)
        position = _UNIT.unpack_from(units)[0] if units else -1
        return position if position >= self._low() else None

    def records_of(
        self, topic: str, queue_id: int, offsets: Iterable[int]
    ) -> Iterator[Sound | Corrupt | None]:
        """Records at queue offsets that lie close together; what is damaged is its error.

        None if retention has removed it.
        """
        start, units = 0, b""
        for offset in offsets:
            try:
                at = (offset - start) * layout.CQ_UNIT_BYTES
                if not 0 <= at <= len(units) - layout.CQ_UNIT_BYTES:
                    start, at, units = offset, 0, b""
                    units = self.units_from(topic, queue_id, offset, PROGRESS_WINDOW)
                if len(units) >= layout.CQ_UNIT_BYTES:
                    position, size = _UNIT.unpack_from(units, at)
                    yield self._sound(Unit(position, size, offset))
                else:
                    self._require_removed(topic, queue_id, offset)
                    yield None
            except Corrupt as error:
                yield error
            except OSError as error:  # of this record alone: others can be read
                where = f"offset {offset} of {topic}/{queue_id}"
                yield Corrupt(f"{where} cannot be read: {error}", path=where)

    def units_from(self, topic: str, queue_id: int, offset: int, count: int) -> bytes:
        """Units from an offset on, as far as they are in one file and written."""
        if offset < 0:
            return b""
        at = offset * layout.CQ_UNIT_BYTES
        first = at // self._board.cq_bytes * self._board.cq_bytes
        size = min(count * layout.CQ_UNIT_BYTES, first + self._board.cq_bytes - at)
        name = f"{queue_directory(self._storage, topic, queue_id)}/{first:020d}"
        try:
            return self._read(name, at - first, size)
        except FileNotFoundError:
            return b""  # expired

    def segment_view(self, position: int) -> tuple[int, NDArray[np.uint8]]:
        """First position and map of a record's segment. Raises FileNotFoundError if it is gone."""
        return self._views.segment(position)

    def _sound(self, unit: Unit) -> Sound | None:
        """The record that a unit means; None if retention has removed it. Raises Corrupt."""
        if is_filler(unit):
            return None
        found = self._own(unit)
        if found is None:
            record = self.of_unit(unit)
            found = None if record is None else sound_fields(record)
        # Looked at last: what retention has taken meanwhile may read as zeroes.
        return found if unit.position >= self._low() else None

    def _own(self, unit: Unit) -> Sound | None:
        """The same quickly; None if it is not ours, or unusual, damaged or gone."""
        try:
            base, view = self._views.segment(unit.position)
        except (FileNotFoundError, ValueError):
            return None
        at = unit.position - base
        if int.from_bytes(view.data[at : at + 4], "big") != unit.size:
            return None
        found = sound_record(bytes(view.data[at : at + unit.size]), unit.position)
        return found if found is not None and found.queue_offset == unit.offset else None

    def _require_removed(self, topic: str, queue_id: int, offset: int) -> None:
        """Raise Corrupt if a queue should have a unit whose file is not there, or too short."""
        found = self._board.topic_named(topic)
        if found is None or not found.perm or queue_id >= found.queue_count:
            return
        if offset >= self._board.queue(found.queue_base + queue_id)["min_offset"]:
            where = f"offset {offset} of {topic}/{queue_id}"
            raise Corrupt(f"{where} has no unit: `gantrymq store verify` lists all", path=where)

    def _low(self) -> int:
        """By the board: files that are kept open may read as zeroes below."""
        return self._board.word(layout.BOARD_LOW)

    def derived(self, start: int) -> Iterator[Record]:
        """Records from `start` to the log's end that the broker made of others, in order."""
        for position in positions_of_copies(self._board, self._views, start):
            record = self._views.record(position)
            if record is not None:
                yield record

    def close(self) -> None:
        """Give the descriptors back."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._views.drop()

    def _segment(self, position: int) -> tuple[int, int]:
        base = position // self._board.segment_bytes * self._board.segment_bytes
        if position >= self._board.word(layout.BOARD_APPENDED):
            raise Rejected(f"the log does not reach position {position}")
        return base, self._board.segment_bytes

    def _read(self, name: str, at: int, count: int) -> bytes:
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = self._storage.open(name)
            if len(self._files) > FILES_KEPT:
                self._files.popitem(last=False)[1].close()
        else:
            self._files.move_to_end(name)
        buffer = bytearray(count)
        return bytes(buffer[: file.read_into(buffer, at)])
