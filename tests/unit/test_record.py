"""The record codec: worked examples of the format, and a precise reason for whatever is wrong."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from gantrymq.shm import layout
from gantrymq.shm.messageid import (
    UniqueId,
    encode_host,
    format_host,
    offset_message_id,
    parse_offset_message_id,
)
from gantrymq.shm.properties import (
    encode_properties,
    java_hash,
    parse_delay_levels,
    parse_properties,
    tags_code,
)
from gantrymq.shm.record import (
    OWN,
    RECOVERY,
    STRUCTURE,
    Check,
    Fault,
    Filler,
    Invalid,
    Record,
    crc,
    encode_filler,
    encode_record,
    encode_trailer,
    parse_record,
    trailer_crc,
)

LEVELS = parse_delay_levels("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h")
STORE_HOST = encode_host(bytes([192, 168, 1, 10]), 10911)
LOCAL = encode_host(bytes([127, 0, 0, 1]), 51234)

PLAIN = Record(
    topic="TopicTest",
    body=b"Hello",
    properties=b"KEYS\x01K1\x02TAGS\x01TagA\x02",
    queue_id=1,
    born_timestamp=1700000000000,
    born_host=LOCAL,
    store_timestamp=1700000000123,
    store_host=STORE_HOST,
)
PLAIN_BYTES = bytes.fromhex(
    """
    00 00 00 7b da a3 20 a7 77 d1 89 82 00 00 00 01
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 00 00 00 01 8b cf e5 68 00
    7f 00 00 01 00 00 c8 22 00 00 01 8b cf e5 68 7b
    c0 a8 01 0a 00 00 2a 9f 00 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 05 48 65 6c 6c 6f 09 54 6f
    70 69 63 54 65 73 74 00 12 4b 45 59 53 01 4b 31
    02 54 41 47 53 01 54 61 67 41 02
    """
)
PARKED = replace(
    PLAIN,
    topic="SCHEDULE_TOPIC_XXXX",
    body=b"later",
    properties=encode_properties(
        {"DELAY": "3", "REAL_QID": "0", "REAL_TOPIC": "TopicTest", "TAGS": "TagA"}
    ),
    queue_id=2,
    physical_offset=123,
    born_timestamp=1700000001000,
    store_timestamp=1700000001456,
)
PARKED_BYTES = bytes.fromhex(
    """
    00 00 00 a5 da a3 20 a7 6c 03 b2 49 00 00 00 02
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    00 00 00 7b 00 00 00 00 00 00 01 8b cf e5 6b e8
    7f 00 00 01 00 00 c8 22 00 00 01 8b cf e5 6d b0
    c0 a8 01 0a 00 00 2a 9f 00 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 05 6c 61 74 65 72 13 53 43
    48 45 44 55 4c 45 5f 54 4f 50 49 43 5f 58 58 58
    58 00 32 44 45 4c 41 59 01 33 02 52 45 41 4c 5f
    51 49 44 01 30 02 52 45 41 4c 5f 54 4f 50 49 43
    01 54 6f 70 69 63 54 65 73 74 02 54 41 47 53 01
    54 61 67 41 02
    """
)
IPV6 = replace(
    PLAIN,
    body=b"x",
    properties=b"TAGS\x01TagA\x02",
    queue_offset=1,
    physical_offset=288,
    born_timestamp=1700000002000,
    born_host=encode_host(bytes.fromhex("20010db8000000000000000000000001"), 51234),
    store_timestamp=1700000002345,
)
IPV6_BYTES = bytes.fromhex(
    """
    00 00 00 8f da a3 20 a7 0c dc 16 83 00 00 00 01
    00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00
    00 00 01 20 00 00 00 10 00 00 01 8b cf e5 6f d0
    20 01 0d b8 00 00 00 00 00 00 00 00 00 00 00 01
    00 00 c8 22 00 00 01 8b cf e5 71 29 c0 a8 01 0a
    00 00 2a 9f 00 00 00 00 00 00 00 00 00 00 00 00
    00 00 00 01 78 09 54 6f 70 69 63 54 65 73 74 00
    1e 54 41 47 53 01 54 61 67 41 02 5f 5f 43 52 43
    33 32 23 01 34 37 31 33 38 37 32 36 33 30 02
    """
)


def parsed(data: bytes, check: Check = RECOVERY, position: int | None = None) -> Record:
    record = parse_record(data, 0, len(data), check, position)
    assert isinstance(record, Record), record
    return record


def fault_of(data: bytes, check: Check = RECOVERY, position: int | None = None) -> Fault:
    verdict = parse_record(data, 0, len(data), check, position)
    assert isinstance(verdict, Invalid), verdict
    assert verdict.detail
    return verdict.fault


def put(data: bytes, at: int, replacement: bytes) -> bytes:
    return data[:at] + replacement + data[at + len(replacement) :]


@pytest.mark.parametrize(
    ("record", "data", "trailer"),
    [(PLAIN, PLAIN_BYTES, False), (PARKED, PARKED_BYTES, False), (IPV6, IPV6_BYTES, True)],
    ids=["13.1 plain", "13.2 parked", "13.3 IPv6 and trailer"],
)
def test_worked_examples(record: Record, data: bytes, trailer: bool) -> None:
    """SF-16, SF-19, SF-22, SF-23, SF-26, SF-27."""
    assert encode_record(record, trailer=trailer) == data
    found = parsed(data, position=record.physical_offset)
    assert found == replace(
        record,
        total_size=len(data),
        magic=0xDAA320A7,
        body_crc=found.body_crc,
        sys_flag=found.sys_flag,
        properties=found.properties,
    )
    assert found.properties.startswith(record.properties)


def test_worked_example_of_a_v2_record() -> None:
    """SF-17, SF-22: a topic of 128 characters."""
    data = encode_record(
        replace(IPV6, topic="%RETRY%" + "g" * 121, queue_id=0, queue_offset=5, reconsume_times=1),
        trailer=True,
    )
    assert (len(data), data[4:8].hex()) == (263, "daa320ab")
    assert b"\x00\x80%RETRY%" in data
    assert data.endswith(b"__CRC32#\x017136966571\x02")
    assert crc(data[:-20]) == 1756696317
    assert parsed(data, OWN).topic == "%RETRY%" + "g" * 121


def test_version_follows_utf16_length() -> None:
    """SF-17: 127 characters are V1; a character above U+FFFF counts twice."""
    assert parsed(encode_record(Record(topic="t" * 127))).magic == layout.RECORD_MAGIC_V1
    astral = "\N{PILE OF POO}"
    assert parsed(encode_record(Record(topic=astral * 64))).magic == layout.RECORD_MAGIC_V2
    with pytest.raises(ValueError, match="do not fit"):
        encode_record(Record(topic="é" * 127))  # V1 by length, 254 bytes


def test_reading_starts_anywhere_in_a_buffer() -> None:
    data = b"??" + PLAIN_BYTES + PARKED_BYTES
    first = parse_record(bytearray(data), 2, len(data))
    second = parse_record(memoryview(data), 2 + 123, len(data))
    assert isinstance(first, Record)
    assert isinstance(second, Record)
    assert (first.body, second.body) == (b"Hello", b"later")


def test_filler() -> None:
    """SF-20."""
    assert encode_filler(100) == bytes.fromhex("00000064cbd43194")
    data = encode_filler(100).ljust(100, b"?")
    assert parse_record(data, 0, 100) == Filler(100)
    assert fault_of(data[:99]) == Fault.SIZE


NEGATIVE = b"\xff\xff\xff\xff"


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", Fault.SHORT),
        (PLAIN_BYTES[:4], Fault.SHORT),
        (b"\0\0\0\5\xda\xa3\x20", Fault.SHORT),
        (PLAIN_BYTES[:-1], Fault.SIZE),
        (bytes(200), Fault.MAGIC),
        (put(PLAIN_BYTES, 4, b"\xda\xa3\x20\xa8"), Fault.MAGIC),
        (put(PLAIN_BYTES, 0, NEGATIVE), Fault.LENGTH),
        (put(PLAIN_BYTES, 0, b"\0\0\0\x57"), Fault.LENGTH),
        (put(IPV6_BYTES, 0, b"\0\0\0\x60"), Fault.LENGTH),
        (put(PLAIN_BYTES, 84, b"\0\0\1\0"), Fault.LENGTH),
        (put(PLAIN_BYTES, 84, NEGATIVE), Fault.LENGTH),
        (put(PLAIN_BYTES, 93, b"\x80"), Fault.LENGTH),
        (put(PLAIN_BYTES, 93, b"\x7f"), Fault.LENGTH),
        (put(PLAIN_BYTES, 103, b"\x80\x12"), Fault.LENGTH),
        (put(PLAIN_BYTES, 103, b"\0\x13"), Fault.LENGTH),
        (put(PLAIN_BYTES, 103, b"\0\x11"), Fault.SUM),
        (PLAIN_BYTES[:3] + b"\x7c" + PLAIN_BYTES[4:] + b"\0", Fault.SUM),
        (put(PLAIN_BYTES, 88, b"J"), Fault.BODY_CRC),
        (put(PLAIN_BYTES, 8, NEGATIVE), Fault.BODY_CRC),
        (PARKED_BYTES.replace(b"DELAY\x013", b"DELAY\x01x"), Fault.DELAY),
    ],
)
def test_each_broken_rule_is_named(data: bytes, fault: Fault) -> None:
    """SF-1, SF-63, SF-87."""
    assert fault_of(data) == fault


def test_what_is_not_checked() -> None:
    """SF-5, SF-87: an empty body's CRC, and without being asked the position."""
    empty = encode_record(replace(PLAIN, body=b""))
    assert parsed(put(empty, 8, NEGATIVE)).body == b""
    assert parsed(put(PLAIN_BYTES, 28, b"\1")).physical_offset != 0
    assert fault_of(put(PLAIN_BYTES, 28, b"\1"), position=0) == Fault.POSITION
    assert parsed(put(PLAIN_BYTES, 88, b"J"), STRUCTURE).body == b"Jello"


def test_a_required_trailer_replaces_the_body_crc() -> None:
    """SF-24."""
    assert fault_of(PLAIN_BYTES, OWN) == Fault.NO_TRAILER
    body_at = IPV6_BYTES.index(b"x\x09TopicTest")
    for at in (8, 12, 20, 28, 40, body_at):
        flipped = put(IPV6_BYTES, at, bytes([IPV6_BYTES[at] ^ 1]))
        assert fault_of(flipped, OWN) == Fault.TRAILER_CRC, at
    assert parsed(IPV6_BYTES, OWN).body == b"x"


@pytest.mark.parametrize(
    ("info", "fits"), [("1_2", True), ("1_", False), ("1_2_3", False), ("", False)]
)
def test_dup_info(info: str, fits: bool) -> None:
    """SF-87, `duplicationEnable`."""
    data = encode_record(replace(PLAIN, properties=encode_properties({"DUP_INFO": info})))
    verdict = parse_record(data, 0, len(data), Check(dup_info=True))
    assert isinstance(verdict, Record) == fits
    assert isinstance(parse_record(data, 0, len(data)), Record)


@pytest.mark.parametrize(
    "properties",
    [b"", b"a\x01b", b"a\x01b\x02", b"__CRC32#\x010123456789\x02a\x01b\x02"],
    ids=["none", "unended", "ended", "with an old trailer"],
)
def test_the_trailer_comes_after_clean_properties(properties: bytes) -> None:
    """SF-22."""
    found = parsed(encode_record(replace(PLAIN, properties=properties), trailer=True), OWN)
    kept, stored = found.properties[:-20], found.properties[-20:]
    assert kept == (b"a\x01b\x02" if properties else b"")
    assert trailer_crc(stored) is not None


def test_trailer_digits() -> None:
    """SF-22, SF-23."""
    assert encode_trailer(362783174) == b"__CRC32#\x014713872630\x02"
    assert trailer_crc(b"a\x01b\x02" + encode_trailer(362783174)) == 362783174
    assert trailer_crc(encode_trailer(0)) == 0
    for wrong in (
        b"",
        b"\x02" * 20,
        encode_trailer(5)[:-1] + b"\x03",
        b"__CRC32#\x01 713872630\x02",
    ):
        assert trailer_crc(wrong) is None


def test_crc_is_masked() -> None:
    """SF-5."""
    assert crc(b"Hello") == 0xF7D18982 & 0x7FFFFFFF == 0x77D18982
    assert crc(b"") == 0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("TopicTest#K1", 2745032),
        ("order-created", -392709271),
        ("polygenelubricants", -2147483648),
        ("\N{PILE OF POO}", 0xD83D * 31 + 0xDCA9),
    ],
)
def test_java_hash(text: str, value: int) -> None:
    """SF-4, section 13.1."""
    assert java_hash(text) == value


def test_properties_are_read_as_rocketmq_reads_them() -> None:
    """SF-28: half entries drop out, the first 0x01 separates, the last of a key wins."""
    data = b"a\x011\x02\x012\x02b\x01\x02c\x02d\x01x\x01y\x02\x02a\x013\x02e\x014"
    assert parse_properties(data) == {"a": "3", "d": "x\x01y", "e": "4"}
    assert parse_properties(b"") == {}


def test_properties_are_written_as_rocketmq_writes_them() -> None:
    """SF-27."""
    assert encode_properties({"k": "v", "none": None, "empty": "", "ü": "ß"}) == (
        b"k\x01v\x02empty\x01\x02" + "ü\x01ß\x02".encode()
    )


@pytest.mark.parametrize(
    ("topic", "properties", "code"),
    [
        ("T", {}, 0),
        ("T", {"TAGS": "TagA"}, 2598919),
        ("T", {"TAGS": "polygenelubricants"}, -(1 << 31)),
        ("T", {"TAGS": "TagA", "DELAY": "3"}, 2598919),
        ("SCHEDULE_TOPIC_XXXX", {"TAGS": "TagA", "DELAY": "3"}, 1700000011456),
        ("SCHEDULE_TOPIC_XXXX", {"DELAY": "99"}, 1700000001456 + 7_200_000),
        ("SCHEDULE_TOPIC_XXXX", {"TAGS": "TagA", "DELAY": "0"}, 2598919),
        ("SCHEDULE_TOPIC_XXXX", {"TAGS": "TagA", "DELAY": "-1"}, 2598919),
        ("SCHEDULE_TOPIC_XXXX", {"TAGS": "TagA"}, 2598919),
    ],
)
def test_tags_code(topic: str, properties: dict[str, str], code: int) -> None:
    """SF-62, SF-63, section 13.2."""
    assert tags_code(topic, properties, 1700000001456, LEVELS) == code


def test_delay_levels() -> None:
    assert parse_delay_levels("1s 2m 3h 4d") == (1000, 120_000, 10_800_000, 345_600_000)


def test_offset_message_ids() -> None:
    """SF-31, SF-33."""
    assert PLAIN.offset_message_id == "C0A8010A00002A9F0000000000000000"
    assert offset_message_id(STORE_HOST, 123) == "C0A8010A00002A9F000000000000007B"
    for host in (STORE_HOST, IPV6.born_host):
        text = offset_message_id(host, 1 << 40)
        assert len(text) == (32 if host == STORE_HOST else 56)
        assert parse_offset_message_id(text) == (host, 1 << 40)
    for wrong in ("", "C0", "C0A8010A00002A9F00000000000000", "X" * 32):
        with pytest.raises(ValueError, match=r".*"):
            parse_offset_message_id(wrong)


def test_unique_ids() -> None:
    """SF-32; the example is a UNIQ_KEY of the golden set `plain`'s kind: 16 address bytes."""
    text = "FD000000000000000000000000000002742C4E0E2F2A68E8CF6F0000"
    taken = UniqueId.parse(text)
    assert (len(taken.address), taken.pid, taken.loader_hash) == (16, 0x742C, 0x4E0E2F2A)
    assert (taken.month_ms, taken.counter) == (0x68E8CF6F, 0)
    assert str(taken) == text
    short = UniqueId(bytes([10, 0, 0, 1]), 0x12345, -1, 2, 0x10003)
    assert str(short) == "0A0000012345FFFFFFFF000000020003"
    with pytest.raises(ValueError, match="32 or 56"):
        UniqueId.parse("00")


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("7f000001", "127.0.0.1:51234"),
        ("20010db8000000000000000000000001", "2001:db8:0:0:0:0:0:1:51234"),
        ("00000000000000000000ffff0a000001", "10.0.0.1:51234"),
    ],
)
def test_hosts_look_as_java_prints_them(address: str, text: str) -> None:
    assert format_host(encode_host(bytes.fromhex(address), 51234)) == text


def test_a_host_has_eight_or_twenty_bytes() -> None:
    """SF-19."""
    with pytest.raises(ValueError, match="8 or 20"):
        encode_record(replace(PLAIN, born_host=b"\x7f\0\0\1\0\0"))


def test_reading_a_store_needs_no_numba() -> None:
    program = (
        "import sys\nfrom gantrymq.shm import configfile, record, segment\n"
        "print('numba' in sys.modules)"
    )
    command = [sys.executable, "-c", program]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"
