"""The lists of what is in `gantry/` are complete, whoever makes a new file there."""

from __future__ import annotations

import re

from gantrymq.brokerd import rebuild, storefiles
from gantrymq.workers.groups.ledgerentries import NAME as LEDGER
from tests.support.tree import ROOT
from tests.support.trials import mends

_PACKAGES = ("brokerd", "shm", "workers", "clients")
_NAMED = re.compile(r"\"gantry/([a-z_.]+)\"")


@mends("S18")
def test_every_file_that_the_code_names_is_in_a_list() -> None:
    files = [path for name in _PACKAGES for path in (ROOT / name).rglob("*.py")]
    named = {name for path in files for name in _NAMED.findall(path.read_text("utf-8"))}
    assert len(named) > 15
    assert named <= storefiles.KNOWN.union(storefiles.UNDER_WAY)


def test_what_is_derived_is_what_a_rebuild_deletes() -> None:
    deleted = {path for path in rebuild.DERIVED if path.startswith(storefiles.path_of(""))}
    assert deleted == set(map(storefiles.path_of, storefiles.DERIVED))


def test_no_file_is_in_two_lists() -> None:
    lists = (
        storefiles.TRUTH, storefiles.OF_THE_LOG, storefiles.IDENTITY, storefiles.DERIVED,
        storefiles.OF_THIS_PLACE, storefiles.OF_COMMANDS,
    )  # fmt: skip
    assert len(storefiles.KNOWN) == sum(map(len, lists))
    assert LEDGER in map(storefiles.path_of, storefiles.TRUTH)
