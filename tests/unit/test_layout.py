"""Where bytes are, as literals: a layout changes only together with this page.

RocketMQ's files come from the specification (SF-16, SF-22, SF-62, SF-65); shared memory is ours,
and a change there must change the fingerprint that attaching compares.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from gantrymq.shm import layout
from gantrymq.shm.structs import LINE_BYTES, Field, Struct, fingerprint

ROCKETMQ = {
    layout.RECORD: (
        88,
        "total_size 0 magic 4 body_crc 8 queue_id 12 flag 16 queue_offset 20 physical_offset 28"
        " sys_flag 36 born_timestamp 40 born_host 48 store_timestamp 56 store_host 64"
        " reconsume_times 72 prepared_transaction_offset 76 body_length 84",
    ),
    layout.FILLER: (8, "size 0 magic 4"),
    layout.CQ_UNIT: (20, "physical_offset 0 size 8 tags_code 12"),
    layout.CQ_EXT_UNIT: (20, "size 0 tags_code 2 store_timestamp 10 bitmap_bytes 18"),
    layout.BATCH_CQ_UNIT: (
        46,
        "physical_offset 0 size 8 tags_code 12 store_timestamp 20 base_offset 28 batch_size 36"
        " compacted_offset 38 reserved 42",
    ),
    layout.CHECKPOINT: (
        40,
        "physic_msg_timestamp 0 logics_msg_timestamp 8 index_msg_timestamp 16"
        " master_flushed_offset 24 confirm_phy_offset 32",
    ),
    layout.TRAILER: (20, "key 0 separator 8 digits 9 end 19"),
}
SHARED = {
    layout.ENTRY: (
        48,
        "length 0 kind 4 flags 6 seq 8 born_ms 16 route 24 queue 28 body_bytes 32 extra_bytes 36"
        " app_flag 40 batch 44",
    ),
    layout.APPEND: (
        56,
        "sys_flag 0 reconsume_times 4 prepared_offset 8 born_host 16 store_host 36",
    ),
    layout.TELL: (24, "session 0 serial 8 since 16"),
    layout.PARK: (16, "mode 0 value 8"),
    layout.COMPLETION: (
        56,
        "length 0 kind 4 flags 6 seq 8 queue_offset 16 position 24 end 32 queue 40 status 44"
        " store_ms 48",
    ),
    layout.BATCH_COMPLETION: (
        64,
        "length 0 kind 4 flags 6 seq 8 queue_offset 16 position 24 end 32 queue 40 status 44"
        " store_ms 48 count 56",
    ),
    layout.MESSAGE: (16, "length 0 kind 4 flags 6 body_bytes 8"),
    layout.LANE: (
        512,
        "up_tail 0 down_head 128 client_armed 136 up_head 256 agent_state 264 down_tail 384"
        " adopted 392 last_seq 400 next_down 408 next_up 416",
    ),
    layout.ARENA: (
        640,
        "magic 0 fingerprint 8 epoch 16 session 24 bytes 32 wait_armed 128 durable_wanted 136"
        " interest_count 144 progress_count 148 evicted 256 revoked 384 told 512",
    ),
    layout.PROGRESS: (128, "lease 0 queue 8 committed 16 started 24 reserved 32 acked 64"),
    layout.ROUTE: (256, "ready 0 topic 4 block_bytes 8 block 16"),
    layout.BOARD: (
        2048,
        "magic 0 fingerprint 8 epoch 16 boot_id 24 topics_max 40 queues_max 44 segment_bytes 48"
        " cq_bytes 56 started_ms 64 recovered_end 72 wall_ahead_ns 80 state 128 failed_errno 132"
        " topic_count 136 queue_count 140"
        " session_count 144 topic_changes 148 appended 256 store_ms 264 settled 384"
        " durable_wanted 512 durable 640 flusher_armed 648 dispatched 768 reader_armed 776"
        " bitmap_changes 780"
        " low 896 disk_full 904 disk_used 908 timers_wanted 912 indexed 1024 half_progress 1152"
        " op_progress 1160 open_halves 1168 oldest_half_ms 1176 given_up 1184 checks_sent 1192"
        " filter_changes 1280 pending_levels 1408 pending_timers 1416 delivered 1424"
        " late_sum_ms 1432 late_max_ms 1440 late_counts 1448",
    ),
    layout.PROCESS: (
        128,
        "pid 0 restarts 4 started_ms 8 heartbeat 16 busy 24 work 32 refused 40 bytes 48 faults 56"
        " stuck 64 hand_serial 72 hand_session 80 suspects 88",
    ),
    layout.TOPIC: (
        320,
        "ready 0 queue_base 4 queue_count 8 write_queues 12 level 16 perm 20 name_bytes 24"
        " system 28 made 32 name 64",
    ),
    layout.QUEUE: (
        256,
        "max_offset 0 written 8 min_offset 16 topic 24 queue_id 28 recovered_end 32"
        " starts 40"
        " next_offset 128",
    ),
}
FILES = {
    layout.GANTRY_CHECKPOINT: (
        128,
        "magic 0 serial 8 boot_id 16 epoch 32 durable 40 store_ms 48 dispatched 56 clean 64"
        " ledger_open 68 crc 124",
    ),
    layout.SIDECAR: (
        128,
        "magic 0 version 8 records 12 base 16 segment_bytes 24 end 32 first_ms 40 last_ms 48"
        " topics 56 blocks 60 dictionary_bytes 64 crc 124",
    ),
    layout.LEDGER: (
        48,
        "kind 0 attempt 2 group 4 topic 8 queue_id 12 offset 16 value 24 session 32 name_bytes 40"
        " crc 44",
    ),
    layout.PRODUCERS_HEAD: (32, "magic 0 position 8 count 16 crc 28"),
    layout.PRODUCER: (32, "producer 0 last_seq 16 store_ms 24"),
}
PINNED = ROCKETMQ | SHARED | FILES
#: Fields without a meaning of their own.
_ROOM = ("pad", "reserved", "wait_pad")


@pytest.mark.parametrize("table", PINNED, ids=lambda table: table.name)
def test_sizes_and_offsets_are_what_they_were(table: Struct) -> None:
    size, text = PINNED[table]
    words = text.split()
    pinned = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    named = [f.name for f in table.fields if not f.name.startswith(_ROOM) or f.name in pinned]
    assert table.size == size
    assert {name: table.offset(name) for name in named} == pinned


def test_every_table_of_shared_memory_is_pinned() -> None:
    assert set(layout.SHARED) == set(SHARED)


def test_rocketmqs_files_are_big_endian_and_ours_in_memory_little() -> None:
    """SF-1."""
    assert {table.order for table in layout.STORE} == {">"}
    assert {table.order for table in layout.SHARED} == {"<"}


def test_constants_are_rocketmqs() -> None:
    """SF-13, SF-16, SF-20, SF-65."""
    assert (layout.RECORD_MAGIC_V1, layout.RECORD_MAGIC_V2) == (0xDAA320A7, 0xDAA320AB)
    assert layout.FILLER_MAGIC == 0xCBD43194
    assert layout.RECORD_BYTES_MIN == 91
    assert layout.CQ_FILLER_SIZE == 0x7FFFFFFF


def test_regions_follow_one_another() -> None:
    assert (layout.INTEREST_AT, layout.PROGRESS_AT, layout.ROUTES_AT) == (640, 4736, 135808)
    assert (layout.WRITER_LANE_AT, layout.GROUPS_LANE_AT) == (397952, 398464)
    assert layout.RINGS_AT == 400000
    assert (layout.PROCESSES_AT, layout.TOPICS_AT) == (2048, 4096)
    assert layout.queues_at(16) == 4096 + 16 * 320
    assert layout.board_bytes(16, 4) == 4096 + 16 * 320 + 4 * 256


@pytest.mark.parametrize("table", [layout.LANE, layout.QUEUE], ids=lambda table: table.name)
def test_words_of_different_writers_share_no_line(table: Struct) -> None:
    """Two processors that write one line of 128 bytes take it from each other at every store."""
    written = [(table.offset(f.name) // LINE_BYTES, f.writer) for f in table.fields if f.writer]
    for line, group in itertools.groupby(sorted(written), key=lambda pair: pair[0]):
        writers = {writer for _, writer in group if not writer.endswith("once")}
        writers -= {"supervisor"} if table is layout.QUEUE else set()
        assert len(writers) <= 1, (line, writers)
    assert table.size % LINE_BYTES == 0


def test_any_change_of_a_shared_table_changes_the_fingerprint() -> None:
    """Attaching with another fingerprint is refused, so no two layouts ever meet in one region."""
    numbers = {"rings_at": layout.RINGS_AT}
    before = fingerprint(layout.SHARED, numbers)
    *head, body, last = layout.MESSAGE.fields
    swapped = replace(layout.MESSAGE, fields=(*head, last, body))
    signed = replace(layout.MESSAGE, fields=(*head, replace(body, type="i4"), last))
    others = tuple(table for table in layout.SHARED if table is not layout.MESSAGE)
    tables = (layout.MESSAGE, swapped, signed)
    found = {fingerprint((*others, table), numbers) for table in tables}
    assert len(found) == len(tables)
    assert fingerprint(layout.SHARED, {"rings_at": layout.RINGS_AT + 128}) != before


@pytest.mark.parametrize(
    "fields",
    [
        (Field("a", "u1", ""), Field("b", "u4", ""), Field("c", 3, "")),
        (Field("a", "u8", ""), Field("a", "u8", "")),
        (Field("a", "u4", ""),),
    ],
    ids=["unaligned", "twice", "short"],
)
def test_a_table_that_makes_no_sense_is_refused(fields: tuple[Field, ...]) -> None:
    with pytest.raises(ValueError, match=r"^x"):
        Struct("x", sum(f.size for f in fields) if len(fields) > 1 else 8, fields)
