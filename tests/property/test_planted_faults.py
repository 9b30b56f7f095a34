"""`store verify` finds every planted fault, and names its file and place (P13)."""

from __future__ import annotations

import shutil
from itertools import permutations
from pathlib import Path

import pytest

from gantrymq.brokerd.verify import Report, verify
from tests.support.planting import FILTERED, KINDS, Fault, Planter
from tests.support.small_stores import filtered_store
from tests.support.trials import mends


@pytest.fixture(scope="module")
def store(varied_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped store with all kinds of files; each test leaves it as it was."""
    return Path(shutil.copytree(varied_store, tmp_path_factory.mktemp("planted") / "store"))


@pytest.fixture(scope="module")
def filtered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with bitmaps."""
    return filtered_store(tmp_path_factory.mktemp("planted") / "store")


def is_named(fault: Fault, report: Report) -> bool:
    """Whether a finding tells the planted file, and the place in it."""
    places = [finding.position for finding in report.findings if finding.path in fault.paths]
    return bool(places) and (
        fault.positions is None or not fault.positions.isdisjoint(set(places) - {None})
    )


@mends("S155", "S185")
def test_any_other_file_of_its_folder_in_a_file_s_place_is_named(store: Path) -> None:
    """With a checksum that holds: a note of one agent is none of another, whatever it is for."""
    planter = Planter(store, 1)
    for first, second in permutations(planter.contents(), 2):
        in_one = Path(first).parts[0] == Path(second).parts[0]
        is_backup = first.removesuffix(".bak") == second.removesuffix(".bak")
        if not in_one or is_backup or planter.kept[first] == planter.kept[second]:
            continue
        planter.write(first, planter.kept[second])
        found = {finding.path for finding in verify(store).findings}
        planter.take_back()
        assert first in found, f"{second} in the place of {first}"


def test_nothing_is_found_where_nothing_is_wrong(store: Path) -> None:
    report = verify(store)
    assert report.ok, str(report)
    assert report.segments >= 4
    assert report.sidecars == report.segments - 1


@pytest.mark.parametrize("kind", list(KINDS))
def test_planted_faults_are_found_and_named(
    request: pytest.FixtureRequest, kind: str, seed: int
) -> None:
    """A thousand in all, one at a time."""
    store: Path = request.getfixturevalue("filtered" if kind == FILTERED else "store")
    count, plant = KINDS[kind]
    planter = Planter(store, seed)
    missed = []
    for _ in range(count):
        fault = plant(planter)
        report = verify(store)
        if not is_named(fault, report):
            missed.append(f"{fault.what}: {report}")
        planter.take_back()
    assert not missed, f"{len(missed)} of {count}:\n" + "\n\n".join(missed[:5])
    assert verify(store).ok, "the planter has put everything back"


def test_there_are_a_thousand() -> None:
    assert sum(count for count, _ in KINDS.values()) == 1000
