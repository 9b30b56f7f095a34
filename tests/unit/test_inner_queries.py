"""Queries of inner batches that are odd or damaged inside (RD-70, RD-73, SF-75)."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from gantrymq.clients.queries.client import Client
from gantrymq.shm import layout
from gantrymq.shm.errors import Corrupt, Rejected
from gantrymq.shm.record import Record
from tests.support.sealed import segment_of, write_segment

SEGMENT_BYTES = 1 << 14
BATCH = 0xC0
UNITS_IN_FILE = 2


def member(number: int, keys: str = "") -> bytes:
    body, properties = b"m%d" % number, b"UNIQ_KEY\x01id%d\x02TAGS\x01t%d\x02" % (number, number)
    properties += f"KEYS\x01{keys}\x02".encode() if keys else b""
    size = 22 + len(body) + len(properties)
    head = struct.pack(">iiiii", size, 0, 0, number, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties


def batch(number: int, body: bytes, properties: bytes = b"", host: bytes = bytes(8)) -> Record:
    named = b"UNIQ_KEY\x01batch%d\x02" % number + properties
    return Record(topic="b", body=body, properties=named, sys_flag=BATCH, born_host=host)


def odd_batches() -> list[Record]:
    return [
        batch(0, member(0) + member(1, "k"), b"INNER_BASE\x015\x02INNER_NUM\x012\x02"),
        batch(1, member(2, "k x"), b"KEYS\x01whole k\x02", host=bytes(20)),
        Record(topic="b", body=b"single", properties=b"UNIQ_KEY\x01single\x02KEYS\x01k\x02"),
        batch(2, (member(3) + member(4, "k"))[:-1]),
        batch(3, b""),
        batch(4, member(5, "k") + member(6, "k")),
    ]


@pytest.fixture
def placed(tmp_path: Path) -> list[Record]:
    """A stopped store at tmp_path with these batches and queue files, without an index."""
    view, records = segment_of(odd_batches(), SEGMENT_BYTES)
    store = tmp_path / "store"
    write_segment(store, 0, view)
    for queue in (0, 1):  # by turns
        write_units(store / "batchconsumequeue" / "b" / str(queue), records[queue::2])
    return records


def write_units(folder: Path, records: list[Record]) -> None:
    """Files of UNITS_IN_FILE, the last one of blank units only."""
    folder.mkdir(parents=True)
    units = b"".join(map(unit_of, records))
    room = layout.BATCH_CQ_UNIT.size * UNITS_IN_FILE
    for at in range(0, len(units) + room, room):
        (folder / f"{at:020d}").write_bytes(units[at : at + room].ljust(room, b"\0"))


def unit_of(record: Record) -> bytes:
    return layout.BATCH_CQ_UNIT.pack(
        physical_offset=record.physical_offset,
        size=record.total_size,
        tags_code=0,
        store_timestamp=record.store_timestamp,
        base_offset=record.queue_offset,
        batch_size=1,
        compacted_offset=-1,
        reserved=0,
    )


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("index", [True, False])
def test_a_batch_that_is_damaged_inside_is_named_and_the_others_come(
    tmp_path: Path, placed: list[Record], key: str | None, index: bool
) -> None:
    client = Client(tmp_path)
    found = client.query("b", key, index=index)
    assert [message.body for message in found.page(2)] == [b"m6", b"m5"]
    position = placed[3].physical_offset
    said = f"inner batch at log position {position} is damaged: the member at byte"
    with pytest.raises(Corrupt, match=said) as caught:
        next(found)
    assert caught.value.position == position
    wanted = [b"single", b"m2", b"m1", *([b"m0"] if key is None else [])]
    before = found.before
    assert [message.body for message in found] == wanted
    again = client.query("b", key, index=index, before=before)
    assert [message.body for message in again] == wanted
    with pytest.raises(StopIteration):
        next(found)


def test_members_have_the_place_of_their_batch(tmp_path: Path, placed: list[Record]) -> None:
    """INNER_BASE counts, the queue offset where there is none; hosts may be IPv6."""
    client = Client(tmp_path)
    found = [client.get(f"id{number}") for number in (0, 1, 2, 6)]
    assert [message.queue_offset for message in found] == [5, 6, 0, 1]
    assert [message.tag for message in found] == ["t0", "t1", "t2", "t6"]
    first = placed[0]
    assert {(m.position, m.offset_msg_id) for m in found[:2]} == {(0, first.offset_message_id)}
    query = client.query("b", "k", before=placed[2].physical_offset)
    messages = query.page(1)
    assert [(message.body, message.born_host) for message in messages] == [
        (b"m2", "0:0:0:0:0:0:0:0:0")
    ]
    raw = (tmp_path / "store" / "commitlog" / f"{0:020d}").read_bytes()
    assert query.before is not None
    assert raw[query.before :].startswith(b"m2")


def test_what_only_the_batch_has_names_all_of_it(tmp_path: Path, placed: list[Record]) -> None:
    client = Client(tmp_path)
    with pytest.raises(Corrupt):
        client.query("b", "whole", before=placed[4].physical_offset).page(9)
    found = client.query("b", "whole", before=placed[3].physical_offset)
    assert [message.body for message in found] == [b"m2"]
    found = client.query("b", message_id="batch0", before=placed[3].physical_offset)
    assert [message.body for message in found] == [b"m1", b"m0"]
    assert client.get("batch4").body == b"m5"


def test_get_names_what_may_hold_the_message(tmp_path: Path, placed: list[Record]) -> None:
    """A damaged batch hides no other's message; where there is none it is what may have it."""
    client = Client(tmp_path)
    assert client.get("id1", "b").body == b"m1"
    position = placed[3].physical_offset
    for text in ("id3", "batch2", str(position), placed[3].offset_message_id):
        with pytest.raises(Corrupt, match=f"inner batch at log position {position} is damaged"):
            client.get(text)
    empty = placed[4].physical_offset
    with pytest.raises(Rejected, match=f"inner batch at {empty} holds no message"):
        client.get(str(empty))
