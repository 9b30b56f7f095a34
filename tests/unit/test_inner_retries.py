"""A failed message of an inner batch: its copies could not be told from those of the others."""

from __future__ import annotations

from dataclasses import replace

from gantrymq.shm import groupwire, layout
from gantrymq.shm.groupwire import LADDER, SendBack
from gantrymq.shm.properties import encode_properties, parse_properties
from gantrymq.shm.record import encode_record
from tests.support.groups_rig import only
from tests.support.simstorage import SimStorage
from tests.unit.test_sendbacks import filled, member


def test_no_copy_is_made_of_a_message_amid_an_inner_batch() -> None:
    """Copies of one batch's messages would all name its record: nobody could tell them apart."""
    rig = filled()
    hand = member(rig)
    (single,) = rig.log()
    bare = parse_properties(single.properties)
    bare.pop("__CRC32#")
    batch = replace(single, sys_flag=layout.SYS_INNER_BATCH, properties=encode_properties(bare))
    file = SimStorage(rig.disk).open(f"commitlog/{0:020d}", write=True)
    file.write_at(encode_record(batch, trailer=True), 0)
    request = SendBack(9, 0, hand.leases[0], 17, [0], [LADDER], [""])
    refused = only(hand.say(request), groupwire.Refused)
    assert "offset 0 of orders/0 lies in an inner batch" in refused.text
    assert not rig.copies()
