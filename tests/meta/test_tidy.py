"""Style by the numbers. Each rule is a function that lists offenders, and is shown to find one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tree import (
    PACKAGES,
    ROOT,
    module_name,
    nodes,
    parsed,
    project_files,
    python_files,
)

BODY_LINES_MAX = 60
FILE_LINES_MAX = 800
#: Tables, not code: the one file that says where every byte is must stay one.
LONG_FILES = {ROOT / "shm" / "layout.py"}
PARAMETERS_MAX = 6
#: A kernel has no objects to group its arrays by; a command's parameters are its options.
WIDE_PARAMETERS_MAX = 14
WIDE_FOLDERS = (ROOT / "shm" / "kernels", ROOT / "gantrymq" / "cli")
#: Settings of a public class, each by name.
SETTINGS_MAX = {ROOT / "clients" / "consumer.py": 8, ROOT / "clients" / "session.py": 7}
BANNED_NAMES = {"util", "utils", "common", "helper", "helpers", "compat", "misc"}
#: The only places of the installed packages that may look at the environment.
ENVIRONMENT_READERS = {
    "gantrymq.brokerd.config",
    "gantrymq.shm.jit",
    "gantrymq.shm.marks",
    "gantrymq.clients.home",
    "gantrymq.spark",
}
ENVIRONMENT_READING_PACKAGES = ("gantrymq.cli",)
#: Imported by applications only.
#: Modules that another starts as a process of its own, by a program text.
PROGRAMS = {"gantrymq.shm.compile"}  # by shm/jit.py
PUBLIC_MODULES = {"gantrymq.spark", "gantrymq.pytest_plugin"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in nodes(tree) if isinstance(node, Function))


def body_lines(function: Function) -> int:
    """Lines from the first statement after the docstring to the end."""
    docstring = ast.get_docstring(function, clean=False) is not None
    body = function.body[1:] if docstring else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def parameter_count(function: Function) -> int:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return len([argument for argument in named if argument.arg not in ("self", "cls")])


def too_long(tree: ast.AST) -> list[str]:
    return [
        f"{f.name}: {body_lines(f)} lines"
        for f in functions(tree)
        if body_lines(f) > BODY_LINES_MAX
    ]


def too_many_parameters(tree: ast.AST, limit: int) -> list[str]:
    counts = ((f.name, parameter_count(f)) for f in functions(tree))
    return [f"{name}: {count} parameters" for name, count in counts if count > limit]


def environment_reads(tree: ast.AST) -> list[int]:
    """Line numbers where the environment is looked at."""
    names = {"environ", "environb", "getenv"}
    return [
        node.lineno
        for node in nodes(tree)
        if (isinstance(node, ast.Attribute) and node.attr in names)
        or (isinstance(node, ast.ImportFrom) and names & {alias.name for alias in node.names})
    ]


def anonymous_todos(text: str) -> list[str]:
    """Lines with a to-do that names nobody who will do it."""
    pattern = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b(?!\(\w+\))")
    return [line.strip() for line in text.splitlines() if pattern.search(line)]


def mentioned_modules(tree: ast.AST) -> set[str]:
    """Dotted names that a file imports, or holds as a string to load later."""
    found: set[str] = set()
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value.partition(":")[0])
    return found


def dead_modules(files: dict[str, ast.Module], roots: set[str]) -> set[str]:
    """Modules that none of the other files mentions; what runs by itself is in `roots`."""
    mentioned = {
        name for module, tree in files.items() for name in mentioned_modules(tree) - {module}
    }
    mentioned |= {name.rpartition(".")[0] for name in mentioned}  # a package by what is in it
    return {
        module
        for module in files
        if module not in mentioned and module not in roots and not module.endswith("__main__")
    }


def require_none(offenders: dict[Path, list[str]]) -> None:
    """Fail with one line per offender."""
    lines = [
        f"{path.relative_to(ROOT)}: {what}" for path, found in offenders.items() for what in found
    ]
    if lines:
        pytest.fail("\n".join(lines), pytrace=False)


def test_functions_are_short() -> None:
    require_none({path: too_long(parsed(path)) for path in python_files()})


def too_many_lines(text: str) -> list[str]:
    count = len(text.splitlines())
    return [f"{count} lines"] if count > FILE_LINES_MAX else []


def test_files_are_short() -> None:
    require_none(
        {
            path: too_many_lines(path.read_text(encoding="utf-8"))
            for path in python_files()
            if path not in LONG_FILES
        }
    )


def parameters_max(path: Path) -> int:
    if path.parent in WIDE_FOLDERS:
        return WIDE_PARAMETERS_MAX
    return SETTINGS_MAX.get(path, PARAMETERS_MAX)


def test_functions_take_few_parameters() -> None:
    require_none(
        {path: too_many_parameters(parsed(path), parameters_max(path)) for path in python_files()}
    )


def test_module_names_say_something() -> None:
    named = {
        path: path.parent.name if path.stem == "__init__" else path.stem for path in python_files()
    }
    assert not [str(path) for path, name in named.items() if name.lower() in BANNED_NAMES]


def test_every_to_do_has_a_name() -> None:
    require_none({path: anonymous_todos(path.read_text()) for path in python_files()})


def test_only_named_modules_look_at_the_environment() -> None:
    require_none(
        {
            path: [f"line {line}" for line in environment_reads(parsed(path))]
            for path in python_files(*PACKAGES)
            if module_name(path) not in ENVIRONMENT_READERS
            and not module_name(path).startswith(ENVIRONMENT_READING_PACKAGES)
        }
    )


def test_every_module_is_used_by_the_product() -> None:
    """A module that only its own test imports is dead."""
    files = {module_name(path): parsed(path) for path in python_files(*PACKAGES)}
    started = {name for name in files if name in PACKAGES or f"{name}.__main__" in files}
    outside = {
        name
        for path in python_files("scripts", "bench")
        for name in mentioned_modules(parsed(path))
    }
    assert dead_modules(files, started | outside | PUBLIC_MODULES | PROGRAMS) == set()


def test_every_support_module_is_used_by_a_test() -> None:
    files = {module_name(path): parsed(path) for path in python_files("tests")}
    dead = dead_modules(files, roots=set())
    assert not {name for name in dead if name.startswith("tests.support.")}


def test_every_script_and_bench_is_named_somewhere() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in project_files() if is_text(path)}
    runnable = [
        path
        for path in python_files("scripts", "bench")
        if path.stem not in ("__init__", "__main__")
    ]
    assert not [
        str(path)
        for path in runnable
        if not any(path.stem in text for other, text in texts.items() if other != path)
    ]


def is_text(path: Path) -> bool:
    return path.suffix in (".py", ".md", ".toml", ".sh") or path.name in ("Makefile", "run")


LONG_FUNCTION = "def f():\n" + "    pass\n" * 61
WIDE_FUNCTION = "def f(a, b, c, d, e, *, f, g): pass"


@pytest.mark.parametrize(
    "offenders",
    [
        too_long(ast.parse(LONG_FUNCTION)),
        too_many_lines("\n" * (FILE_LINES_MAX + 1)),
        too_many_parameters(ast.parse(WIDE_FUNCTION), PARAMETERS_MAX),
        environment_reads(ast.parse("import os\nos.environ['A']")),
        environment_reads(ast.parse("from os import getenv")),
        anonymous_todos("# TO" + "DO: later"),
        dead_modules({"a": ast.parse("import b"), "b": ast.parse("import b")}, roots=set()),
    ],
)
def test_each_rule_finds_an_offender(offenders: list[str]) -> None:
    assert len(offenders) == 1


@pytest.mark.parametrize(
    "offenders",
    [
        too_long(ast.parse('def f():\n    """' + "\n" * 70 + '"""\n    pass')),
        anonymous_todos("# TO" + "DO(anna): later"),
        dead_modules({"a": ast.parse("x = 'b:main'"), "b": ast.parse("")}, roots={"a"}),
    ],
)
def test_each_rule_spares_what_is_right(offenders: list[str]) -> None:
    assert not offenders
