"""An `except` of what Python itself raises asks whether a signal handler has raised it.

And it can see that: nothing here has CPython raise another error in place of the handler's.
"""

from __future__ import annotations

import ast
import builtins
import codecs
from collections.abc import Iterator
from pathlib import Path
from types import BuiltinFunctionType

from tests.support.tree import ROOT, nodes, parsed, python_files
from tests.support.trials import mends

#: Of the broker's own packages, what runs in an application's process.
IN_APPLICATIONS = ("config.py", "relations.py", "temporaryhome.py")
#: Of what all errors are, and what `next` ends by.
EVERY = (Exception, StopIteration)
#: Where no signal handler of an application's runs, or nothing of Python's may be called.
ELSEWHERE = ("clients/spark", "shm/kernels")
#: Codecs that CPython itself calls in C, whatever their modules have.
IN_C = ("utf-8", "ascii", "latin-1")


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


def codecs_of_python(tree: ast.Module) -> Iterator[int]:
    """Lines that encode or decode by Python's code: CPython replaces what is raised amid that."""
    for node in nodes(tree):
        if isinstance(node, ast.Call):
            named = [word.value for word in node.keywords if word.arg == "encoding"]
            for way in ("encode", "decode"):
                if isinstance(node.func, ast.Attribute) and node.func.attr == way:
                    named += node.args[:1]
                    if not all(_is_in_c(name, (way,)) for name in named):
                        yield node.lineno
                    break
            else:
                if not all(_is_in_c(name, ("encode", "decode")) for name in named):
                    yield node.lineno


def _is_in_c(name: ast.expr, ways: tuple[str, ...]) -> bool:
    """Whatever is no text is not a codec's name, but what is to be encoded by something else."""
    if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
        return True
    codec = codecs.lookup(name.value)
    return codec.name in {codecs.lookup(one).name for one in IN_C} or all(
        isinstance(getattr(codec, way), BuiltinFunctionType) for way in ways
    )


@mends("S142")
def test_no_codec_is_written_in_python() -> None:
    found = {
        str(path.relative_to(ROOT)): lines
        for path in files()
        if (lines := list(codecs_of_python(parsed(path))))
    }
    assert found == {}


def test_codecs_of_python_are_found() -> None:
    text = """
data.decode("utf-8-sig")
data.decode()
text.encode("utf-16-be", "surrogatepass")
data.decode("utf-16-be")
path.read_text(encoding="utf-8-sig")
host.encode("idna")
data.decode(encoding="punycode")
data.decode("utf8", errors="replace")
encoder.encode(frame)
"""
    assert list(codecs_of_python(ast.parse(text))) == [2, 5, 6, 7, 8]
