"""A ledger that a clean stop has closed is whole at the next start, or the store is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from gantrymq.brokerd.checkpoint import CheckpointFile
from gantrymq.brokerd.ledgerend import require_readable, require_whole
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.lineage import FILE as STORE_FILE
from gantrymq.shm.storage import PosixStorage, read_file, replace_file
from gantrymq.workers.groups.ledger import open_ledger
from gantrymq.workers.groups.ledgerentries import NAME
from tests.support.trials import mends

LIFE = 77


def make_store(
    root: Path, *, clean: bool = True, ledger_open: bool = False, life: int = LIFE, version: int = 3
) -> PosixStorage:
    """What a life leaves that has known some groups."""
    storage = PosixStorage(str(root))
    ledger = open_ledger(storage, life or LIFE)
    for number in range(9):
        ledger.commit(f"g{number}", ("orders", 0), number)
    ledger.end()
    ledger.close()
    replace_file(storage, STORE_FILE, json.dumps({"version": version}).encode())
    with closing(CheckpointFile(storage, bytes(16), life)) as file:
        file.write(0, 0, 0, clean=clean, ledger_open=ledger_open, sync=True)
    return storage


def noise(data: bytes, dice: random.Random) -> bytes:
    return dice.randbytes(len(data))


def cut(data: bytes, dice: random.Random) -> bytes:
    return data[: dice.randrange(len(data))]


def longer(data: bytes, dice: random.Random) -> bytes:
    return data + dice.randbytes(dice.randrange(1, 200))


def spoilt(data: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :]


def noisy_end(data: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(data) - 8)
    return data[:at] + dice.randbytes(len(data) - at)


@mends("S159")
@pytest.mark.parametrize("damage", [noise, cut, longer, spoilt, noisy_end])
def test_a_ledger_without_the_end_of_the_clean_stop_is_refused(
    tmp_path: Path, seed: int, damage: Callable[[bytes, random.Random], bytes]
) -> None:
    """Whatever is left of it: no group goes back, or is forgotten, without a word."""
    dice = random.Random(seed)
    storage = make_store(tmp_path)
    require_whole(storage)
    whole = read_file(storage, NAME)
    for _time in range(50):
        damaged = damage(whole, dice)
        replace_file(storage, NAME, damaged)
        with pytest.raises(Corrupt, match="clean stop") as refused:
            require_whole(storage)
        assert refused.value.fields["path"] == NAME
        assert read_file(storage, NAME) == damaged
    storage.unlink(NAME)
    with pytest.raises(Corrupt, match="is missing"):
        require_whole(storage)


@pytest.mark.parametrize(
    "kind",
    [{"clean": False}, {"ledger_open": True}, {"life": 0}, {"version": 1}],
    ids=["killed", "disk full", "back-up", "of old"],
)
def test_one_that_no_clean_stop_has_closed_may_be_cut(
    tmp_path: Path, seed: int, kind: dict[str, int]
) -> None:
    storage = make_store(tmp_path, **kind)  # type: ignore[arg-type]
    replace_file(storage, NAME, cut(read_file(storage, NAME), random.Random(seed)))
    require_whole(storage)


def test_a_directory_without_a_store_has_no_ledger_to_judge(tmp_path: Path) -> None:
    require_whole(PosixStorage(str(tmp_path)))


@mends("S160")
def test_a_ledger_that_a_start_would_refuse_is_none_to_be_backed_up(tmp_path: Path) -> None:
    data = read_file(make_store(tmp_path), NAME)
    require_readable(data)
    require_readable(data[:-3])
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 0x10
    with pytest.raises(Corrupt, match="entries behind it were durable"):
        require_readable(bytes(damaged))
