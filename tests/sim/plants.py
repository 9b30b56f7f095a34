"""Known bugs that can be put into a run, to show that the simulator finds their kind.

They live here only, put over the real parts from outside: production code has no switch for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gantrymq.brokerd import appender, recovery
from gantrymq.brokerd.appender import Appender
from gantrymq.brokerd.commitlog import CommitLog
from gantrymq.brokerd.flusher import Flusher
from gantrymq.brokerd.holders import GroupsHolder
from gantrymq.brokerd.metadata import Metadata, RecoveredLog
from gantrymq.brokerd.parkedholder import ParkedHolder
from gantrymq.brokerd.producers import Producers
from gantrymq.brokerd.removal import Removal
from gantrymq.brokerd.retention import Retention
from gantrymq.shm import layout
from gantrymq.shm.indexnote import Note
from gantrymq.shm.kernels import drain as kernels_of_lanes
from gantrymq.shm.kernels import frames, ring
from gantrymq.shm.kernels import index as kernels
from gantrymq.shm.kernels.words import store_word
from gantrymq.workers.groups.agent import Groups
from gantrymq.workers.groups.membership import Membership
from gantrymq.workers.groups.peer import Peer
from gantrymq.workers.host import Host
from gantrymq.workers.housekeeper.indexer import Indexer
from gantrymq.workers.inhand import InHand


def put_over(owner: object, name: str, value: object) -> None:
    """Replace a part of a class or module for the rest of this process."""
    if not hasattr(owner, name):
        raise AttributeError(f"{owner} has no {name}: the plant is out of date")
    setattr(owner, name, value)


def ack_before_append() -> None:
    """Completions are published before their records are in the log."""
    write_batch = Appender._write_batch

    def eager(appender: Appender, **how: Any) -> Any:  # noqa: ANN401 - as the method has it
        for lane in appender.lanes:
            if lane.view[frames.DRAINED]:
                arena, control = lane.session.arena, lane.view[frames.CONTROL]
                done, taken = lane.view[frames.DOWN_CURSOR], lane.view[frames.UP_CURSOR]
                store_word(arena, control + layout.LANE_DOWN_TAIL, done)
                store_word(arena, control + layout.LANE_UP_HEAD, taken)
                lane.session.bell.ring()
        return write_batch(appender, **how)

    put_over(Appender, "_write_batch", eager)


def clock_before_the_look() -> None:
    """Entries are stored as of a time before they were put."""
    look, drain = kernels_of_lanes.look_at_lanes, kernels_of_lanes.drain_lanes

    def drain_what_comes(*given: Any) -> Any:  # noqa: ANN401
        table, board, _staging, batch, _scratch, _wall_ms, first, end = given
        if not batch[frames.FILLED]:
            look(table, board, batch, first, end)
        return drain(*given)

    put_over(appender, "look_at_lanes", lambda *_: 0)
    put_over(appender, "drain_lanes", drain_what_comes)


def recovery_without_zeroing() -> None:
    """Torn bytes stay behind the log's end, after a start and after a writer's death."""
    put_over(recovery, "_zero", lambda *_, **__: None)
    put_over(CommitLog, "clear_behind", lambda *_: None)


def durable_before_sync() -> None:
    """The flusher publishes a position that it has not synced."""
    put_over(Flusher, "_sync_segments", lambda *_: None)


def leased_twice() -> None:
    """A queue goes to the next member without waiting for the one before."""
    leases = Membership._leases

    def impatient(membership: Membership, group: str, keys: Any) -> Any:  # noqa: ANN401
        held = leases(membership, group, keys)
        return {q: lease for q, lease in held.items() if not lease.revoking}

    put_over(Membership, "_leases", impatient)
    grown = Membership.grown

    def always(membership: Membership) -> None:
        for group in membership.groups:
            membership.mark(group)
        grown(membership)

    put_over(Membership, "grown", always)


def appended_again() -> None:
    """A new writer does not know what is in the log, and takes a re-submitted seq for new."""
    put_over(Producers, "last_seq", lambda *_: 0)


def forgotten_with_its_session() -> None:
    """The writer does not remember what it took from a session once the session was over."""
    put_over(appender, "keep_unanswered", lambda *_: None)


def visible_before_durable() -> None:
    """The reader shows units of durable topics at once."""
    from gantrymq.workers.reader.visibility import Visibility

    set_levels = Visibility.set_levels

    def all_written(visible: Visibility, topics: Any) -> None:  # noqa: ANN401
        set_levels(visible, topics)
        visible._held_level[:] = False

    put_over(Visibility, "set_levels", all_written)


def told_before_written() -> None:
    """`groups` answers before the ledger has what it answers about."""
    tell = Groups._tell

    def forgetful(groups: Groups, peer: Any, stored: bool) -> int:  # noqa: ANN401
        put_over(groups.ledger, "flush", lambda *_: None)
        return tell(groups, peer, stored)

    put_over(Groups, "_tell", forgetful)


def words_of_the_dead_unread() -> None:
    """`groups` does not look at what a session's words say once it has ended."""

    def hasty(groups: Groups, peer: Peer, *, failed: bool) -> Iterator[float]:
        yield from groups.membership.leave(peer.session.session, failed=failed)
        groups._filters.leave(peer.session.session)

    put_over(Groups, "_end", hasty)


def batch_in_pieces() -> None:
    """The writer appends record by record, so that a batch can be there in part."""
    append = Appender._append

    def one_by_one(appender: Appender, filled: int) -> bool:
        view, staging = appender.view, appender._staging
        data, begin = staging[:filled].copy(), appender.appended
        at, done = 0, True
        while done and at < filled:
            size = int.from_bytes(data[at : at + 4].tobytes(), "big")
            if at + size > filled:  # a filler: its length is that of the segment's rest
                size = filled - at
            staging[:size] = data[at : at + size]
            view[frames.POSITION] = begin + at
            done = append(appender, size)
            at += size
            if done and at < filled:
                appender._board.set_word(layout.BOARD_APPENDED, begin + at)
        staging[:filled] = data
        view[frames.POSITION] = begin
        return done

    put_over(Appender, "_append", one_by_one)


def noted_before_synced() -> None:
    """The indexer notes as sure what is not on the disk yet."""
    from gantrymq.workers.housekeeper.indexfiles import OpenFile

    put_over(OpenFile, "sync", lambda *_: None)


def noted_before_written() -> None:
    """The indexer notes as sure what it has gathered, before it is in the file."""
    from gantrymq.workers.housekeeper.indexer import Indexer

    def gathered(indexer: Indexer, *, slots: bool) -> int:
        indexer._note_wanted = True
        indexer._sure = Note(indexer._position, 0, indexer._files())
        return begin(indexer, slots=slots)

    begin = Indexer._begin_writing
    put_over(Indexer, "_begin_writing", gathered)
    write = Indexer._write

    def eager(indexer: Indexer) -> int:
        durable = indexer._board.word(layout.BOARD_DURABLE)
        if indexer._sure.position > indexer._note.position and indexer._sure.position <= durable:
            indexer._save_note()
            return 1
        return write(indexer)

    put_over(Indexer, "_write", eager)


def keys_lost_at_a_full_file() -> None:
    """Keys of a record whose file is full are forgotten instead of going to the next file."""
    from gantrymq.workers.housekeeper.indexer import Indexer

    close_full = Indexer._close_full

    def forgetful(indexer: Indexer) -> int:
        indexer._form[kernels.KEY] = indexer._form[kernels.KEY] + 1
        return close_full(indexer)

    put_over(Indexer, "_close_full", forgetful)


def removed_unannounced() -> None:
    """Segments go before `low` says so."""
    find_firsts = Removal.find_firsts

    def hasty(removal: Removal, low: int) -> Any:  # noqa: ANN401
        for base in removal._segments_below(low):
            removal._take_out(base)
        return find_firsts(removal, low)

    put_over(Removal, "find_firsts", hasty)


def removed_unread() -> None:
    """Retention asks neither groups nor what is parked, which would hold most for them."""
    put_over(GroupsHolder, "lowest_position", lambda *_: None)
    put_over(ParkedHolder, "lowest_position", lambda *_: None)


def losses_untold() -> None:
    """Retention takes what is unread off a full disk and tells nobody."""
    put_over(Retention, "_tell_losses", lambda *_: None)


def removed_undispatched() -> None:
    """The disk rule takes segments of which queues have no units yet, or that are not durable."""
    removable = Retention._removable

    def greedy(retention: Retention) -> list[int]:
        size = retention._board.segment_bytes
        end = retention._board.word(layout.BOARD_APPENDED) // size * size
        return [*removable(retention), end] if end else []

    put_over(Retention, "_removable", greedy)


def limited_by_ends_that_have_moved() -> None:
    """`groups` compares offsets with ends that the scheduler may have moved before it opens."""
    begin_life = Membership.begin_life

    def late(membership: Membership, epoch: int) -> None:
        board = membership.board
        for topic in board.topics():
            for queue in range(topic.queue_base, topic.queue_base + topic.queue_count):
                words, at = board.queue(queue), board.queue_at(queue)
                end = max(words["max_offset"], words["next_offset"])
                board.set_word(at + layout.QUEUE_RECOVERED_END, end)
        begin_life(membership, epoch)

    put_over(Membership, "begin_life", late)


def never_suspected() -> None:
    """A successor takes up again what has ended its predecessors."""
    put_over(InHand, "is_poison", lambda *_: False)
    put_over(InHand, "is_condemned", lambda *_: False)


def armed_with_others_only() -> None:
    """An agent does not arm while another of its process has something to do."""
    put_over(Host, "_arm_idle", lambda *_: None)


def asked_before_durable() -> None:
    """The flusher asks who waits for the disk before it says how far that is, not behind that."""

    def hasty(self: Flusher, appended: int, now_ns: int) -> None:
        self._sync_segments(appended)
        clients, words = self._clients.values(), self._words
        waiting = [one for one in clients if ring.wants_durable(one.arena, appended)]
        self._durable, self._last_ns = appended, now_ns
        reader_armed = ring.publish_and_check(
            words, layout.BOARD_DURABLE, appended, words, layout.BOARD_READER_ARMED
        )
        if reader_armed:
            self._bells.reader.ring()
        for one in waiting:
            one.bell.ring()

    put_over(Flusher, "_sync", hasty)


def keys_go_before_segments() -> None:
    """The indexer drops keys below the board's `low`, while a stop still leaves the segments."""

    def low(indexer: Indexer) -> int:
        indexer._low = indexer._board.word(layout.BOARD_LOW)
        return indexer._low

    put_over(Indexer, "_log_begin", low)


def begins_lowered_for_one_life() -> None:
    """A start that finds that a topic begins behind a queue's end does not say so in its file."""
    lower = Metadata._begin_within

    def forgetful(metadata: Metadata, found: RecoveredLog) -> None:
        save = metadata._save
        put_over(metadata, "_save", lambda: None)
        lower(metadata, found)
        put_over(metadata, "_save", save)

    put_over(Metadata, "_begin_within", forgetful)


PLANTS: dict[str, Callable[[], None]] = {
    plant.__name__: plant
    for plant in (
        ack_before_append,
        clock_before_the_look,
        recovery_without_zeroing,
        durable_before_sync,
        leased_twice,
        appended_again,
        forgotten_with_its_session,
        visible_before_durable,
        told_before_written,
        batch_in_pieces,
        words_of_the_dead_unread,
        noted_before_synced,
        noted_before_written,
        keys_lost_at_a_full_file,
        removed_unannounced,
        removed_unread,
        losses_untold,
        removed_undispatched,
        limited_by_ends_that_have_moved,
        never_suspected,
        armed_with_others_only,
        asked_before_durable,
        keys_go_before_segments,
        begins_lowered_for_one_life,
    )
}
