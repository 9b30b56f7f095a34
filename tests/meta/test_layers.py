"""The import contracts cover every module they should, also those that are new."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from typing import Any

import pytest

import gantrymq
from tests.support.tree import ROOT, module_name, python_files

#: The modules of shm that touch the operating system; all others are pure.
EDGE = {"arena", "board", "bell", "storage", "clock", "marks", "jit", "identity"}
#: Loaded by the command line, the control path or Spark: no numba below these.
WITHOUT_NUMBA = {
    *("shm.structs", "shm.layout", "shm.limits", "shm.codes", "shm.errors", "shm.record"),
    *("shm.segment", "shm.configfile", "clients.spark_source"),
}


def contract(beginning: str) -> dict[str, Any]:
    """Return the contract of pyproject.toml whose name begins so."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts: list[dict[str, Any]] = settings["tool"]["importlinter"]["contracts"]
    return next(entry for entry in contracts if entry["name"].startswith(beginning))


def modules(package: str) -> set[str]:
    return {module_name(path) for path in python_files(package)} - {package}


def test_every_pure_module_of_shm_is_under_the_contract() -> None:
    edge = {f"shm.{name}" for name in EDGE}
    pure = {name for name in modules("shm") - edge if not name.startswith("shm.kernels.")}
    assert set(contract("the pure part of shm")["source_modules"]) == pure


def test_the_contract_forbids_every_edge_module() -> None:
    forbidden = set(contract("the pure part of shm")["forbidden_modules"])
    there = {f"shm.{name}" for name in EDGE - {"jit", "identity"}} & modules("shm")
    assert forbidden == there


def test_what_must_do_without_numba_is_under_the_contract() -> None:
    listed = set(contract("what Spark, the command line")["source_modules"])
    assert listed == WITHOUT_NUMBA & (modules("shm") | modules("clients"))


@pytest.mark.parametrize("statement", ["import gantrymq", "import gantrymq, gantrymq.cli"])
def test_importing_loads_nothing_heavy(statement: str) -> None:
    heavy = {"numba", "numpy", "pyarrow", "pyspark", "pandas", "typer", "rich", "msgspec"}
    program = f"import sys; {statement}; print(*sys.modules)"
    command = [sys.executable, "-P", "-c", program]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert not heavy & set(shown.stdout.split())


def test_layouts_are_known_without_numpy() -> None:
    program = "import sys; import shm.structs, shm.layout, shm.errors; print(*sys.modules)"
    command = [sys.executable, "-c", program]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"numba", "numpy"} & set(shown.stdout.split())


@pytest.mark.parametrize("name", gantrymq.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(gantrymq, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'Consumer'"):
        _ = gantrymq.Consumer


def test_every_error_of_the_tree_is_public() -> None:
    from shm import errors

    tree = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert {name for name in tree if name[0] != "_"} - {"Any"} <= set(gantrymq.__all__)
