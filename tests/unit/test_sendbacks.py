"""Failed messages on their way back: what the copy says, and that there is one of it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

import pytest

from gantrymq.shm import groupwire, layout
from gantrymq.shm.codes import Level, Role
from gantrymq.shm.groupwire import DEAD_LETTER, LADDER, SendBack, SentBack
from gantrymq.shm.limits import PROPERTIES_BYTES_MAX, TRAILER_BYTES
from gantrymq.shm.properties import encode_properties
from gantrymq.shm.wire import GROUP_TOPIC_WANTED
from gantrymq.workers.failure import has_failed
from gantrymq.workers.groups import sendbacks
from gantrymq.workers.groups.agent import Groups
from gantrymq.workers.groups.ledger import Ledger
from gantrymq.workers.groups.ledgerentries import NAME
from gantrymq.workers.groups.pending import InFlight, Pending
from gantrymq.workers.groups.progress import Progress
from gantrymq.workers.groups.sendbacks import AGAIN_NS, SendBacks
from tests.support.faults import Fault, FaultPlan, Moment, kill_at
from tests.support.groups_rig import Hand, only
from tests.support.memory_sessions import memory_board
from tests.support.reachable import held
from tests.support.retry_rig import SEGMENT_BYTES, TOPICS, RetryRig
from tests.support.simstorage import SimStorage
from tests.support.trials import mends


def member(rig: RetryRig, started: int = 1, committed: int = 0) -> Hand:
    """A member that has begun all of queue 0 up to `started`."""
    hand = rig.attach()
    rig.settle()
    hand.join()
    hand.note(q0=(committed, started))
    rig.settle()
    return hand


def filled(messages: int = 1, **properties: str) -> RetryRig:
    rig = RetryRig()
    for number in range(messages):
        rig.send(b"m%d" % number, properties=properties)
    rig.settle()
    return rig


def send_back(hand: Hand, offset: int = 0, delay: int = LADDER, most: int = 17) -> SentBack:
    request = SendBack(9, 0, hand.leases[0], most, [offset], [delay], ["ValueError: no\x01good"])
    return only(hand.say(request), SentBack)


def test_a_failed_message_is_parked_for_its_groups_retry_topic() -> None:
    """RD-16, RD-19, RD-20; design: origin."""
    rig = filled(TAGS="paid", colour="red")
    hand = member(rig)
    assert send_back(hand) == SentBack(9, 0, [0], [False])
    original, copy = rig.log()
    assert (copy.topic, copy.queue_id, copy.body, copy.flag) == (
        "SCHEDULE_TOPIC_XXXX", 2, original.body, original.flag,
    )  # fmt: skip
    assert copy.reconsume_times == 1
    assert copy.prepared_transaction_offset == -1 - original.physical_offset
    assert (copy.born_timestamp, copy.born_host) == (original.born_timestamp, original.born_host)
    found = copy.property_map()
    assert found.pop("REAL_QID") in {"0", "1", "2"}
    found.pop("__CRC32#")
    kept = original.property_map()
    kept.pop("__CRC32#")
    assert found == kept | {
        "DELAY": "3", "REAL_TOPIC": "%RETRY%g", "RETRY_TOPIC": "orders", "WAIT": "false",
        "ORIGIN_MESSAGE_ID": original.offset_message_id,
    }  # fmt: skip
    assert (found["TAGS"], found["colour"]) == ("paid", "red")


@mends("H15")
@pytest.mark.parametrize("under", ["commitlog/", "consumequeue/orders"])
def test_a_record_that_cannot_be_read_fails_nothing_but_its_own_request(under: str) -> None:
    rig = filled(2)
    hand = member(rig, started=2)
    storage = rig.agents[Role.GROUPS].ledger.storage  # type: ignore[attr-defined]
    failing = Fault(1, Moment.BEFORE, errno.EIO, ("read",), persistent=True, under=under)
    storage.faults.faults = (failing,)
    request = SendBack(9, 0, hand.leases[0], 17, [0], [LADDER], ["no good"])
    heard = hand.say(request)
    refused = only(heard, groupwire.Refused)
    assert (refused.error, refused.offsets) == ("Corrupt", [0])
    assert not has_failed(rig.board)
    storage.faults.faults = ()
    assert send_back(hand) == SentBack(9, 0, [0], [False])


@mends("S228")
@pytest.mark.parametrize("lost", [True, False])
def test_a_message_whose_copy_a_power_cut_took_comes_again(*, lost: bool) -> None:
    """Though the disk had the ledger's note of that copy: neither it nor the message would come."""
    rig = filled()
    hand = member(rig)
    rig.stalled.add(Role.FLUSHER)
    assert send_back(hand) == SentBack(9, 0, [0], [False])
    original, copy = rig.log()
    end = original.physical_offset + original.total_size
    assert end == copy.physical_offset
    rig.board = board = memory_board(TOPICS, epoch=rig.board.epoch + 1, segment_bytes=SEGMENT_BYTES)
    for word in (layout.BOARD_RECOVERED_END, layout.BOARD_APPENDED, layout.BOARD_DURABLE):
        board.set_word(word, end + (0 if lost else copy.total_size))
    for word in (layout.QUEUE_RECOVERED_END, layout.QUEUE_NEXT_OFFSET, layout.QUEUE_MAX_OFFSET):
        board.set_word(board.queue_at(0) + word, 1)
    rig.start(Role.GROUPS)
    groups = rig.agents[Role.GROUPS]
    assert isinstance(groups, Groups)
    assert groups.ledger.groups["g"].queues["orders", 0].is_done(0) != lost


@mends("R5.1")
@pytest.mark.parametrize("torn", [b"", b"\x00\x05torn"])
def test_a_successor_syncs_nothing_before_the_copies_of_its_predecessor(torn: bytes) -> None:
    """The ledger counts a message as done with whose copy a power cut would still take."""
    rig = filled()
    hand = member(rig)
    for _ in range(2):
        rig.clock.advance(10_000_000_000)
        rig.settle()
    rig.stalled.add(Role.FLUSHER)
    send_back(hand)
    ledger = SimStorage(rig.disk).open(NAME, write=True)
    ledger.write_at(torn, ledger.size())
    before = len(rig.disk.log)
    rig.start(Role.GROUPS)
    for _ in range(3):
        rig.clock.advance(10_000_000_000)
        rig.settle()
    assert rig.board.word(layout.BOARD_DURABLE) < rig.board.word(layout.BOARD_APPENDED)
    assert not made_durable(rig.disk.log[before:])
    rig.stalled.clear()
    rig.clock.advance(10_000_000_000)
    rig.settle()
    assert made_durable(rig.disk.log[before:])


@mends("R1")
def test_a_copy_counts_before_the_reader_says_again_where_its_message_is() -> None:
    """P9: a power cut takes units of a queue that the reader makes anew, before or after."""
    rig = filled()
    hand = member(rig)
    rig.stalled.add(Role.WRITER)
    assert not hand.say(SendBack(9, 0, hand.leases[0], 17, [0], [LADDER], ["no"]))
    rig.step(Role.WRITER)
    assert len(rig.copies()) == 1
    rig.stalled = {Role.READER}
    storage = SimStorage(rig.disk, "power cut")
    queue = storage.open(f"consumequeue/orders/0/{0:020}", write=True)
    unit = bytearray(layout.CQ_UNIT_BYTES)
    queue.read_into(unit, 0)
    queue.write_at(bytes(len(unit)), 0)
    dispatched = rig.board.word(layout.BOARD_DISPATCHED)
    rig.board.set_word(layout.BOARD_RECOVERED_END, rig.board.word(layout.BOARD_APPENDED))
    rig.board.set_word(layout.BOARD_DISPATCHED, 0)
    rig.start(Role.GROUPS)
    rig.settle()
    queue.write_at(bytes(unit), 0)
    rig.board.set_word(layout.BOARD_DISPATCHED, dispatched)
    rig.stalled = set()
    rig.clock.advance(1_000_000_000)
    rig.settle()
    ledger = Ledger(SimStorage(rig.disk, "oracle"))
    ledger.load()
    assert ledger.group("g").queue(("orders", 0)).is_done(0)
    assert len(rig.copies()) == 1


def test_a_successor_tells_nobody_of_a_durable_topics_copy_before_it_is_durable() -> None:
    """P10: a power cut would still take the copy that its predecessor has put."""
    rig = RetryRig(Level.DURABLE)
    rig.send(b"m0")
    rig.settle()
    rig.clock.advance(10_000_000_000)  # it is visible once it is durable
    rig.settle()
    hand = member(rig)
    rig.stalled.add(Role.FLUSHER)
    request = SendBack(9, 0, hand.leases[0], 17, [0], [LADDER], ["no good"])
    assert hand.say(request) == []
    rig.start(Role.GROUPS)
    rig.settle()
    heard = hand.join() + hand.say(request)
    assert rig.board.word(layout.BOARD_DURABLE) < rig.board.word(layout.BOARD_APPENDED)
    assert not any(isinstance(notice, SentBack) for notice in heard)
    rig.stalled.clear()
    rig.clock.advance(10_000_000_000)
    rig.settle()
    assert only(hand.listen(), SentBack).offsets == [0]
    assert len(rig.copies()) == 1


def made_durable(calls: Sequence[str]) -> list[str]:
    """Those by which `groups` makes its ledger outlive a power cut."""
    return [call for call in calls if f"sync {NAME}" in call or f"rename {NAME}" in call]


def test_the_last_attempt_makes_a_dead_letter_that_says_why() -> None:
    """RD-18, RD-23."""
    rig = filled()
    hand = member(rig)
    assert send_back(hand, most=1).dead == [True]
    original, copy = rig.log()
    found = copy.property_map()
    assert (copy.topic, copy.queue_id, copy.reconsume_times) == ("%DLQ%g", 0, 1)
    assert (found["DELAY"], found["RETRY_TOPIC"]) == ("0", "orders")
    assert found["DLQ_REASON"] == "ValueError: no good"
    assert found["ORIGIN_MESSAGE_ID"] == found["DLQ_ORIGIN_MESSAGE_ID"]
    assert found["DLQ_ORIGIN_MESSAGE_ID"] == original.offset_message_id
    assert found["DLQ_ORIGIN_TOPIC"] == "orders"


@mends("S12")
def test_a_listener_may_ask_for_the_dead_letter_queue_at_once_and_for_a_delay() -> None:
    rig = filled(2)
    hand = member(rig, started=2)
    assert send_back(hand, 0, DEAD_LETTER).dead == [True]
    assert send_back(hand, 1, 2_500).dead == [False]
    dead, timed = rig.copies()
    assert dead.topic == "%DLQ%g"
    assert timed.topic == "rmq_sys_wheel_timer"
    found = timed.property_map()
    due = rig.clock.wall_ms() + 2_500
    assert (found["TIMER_DELAY_MS"], "TIMER_DELIVER_MS" in found) == ("2500", False)
    assert found["TIMER_OUT_MS"] == str(due // 1000 * 1000 - (1000 if due % 1000 == 0 else 0))
    assert (found["REAL_TOPIC"], "DELAY" in found) == ("%RETRY%g", False)


def test_deliveries_that_died_count_as_attempts() -> None:
    """Three consumers die of it; the fourth delivery is the last of four."""
    rig = filled()
    for _ in range(3):
        rig.kill(member(rig))
        rig.settle()
    hand = member(rig)
    assert hand.granted[0].attempts == [(0, 1, 3)]
    assert send_back(hand, most=4).dead == [True]
    assert rig.copies()[0].reconsume_times == 4


def test_the_ladder_goes_on_and_ends_at_its_highest_level() -> None:
    """RD-19, RD-22: level 2 + k for the k-th failure, DT-10 beyond the highest."""
    rig = filled()
    for _ in range(8):
        rig.kill(member(rig))
        rig.settle()
    send_back(member(rig))
    copy = rig.copies()[0]
    assert (copy.reconsume_times, copy.property_map()["DELAY"], copy.queue_id) == (9, "5", 4)


def test_what_was_sent_back_is_not_delivered_again_and_neighbours_are() -> None:
    rig = filled(3)
    hand = member(rig, started=3)
    send_back(hand, 1)
    rig.kill(hand)
    rig.settle()
    granted = member(rig).granted[0]
    assert (granted.offset, granted.done) == (0, [(1, 2)])
    assert granted.attempts == [(0, 1, 1), (2, 3, 1)]


def long_property(rig: RetryRig, room: int) -> str:
    """What fills a message's properties but for so many bytes, its checksum's included."""
    rig.send(b"m", properties={"k": "x"})
    rig.settle()
    found = next(rig.log()).property_map()
    found.pop("__CRC32#")
    return "x" * (PROPERTIES_BYTES_MAX - TRAILER_BYTES - len(encode_properties(found)) - room + 1)


@pytest.mark.parametrize("room", [0, 40, 100, 150])
def test_a_message_without_room_for_a_retry_is_a_dead_letter_at_once(room: int) -> None:
    """RD-16: what a retry has to say does not fit; nothing is lost, and it is said once."""
    rig = RetryRig()
    value = long_property(rig, room)
    rig.send(b"long", properties={"k": value})
    rig.settle()
    hand = member(rig, started=2)
    assert send_back(hand, 1).dead == [room < 130]
    found = rig.copies()[0].property_map()
    assert found["k"] == value
    events = [
        (event, fields["offset"]) for _, event, fields in rig.sessions.notes if "why" in fields
    ]
    assert events == ([("dead_letter_for_want_of_room", 1)] if room < 130 else [])


def test_the_reason_of_a_dead_letter_is_cut_to_the_room_that_is_left() -> None:
    rig = RetryRig()
    rig.send(b"long", properties={"k": long_property(rig, 300)})
    rig.settle()
    hand = member(rig, started=2)
    why = "ü" * 500
    only(hand.say(SendBack(9, 0, hand.leases[0], 17, [1], [DEAD_LETTER], [why])), SentBack)
    reason = rig.copies()[0].property_map()["DLQ_REASON"]
    assert 0 < len(reason) < len(why)
    assert set(reason) == {"ü"}


def test_what_no_copy_can_be_made_of_is_said_once_and_kept() -> None:
    """Its consumer asks again, and has its answer once an operator has helped."""
    rig = filled()
    hand = member(rig)
    topics = rig.agents[Role.GROUPS].membership.topics  # type: ignore[attr-defined]
    slot = topics.slots.pop("%DLQ%g")
    request = SendBack(9, 0, hand.leases[0], 17, [0], [DEAD_LETTER], ["no"])
    before = rig.board.word(rig.board.process_at(Role.GROUPS) + layout.PROCESS_REFUSED)
    for _ in range(3):
        assert only(hand.say(request), groupwire.Refused).error == "MessageIllegal"
    assert [event for _, event, _ in rig.sessions.notes].count("send_back_refused") == 1
    after = rig.board.word(rig.board.process_at(Role.GROUPS) + layout.PROCESS_REFUSED)
    assert after == before + 1
    topics.slots["%DLQ%g"] = slot
    assert only(hand.say(request), SentBack).dead == [True]


@mends("S67")
@pytest.mark.parametrize(("name", "delay"), [("%DLQ%g", DEAD_LETTER), ("%RETRY%g", LADDER)])
def test_no_copy_goes_where_a_deleted_topic_was(name: str, delay: int) -> None:
    """It is asked for; once it is there the consumer, which has kept the messages, is served."""
    rig = filled(2)
    hand = member(rig, started=2)
    at = rig.board.topic_at(next(t.slot for t in rig.board.topics() if t.name == name))

    def change(system: int) -> None:
        rig.board.set_half(at + layout.TOPIC_SYSTEM, system)
        rig.board.count_change(layout.BOARD_TOPIC_CHANGES)

    change(layout.DELETED)
    request = SendBack(9, 0, hand.leases[0], 17, [0, 1], [delay, delay], ["no", "no"])
    refused = only(hand.say(request), groupwire.Refused)
    assert (refused.error, refused.offsets) == ("MessageIllegal", [0, 1])
    assert not rig.copies()
    wanted = [note["topic"] for _, event, note in rig.sessions.notes if event == GROUP_TOPIC_WANTED]
    assert wanted == [name]
    change(0)
    assert only(hand.say(request), SentBack).offsets == [0, 1]
    assert len(rig.copies()) == 2


def test_a_request_said_twice_makes_one_copy() -> None:
    rig = filled()
    hand = member(rig)
    send_back(hand)
    assert send_back(hand) == SentBack(9, 0, [0], [False])
    assert len(rig.copies()) == 1


@pytest.mark.parametrize("offset", [1, 5, -1])
def test_what_was_not_handed_out_cannot_fail(offset: int) -> None:
    rig = filled(2)
    hand = member(rig)
    heard = hand.say(SendBack(9, 0, hand.leases[0], 17, [offset], [LADDER], [""]))
    if offset < 0:
        assert only(heard, SentBack).offsets == [offset], "below what is committed: done with"
    else:
        assert only(heard, groupwire.Refused).error == "MessageIllegal"
    assert not rig.copies()


@mends("S225")
def test_nothing_is_left_of_failures_that_have_their_outcome() -> None:
    """Groups and topics come and go; `groups` stays."""
    rig = filled(3)
    hand = member(rig, started=2)
    assert send_back(hand).offsets == [0]
    assert only(hand.say(failing(hand, [2])), groupwire.Refused).offsets == [2]
    agent = rig.agents[Role.GROUPS]
    assert isinstance(agent, Groups)
    assert held(agent.sendbacks._flight, "gantrymq.") == held(InFlight(), "gantrymq.")


def test_many_failures_are_one_request_and_one_answer() -> None:
    """Each has its own delay and reason; what cannot be sent back is refused beside the others."""
    rig = filled(6)
    hand = member(rig, started=5)
    delays, whys = [LADDER, DEAD_LETTER, 2_500, LADDER], ["a", "b", "c", "d"]
    heard = hand.say(SendBack(9, 0, hand.leases[0], 17, [0, 1, 3, 5], delays, whys))
    assert only(heard, SentBack) == SentBack(9, 0, [0, 1, 3], [False, True, False])
    refused = only(heard, groupwire.Refused)
    assert (refused.serial, refused.error, refused.offsets) == (9, "MessageIllegal", [5])
    parked, dead, timed = rig.copies()
    assert [parked.queue_id, dead.topic, timed.topic] == [2, "%DLQ%g", "rmq_sys_wheel_timer"]
    assert dead.property_map()["DLQ_REASON"] == "b"


def test_what_there_is_no_room_for_is_taken_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sendbacks, "COPIES_MAX", 2)
    rig = filled(5)
    hand = member(rig, started=5)
    heard = hand.say(failing(hand, [0, 1, 2, 3, 4]))
    answered = [at for item in heard if isinstance(item, SentBack) for at in item.offsets]
    assert answered == [0, 1, 2, 3, 4]
    assert len(rig.copies()) == 5


@pytest.mark.parametrize("what", ["log", "ledger"])
def test_a_full_disk_holds_failures_up_and_loses_none(what: str) -> None:
    """F7: neither answered nor refused while there is no room; then each has one copy."""
    rig = filled(3)
    hand = member(rig, started=3)
    plan = rig.faults[Role.GROUPS] = FaultPlan()
    rig.start(Role.GROUPS)
    rig.settle()
    hand.listen()
    hand.join()
    if what == "log":
        rig.board.set_half(layout.BOARD_DISK_FULL, 1)
    else:
        error, under = errno.ENOSPC, "gantry/ledger"
        plan.faults = [Fault(1, error=error, kinds=("write",), persistent=True, under=under)]
    assert not hand.say(failing(hand, FAILED))
    assert not rig.copies()
    rig.clock.advance(AGAIN_NS)
    rig.settle()
    assert not hand.listen()
    rig.board.set_half(layout.BOARD_DISK_FULL, 0)
    plan.faults = []
    rig.clock.advance(AGAIN_NS)
    rig.settle()
    assert only(hand.listen(), SentBack).offsets == FAILED
    assert len(rig.copies()) == len(FAILED)


@mends("S230")
@pytest.mark.parametrize("name", ["%DLQ%g", "another"])
def test_a_dead_letter_that_waits_for_room_goes_to_no_other_topic(name: str) -> None:
    """Its own was deleted meanwhile, or another was made in its place."""
    rig = filled()
    hand = member(rig)
    rig.board.set_half(layout.BOARD_DISK_FULL, 1)
    assert not hand.say(SendBack(9, 0, hand.leases[0], 17, [0], [DEAD_LETTER], ["no"]))
    at = rig.board.topic_at(next(t.slot for t in rig.board.topics() if t.name == "%DLQ%g"))
    before = bytes(rig.board.memory[at : at + layout.TOPIC_BYTES])
    words = layout.TOPIC.unpack(before) | {"name": name.encode(), "name_bytes": len(name)}
    words["system"] = layout.DELETED if name == "%DLQ%g" else 0
    rig.board.memory[at : at + layout.TOPIC_BYTES] = layout.TOPIC.pack(**words)
    rig.board.count_change(layout.BOARD_TOPIC_CHANGES)
    rig.board.set_half(layout.BOARD_DISK_FULL, 0)
    rig.clock.advance(AGAIN_NS)
    rig.settle()
    refused = only(hand.listen(), groupwire.Refused)
    assert (refused.error, refused.offsets) == ("MessageIllegal", [0])
    wanted = [note["topic"] for _, event, note in rig.sessions.notes if event == GROUP_TOPIC_WANTED]
    assert wanted == ["%DLQ%g"]
    rig.board.memory[at : at + layout.TOPIC_BYTES] = before
    rig.board.count_change(layout.BOARD_TOPIC_CHANGES)
    again = SendBack(10, 0, hand.leases[0], 17, [0], [DEAD_LETTER], ["no"])
    assert only(hand.say(again), SentBack).dead == [True]
    assert [record.topic for record in rig.log()] == ["orders", "%DLQ%g"]


def test_a_lease_that_is_over_gives_no_right_to_send_back() -> None:
    rig = filled()
    hand = member(rig)
    heard = hand.say(SendBack(9, 0, hand.leases[0] + 1, 17, [0], [LADDER], [""]))
    assert only(heard, groupwire.Refused).error == "Evicted"
    assert not rig.copies()


FAILED = [0, 2]


def failing(hand: Hand, offsets: list[int]) -> SendBack:
    return SendBack(9, 0, hand.leases[0], 17, offsets, [LADDER], ["it failed"])


# Who dies, between any two duty cycles.
DEATHS = {
    "groups": (Role.GROUPS,),
    "writer": (Role.WRITER,),
    "groups and writer": (Role.GROUPS, Role.WRITER),
    "all": (Role.GROUPS, Role.WRITER),
    "reader": (Role.READER,),
    "client": (),
}


def die_after(steps: int, who: str) -> tuple[bool, bool]:
    """Let somebody die after so many steps of agents.

    Returns whether the answer had come by then, and whether all is as it should be afterwards.
    """
    rig = filled(3)
    hand = member(rig, started=3)
    request = failing(hand, FAILED)
    assert hand.lane.put(groupwire.encode(request))
    order = (Role.GROUPS, Role.WRITER, Role.GROUPS, Role.FLUSHER, Role.READER)
    for step in range(steps):
        rig.step(order[step % len(order)])
    over = any(isinstance(notice, SentBack) for notice in hand.listen())
    for role in DEATHS[who]:
        rig.start(role)
    alive = who not in ("client", "all")
    if not alive:
        rig.kill(hand)
    rig.settle()
    return over, outcome_is_right(rig, hand, alive=alive)


@pytest.mark.parametrize("who", DEATHS)
def test_whoever_dies_between_two_steps_there_is_one_copy(who: str) -> None:
    """P9: a copy for the failure, and the message is not delivered again besides."""
    over = False
    for steps in range(40):
        over, right = die_after(steps, who)
        assert right, f"{who} died after {steps} steps"
        if over:
            break
    assert over, "the last death came after the answer"
    assert steps > 2


@pytest.mark.parametrize("moment", list(Moment))
def test_groups_may_die_in_any_call_of_its_storage(moment: Moment) -> None:
    for call in range(1, 40):
        rig = filled(2)
        hand = member(rig, started=2)
        plan = rig.faults[Role.GROUPS] = FaultPlan([kill_at(call, moment)])
        rig.start(Role.GROUPS)
        rig.settle()
        hand.listen()
        hand.join()
        heard = hand.say(failing(hand, [0]))
        if not any(isinstance(notice, SentBack) for notice in heard):
            hand.join()
            send_back(hand)
        assert len(rig.copies()) == 1, plan.met
        if not plan.met:
            break
    assert call > 2, "it died in some"


def no_looking_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SendBacks, "_unanswered", lambda self: ())


def no_intent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "sending_all", lambda *_: None)


def granted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue goes to the next owner while a copy is on its way."""
    finish = SendBacks._finish

    def late(self: SendBacks, stored: Sequence[Pending]) -> None:
        self._ledger.group("g").queue(("orders", 0)).sending.clear()
        finish(self, stored)

    monkeypatch.setattr(SendBacks, "_finish", late)
    monkeypatch.setattr(Progress, "send", lambda *_: None)


@pytest.mark.parametrize("plant", [no_looking_back, no_intent, granted_at_once])
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert not all(right_or_stuck(steps, who) for steps in range(1, 12) for who in DEATHS)


def right_or_stuck(steps: int, who: str) -> bool:
    try:
        return die_after(steps, who)[1]
    except (AssertionError, KeyError):  # a queue that nobody was granted
        return False


def outcome_is_right(rig: RetryRig, hand: Hand, *, alive: bool) -> bool:
    """A copy of each, and an answer; without a client, a copy or one more attempt, never both."""
    heard = hand.listen()
    if alive:
        if groupwire.Rejoin() in heard:  # as the client does: it says again what was not answered
            hand.join()
            answered = {
                at for item in hand.heard if isinstance(item, SentBack) for at in item.offsets
            }
            left = [offset for offset in FAILED if offset not in answered]
            if left:
                only(hand.say(failing(hand, left)), SentBack)
        return len(rig.copies()) == len(FAILED)
    granted = member(rig).granted[0]
    origins = [copy.prepared_transaction_offset for copy in rig.copies()]
    messages = [record for record in rig.log() if record.topic == "orders"]
    for offset in FAILED:
        copies = origins.count(-1 - messages[offset].physical_offset)
        done = any(first <= offset < end for first, end in granted.done)
        if copies + (not done and granted.offset <= offset) != 1:
            return False
    return True


@mends("S32")
@pytest.mark.parametrize(
    ("name", "at"),
    [
        (f"commitlog/{0:020d}", 7),  # the magic
        (f"commitlog/{0:020d}", 0),  # the length: negative
        (f"consumequeue/orders/0/{0:020d}", 0),  # the position: negative
        (f"consumequeue/orders/0/{0:020d}", 2),  # the position: in no segment
        (f"consumequeue/orders/0/{0:020d}", 8),  # the size: negative
    ],
)
def test_a_message_whose_record_or_unit_is_damaged_is_not_taken_for_expired(
    name: str, at: int
) -> None:
    rig = filled(2)
    hand = member(rig, started=2)
    file = SimStorage(rig.disk).open(name, write=True)
    byte = bytearray(1)
    file.read_into(byte, at)
    file.write_at(bytes([byte[0] ^ 0x80]), at)
    request = SendBack(9, 0, hand.leases[0], 17, [0], [LADDER], ["no good"])
    refused = only(hand.say(request), groupwire.Refused)
    assert (refused.error, refused.offsets) == ("Corrupt", [0])
