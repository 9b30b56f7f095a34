"""An `except` of what Python itself raises asks whether a signal handler has raised it."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path

from tests.support.tree import ROOT, nodes, parsed, python_files
from tests.support.trials import mends

#: Of the broker's own packages, what runs in an application's process.
IN_APPLICATIONS = ("config.py", "relations.py", "temporaryhome.py")
#: Of what all errors are, and what `next` ends by.
EVERY = (Exception, StopIteration)
#: Where no signal handler of an application's runs, or nothing of Python's may be called.
ELSEWHERE = ("clients/spark", "shm/kernels")


def files() -> Iterator[Path]:
    yield from python_files("clients", "shm")
    yield ROOT / "gantrymq/temporary.py"
    yield from (ROOT / "brokerd" / name for name in IN_APPLICATIONS)


def kinds(node: ast.expr | None) -> Iterator[str]:
    """Names of errors of Python's own, but for those that all errors are."""
    for one in ast.walk(node) if node is not None else ():
        kind = getattr(builtins, one.id, None) if isinstance(one, ast.Name) else None
        if isinstance(kind, type) and issubclass(kind, Exception) and kind not in EVERY:
            yield kind.__name__


def unasked(tree: ast.Module) -> Iterator[int]:
    """Lines whose `except`, or `suppress`, takes a handler's error for its own."""
    for node in nodes(tree):
        if isinstance(node, ast.ExceptHandler) and any(kinds(node.type)):
            if not ast.unparse(node.body[0]).startswith("require_ours("):
                yield node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
            yield from (node.lineno for kind in node.args if any(kinds(kind)))


@mends("S133")
def test_each_except_asks_whether_the_error_is_its_own() -> None:
    found = {
        str(path.relative_to(ROOT)): lines
        for path in files()
        if not str(path.relative_to(ROOT)).startswith(ELSEWHERE)
        and (lines := list(unasked(parsed(path))))
    }
    assert found == {}


def test_what_is_looked_for_is_found() -> None:
    text = """
try: pass
except (OSError, BrokerGone): pass
with suppress(ValueError): pass
try: pass
except KeyError as error: require_ours(error)
try: pass
except Exception: pass
"""
    assert list(unasked(ast.parse(text))) == [3, 4]
