"""The indexer: follows `dispatched` and keeps RocketMQ's IndexFiles, a little at a time.

Entries are gathered in memory, then written: entries, header, slots, so that whoever reads the
files meanwhile misses the newest at most. Now and then all is synced and noted as sure; after a
crash what lies behind the note is made again from the log, nothing before it (LW-7).
"""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import layout, limits
from gantrymq.shm.codes import Stop
from gantrymq.shm.errors import StoreFailed
from gantrymq.shm.indexnote import DIRECTORY, Header, Note, Shape, save_note, tell_rocketmq
from gantrymq.shm.kernels import index as kernels
from gantrymq.shm.kernels.index import index_log, relink
from gantrymq.shm.lognames import bases_of, segment_name
from gantrymq.shm.marks import mark
from gantrymq.shm.storage import is_disk_full, is_shortage
from gantrymq.workers.failure import declare_failed, unfit_record
from gantrymq.workers.housekeeper import indexfiles
from gantrymq.workers.housekeeper.indexfiles import OpenFile, Segment

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.shm.clock import Clock
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.session import SessionTable

IDLE_NS: Final = 1_000_000_000
SPACE_RETRY_NS: Final = 1_000_000_000
#: Entries that are linked again, and records that are indexed, at one time.
LINKED: Final = 8_192
#: How long entries gather before they are written; simulated machines are in more of a hurry.
interval_ns = limits.INDEX_INTERVAL_NS
#: Entries that wait in memory, and those after which slots are written in a flood; likewise.
pending_max, slots_after = indexfiles.PENDING_MAX, indexfiles.SLOTS_AFTER
_NOTHING: Final = np.zeros(0, np.uint8)


class Indexer:
    """One half of the housekeeper; only writer of `index/`, `gantry/index.json`, `indexed`.

    `do_work` makes a short step, as an agent's.
    """

    name = "indexer"

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        board: Board,
        sessions: SessionTable,
        settings: Any,  # noqa: ANN401 - brokerd.config.Settings
    ) -> None:
        self._storage = storage
        self._segment = Segment(storage)
        self._clock = clock
        self._board = board
        self._table = sessions
        tags = settings.target_version != "5.3.3"
        self._shape = Shape(settings.max_hash_slot_num, settings.max_index_num, tags)
        # Not `zeros`: numpy asks for huge pages only where it need not clear them.
        self._pending = np.empty(
            min(pending_max, self._shape.entries) * layout.INDEX_ENTRY_BYTES, np.uint8
        )
        self._row = np.zeros(kernels.ROW_AND_PLACES, np.int64)
        self._form = np.zeros(kernels.FORM_WORDS, np.int64)
        self._form[kernels.RECORDS_MAX] = limits.INDEX_RECORDS
        self._form[kernels.TAGS] = tags
        self._form[kernels.SLOTS] = self._shape.slots
        self._form[kernels.ENTRIES] = self._shape.entries
        self._full: list[tuple[str, Header]] = []
        self._file: OpenFile | None = None
        self._links: NDArray[np.int64] | None = None
        self._written = 0  # of the entries that wait
        self._writing = self._slots_wanted = self._header_written = False
        self._slots_count = 0  # the header's count when all slots were written
        self._slots_ns = self._gathered_ns = 0
        self._patience_ns = settings.stop_timeout * 1_000_000_000 // 2
        self._stop_ns = 0
        self._sync_ns = 0  # when a sync that has begun is waited for; 0: none has
        self._space_ns = 0
        self._failed = self._stopped = self._note_wanted = self._begun = False
        self._compared = self._position = 0
        self._low = 0
        self._note = self._sure = Note(0)

    # ------------------------------------------------------------------------------- duty cycle

    @property
    def position(self) -> int:
        """Log position up to which keys have entries, in memory at least."""
        return self._position

    def do_work(self, now_ns: int) -> int:
        """One small step; 0 if there is nothing to do now."""
        stopping = self._table.stopping()
        if self._failed or self._stopped or (now_ns < self._space_ns and not stopping):
            return 0
        try:
            return self._step(now_ns)
        except OSError as error:
            if is_shortage(error):
                raise
            if is_disk_full(error):
                self._space_ns = now_ns + SPACE_RETRY_NS
                self._table.note("warning", "no_space_for_index", position=self._position)
                self._stopped = stopping  # the next life goes on from what is noted
            else:
                self._fail(error.errno or 0, f"index at {self._position}: {error}")
        except StoreFailed as error:
            self._fail(error.fields.get("errno") or 0, str(error))
        return 0

    def _step(self, now_ns: int) -> int:
        if not self._begun:
            return self._begin()
        if self._links is not None:
            return self._link()
        if self._writing:
            return self._write()
        stopping = self._table.stopping()
        if stopping and not self._stop_ns:
            self._stop_ns = now_ns + self._patience_ns
        due = now_ns >= self._gathered_ns or stopping
        behind = self._position < self._board.word(layout.BOARD_DISPATCHED)
        if stopping and now_ns >= self._stop_ns:
            behind = False  # the next life goes on from what is noted
        unwritten = self._form[kernels.COUNT] != self._slots_count
        if unwritten and not (behind and due and self._has_room()):
            pauses = not (behind and due) or self._is_full()
            return self._begin_writing(slots=pauses or self._slots_due(now_ns))
        if not unwritten and self._settle(now_ns, behind):
            return 1
        return self._gather(now_ns) if behind and due else self._finish(behind)

    def arm(self, now_ns: int) -> int:
        """How long there is nothing to do."""
        if self._failed or self._stopped:
            return IDLE_NS
        if now_ns < self._space_ns:
            return self._space_ns - now_ns
        if self._links is not None or self._writing:
            return 0
        if self._position < self._board.word(layout.BOARD_DISPATCHED):
            return max(0, self._gathered_ns - now_ns)
        return IDLE_NS

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            self._file.close()

    # ------------------------------------------------------------------------------ the newest file

    def _begin(self) -> int:
        """Find out what a life before this one has left."""
        end = self._board.word(layout.BOARD_APPENDED)
        bases = bases_of(self._storage)
        self._low = bases[0] if bases else self._board.word(layout.BOARD_LOW)
        self._take(indexfiles.choose(self._storage, self._shape, self._low, end))
        return 1

    def _take(self, note: Note) -> None:
        """Go on from a note; if it fails the next step begins anew."""
        self._begun = False
        self._board.set_word(layout.BOARD_INDEXED, note.position)  # before files go: others look
        kept = {name for name, _ in note.files}
        for name in self._storage.list(DIRECTORY):
            if name not in kept:
                self._storage.unlink(f"{DIRECTORY}/{name}")
        full = [row for row in note.files if row[1].count >= self._shape.entries]
        if len(full) < len(note.files):
            self._begin_links(*note.files[-1])
        else:
            self._file, self._links = None, None
            self._set_header(full[-1][1] if full else Header(count=self._shape.entries))
        self._full = full
        self._position = note.position
        self._form[kernels.KEY] = note.key
        self._note = self._sure = note
        self._begun = True

    def _begin_links(self, name: str, header: Header) -> None:
        """Its slots follow from its entries: what is in the file of them may be newer."""
        self._file = indexfiles.open_file(self._storage, self._shape, name, header, self._pending)
        self._set_header(header)
        self._compared = 0
        self._links = np.zeros(kernels.LINK_WORDS, np.int64)
        self._links[kernels.FIRST] = 1
        self._links[kernels.LINK_SLOTS] = self._shape.slots

    def _link(self) -> int:
        """Set the slots of some entries; the file is dropped if its chains do not hold."""
        file, links = self._file, self._links
        assert file is not None, "its slots are being set"
        assert links is not None, "they are"
        count = int(self._form[kernels.COUNT])
        first = int(links[kernels.FIRST])
        last = min(count, first + LINKED)
        entries = np.zeros((last - first) * layout.INDEX_ENTRY_BYTES, np.uint8)
        file.file.read_into(entries.data, self._shape.entry_at(first))
        holds = relink(entries, links, file.front) == last - first
        if last < count and holds:
            return 1
        header = self._header
        if not holds or links[kernels.USED] != header.used_slots:
            self._table.note("warning", "index_file_dropped", file=file.name)
            file.close()
            self._take(indexfiles.without_last(self._storage, self._shape, self._note, self._low))
            return 1
        self._compared = file.compare(self._compared)
        if self._compared:
            return 1
        self._links = None
        return self._begin_writing(slots=True)

    def _open_next(self) -> None:
        """SF-80, SF-118."""
        last = self._full[-1] if self._full else ("", Header())
        name = indexfiles.next_name(last[0], self._clock.wall_ms())
        header = last[1].following()
        self._file = indexfiles.open_file(self._storage, self._shape, name, header, self._pending)
        self._set_header(header)
        mark("indexer.after_new_file")

    def _close_full(self) -> int:
        """All of a full file is on the disk before another is begun."""
        assert self._file is not None, "it is full"
        self._file.sync()
        self._file.close()
        self._full.append((self._file.name, self._header))
        self._file = None
        self._note_wanted = True
        return 1

    # --------------------------------------------------------------------------------- entries

    def _has_room(self) -> bool:
        """Whether the file and the memory for entries have room for one more."""
        made = int(self._form[kernels.MADE]) * layout.INDEX_ENTRY_BYTES
        return made < self._pending.size and not self._is_full()

    def _is_full(self) -> bool:
        return bool(self._form[kernels.COUNT] >= self._shape.entries)

    def _gather(self, now_ns: int) -> int:
        """Entries of some records, in memory."""
        form, size = self._form, self._board.segment_bytes
        if self._has_expired():  # before it was indexed
            self._position, form[kernels.KEY] = self._low, 0
            return 1
        dispatched = self._board.word(layout.BOARD_DISPATCHED)
        base = self._position // size * size
        try:
            view = self._segment.view(base)
        except FileNotFoundError:
            if self._has_expired():
                return 1
            raise
        form[kernels.AT] = self._position - base
        form[kernels.BASE] = base
        form[kernels.END_AT] = min(dispatched - base, size)
        front, dirty = (_NOTHING, _NOTHING) if self._file is None else self._file.tables
        stop = Stop(index_log(view, form, front, dirty, self._pending, self._row))
        self._position = base + int(form[kernels.AT])
        if stop == Stop.FILLER:
            self._position = base + size
            self._note_wanted = True
        elif stop == Stop.ROLL and self._file is None:
            self._open_next()
        elif stop not in (Stop.DONE, Stop.LIMIT, Stop.ROLL) and not self._has_expired():
            raise unfit_record("indexed", self._position, base, stop)
        if self._position >= dispatched:
            self._gathered_ns = now_ns + interval_ns
        return 1

    def _has_expired(self) -> bool:
        """Whether retention has come in between: what cannot be read any more is passed over."""
        return self._position < self._log_begin()

    def _log_begin(self) -> int:
        """Where the log's files begin. The board's `low` is above it while readers have grace.

        A stop, or a kill, amid the grace leaves these files, and the next life begins with them:
        keys of their records are kept, and made, until the files are gone.
        """
        low, size = self._board.word(layout.BOARD_LOW), self._board.segment_bytes
        while self._low < low and not self._storage.exists(segment_name(self._low)):
            self._low += size
        return self._low

    def _slots_due(self, now_ns: int) -> bool:
        """Whether slots are written though more entries follow: nearly every page has changed."""
        if self._form[kernels.COUNT] - self._slots_count < slots_after or now_ns < self._slots_ns:
            return False
        self._slots_ns = now_ns + interval_ns
        return True

    def _begin_writing(self, *, slots: bool) -> int:
        self._writing, self._header_written, self._written = True, False, 0
        self._slots_wanted = slots
        return 1

    def _write(self) -> int:
        """One write of what was gathered: entries, then, if wanted, the header, then slots."""
        file, made = self._file, int(self._form[kernels.MADE])
        assert file is not None, "there are entries"
        if self._written < made:
            mark("indexer.before_entries")
            self._written = file.write_entries(made, self._written)
        elif self._slots_wanted and not self._header_written:
            mark("indexer.before_header")
            file.write_header(self._header)
            self._header_written = True
        elif not self._slots_wanted or file.write_slots():
            if self._slots_wanted:
                mark("indexer.after_slots")
                self._slots_count = int(self._form[kernels.COUNT])
            self._writing = False
            self._form[kernels.MADE] = 0
        return 1

    def _note_state(self) -> None:
        """All is written: it becomes sure if nothing waits to. Within a record nothing is."""
        self._board.set_word(layout.BOARD_INDEXED, self._position)
        waits = self._note_wanted and self._sure.position > self._note.position
        if self._position != self._sure.position and self._form[kernels.KEY] == 0 and not waits:
            self._sure = Note(self._position, 0, self._files(), low=self._low)

    # --------------------------------------------------------------------------- sure and stop

    def _settle(self, now_ns: int, behind: bool) -> bool:
        """What is done when all that was gathered is written; whether something was."""
        if self._is_full() and self._file is not None:
            return bool(self._close_full())
        if self.drop_below(self._log_begin()):
            return True
        self._note_state()
        wanted = self._note_wanted or (not behind and self._table.stopping())
        newer = self._sure.position > self._note.position or self._sure.files != self._note.files
        if not (wanted and newer) or self._sure.position > self._board.word(layout.BOARD_DURABLE):
            return False
        return self._sync(now_ns)

    def _sync(self, now_ns: int) -> bool:
        """Begin, then note; the disk gets a second for what the sync would have to wait for."""
        if not self._sync_ns:
            if self._file is not None:
                self._file.start_sync()
            self._sync_ns = now_ns + 2 * interval_ns
            return True
        if now_ns < self._sync_ns and not self._table.stopping():
            return False
        self._save_note()
        self._sync_ns = 0
        return True

    def _finish(self, behind: bool) -> int:
        self._stopped = self._table.stopping() and not behind
        return 0

    def _save_note(self) -> None:
        """Sync the file and note it; what is not durable in the log is never noted."""
        if self._file is not None:
            self._file.sync()
        full = [row for row in self._sure.files if row[1].count >= self._shape.entries]
        full_ms = full[-1][1].end_ms if full else 0
        note = replace(self._sure, full_ms=full_ms)
        mark("indexer.before_note")
        save_note(self._storage, self._shape, note)
        self._note, self._note_wanted = note, False
        mark("indexer.after_note")
        tell_rocketmq(self._storage, full_ms)

    def drop_below(self, position: int) -> int:
        """Remove files whose records all lie below a log position, never the newest (SF-83)."""
        count = 0
        while len(self._full) > (self._file is None) and self._full[0][1].end_position < position:
            name = self._full[0][0]
            self._storage.unlink(f"{DIRECTORY}/{name}")
            del self._full[0]
            kept = tuple(row for row in self._sure.files if row[0] != name)
            self._sure = replace(self._sure, files=kept, low=position)
            self._note_wanted = True
            count += 1
        return count

    @property
    def _header(self) -> Header:
        return Header(*self._form[kernels.HEADER].tolist())

    def _set_header(self, header: Header) -> None:
        self._form[kernels.HEADER] = astuple(header)
        self._slots_count = header.count

    def _files(self) -> tuple[tuple[str, Header], ...]:
        newest = [(self._file.name, self._header)] if self._file is not None else []
        return (*self._full, *newest)

    def _fail(self, errno: int, what: str) -> None:
        self._failed = True
        declare_failed(self._board, self._table, (), errno, what)
