"""What the README shows runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.forked import run_each, run_program
from tests.support.tree import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def python_blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_python_example_runs(tmp_path: Path) -> None:
    """In an empty folder, warnings as errors: a receipt, a queue offset, and the tagged message."""
    blocks = python_blocks()
    assert len(blocks) == 1
    program = tmp_path / "example.py"
    program.write_text(blocks[0], encoding="utf-8")
    done = run_program(program, strict=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    sent, received = done.stdout.splitlines()
    assert re.fullmatch(r"[0-9A-F]{32} \d+", sent)
    assert received == "1 [b'hello']"
    assert [path.name for path in tmp_path.iterdir()] == ["example.py"]


def test_the_commands_that_it_names_are_there() -> None:
    """Each `gantrymq` command of the page is one of the command line."""
    (line,) = re.findall(r"^From the shell: (.*);", README, re.MULTILINE)
    named = [text.removeprefix("gantrymq ") for text in re.findall(r"`([^`]+)`", line)]
    assert len(named) == 26
    for name, done in zip(named, run_each([[*n.split(), "--help"] for n in named]), strict=True):
        assert done.returncode == 0, f"{name}: {done.stderr}"
        assert "--json" in done.stdout, name
