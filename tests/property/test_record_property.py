"""Round trips and damage, for any record."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gantrymq.shm import layout
from gantrymq.shm.configfile import format_config, parse_config
from gantrymq.shm.properties import encode_properties, java_hash, parse_properties
from gantrymq.shm.record import OWN, Invalid, Record, encode_record, parse_record

I4 = st.integers(-(1 << 31), (1 << 31) - 1)
I8 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"))
HOST = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)
TOPIC = st.text("tT%ü0", max_size=60) | st.text("tT%0", min_size=120, max_size=255)
PROPERTIES = st.dictionaries(TEXT.filter(bool), TEXT.filter(bool), max_size=5)
RECORDS = st.builds(
    Record,
    topic=TOPIC,
    body=st.binary(max_size=300),
    properties=PROPERTIES.map(encode_properties),
    queue_id=I4,
    flag=I4,
    queue_offset=I8,
    physical_offset=I8,
    sys_flag=I4.map(lambda flags: flags & ~(layout.SYS_BORN_V6 | layout.SYS_STORE_V6)),
    born_timestamp=I8,
    born_host=HOST,
    store_timestamp=I8,
    store_host=HOST,
    reconsume_times=I4,
    prepared_transaction_offset=I8,
)


def size_by_rule(record: Record, data: bytes, trailer: bool) -> int:
    """SF-16."""
    hosts = 12 * (len(record.born_host) == 20) + 12 * (len(record.store_host) == 20)
    wide = int(data[4:8].hex() == "daa320ab")
    counted = len(record.body) + len(record.topic.encode()) + len(record.properties)
    return 91 + counted + hosts + wide + (20 if trailer else 0)


@given(RECORDS, st.booleans())
def test_what_is_encoded_is_read_back(record: Record, trailer: bool) -> None:
    """SF-16, SF-17, SF-22, SF-26."""
    data = encode_record(record, trailer=trailer)
    assert len(data) == size_by_rule(record, data, trailer)
    found = parse_record(b"??" + data + b"?", 2, len(data) + 3)
    assert isinstance(found, Record)
    kept = found.properties[:-20] if trailer else found.properties
    fields = {"total_size": 0, "magic": 0, "body_crc": 0, "sys_flag": record.sys_flag}
    assert replace(found, properties=kept, **fields) == record  # type: ignore[arg-type]
    assert bool(found.sys_flag & layout.SYS_BORN_V6) == (len(record.born_host) == 20)
    assert bool(found.sys_flag & layout.SYS_STORE_V6) == (len(record.store_host) == 20)


@given(RECORDS, st.data())
def test_any_flipped_bit_of_our_own_records_is_seen(record: Record, data: st.DataObject) -> None:
    """The trailer covers every byte before it (SF-23); its own bytes are framed."""
    encoded = bytearray(encode_record(record, trailer=True))
    bit = data.draw(st.integers(0, 8 * len(encoded) - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    verdict = parse_record(encoded, 0, len(encoded), OWN)
    assert isinstance(verdict, Invalid)


@given(RECORDS, st.data())
def test_a_cut_record_is_never_taken(record: Record, data: st.DataObject) -> None:
    """SF-87: fewer bytes than totalSize are left."""
    encoded = encode_record(record)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    assert isinstance(parse_record(encoded, 0, cut), Invalid)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    for start in (b"", b"\0\0\0\x7b\xda\xa3\x20\xa7", b"\0\0\0\x7b\xda\xa3\x20\xab"):
        whole = start + data
        verdict = parse_record(whole, 0, len(whole))
        if isinstance(verdict, Record):
            assert verdict.total_size <= len(whole)


@given(PROPERTIES)
def test_properties_are_read_back(properties: dict[str, str]) -> None:
    """SF-27, SF-28."""
    assert parse_properties(encode_properties(properties)) == properties
    assert list(parse_properties(encode_properties(properties))) == list(properties)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_java_hash_is_a_polynomial_over_utf16(text: str) -> None:
    """SF-4, computed term by term."""
    data = text.encode("utf-16-be")
    units = [data[at] << 8 | data[at + 1] for at in range(0, len(data), 2)]
    total = sum(unit * 31 ** (len(units) - 1 - at) for at, unit in enumerate(units))
    assert java_hash(text) % (1 << 32) == total % (1 << 32)
    assert -(1 << 31) <= java_hash(text) < 1 << 31


JSON = st.recursive(
    st.booleans() | I8 | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
        | st.dictionaries(I8, inner, max_size=3)
    ),
    max_leaves=12,
)


def with_text_keys(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): with_text_keys(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_text_keys(item) for item in value]
    return value


@given(JSON)
def test_config_text_is_read_back(value: object) -> None:
    """SF-104."""
    assert parse_config(format_config(value)) == with_text_keys(value)
