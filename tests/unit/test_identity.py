from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shm.errors import Incompatible
from shm.identity import BROKER_PACKAGES, CLIENT_PACKAGES, require_siblings


def test_the_packages_of_this_tree_are_siblings() -> None:
    require_siblings(BROKER_PACKAGES)


@pytest.fixture
def foreign_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in front of the path that has its own `workers`, which nothing has imported."""
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "__init__.py").write_text("")
    for name in [name for name in sys.modules if name.split(".")[0] == "workers"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path.resolve()


def test_a_foreign_workers_package_is_named(foreign_workers: Path) -> None:
    with pytest.raises(Incompatible, match="package 'workers' was found in") as caught:
        require_siblings(BROKER_PACKAGES)
    assert caught.value.package == "workers"
    assert caught.value.found == str(foreign_workers)


def test_a_client_does_not_mind_a_foreign_workers_package(foreign_workers: Path) -> None:
    require_siblings(CLIENT_PACKAGES)


def test_a_package_that_is_not_there_is_named() -> None:
    with pytest.raises(Incompatible, match="'workers_of_nobody' is missing"):
        require_siblings(("shm", "workers_of_nobody"))
