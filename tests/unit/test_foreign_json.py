"""Files of JSON that hold anything at all: each reader has its own error, or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.brokerd import config
from gantrymq.brokerd.epoch import read_store_file
from gantrymq.brokerd.metadata import Metadata
from gantrymq.brokerd.verify.scope import _synced_units
from gantrymq.clients.home import board_file, read_board_file
from gantrymq.clients.spark.options import ReadOptions
from gantrymq.clients.spark.sink.ledger import FILE as SINK_LEDGER
from gantrymq.clients.spark.sink.ledger import StagingFolder
from gantrymq.clients.spark.sink.options import WriteOptions
from gantrymq.clients.spark.stream import next_offset
from gantrymq.shm import bitmapnote, imported, ranges
from gantrymq.shm.clock import SystemClock
from gantrymq.shm.configfile import read_config
from gantrymq.shm.errors import GantryError, Incompatible
from gantrymq.shm.jsonsum import with_sum
from gantrymq.shm.jsontext import parse_json, parse_object
from gantrymq.shm.lineage import FILE as STORE_FILE
from gantrymq.shm.lineage import lineage_of
from gantrymq.shm.notefile import read_content
from gantrymq.shm.storage import PosixStorage
from gantrymq.shm.topicfiles import DELETED
from gantrymq.workers.housekeeper.progress import PROGRESS_FILE, read_table
from gantrymq.workers.transactions.records import read_record, settlement_of
from tests.support.trials import mends

#: What a parser of Python's or of msgspec's ends with, or whoever computes with its value.
TEXTS = {
    "deep array": "[" * 5000,
    "deep object": '{"a":' * 5000,
    "deep and whole": '{"version":1,"id":' + "[" * 450 + "]" * 450 + "}",
    "array": "[]",
    "number": "1",
    "text": '"x"',
    "null": "null",
    "empty": "",
    "object": "{}",
    "endless": '{"position":1e999,"version":1e999,"end":1e999,"queues":{"a@0":1e999}}',
    "no number": '{"position":NaN,"version":Infinity}',
    "large": f'{{"position":{1 << 70},"version":{1 << 70},"orders":{1 << 70}}}',
    "no UTF-8": "\xff\xfe",
    "wrong types": '{"version":[],"queues":[1],"ranges":{"a":1},"filters":3,"end":{},"id":{}}',
}
NOTE = "gantry/note.json"


def _of_store(read: Callable[[PosixStorage], object]) -> Callable[[Path], object]:
    return lambda root: read(PosixStorage(str(root)))


def _load_metadata(storage: PosixStorage) -> None:
    Metadata(storage, config.load(None, {}, {}).settings, SystemClock()).load()


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "lineage": (STORE_FILE, _of_store(lineage_of)),
    "store": (STORE_FILE, _of_store(read_store_file)),
    "ranges": (ranges.FILE, _of_store(ranges.read_ranges)),
    "imported": (imported.FILE, _of_store(imported.read_imported)),
    "bitmaps": (bitmapnote.FILE, _of_store(bitmapnote.read_covered)),
    "note": (NOTE, _of_store(lambda storage: read_content(storage, NOTE, 1))),
    "progress": (PROGRESS_FILE, _of_store(lambda one: read_table(one, PROGRESS_FILE, "position"))),
    "synced": (PROGRESS_FILE, _of_store(_synced_units)),
    "config": ("config/a.json", _of_store(lambda storage: read_config(storage, "a.json"))),
    "deleted": (DELETED, _of_store(_load_metadata)),
    "board": (str(board_file(Path())), read_board_file),
    "checkpoint": ("metadata", lambda root: WriteOptions(checkpoint=str(root)).stream_folder()),
    "sink": (SINK_LEDGER, lambda root: StagingFolder(str(root)).load()),
}


@mends("S23")
@pytest.mark.parametrize("summed", [False, True], ids=["plain", "with a checksum"])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("reader", READERS)
def test_a_file_of_any_text_is_damage_with_a_name(
    tmp_path: Path, reader: str, text: str, summed: bool
) -> None:
    name, read = READERS[reader]
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(with_sum(TEXTS[text]) if summed else TEXTS[text], "latin-1")
    refusal = ""
    try:
        read(tmp_path)
    except GantryError as error:
        refusal = str(error)
    assert not refusal or path.name in refusal


@mends("S23")
@pytest.mark.parametrize("body", [b"\x91" * 5000, b"\xc1", b"", b"\xa1\xff", b"\x01", b"\x91\x01"])
def test_a_note_of_a_transaction_of_any_bytes_is_none(body: bytes) -> None:
    assert read_record(body) == ({}, None)
    assert settlement_of(body) is None


@mends("S23")
@pytest.mark.parametrize(
    "offset", [{}, {"position": "1"}, {"position": -1}, {"position": 0, "store": 3}]
)
def test_an_offset_of_a_checkpoint_that_is_none_is_refused(
    store_dir: Path, offset: dict[str, Any]
) -> None:
    (store_dir / "commitlog").mkdir(parents=True)
    options = ReadOptions.parse({"store": str(store_dir)})
    with pytest.raises(Incompatible, match="this stream's checkpoint has an offset"):
        next_offset(options, offset, None, (None, None))


@given(st.one_of(st.binary(), st.text()))
def test_the_reader_has_one_error(data: bytes | str) -> None:
    for parse in (parse_json, parse_object):
        try:
            parse(data)
        except ValueError:
            continue


def test_what_is_json_is_read_as_it_is() -> None:
    text = '{"a": [1, 2.5, null, true, "\u00e9"], "b": {"c": 123456789012345678901234567890}}'
    value = {"a": [1, 2.5, None, True, "\u00e9"], "b": {"c": 123456789012345678901234567890}}
    assert parse_json(text) == parse_json(text.encode()) == parse_object(text) == value
    assert parse_object(b"\xef\xbb\xbf{}") == {}, "a mark of the byte order, as some editors write"
