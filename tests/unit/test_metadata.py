"""Topics: rules of names, topics.json as RocketMQ reads it, and the board's tables."""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gantrymq.brokerd import config, topics
from gantrymq.brokerd.metadata import Metadata
from gantrymq.shm import layout
from gantrymq.shm.board import Board, TopicSlot, format_board
from gantrymq.shm.clock import SystemClock
from gantrymq.shm.codes import Level
from gantrymq.shm.configfile import parse_config, write_config
from gantrymq.shm.errors import (
    Corrupt,
    GantryError,
    MessageIllegal,
    NotPermitted,
    Rejected,
    TopicNotFound,
)
from gantrymq.shm.properties import (
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    NOTES_TOPIC,
    OP_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from gantrymq.shm.storage import PosixStorage
from gantrymq.shm.topicfiles import LEVEL_ATTRIBUTE
from tests.support.faults import Fault
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage
from tests.support.trials import mends


@dataclass(frozen=True)
class Found:
    """What recovery reports of a log."""

    appended: int = 0
    durable: int = 0
    dispatched: int = 0
    settled: int = 0
    store_ms: int = 0
    low: int = 0
    queues: dict[tuple[str, int], tuple[int, int, int]] = field(default_factory=dict)
    topics: frozenset[str] = frozenset()
    starts: dict[tuple[str, int], int] = field(default_factory=dict)


def make_board(topics_max: int = 16, queues_max: int = 64) -> Board:
    memory = memoryview(bytearray(layout.board_bytes(topics_max, queues_max)))
    format_board(
        memory,
        epoch=1,
        boot_id=bytes(16),
        topics_max=topics_max,
        queues_max=queues_max,
        segment_bytes=1 << 20,
        cq_bytes=2000,
        started_ms=0,
        wall_ahead_ns=0,
    )
    return Board(memory)


def open_metadata(
    store: Path, board: Board, found: Found | None = None, **given: object
) -> Metadata:
    settings = config.load(None, given, {}).settings
    metadata = Metadata(PosixStorage(str(store)), settings, SystemClock())
    metadata.load()
    metadata.publish(board, found or Found())
    return metadata


def test_a_send_creates_a_topic_of_four_queues(store_dir: Path) -> None:
    """CQ-105: the smaller of the client's 4 and the default topic's 8."""
    board = make_board()
    slot = open_metadata(store_dir, board).open("orders", create=True)
    assert (slot.slot, slot.queue_base, slot.queue_count, slot.write_queues) == (0, 0, 4, 4)
    assert slot.level == Level.WRITTEN
    assert [board.queue(queue)["queue_id"] for queue in range(4)] == [0, 1, 2, 3]
    assert board.half(layout.BOARD_QUEUE_COUNT) == 4


def test_the_default_queues_setting_lowers_that(store_dir: Path) -> None:
    metadata = open_metadata(store_dir, make_board(), default_topic_queue_nums=2)
    assert metadata.open("orders", create=True).queue_count == 2


def test_a_groups_topics_are_made_for_its_members_whatever_the_settings(store_dir: Path) -> None:
    """RD-1, RD-14."""
    metadata = open_metadata(
        store_dir, make_board(), auto_create_topic_enable=False, retry_queue_nums=3
    )
    assert metadata.open("%RETRY%billing", create=True, of_member=True).queue_count == 3
    assert metadata.open("%DLQ%billing", create=True, of_member=True).queue_count == 1


def test_no_topic_is_made_for_a_group_that_nobody_knows(store_dir: Path) -> None:
    """RD-30."""
    metadata = open_metadata(store_dir, make_board())
    for name in ("%RETRY%billing", "%DLQ%billing"):
        with pytest.raises(TopicNotFound, match="no group billing"):
            metadata.open(name, create=True)
    metadata.groups.add("billing")
    assert metadata.open("%RETRY%billing", create=True).queue_count == 8


def test_queues_of_a_topic_are_contiguous_and_topics_follow(store_dir: Path) -> None:
    board = make_board()
    metadata = open_metadata(store_dir, board)
    metadata.create("a", 3, "written")
    slot = metadata.create("b", 2, "durable")
    assert (slot.slot, slot.queue_base, slot.level) == (1, 3, Level.DURABLE)
    assert {board.queue(queue)["topic"] for queue in (3, 4)} == {1}
    assert [topic.name for topic in board.topics()] == ["a", "b"]


def test_topics_json_is_what_rocketmq_reads(store_dir: Path) -> None:
    """HO-62: topicName, both queue numbers and perm; SF-104, SF-105: form and version."""
    metadata = open_metadata(store_dir, make_board())
    metadata.create("orders", 4, "durable")
    text = (store_dir / "config" / "topics.json").read_text()
    content = parse_config(text)
    assert content["topicConfigTable"]["orders"] == {
        "attributes": {"gantry.durability": "durable"},
        "order": False,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "orders",
        "topicSysFlag": 0,
        "writeQueueNums": 4,
    }
    assert content["dataVersion"]["counter"] == 1
    assert text.startswith("{\n\t")


def test_fields_that_only_rocketmq_knows_are_kept(store_dir: Path) -> None:
    (store_dir / "config").mkdir()
    (store_dir / "config" / "topics.json").write_text(
        '{"dataVersion":{"counter":7,"stateVersion":0,"timestamp":1},"topicConfigTable":{"T":{'
        '"attributes":{"message.type":"FIFO"},"order":true,"perm":4,"readQueueNums":2,'
        '"topicFilterType":"MULTI_TAG","topicName":"T","topicSysFlag":1,"writeQueueNums":1}}}'
    )
    board = make_board()
    metadata = open_metadata(store_dir, board)
    slot = metadata.open("T", create=False)
    assert (slot.queue_count, slot.write_queues, slot.perm) == (2, 1, 4)
    metadata.create("other", 1, "written")
    content = parse_config((store_dir / "config" / "topics.json").read_text())
    kept = content["topicConfigTable"]["T"]
    assert (kept["order"], kept["topicFilterType"], kept["topicSysFlag"]) == (True, "MULTI_TAG", 1)
    assert kept["attributes"] == {"message.type": "FIFO"}
    assert content["dataVersion"]["counter"] == 8


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("", MessageIllegal),
        ("  ", MessageIllegal),
        ("with blank", MessageIllegal),
        ("a/b", MessageIllegal),
        ("é", MessageIllegal),
        ("../up", MessageIllegal),
        ("x" * 128, MessageIllegal),
        ("%RETRY%" + "x" * 249, MessageIllegal),
        ("TBW102", NotPermitted),
        ("rmq_sys_mine", NotPermitted),
        ("SCHEDULE_TOPIC_XXXX", NotPermitted),
    ],
)
def test_names_that_break_a_rule_are_refused(
    store_dir: Path, name: str, error: type[GantryError]
) -> None:
    """CQ-100, CQ-101, SF-35, SF-36."""
    metadata = open_metadata(store_dir, make_board())
    with pytest.raises(error):
        metadata.create(name, 1, "written")
    assert not (store_dir / "config" / "topics.json").exists()


@mends("R5.2")
def test_what_failed_is_as_durable_as_any_topic_of_its_group(store_dir: Path) -> None:
    """Also in a store whose topics were made before that was so."""
    storage = PosixStorage(str(store_dir))
    names = ("%RETRY%billing", "%DLQ%billing")
    attributes = {LEVEL_ATTRIBUTE: "written"}
    entries = {names[0]: topics.TopicConfig(names[0], 1, 1, 6, attributes).to_json()}
    write_config(storage, "topics.json", {"topicConfigTable": entries})
    metadata = open_metadata(store_dir, make_board())
    for name in names:
        slot = metadata.open(name, create=True, of_member=True)
        assert slot.level == Level.DURABLE, name
    assert metadata.create("orders", 1, "written").level == Level.WRITTEN


@pytest.mark.parametrize("name", ["x" * 127, "%RETRY%" + "x" * 248, "a|b%c-d_e", "%DLQ%g"])
def test_longest_and_strangest_legal_names(store_dir: Path, name: str) -> None:
    board = make_board()
    assert open_metadata(store_dir, board).create(name, 1, "written").name == name
    assert board.topics()[0].name == name


def test_clients_may_not_send_to_some_system_topics() -> None:
    """CQ-102, and the queue of timers, which a direct send would stop for good (DT-49)."""
    assert topics.refuses_sends("SCHEDULE_TOPIC_XXXX")
    for name in (HALF_TOPIC, OP_TOPIC, GIVEN_UP_TOPIC, NOTES_TOPIC):
        assert topics.refuses_sends(name)
    assert topics.refuses_sends("rmq_sys_wheel_timer")
    assert not topics.refuses_sends("rmq_sys_REVIVE_LOG_c")
    assert not topics.refuses_sends("TBW102")


@pytest.mark.parametrize("levels", [1, 18, 30])
def test_topics_to_wait_in_are_there_from_the_start(store_dir: Path, levels: int) -> None:
    """As RocketMQ has them; more levels than it has queues for get theirs."""
    for start in range(2):
        settings = config.load(None, {"message_delay_level": "1s " * levels}, {}).settings
        metadata = Metadata(PosixStorage(str(store_dir)), settings, SystemClock())
        metadata.load()
        metadata.add_parking_topics()
        board = make_board()
        metadata.publish(board, Found())
        shown = {topic.name: topic for topic in board.topics()}
        transactions = {HALF_TOPIC, OP_TOPIC, GIVEN_UP_TOPIC, NOTES_TOPIC}
        assert shown.keys() == {SCHEDULE_TOPIC, TIMER_TOPIC} | transactions
        assert all(shown[name].queue_count == 1 for name in transactions)
        assert all(topic.system and topic.perm == 6 for topic in shown.values())
        assert shown[SCHEDULE_TOPIC].queue_count == max(18, levels)
        assert shown[TIMER_TOPIC].queue_count == 1
        written = parse_config((store_dir / "config/topics.json").read_text())
        assert written["dataVersion"]["counter"] == 1, f"written once, start {start}"
        entry = written["topicConfigTable"][SCHEDULE_TOPIC]
        assert (entry["readQueueNums"], entry["writeQueueNums"]) == (max(18, levels),) * 2
        for name in (TIMER_TOPIC, *transactions):
            with pytest.raises(Rejected):
                metadata.delete(name)


def test_an_unknown_topic_is_not_made_unasked(store_dir: Path) -> None:
    metadata = open_metadata(store_dir, make_board(), auto_create_topic_enable=False)
    for create in (True, False):
        with pytest.raises(TopicNotFound, match="gantrymq topic create orders"):
            metadata.open("orders", create=create)


def test_the_same_topic_again_is_fine_another_is_not(store_dir: Path) -> None:
    metadata = open_metadata(store_dir, make_board())
    first = metadata.create("orders", 4, "written")
    assert metadata.create("orders", 4, "written") == first
    with pytest.raises(Rejected, match="exists with 4 queues"):
        metadata.create("orders", 5, "written")
    with pytest.raises(Rejected, match="cannot be changed"):
        metadata.create("orders", 4, "durable")


def test_a_full_board_refuses(store_dir: Path) -> None:
    metadata = open_metadata(store_dir, make_board(queues_max=64))
    metadata.create("a", 60, "written")
    with pytest.raises(Rejected, match="board_queues_max"):
        metadata.create("b", 5, "written")
    metadata.create("c", 4, "written")


def test_a_full_board_names_deleted_topics_that_keep_their_places(store_dir: Path) -> None:
    board = make_board(queues_max=64)
    metadata = open_metadata(store_dir, board)
    slot = metadata.create("old", 40, "written")
    board.set_word(board.queue_at(slot.queue_base) + layout.QUEUE_NEXT_OFFSET, 1)
    metadata.delete("old")
    assert metadata.begin_leaving(()) == []
    with pytest.raises(Rejected, match=r"40 of them of deleted topics.*after retention.*restart"):
        metadata.create("new", 30, "written")


def test_a_restart_finds_topics_and_offsets(store_dir: Path) -> None:
    open_metadata(store_dir, make_board()).create("orders", 2, "durable")
    board = make_board()
    found = Found(
        appended=500,
        durable=500,
        dispatched=500,
        settled=450,
        store_ms=77,
        low=10,
        queues={("orders", 1): (9, 9, 3)},
        topics=frozenset({"orders"}),
    )
    slot = open_metadata(store_dir, board, found).open("orders", create=False)
    assert slot.level == Level.DURABLE
    row = board.queue(slot.queue_base + 1)
    assert (row["next_offset"], row["written"], row["max_offset"]) == (9, 9, 9)
    assert row["min_offset"] == 3
    assert board.word(layout.BOARD_APPENDED) == 500
    assert board.word(layout.BOARD_SETTLED) == 450
    assert board.word(layout.BOARD_STORE_MS) == 77


def test_a_topic_that_only_the_log_knows_is_taken_in(store_dir: Path) -> None:
    """SF-113: a lost topics.json would hide the messages from a RocketMQ, too."""
    board = make_board()
    found = Found(queues={("lost", 2): (5, 5, 0)}, topics=frozenset({"lost"}))
    assert open_metadata(store_dir, board, found).open("lost", create=False).queue_count == 3
    content = parse_config((store_dir / "config" / "topics.json").read_text())
    assert content["topicConfigTable"]["lost"]["readQueueNums"] == 3


def test_a_deleted_topic_is_gone_for_users_but_still_dispatched(store_dir: Path) -> None:
    """CQ-109: records stay until retention; the reader must still know where their units go."""
    metadata = open_metadata(store_dir, make_board())
    metadata.create("orders", 2, "written")
    metadata.delete("orders")
    board = make_board()
    found = Found(queues={("orders", 1): (4, 4, 0)}, topics=frozenset({"orders"}))
    again = open_metadata(store_dir, board, found)
    with pytest.raises(TopicNotFound):
        again.open("orders", create=False)
    hidden = board.topics()[0]
    assert (hidden.name, hidden.queue_count, hidden.perm, hidden.system) == ("orders", 2, 0, True)
    assert board.queue(1)["next_offset"] == 4


@mends("S243")
def test_whoever_follows_the_board_knows_what_one_does_who_begins(
    store_dir: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics come, go, come again and change their level; new ones are all that is read then."""
    dice = random.Random(seed)
    board = make_board()
    metadata, follower = open_metadata(store_dir, board), Board(board.memory)
    names = [f"topic{number}" for number in range(8)]
    for step in range(60):
        name = dice.choice(names)
        if name in {topic.name for topic in Board(board.memory).topics() if not topic.deleted}:
            metadata.delete(name)
        else:
            metadata.create(name, 2, dice.choice(("durable", "written")))
        if dice.random() < 0.7:
            anew = Board(board.memory)
            assert follower.topics() == anew.topics(), step
            assert all(follower.topic_named(one) == anew.topic_named(one) for one in names)
    slots = len(follower.topics())
    reads: list[int] = []

    def read(slot: int) -> TopicSlot | None:
        reads.append(slot)
        return Board.topic(follower, slot)

    monkeypatch.setattr(follower, "topic", read)
    metadata.create("last", 1, "written")
    assert follower.topic_named("last") == Board(board.memory).topic_named("last")
    assert reads == [slots]


def test_a_deleted_topics_name_can_be_used_again(store_dir: Path) -> None:
    """CQ-109 and LW-72: records stay in the log, so offsets go on; what was before is not shown."""
    board = make_board()
    metadata = open_metadata(store_dir, board)
    old = metadata.create("orders", 2, "written")
    metadata.create("other", 1, "written")
    board.set_word(board.queue_at(1) + layout.QUEUE_NEXT_OFFSET, 7)
    metadata.delete("orders")
    new = metadata.create("orders", 2, "durable")
    assert (new.slot, new.queue_base, new.perm, new.system) == (old.slot, old.queue_base, 6, False)
    assert new.level == Level.DURABLE
    assert [board.queue(queue)["min_offset"] for queue in range(2)] == [0, 7]
    assert board.topic_named(new.name) == new, "a change is counted behind what it changes"
    found = Found(queues={("orders", 1): (9, 9, 2)}, topics=frozenset({"orders"}))
    again = make_board()
    open_metadata(store_dir, again, found)
    shown = {topic.name: topic for topic in again.topics()}["orders"]
    assert (shown.perm, shown.system) == (6, False)
    assert again.queue(shown.queue_base + 1)["min_offset"] == 7, "also after a restart"


@mends("S207")
def test_a_topic_made_again_hides_nothing_that_came_after_a_power_cut(store_dir: Path) -> None:
    """The cut takes what was not synced when it was made again: offsets from there come again."""
    board = make_board()
    metadata = open_metadata(store_dir, board)
    metadata.create("orders", 3, "written")
    for queue, end in enumerate((10, 2, 4)):
        board.set_word(board.queue_at(queue) + layout.QUEUE_NEXT_OFFSET, end)
    metadata.delete("orders")
    metadata.create("orders", 3, "written")
    firsts = []
    cut = {("orders", 0): (7, 7, 0), ("orders", 2): (4, 4, 0)}
    sent_then = {("orders", 0): (11, 11, 0), ("orders", 1): (3, 3, 0), ("orders", 2): (5, 5, 0)}
    for queues in (cut, sent_then, sent_then):
        again = make_board()
        found = Found(queues=queues, topics=frozenset({"orders"}))
        slot = open_metadata(store_dir, again, found).open("orders", create=False)
        firsts.append([again.queue(slot.queue_base + n)["min_offset"] for n in range(3)])
    assert firsts == [[7, 0, 4]] * 3


@mends("S207")
def test_without_room_to_say_where_a_topic_begins_there_is_no_start() -> None:
    """What is sent after such a start would be hidden by the next one."""
    entry = topics.TopicConfig("orders", 1, 1, 6)
    entry.begin_at([10])
    storage = SimStorage(Disk())
    write_config(storage, "topics.json", {"topicConfigTable": {"orders": entry.to_json()}})
    storage.faults.faults = (Fault(1, error=errno.ENOSPC, kinds=("write",), persistent=True),)
    again = Metadata(storage, config.load(None, {}, {}).settings, SystemClock())
    again.load()
    with pytest.raises(OSError, match="ENOSPC"):
        again.publish(make_board(), Found(queues={("orders", 0): (7, 7, 0)}))


def test_a_topic_created_again_has_more_queues_only_where_there_is_room(store_dir: Path) -> None:
    board = make_board()
    metadata = open_metadata(store_dir, board)
    metadata.create("first", 1, "written")
    metadata.create("last", 1, "written")
    metadata.delete("first")
    metadata.delete("last")
    with pytest.raises(Rejected, match="had 1 queues"):
        metadata.create("first", 2, "written")
    assert metadata.open("first", create=True).queue_count == 1, "a send takes what there is"
    assert metadata.create("last", 3, "written").queue_count == 3
    assert [board.queue(queue)["queue_id"] for queue in range(1, 4)] == [0, 1, 2]
    assert board.half(layout.BOARD_QUEUE_COUNT) == 4


@mends("S209")
def test_queues_of_a_topic_that_is_being_made_wider_are_nobody_elses(store_dir: Path) -> None:
    """The scheduler wants one for a parked message before the file says that it is wider."""
    board = make_board()
    metadata = open_metadata(store_dir, board, auto_create_topic_enable=False)
    old = metadata.create("wider", 4, "written")
    board.set_word(board.queue_at(old.queue_base) + layout.QUEUE_NEXT_OFFSET, 3)
    metadata.delete("wider")
    made = metadata.plan_create("wider", 8, "written")
    metadata.have("wanted")
    metadata.commit()
    assert made().queue_count == 8
    owners = [board.queue(number)["topic"] for number in range(9)]
    assert owners == [old.slot] * 8 + [old.slot + 1]


def test_a_crash_amid_creating_again_leaves_the_topic(store_dir: Path) -> None:
    """`topics.json` is written first; the list of deleted names may be older."""
    metadata = open_metadata(store_dir, make_board())
    metadata.create("orders", 2, "written")
    metadata.delete("orders")
    listed = (store_dir / "gantry" / "deleted_topics.json").read_bytes()
    metadata.create("orders", 2, "written")
    (store_dir / "gantry" / "deleted_topics.json").write_bytes(listed)
    board = make_board()
    assert open_metadata(store_dir, board).open("orders", create=False).perm == 6
    assert len(board.topics()) == 1


@mends("S46")
def test_a_topic_that_only_its_queues_know_is_taken_in(store_dir: Path) -> None:
    """Its records are in segments that no start reads, or have expired: then it is hidden."""
    board = make_board()
    queues = {("early", 1): (3, 3, 0), ("expired", 0): (9, 9, 9), ("late", 0): (2, 2, 0)}
    metadata = open_metadata(store_dir, board, Found(queues=queues, topics=frozenset({"late"})))
    assert metadata.open("early", create=False).queue_count == 2
    with pytest.raises(TopicNotFound):
        metadata.open("expired", create=False)
    slot = metadata.create("expired", 1, "written")
    assert board.queue(slot.queue_base)["next_offset"] == 9


@mends("S208")
def test_a_deleted_topic_has_all_queues_that_the_log_has_of_it(store_dir: Path) -> None:
    """Another broker made it wider meanwhile, and deleted it as well."""
    metadata = open_metadata(store_dir, make_board())
    for name in ("narrow", "wide", "xy"):
        metadata.create(name, 2, "written")
        metadata.delete(name)
    found = {("xy", 1): (5, 5, 0), ("narrow", 0): (1, 1, 0), ("wide", 3): (9, 9, 0)}
    board = make_board()
    again = open_metadata(store_dir, board, Found(queues=found))
    shown = {topic.name: topic for topic in board.topics()}
    ends = {
        (topic.name, queue_id): board.queue(topic.queue_base + queue_id)["next_offset"]
        for topic in shown.values()
        for queue_id in range(topic.queue_count)
    }
    assert {key: end for key, end in ends.items() if end} == {k: f[0] for k, f in found.items()}
    counts = {name: topic.queue_count for name, topic in shown.items()}
    assert counts == {"narrow": 2, "wide": 4, "xy": 2}
    assert again.open("wide", create=True).queue_count == 4


@mends("S46")
def test_a_flipped_bit_brings_no_deleted_topic_back(store_dir: Path) -> None:
    metadata = open_metadata(store_dir, make_board())
    metadata.create("aa", 1, "written")
    metadata.delete("aa")
    path = store_dir / "gantry" / "deleted_topics.json"
    path.write_bytes(path.read_bytes().replace(b'"aa"', b'"ac"'))
    with pytest.raises(Corrupt, match="checksum"):
        open_metadata(store_dir, make_board())


@mends("S284")
@pytest.mark.parametrize("left", [b"", b"{", b'{"a": }', b"\xff", b"[1]", b'{"a": "x"}'])
def test_a_damaged_list_of_deleted_topics_is_told_in_plain_words(
    store_dir: Path, left: bytes
) -> None:
    path = store_dir / "gantry" / "deleted_topics.json"
    path.parent.mkdir()
    path.write_bytes(left)
    with pytest.raises(
        Corrupt, match=r"deleted_topics.json is damaged \(.+\): put it back"
    ) as told:
        open_metadata(store_dir, make_board())
    for words in ("Expecting", "codec", "char ", "list", "str"):
        assert words not in str(told.value)
