"""Compressed bodies (SF-25) and inner batches (RD-60, RD-70), and what is wrong with them."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import zlib

import lz4.frame
import pytest
import zstandard

from gantrymq.clients import stored_body
from gantrymq.clients.stored_body import plain_body
from gantrymq.shm.innerbatch import Member, is_inner_batch, members

ZLIB_OLD, LZ4, ZSTD, ZLIB = 0x001, 0x101, 0x201, 0x301
PLAIN = bytes(random.Random(20131).choices(b"abcdefgh", k=70_000))


def streamed_zstd(plain: bytes) -> bytes:
    """Without the content's size in the frame's head, as Java's stream writes it."""
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(plain) + packer.flush()


PACKED = {
    ZLIB_OLD: zlib.compress(PLAIN, 5),
    LZ4: lz4.frame.compress(PLAIN),
    ZSTD: streamed_zstd(PLAIN),
    ZLIB: zlib.compress(PLAIN, 5),
}


@pytest.mark.parametrize("flag", PACKED)
def test_a_body_comes_out_as_it_went_in(flag: int) -> None:
    assert plain_body(memoryview(PACKED[flag]), flag | 0x10) == PLAIN
    assert plain_body(PACKED[flag], flag & ~1) == PACKED[flag], "not said to be compressed"


@pytest.mark.parametrize("flag", PACKED)
def test_an_empty_body(flag: int) -> None:
    pack = {LZ4: lz4.frame.compress, ZSTD: streamed_zstd}.get(flag, zlib.compress)
    assert plain_body(pack(b""), flag) == b""
    with pytest.raises(ValueError, match="it ends early"):
        plain_body(b"", flag)


@pytest.mark.parametrize("flag", PACKED)
def test_what_is_cut_or_changed_is_no_body(flag: int) -> None:
    packed = PACKED[flag]
    for end in (1, 5, len(packed) // 2, len(packed) - 1):
        with pytest.raises(ValueError, match=r"no (ZLIB|LZ4|ZSTD) data: "):
            plain_body(packed[:end], flag)
    with pytest.raises(ValueError, match=r"no (ZLIB|LZ4|ZSTD) data: "):
        plain_body(b"\xff" + packed[1:], flag)


@pytest.mark.parametrize("flag", [LZ4, ZSTD])
def test_several_frames_are_one_body(flag: int) -> None:
    assert plain_body(PACKED[flag] * 3, flag) == PLAIN * 3


def test_what_follows_a_zlib_stream_is_left_out() -> None:
    """As Java's inflater does."""
    assert plain_body(PACKED[ZLIB] + b"more", ZLIB) == PLAIN


@pytest.mark.parametrize("kind", [4, 5, 6, 7])
def test_an_unknown_compression_is_named(kind: int) -> None:
    with pytest.raises(ValueError, match=f"compression type {kind} is unknown"):
        plain_body(PACKED[ZLIB], 1 | kind << 8)


@pytest.mark.parametrize("flag", PACKED)
def test_what_unpacks_without_end_is_refused(flag: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_body, "PLAIN_BYTES_MAX", len(PLAIN))
    assert plain_body(PACKED[flag], flag) == PLAIN
    monkeypatch.setattr(stored_body, "PLAIN_BYTES_MAX", len(PLAIN) - 1)
    with pytest.raises(ValueError, match="more than 69999 bytes"):
        plain_body(PACKED[flag], flag)


def test_decoders_are_loaded_when_they_are_needed() -> None:
    program = (
        "import sys, zlib; from gantrymq.clients.batch import MessageBatch;"
        "from gantrymq.clients.stored_body import plain_body; plain_body(zlib.compress(b''), 1);"
        "sys.exit(bool({'lz4', 'zstandard'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def member(body: bytes, properties: bytes, flag: int = 0) -> bytes:
    size = 22 + len(body) + len(properties)
    head = struct.pack(">iiiii", size, 0, 0, flag, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties


def test_members_of_an_inner_batch() -> None:
    """RD-60: the first three fields of a member say nothing."""
    batch = b"\xff" * 12 + member(b"one", b"a\x01b\x02", 7)[12:] + member(b"", b"")
    first, second = members(memoryview(batch))
    assert first == Member(7, 20, 3, 25, 4)
    assert second == Member(0, 49, 0, 51, 0)
    assert list(members(memoryview(b""))) == []


def test_members_that_do_not_add_up() -> None:
    batch = member(b"one", b"p\x01q\x02") + member(b"two", b"")
    for end in range(1, len(batch)):
        if end != len(member(b"one", b"p\x01q\x02")):
            with pytest.raises(ValueError, match="the member at byte"):
                list(members(memoryview(batch[:end])))
    for at in (16, 23):  # a body's and the properties' length below 0
        damaged = bytearray(batch)
        damaged[at] |= 0x80
        with pytest.raises(ValueError, match="the member at byte 0"):
            list(members(memoryview(damaged)))


@pytest.mark.parametrize(
    ("flag", "inner"), [(0xC0, True), (0xD0, True), (0x40, False), (0x80, False), (0xC1, False)]
)
def test_which_records_are_inner_batches(flag: int, inner: bool) -> None:
    assert is_inner_batch(flag) is inner
