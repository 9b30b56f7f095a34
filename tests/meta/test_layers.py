"""The import contracts cover every module they should, also those that are new."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import gantrymq
from tests.support.forked import run_program
from tests.support.tree import FOLDERS, PACKAGES, ROOT, module_name, python_files

#: The modules of shm that touch the operating system.
EDGE = ("arena", "board", "bell", "storage", "ownfiles", "clock", "marks")
#: Loaded by the command line, the control path or Spark: no numba below these.
WITHOUT_NUMBA = {
    *(
        "gantrymq.shm.structs",
        "gantrymq.shm.layout",
        "gantrymq.shm.limits",
        "gantrymq.shm.codes",
        "gantrymq.shm.errors",
        "gantrymq.shm.record",
    ),
    *(
        "gantrymq.shm.segment",
        "gantrymq.shm.configfile",
        "gantrymq.shm.ranges",
        "gantrymq.clients.spark.source",
    ),
}


def contract(beginning: str) -> dict[str, Any]:
    """Return the contract of pyproject.toml whose name begins so."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts: list[dict[str, Any]] = settings["tool"]["importlinter"]["contracts"]
    return next(entry for entry in contracts if entry["name"].startswith(beginning))


def modules(package: str) -> set[str]:
    return {module_name(path) for path in python_files(package)} - {f"gantrymq.{package}"}


def test_the_pure_part_of_shm_is_kept_from_its_whole_edge() -> None:
    edge = contract("the pure part of shm")
    assert set(edge["protected_modules"]) == {f"gantrymq.shm.{name}" for name in EDGE}
    importers = {name for name in edge["allowed_importers"] if name.startswith("gantrymq.shm.")}
    assert importers - set(edge["protected_modules"]) == {
        "gantrymq.shm.controllane",
        "gantrymq.shm.jit",
        "gantrymq.shm.storelock",
        "gantrymq.shm.configfile",
        "gantrymq.shm.imported",
        "gantrymq.shm.indexnote",
        "gantrymq.shm.lineage",
        "gantrymq.shm.bitmapnote",
        "gantrymq.shm.notefile",
        "gantrymq.shm.ranges",
    }


def test_what_must_do_without_numba_is_under_the_contract() -> None:
    listed = set(contract("what Spark, the command line")["source_modules"])
    assert listed == WITHOUT_NUMBA & (modules("shm") | modules("clients"))


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages and their contracts, to be broken on purpose."""
    folder = tmp_path_factory.mktemp("copied")
    for path in [*python_files(*PACKAGES), ROOT / "pyproject.toml"]:
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    for name in FOLDERS:
        (folder / "gantrymq" / name).symlink_to(f"../{name}")
    return folder


#: `lint-imports` in a fork: what is loaded of the packages is not of the folder that it looks at.
LINT = """
import importlinter.cli, sys
for name in [name for name in sys.modules if name.partition(".")[0] in sys.argv[1:]]:
    del sys.modules[name]
sys.path.insert(0, "")
sys.argv[1:] = ["--no-cache", "--no-logo"]
importlinter.cli.lint_imports_command()
"""


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    importlib.import_module("importlinter.cli")
    return run_program(LINT, "gantrymq", cwd=folder)


def test_the_contracts_hold(copied: Path) -> None:
    done = lint(copied)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "breaches",
    [
        [("shm/limits.py", "import gantrymq.clients", "layers")],
        [
            ("workers/agent.py", "import gantrymq.clients.home", "layers"),
            ("shm/errors.py", "import numba", "what Spark"),
        ],
        [
            ("clients/home.py", "import gantrymq.brokerd.config", "layers"),
            ("shm/codes.py", "import numpy", "the command line"),
        ],
        [("shm/errors.py", "import gantrymq.shm.kernels.ring", "what Spark")],
        [("shm/record.py", "import gantrymq.shm.clock", "the pure part")],
    ],
    ids=lambda breaches: " and ".join(line for _module, line, _broken in breaches),
)
def test_each_contract_finds_a_breach(copied: Path, breaches: list[tuple[str, str, str]]) -> None:
    """Each look is at breaches of contracts that have nothing to do with each other."""
    texts = {copied / module: (copied / module).read_text() for module, _line, _broken in breaches}
    for module, line, _broken in breaches:
        (copied / module).write_text(f"{texts[copied / module]}\n{line}\n")
    try:
        done = lint(copied)
    finally:
        for path, text in texts.items():
            path.write_text(text)
    assert done.returncode == 1, done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if "BROKEN" in line]
    assert all(
        any(name.startswith(broken) for name in told) for _module, _line, broken in breaches
    ), told


@pytest.mark.parametrize("statement", ["import gantrymq", "import gantrymq, gantrymq.cli"])
def test_importing_loads_nothing_heavy(statement: str) -> None:
    heavy = {"numba", "numpy", "pyarrow", "pyspark", "pandas", "typer", "rich", "msgspec"}
    program = f"import sys; {statement}; print(*sys.modules)"
    command = [sys.executable, "-P", "-c", program]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert not heavy & set(shown.stdout.split())


def test_layouts_are_known_without_numpy() -> None:
    program = "import sys; from gantrymq.shm import errors, layout, structs; print(*sys.modules)"
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
    from gantrymq.shm import errors

    tree = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert {name for name in tree if name[0] != "_"} - {"Any"} <= set(gantrymq.__all__)
