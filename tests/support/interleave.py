"""Lets others come in between any two statements of some modules' functions.

Each function gets code that is made of the same source, with a call before each statement. Threads
of a real process may be interrupted anywhere; here they are where the dice say so.
"""

from __future__ import annotations

import ast
import gc
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Final

#: The name by which functions find what is called.
_NAME: Final = "__between__"


class _Between(ast.NodeTransformer):
    """Puts the call before each statement of functions."""

    def __init__(self) -> None:
        self._depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Of a function, all bodies; a docstring stays first."""
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Of any statement with statements in it."""
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if self._depth and isinstance(block, list) and not isinstance(node, ast.ClassDef):
                setattr(node, field, list(_spread(block)))
        return node


def _spread(block: list[ast.stmt]) -> Iterable[ast.stmt]:
    for statement in block:
        plain = isinstance(statement, ast.Global | ast.Nonlocal | ast.FunctionDef)
        text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not (plain or text):
            called = ast.Call(ast.Name(_NAME, ast.Load()), [], [])
            yield ast.fix_missing_locations(ast.copy_location(ast.Expr(called), statement))
        yield statement


def _codes(code: CodeType) -> Iterable[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def interleave(modules: Iterable[ModuleType], between: Callable[[], None]) -> int:
    """Call `between` before each statement of the modules' functions; how many functions."""
    by_place: dict[tuple[str, str, int], CodeType] = {}
    for module in modules:
        path = inspect.getsourcefile(module)
        if path is None:
            continue
        tree = _Between().visit(ast.parse(Path(path).read_text(encoding="utf-8"), path))
        for code in _codes(compile(tree, path, "exec", dont_inherit=True)):
            by_place[path, code.co_qualname, code.co_firstlineno] = code
        setattr(module, _NAME, between)
    count = 0
    gc.unfreeze()
    for function in gc.get_objects():
        if isinstance(function, FunctionType):
            old = function.__code__
            place = old.co_filename, old.co_qualname, old.co_firstlineno
            fresh = by_place.get(place)
            if fresh is not None and fresh.co_freevars == old.co_freevars:
                function.__code__ = fresh
                count += 1
    return count
