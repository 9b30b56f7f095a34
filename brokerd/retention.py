"""Retention: which segments go, and when. An agent in the process of `groups`, in its spare time.

The rules are RocketMQ's (SF-98 to SF-101): by age at certain hours, or at any hour when the disk is
rather full; by disk usage alone when it is fuller. Never the last segment, the oldest first. Unlike
RocketMQ's, the rule by age asks first who still needs a segment (brokerd/holders.py), and a
segment's age is the storeTimestamp of its newest message, not the time of the file: recovery, a
copy, or a restored back-up change that one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gantrymq.brokerd.halvesholder import HalvesHolder
from gantrymq.brokerd.holders import GroupsHolder, Holder, Pins, firsts_of, lowest_of
from gantrymq.brokerd.parkedholder import ParkedHolder
from gantrymq.brokerd.relations import parse_hours
from gantrymq.brokerd.removal import Removal, Steps
from gantrymq.shm import layout, sidecar
from gantrymq.shm.lognames import segment_name
from gantrymq.shm.record import RECORD_MAGICS, STORED_MS_BYTES, stored_ms
from gantrymq.shm.storage import is_disk_full, is_failed_change
from gantrymq.workers.failure import declare_failed, has_failed

if TYPE_CHECKING:
    from gantrymq.brokerd.config import Settings
    from gantrymq.shm.board import Board
    from gantrymq.shm.clock import Clock
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.groups.ledger import Ledger
    from gantrymq.workers.session import SessionTable

SEGMENTS_A_PASS: Final = 10  # SF-99
_HOUR_MS: Final = 3_600_000
#: What they need can be appended again.
_MOVABLE: Final = (ParkedHolder, HalvesHolder)


@dataclass(slots=True)
class Pace:
    """How often what is done, in ns. RocketMQ's (SF-98), but for the grace period."""

    first: int = 60_000_000_000
    between: int = 10_000_000_000
    #: How long the disk rule waits for timers to be appended again.
    patience: int = 150_000_000_000
    look: int = 1_000_000_000  # at the disk's usage; when it is forced, a pass follows each
    #: From raising `low` to the first change of a file, for readers who look at `low` only before
    #: they begin. Those who look again after copying (all consumers) need none.
    grace: int = 2_000_000_000


#: The simulator's runs are short: it sets its own.
PACE: Final = Pace()


@dataclass(frozen=True, slots=True)
class Decision:
    """The log is to begin at `low`. `forced`: whoever still needs what lies below."""

    low: int
    forced: bool


class Retention:
    """Agent; only writer of `low`, `disk_full`, `disk_used` and gantry/first_units.json."""

    name = "retention"

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        board: Board,
        sessions: SessionTable,
        settings: Settings,
        holders: tuple[Holder, ...],
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._board = board
        self._sessions = sessions
        self._settings = settings
        self._holders = holders
        self._hours = parse_hours(settings.delete_when)
        self._removal = Removal(storage, board, sessions, PACE.grace)
        self._look_ns = 0
        self._pass_ns = clock.monotonic_ns() + PACE.first
        self._used = 0
        self._over_bytes = 0  # above what forces a removal
        self._job: Steps | None = None
        self._job_ns = 0  # when its next step is due, or the next job may begin
        self._unfinished = True
        self._told_held = ""
        self._patient_until = 0  # 0: nobody is waited for
        self._failed = False

    # ------------------------------------------------------------------------------- duty cycle

    def do_work(self, now_ns: int) -> int:
        """One small step; 0 if there is nothing to do now."""
        if self._is_over:
            return 0
        try:
            if now_ns >= self._look_ns:
                self._look_ns = now_ns + PACE.look
                self._look_at_disk(now_ns)
            return self._go_on(now_ns)
        except OSError as error:
            self._give_up(now_ns)
            if is_disk_full(error):
                self._sessions.note("warning", "no_space_for_retention", error=str(error))
            elif not is_failed_change(error):  # nothing was removed by it: it looks again later
                self._sessions.note("warning", "retention_cannot_look", error=str(error))
            else:
                self._failed = True
                what = f"retention: {error}"
                declare_failed(self._board, self._sessions, (), error.errno or 0, what)
            return 0

    def arm(self, now_ns: int) -> int:
        """Nobody rings: only time brings work."""
        if self._is_over:
            return PACE.look
        due = self._pass_ns if self._job is None and not self._unfinished else self._job_ns
        return max(1, min(due, self._look_ns) - now_ns)

    @property
    def _is_over(self) -> bool:
        return self._failed or self._sessions.stopping() or has_failed(self._board)

    def disarm(self) -> None:
        """Awake."""

    def close(self) -> None:
        """Leave a job as it is: the next life finishes it."""
        if self._job is not None:
            self._job.close()

    def _go_on(self, now_ns: int) -> int:
        if now_ns < self._job_ns:
            return 0
        if self._job is None:
            self._job = self._next_job(now_ns)
            if self._job is None:
                return 0
        try:
            wait_ns = next(self._job)
        except StopIteration:
            self._job = None
            return 1
        self._job_ns = now_ns + wait_ns
        return 0 if wait_ns else 1

    def _next_job(self, now_ns: int) -> Steps | None:
        if self._unfinished:
            return self._finish()
        if now_ns < self._pass_ns:
            return None
        self._look_at_disk(now_ns)  # what the last removal has given back counts
        self._pass_ns = now_ns + PACE.between
        return self._pass()

    def _give_up(self, now_ns: int) -> None:
        """Drop the job that met an error; it is taken up again where the disk says that it is."""
        if self._job is not None:
            self._job.close()
        self._job = None
        self._job_ns = now_ns + PACE.look

    # ------------------------------------------------------------------------------------- disk

    def _look_at_disk(self, now_ns: int) -> None:
        """Usage as RocketMQ counts it (SF-100), and whether sends are refused from now on."""
        settings = self._settings
        used, usable = self._storage.used_bytes(), self._storage.free_bytes()
        self._used = -(-used * 100 // max(1, used + usable))
        self._board.set_half(layout.BOARD_DISK_USED, self._used)
        levels = (settings.disk_space_clean_forcibly_ratio, settings.disk_space_warning_level_ratio)
        bearable = min(levels) * (used + usable) // 100
        self._over_bytes = max(0, used - bearable) if self._used > min(levels) else 0
        if self._over_bytes:
            self._pass_ns = min(self._pass_ns, now_ns)
        full = self._used > settings.disk_space_warning_level_ratio
        if full != bool(self._board.half(layout.BOARD_DISK_FULL)):
            self._board.set_half(layout.BOARD_DISK_FULL, int(full))
            if full:
                self._sessions.note("error", "disk_above_warning_level", used=self._used)
            else:
                self._sessions.note("info", "disk_below_warning_level", used=self._used)

    # ------------------------------------------------------------------------------------ a pass

    def _finish(self) -> Steps:
        """Go on with what an earlier life, or a job that met a full disk, has begun."""
        if self._removal.is_due():
            low = self._board.word(layout.BOARD_LOW)
            yield from self._removal.steps((yield from self._removal.find_firsts(low)))
        self._unfinished = False

    def _pass(self) -> Steps:
        """Decide, then remove."""
        decision = self._decide()
        if decision is None:
            return
        firsts = yield from self._removal.find_firsts(decision.low)
        if decision.forced:
            self._tell_losses(decision.low, firsts)
        before = self._board.word(layout.BOARD_LOW)
        self._unfinished = True
        self._board.set_word(layout.BOARD_LOW, decision.low)
        yield from self._removal.steps(firsts)
        self._unfinished = False
        self._sessions.note(
            "info", "segments_removed", low=decision.low, bytes=decision.low - before,
            forced=decision.forced, used=self._used,
        )  # fmt: skip

    def _decide(self) -> Decision | None:
        """How far the log may be cut now, if at all."""
        if self._over_bytes:
            ends = self._removable()
            wanted = -(-self._over_bytes // self._board.segment_bytes)
            return self._forced(ends[:wanted][-1]) if ends else None
        self._patient_until = 0
        hour = time.localtime(self._clock.wall_ms() / 1000).tm_hour
        if hour not in self._hours and self._used <= self._settings.disk_max_used_space_ratio:
            return None
        ends = self._old_enough(self._removable())
        if not ends:
            return None
        held = lowest_of(self._holders, self._used)
        free = [end for end in ends if held is None or end <= held.position]
        if held is not None and len(free) < len(ends):
            self._tell_held(held.who, held.position)
            self._free_by_moving(ends)
        else:
            self._told_held = ""  # whoever holds again is named again
        return Decision(free[-1], forced=False) if free else None

    def _free_by_moving(self, ends: list[int]) -> None:
        """Have timers and open halves appended again that alone hold segments."""
        others = tuple(one for one in self._holders if not isinstance(one, _MOVABLE))
        held = lowest_of(others, self._used)
        for end in ends[::-1]:
            if (held is None or end <= held.position) and self._move_below(end):
                return

    def _move_below(self, end: int) -> bool:
        movable = [one for one in self._holders if isinstance(one, _MOVABLE)]
        return any(one.move_below(end) for one in movable)

    def _forced(self, low: int) -> Decision | None:
        """The disk is too full: what moves is waited for, as long as there is room for them."""
        now_ns = self._clock.monotonic_ns()
        full = self._used > self._settings.disk_space_warning_level_ratio
        if full or not self._move_below(low):
            self._patient_until = 0
            return Decision(low, forced=True)
        if not self._patient_until:
            self._patient_until = now_ns + PACE.patience
        if now_ns < self._patient_until:
            return None
        self._patient_until = 0
        return Decision(low, forced=True)

    def _removable(self) -> list[int]:
        """Ends of segments from the oldest on: full, durable, dispatched, sealed, not the last."""
        word, size = self._board.word, self._board.segment_bytes
        bound = min(
            word(layout.BOARD_DURABLE), word(layout.BOARD_DISPATCHED), word(layout.BOARD_SETTLED),
            word(layout.BOARD_APPENDED) - 1,
        )  # fmt: skip
        low = word(layout.BOARD_LOW)
        ends: list[int] = []
        for end in range(low + size, bound + 1, size):
            sealed = self._storage.exists(f"{sidecar.DIRECTORY}/{end - size:020d}")
            if not sealed or len(ends) == SEGMENTS_A_PASS:
                break
            ends.append(end)
        return ends

    def _old_enough(self, ends: list[int]) -> list[int]:
        """Those whose newest message is old: none is younger than the first one behind it."""
        reserved_ms = self._settings.file_reserved_time * _HOUR_MS
        now_ms = self._clock.wall_ms()
        for number, end in enumerate(ends):
            stored_ms = self._first_ms(end)
            if not stored_ms or now_ms - stored_ms <= reserved_ms:
                return ends[:number]
        return ends

    def _first_ms(self, base: int) -> int:
        """When a segment's first record was stored, Unix ms; 0 without one."""
        head = bytearray(STORED_MS_BYTES)
        file = self._storage.open(segment_name(base))
        try:
            file.read_into(head, 0)
            known = int.from_bytes(head[4:8], "big") in RECORD_MAGICS
            return stored_ms(head) if known else 0
        finally:
            file.close()

    def _tell_held(self, who: str, position: int) -> None:
        """Once for each holder: the disk fills on its account."""
        if who != self._told_held:
            self._told_held = who
            self._sessions.note("warning", "segments_held", who=who, position=position)

    def _tell_losses(self, low: int, firsts: dict[int, int]) -> None:
        named = firsts_of(self._board, firsts)
        for holder in self._holders:
            for loss in holder.losses(low, named):
                self._sessions.note(
                    "error", "removed_while_needed", who=loss.who, what=loss.what,
                    count=loss.count, low=low, used=self._used,
                )  # fmt: skip


def open_retention(
    storage: Storage,
    clock: Clock,
    board: Board,
    sessions: SessionTable,
    settings: Settings,
    ledger: Ledger,
) -> Retention:
    """The agent with all its holders; `ledger` is that of `groups`, in the same process."""
    holders = (
        GroupsHolder(storage, board, ledger), ParkedHolder(storage, board),
        HalvesHolder(storage, board), Pins(storage),
    )  # fmt: skip
    return Retention(storage, clock, board, sessions, settings, holders)
