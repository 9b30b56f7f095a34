"""Texts that users read name no rule of the project's own."""

from __future__ import annotations

import ast
import re

from tests.support.tree import PACKAGES, ROOT, nodes, parsed, python_files
from tests.support.trials import mends

#: Of rules as comments and docstrings cite them: SF-28, CQ-100.
RULE = re.compile(r"\b(SF|CQ|HO|LW|FL|DT|RD|TX)-\d+")
#: What they say is printed in documents, beside the rules.
OF_DOCUMENTS = {ROOT / "shm/layout.py", ROOT / "shm/sql92/dialect.py"}


@mends("A12.10")
def test_no_text_quotes_an_internal_rule() -> None:
    """Strings that are no docstrings: errors, log lines, answers, help."""
    found = [
        f"{path}:{line}: {text}"
        for package in PACKAGES
        for path in python_files(package)
        if path not in OF_DOCUMENTS
        for line, text in _texts(parsed(path))
        if RULE.search(text)
    ]
    assert not found, "\n".join(found)


def _texts(tree: ast.Module) -> list[tuple[int, str]]:
    alone = {id(node.value) for node in nodes(tree) if isinstance(node, ast.Expr)}
    return [
        (node.lineno, node.value)
        for node in nodes(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone
    ]
