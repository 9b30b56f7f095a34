"""What others may have written is decoded by few functions, which let one kind of error through."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.tree import PACKAGES, ROOT, nodes, parsed, python_files

#: Modules that decode by themselves, and why.
DECODERS = {
    "shm/jsontext.py": "the one for JSON",
    "shm/packed.py": "the one for msgpack, and for JSON of a known type",
    "brokerd/config.py": "the operator's TOML, at a start only",
    "clients/spark/jsonbodies.py": "one body after another: it catches the same",
    "clients/spark/scan.py": "by that one",
}
_CALLS = {
    "json.loads", "json.load", "json.JSONDecoder", "tomllib.loads", "tomllib.load",
    "msgspec.json.decode", "msgspec.msgpack.decode", "pickle.loads", "ast.literal_eval",
}  # fmt: skip


def decodes(tree: ast.AST) -> Iterator[int]:
    """Lines that decode bytes or text by a library's function, or by a decoder of msgspec's."""
    for node in nodes(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _CALLS:
            yield node.lineno
        elif isinstance(node, ast.Attribute) and node.attr == "decode":
            owner = ast.unparse(node.value)
            if "Decoder(" in owner or owner == "decoder" or owner.lstrip("_").isupper():
                yield node.lineno


def test_only_named_modules_decode_by_themselves() -> None:
    found = {
        str(path.relative_to(ROOT)): lines
        for package in PACKAGES
        for path in python_files(package)
        if (lines := list(decodes(parsed(path))))
    }
    assert {name: lines for name, lines in found.items() if name not in DECODERS} == {}
    assert DECODERS.keys() - found.keys() == set(), "these decode nothing any more"


@pytest.mark.parametrize(
    "code",
    [
        "json.loads(data)", "json.load(file)", "msgspec.msgpack.decode(data)", "_NOTICES.decode(d)",
        "msgspec.json.Decoder(Kind).decode", "tomllib.loads(text)", "decoder.decode(data)",
    ],
)  # fmt: skip
def test_decoding_is_found(code: str) -> None:
    assert set(decodes(ast.parse(code))) == {1}


@pytest.mark.parametrize(
    "code", ["parse_json(data)", "data.decode()", "json.dumps(value)", "decode_packed(_NOTICES, d)"]
)
def test_other_calls_are_none(code: str) -> None:
    assert list(decodes(ast.parse(code))) == []
