"""The checksum inside of JSON files."""

from __future__ import annotations

import json

import pytest

from gantrymq.shm.configfile import format_config, parse_config
from gantrymq.shm.jsonsum import FIELD, looks_like_sum, sum_holds, with_sum, without_sum

TEXTS = [
    "{}",
    json.dumps({"a": 1, "größe": [1, 2]}),
    format_config({"offsetTable": {"t@g": {0: 1, 12: 3}}, "empty": {}}),
]


@pytest.mark.parametrize("text", TEXTS)
def test_the_content_stays(text: str) -> None:
    """One field more, of an object with and without others."""
    content = parse_config(with_sum(text))
    assert FIELD in content
    assert without_sum(content) == parse_config(text)
    assert sum_holds(with_sum(text).encode()) is True


@pytest.mark.parametrize("text", TEXTS)
def test_any_bit_and_any_cut_is_seen(text: str) -> None:
    """By the checksum, by the parser, or by the field's own name."""
    data = with_sum(text).encode()
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        assert is_seen(bytes(changed)), bit
    for length in range(len(data)):
        assert is_seen(data[:length]), length


def is_seen(data: bytes) -> bool:
    try:
        content = parse_config(data.decode())
    except ValueError:
        return True
    return sum_holds(data) is False or any(looks_like_sum(name) for name in content)


def test_a_file_of_another_has_none() -> None:
    assert sum_holds(b'{"a":1}') is None
    assert not looks_like_sum("dataVersion")
