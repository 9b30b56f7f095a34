"""Filters in the simulator: every seventh seed makes bits, and an oracle reads them."""

from __future__ import annotations

from gantrymq.shm import layout
from gantrymq.shm.bitmapnote import Covered, extension_directory, read_covered
from gantrymq.shm.storage import Storage, read_file
from tests.support.model import Model
from tests.support.storedlog import QueueName, Stored, require

EVERY = 7
SETTINGS = {
    "enable_consume_queue_ext": True,
    "enable_calc_filter_bit_map": True,
    "mapped_file_size_consume_queue_ext": 1024,
}
#: Of the messages an eighth; seqs are hexadecimal there.
EXPRESSION = "UNIQ_KEY ENDSWITH '2' OR UNIQ_KEY ENDSWITH '9'"
DIALECT = "sql"
#: What the reader says where filters take it long, as they do here (tests/support/simpace.py).
NOTE = "filters_take_long"


def settings_of(seed: int) -> dict[str, object]:
    """What a machine of this seed is set to besides."""
    return dict(SETTINGS) if seed % EVERY == 0 else {}


def check_bits(storage: Storage, model: Model, queue: QueueName, shown: range, low: int) -> None:
    """No extension of a shown message denies a filter that is TRUE (FL-65)."""
    topic, queue_id = queue
    known = [covered for covered in read_covered(storage) if covered.topic == topic]
    folder = f"consumequeue/{topic}/{queue_id}"
    records = {(r.topic, r.queue, r.offset): r for r in model.log if r.position >= low}
    for name in storage.list(folder) if known else ():
        data = read_file(storage, f"{folder}/{name}")
        first = int(name) // layout.CQ_UNIT_BYTES
        end = min(shown.stop, first + len(data) // layout.CQ_UNIT_BYTES)
        for offset in range(max(first, shown.start), end):
            unit = layout.CQ_UNIT.unpack(data, (offset - first) * layout.CQ_UNIT_BYTES)
            record = records.get((topic, queue_id, offset))
            if record is not None and unit["tags_code"] <= layout.CQ_EXT_ADDRESS_MAX:
                address = unit["tags_code"] - layout.CQ_EXT_ADDRESS_BASE
                bitmap = bitmap_of(storage, queue, address)
                denied = sum(_denies(model, covered, record, bitmap) for covered in known)
                model.tally["denied_by_bits"] += denied


def _denies(model: Model, covered: Covered, record: Stored, bitmap: bytes) -> bool:
    """Whether a consumer passes the record over; then the filter must not be TRUE of it."""
    if record.position < covered.start or len(bitmap) != covered.bits // 8:
        return False
    bits = int.from_bytes(bitmap, "little")
    denied = not all(bits >> position & 1 for position in covered.positions)
    true = model.is_true(covered.expression, record)
    require(not (denied and true), "FL-65", f"{covered.group} would miss {record}")
    return denied


def bitmap_of(storage: Storage, queue: QueueName, address: int) -> bytes:
    """Of the extension at an address."""
    size = SETTINGS["mapped_file_size_consume_queue_ext"]
    base = address // size * size
    data = read_file(storage, f"{extension_directory(*queue)}/{base:020d}")
    fields = layout.CQ_EXT_UNIT.unpack(data, address - base)
    whole = fields["size"] == layout.CQ_EXT_UNIT_BYTES + fields["bitmap_bytes"]
    require(whole, "SF-72", f"no extension of {queue} at {address}")
    start = address - base + layout.CQ_EXT_BITMAP
    return data[start : start + fields["bitmap_bytes"]]
