"""The files of the project, for tests about the tree itself."""

from __future__ import annotations

import ast
import gc
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
#: What is installed; tests, bench and scripts are not.
FOLDERS = ("brokerd", "workers", "clients", "shm")  # packages of gantrymq, at the root
PACKAGES = ("gantrymq", *FOLDERS)


@cache
def project_files() -> tuple[Path, ...]:
    """Return all files of the project, committed or not; ignored ones are left out."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    paths = (ROOT / name for name in listed.decode().split("\0") if name)
    return tuple(sorted(path for path in paths if path.is_file()))


def python_files(*folders: str) -> list[Path]:
    """Return the Python files below the named folders of the root, all of them if none is named."""
    return [
        path
        for path in project_files()
        if path.suffix == ".py" and (not folders or path.relative_to(ROOT).parts[0] in folders)
    ]


@contextmanager
def _kept_for_good() -> Iterator[None]:
    """Make what is never freed: the collector, which would look at all of it again, does not."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    with _kept_for_good():
        return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return all nodes of a syntax tree, as ast.walk does; several tests look at the same trees."""
    with _kept_for_good():
        return tuple(ast.walk(tree))


def module_name(path: Path) -> str:
    """Return the dotted name of a Python file; a package's `__init__` has the package's name."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    names = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(("gantrymq", *names) if parts[0] in FOLDERS else names)
