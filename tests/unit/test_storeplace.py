"""Where users may have things made: in no store, by whichever command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gantrymq.brokerd import config
from gantrymq.brokerd.backup import backup
from gantrymq.brokerd.salvage import salvage
from gantrymq.brokerd.textfile import require_place
from gantrymq.cli.dlq_act import export
from gantrymq.clients.spark.options import ReadOptions
from gantrymq.clients.spark.table.job import Ingest, IngestOptions
from gantrymq.shm.errors import Rejected
from gantrymq.shm.storeplace import store_around
from tests.support.trials import mends


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a store of which no more is there than tells that it is one."""
    for name in ("commitlog/inner", "config", "consumequeue"):
        (tmp_path / "home" / "store" / name).mkdir(parents=True)
    return tmp_path / "home"


def _ingest(home: Path, place: Path) -> None:
    read = ReadOptions.parse({"store": str(home / "store")})
    Ingest(IngestOptions(read, str(place), "table"))


def _textfile(home: Path, place: Path) -> None:
    require_place(home, config.load(None, {"metrics_textfile": str(place)}, {}).settings)


def _export(home: Path, place: Path) -> None:
    wanted: Any = None  # the place is looked at first
    export("g", wanted, place, home=home, dry_run=False, as_json=False)


#: Whatever makes something where a user says.
MADE: dict[str, Callable[[Path, Path], object]] = {
    "store backup": backup,
    "store verify --salvage": lambda home, place: salvage(home / "store", place),
    "ingest": _ingest,
    "metrics_textfile": _textfile,
    "dlq export": _export,
}


@mends("S8")
@pytest.mark.parametrize("place", ["commitlog/new", "commitlog/inner/new", "config/new", "new"])
@pytest.mark.parametrize("name", MADE)
def test_nothing_is_made_in_a_store(name: str, place: str, home: Path) -> None:
    before = sorted(home.rglob("*"))
    with pytest.raises(Rejected, match="outside"):
        MADE[name](home, home / "store" / place)
    assert sorted(home.rglob("*")) == before


@mends("S130")
def test_a_store_is_not_said_to_lie_in_itself(home: Path) -> None:
    with pytest.raises(FileExistsError, match="is there already: name"):
        salvage(home / "store", home / "store")
    with pytest.raises(Rejected, match="it is a store already"):
        _ingest(home, home / "store")


def test_links_and_ways_back_are_followed(home: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(home / "store" / "commitlog")
    assert store_around(tmp_path / "link" / "new") == home / "store"
    assert store_around(home / "store" / ".." / "new") is None
    assert store_around(home / "new") is None
