"""The dump as a command: what it prints, and what it exits with."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gantrymq.cli.store_dump import dump
from gantrymq.shm.codes import ExitCode
from tests.support.forked import run_program
from tests.support.golden import GoldenStore, dump_text

Golden = Callable[[str], GoldenStore]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_program(
        "import sys; from gantrymq.brokerd.dump.__main__ import main; sys.exit(main())", *arguments
    )


def test_it_prints_ascii_lines(golden: Golden) -> None:
    tx = golden("tx")
    shown = run(tx.store, "--settings", tx.settings_file)
    assert (shown.returncode, shown.stderr) == (ExitCode.OK, "")
    assert tuple(shown.stdout.splitlines()) == dump_text("tx")


def test_the_function_of_the_command_line_writes_the_same(golden: Golden) -> None:
    crash = golden("crash")
    out = io.StringIO()
    dump(crash.store, crash.settings_file, "disk", out)
    assert tuple(out.getvalue().splitlines()) == dump_text("crash", "disk")


def test_a_directory_without_a_store_is_refused(tmp_path: Path) -> None:
    shown = run(tmp_path)
    assert (shown.returncode, shown.stdout) == (ExitCode.IO_ERROR, "")
    assert "holds no store" in shown.stderr


@pytest.mark.parametrize(
    ("line", "exit_code", "told"),
    [
        ("mappedFileSizeCommitLog=1000", ExitCode.STORE, "has 262144 bytes, not 1000"),
        ("mappedFileSizeConsumeQueue=2000", ExitCode.STORE, "has 1000 bytes, not 2000"),
        ("maxIndexNum=7", ExitCode.STORE, "index/"),
        ("maxIndexNum=x", ExitCode.USAGE, "maxIndexNum=x"),
    ],
)
def test_wrong_sizes_are_refused(
    golden: Golden, tmp_path: Path, line: str, exit_code: ExitCode, told: str
) -> None:
    """SF-11."""
    (tmp_path / "settings").write_text(line)
    shown = run(golden("tx").store, "--settings", tmp_path / "settings")
    assert shown.returncode == exit_code
    assert told in shown.stderr
