"""The file of offsets of a broadcasting consumer: what no consumer writes is not believed."""

from __future__ import annotations

import gc
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gantrymq.clients.message import MessageQueue
from gantrymq.clients.push.broadcast import OffsetFile
from gantrymq.shm.errors import Corrupt, NotPermitted
from tests.support.groups_rig import Rig
from tests.support.trials import mends
from tests.unit.test_member import begins


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that a consumer has written."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = OffsetFile("/nowhere", "g", "i")
    file.require_store("abc")
    file.life = 0xFFFF_FFFF_FFFF_FFFF
    file.offsets = {MessageQueue("orders", 0): 7, MessageQueue("%RETRY%g", 12): 1 << 62}
    file.save()
    file.close()
    return file.path


def read(path: Path) -> dict[MessageQueue, int]:
    assert path.is_absolute()
    file = OffsetFile("/nowhere", "g", "i")
    file.close()
    return file.offsets


@pytest.fixture
def descriptors() -> Iterator[None]:
    """See that a refused file leaves no descriptor open."""
    gc.collect()  # what agents of other tests have left would go amid this one
    before = os.listdir("/proc/self/fd")
    yield
    assert os.listdir("/proc/self/fd") == before


def test_what_was_saved_is_read(path: Path) -> None:
    assert read(path) == {MessageQueue("orders", 0): 7, MessageQueue("%RETRY%g", 12): 1 << 62}


OFFSETS = (-1, -5, 2**62 + 1, 2**70, 5.9, 5.0, True, "5", None, [5], float("inf"), float("nan"))
TABLES: tuple[Any, ...] = (None, [], "x", {"orders": [1]})
Change = Callable[[dict[str, Any]], object]
CHANGES: list[Change] = [
    *(lambda c, bad=bad: c["offsets"]["orders"].update({"0": bad}) for bad in OFFSETS),
    *(
        lambda c, bad=bad: c["offsets"]["orders"].update({bad: 1})
        for bad in ("-1", "01", "+1", " 1", "1_0", "x", "", "9" * 20, "9" * 5000)
    ),
    *(lambda c, bad=bad: c.update(life=bad) for bad in ("", "-1", "0x1", "f" * 17, "F", 7, None)),
    *(lambda c, bad=bad: c.update(store=bad) for bad in (7, None, ["abc"])),
    *(
        lambda c, bad=bad: c["offsets"].update({bad: {"0": 1}})
        for bad in ("", "a\ud800", "t" * 256)
    ),
    *(lambda c, bad=bad: c.update(offsets=bad) for bad in TABLES),
    lambda c: c.pop("offsets"),
]


@mends("S9")
@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_a_value_that_no_consumer_writes_is_damage(path: Path, number: int) -> None:
    content = json.loads(path.read_text())
    CHANGES[number](content)
    path.write_text(json.dumps(content))
    with pytest.raises(Corrupt, match="or remove it: the consumer begins anew then") as refused:
        read(path)
    assert refused.value.fields["path"] == str(path)
    assert str(path) in str(refused.value)


@mends("S9")
@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize(
    "text", [b"", b"[]", b"7", b"\0" * 100, b"\xff\xfe", b"[" * 200_000, b'{"offsets":' * 9000]
)
def test_a_file_that_is_none_is_damage(path: Path, text: bytes) -> None:
    path.write_bytes(text)
    with pytest.raises(Corrupt, match="is no offset file"):
        read(path)


@mends("S130")
@pytest.mark.usefixtures("descriptors")
def test_a_folder_in_its_place_is_told_by_its_path(path: Path) -> None:
    path.unlink()
    path.mkdir()
    with pytest.raises(Corrupt, match="is no offset file") as refused:
        read(path)
    assert f"Is a directory: '{path}'" in str(refused.value)


@mends("S130")
@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize("suffix", [".json", ".lock"])
def test_a_link_in_the_place_of_a_file_is_refused_by_its_name(path: Path, suffix: str) -> None:
    link = path.with_suffix(suffix)
    link.unlink()
    link.symlink_to("/etc/passwd")
    with pytest.raises(NotPermitted, match=r"a symbolic link.*remove it") as refused:
        read(path)
    assert str(link) in str(refused.value)
    assert refused.value.fields["path"] == str(link)


@mends("S9")
def test_an_offset_behind_the_end_is_damage_and_passes_over_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In one life of the broker; in the next one a power cut may have been: that is told."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    rig = Rig(orders=1)
    rig.fill(0, 300)
    assert begins(rig, "far", committed=300) == 300
    [path] = tmp_path.rglob("*.json")
    content = json.loads(path.read_text())
    content["offsets"]["orders"]["0"] = 301
    path.write_text(json.dumps(content))
    with pytest.raises(Corrupt, match="has offset 301 in orders/0, which ends at 300"):
        begins(rig, "far")
    assert json.loads(path.read_text()) == content, "it is left for who mends it"
    rig.restart_broker()
    with caplog.at_level(logging.WARNING, "gantrymq"):
        assert begins(rig, "far") == 300
    [record] = caplog.records
    assert f"{path} has offset 301 in orders/0" in record.getMessage()
