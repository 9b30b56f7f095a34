"""The list of log events in docs/operate.md is the code's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gantrymq.brokerd.children import AGENT_UP
from gantrymq.brokerd.log import LEVELS
from gantrymq.shm import wire
from tests.support.tree import ROOT, nodes, parsed, python_files

#: Notes between processes that are no lines of the log.
_SILENT = {
    AGENT_UP, wire.GROUP_JOINED, wire.GROUP_LEFT, wire.GROUP_TOPIC_WANTED, wire.PASSED,
    wire.QUEUES_BEGIN, wire.SESSIONS_SETTLED,
}  # fmt: skip
_CALL = re.compile(r"(^|\.)_?log$")


def calls(tree: ast.AST) -> Iterator[tuple[ast.Call, ast.Attribute]]:
    """Calls by a name that writes a line of the log, or a note."""
    for node in nodes(tree):
        function = node.func if isinstance(node, ast.Call) else None
        if not isinstance(node, ast.Call) or not isinstance(function, ast.Attribute):
            continue
        if function.attr in LEVELS or function.attr in ("note", "_line"):
            yield node, function


def text_of(argument: ast.expr) -> str | None:
    """A text that stands there, or that has a name in `shm.wire`."""
    found: object = None
    if isinstance(argument, ast.Constant):
        found = argument.value
    elif isinstance(argument, ast.Attribute) and ast.unparse(argument.value) == "wire":
        found = getattr(wire, argument.attr, None)
    return found if isinstance(found, str) else None


def events(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Level and event of each line that a module writes, by itself or by a note."""
    for node, function in calls(tree):
        texts = [text for arg in node.args if (text := text_of(arg)) is not None]
        owner = ast.unparse(function.value)
        if function.attr in LEVELS and _CALL.search(owner) and texts:
            yield function.attr, texts[0]
        elif function.attr in ("note", "_line") and len(texts) == 2:
            yield texts[0], texts[1]


def in_code() -> set[tuple[str, str]]:
    found = {item for path in python_files("brokerd", "workers") for item in events(parsed(path))}
    return {item for item in found if item[1] not in _SILENT}


def in_docs() -> set[tuple[str, str]]:
    """Rows `| level | event | ...` of the table below the heading "Events"."""
    text = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
    section = text.split("\n## Events\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\w+) \| `(\w+)` \| \S.* \| \S.* \|$", section, re.MULTILINE)
    return {(level, event) for level, event in rows}


def test_every_event_is_listed_and_every_listed_event_is_there() -> None:
    assert in_docs() - in_code() == set(), "listed, but no code writes them"
    assert in_code() - in_docs() == set(), "written, but docs/operate.md does not list them"


def test_every_call_names_its_event_in_the_open() -> None:
    """A name that is computed could not be listed; only the supervisor passes on notes."""
    hidden = []
    for path in python_files("brokerd", "workers"):
        for node, function in calls(parsed(path)):
            named = node.args and isinstance(node.args[0], ast.Constant)
            of_log = _CALL.search(ast.unparse(function.value))
            if function.attr in LEVELS and of_log and not named:
                hidden.append(f"{path.name}:{node.lineno}")
    assert hidden == []


def test_an_event_would_be_found() -> None:
    program = "self._log.warning('a_b', x=1)\nt.note('error', 'c', y=2)\nmath.log.x('no')\n"
    program += "t.note('debug', wire.PASSED, number=3)\n"
    found = {("warning", "a_b"), ("error", "c"), ("debug", wire.PASSED)}
    assert set(events(ast.parse(program))) == found
