"""`gantrymq dlq export`: a whole file or none, and no letter is lost for another one."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gantrymq.cli import dlq_act
from gantrymq.cli.dlq_letters import Wanted
from gantrymq.shm.errors import Corrupt, Rejected
from gantrymq.shm.layout import SYS_COMPRESSED
from tests.support.adversary import Victim
from tests.support.trials import mends


def letter(offset: int, body: bytes = b"x", sys_flag: int = 0) -> Any:  # noqa: ANN401 - stands for one
    record = SimpleNamespace(body=body, sys_flag=sys_flag)
    return SimpleNamespace(record=record, properties={}, topic="t", place=(0, offset), resent=False)


class Export:
    """Exports letters that `letters` gives into `file`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.file = folder / "dead.jsonl"
        self.letters: Callable[[], Iterator[Any]] = lambda: iter([letter(0), letter(1)])
        dead = SimpleNamespace(
            letters=lambda *_: self.letters(), queues=lambda _: [], require_named=lambda *_: None
        )
        monkeypatch.setattr(dlq_act, "DeadLetters", lambda _: dead)

    def run(self, *, dry_run: bool = False) -> int:
        """Its exit code."""
        return dlq_act.export("g", Wanted(), self.file, home=None, dry_run=dry_run, as_json=False)

    @property
    def lines(self) -> int:
        """How many letters the file has."""
        return len([json.loads(line) for line in self.file.read_text().splitlines()])


@pytest.fixture
def export(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Export:
    return Export(monkeypatch, tmp_path)


@mends("S189")
@pytest.mark.parametrize(
    "error", [Corrupt("damaged"), OSError(errno.ENOSPC, "full"), KeyboardInterrupt()]
)
def test_an_export_that_ends_early_leaves_no_file(
    export: Export, tmp_path: Path, error: BaseException
) -> None:
    """So the repeat is not refused."""
    whole = export.letters

    def broken_off() -> Iterator[Any]:
        yield letter(0)
        raise error

    export.letters = broken_off
    with pytest.raises(type(error)) as told:
        export.run()
    assert getattr(told.value, "filename", str(export.file)) == str(export.file)
    assert os.listdir(tmp_path) == []
    export.letters = whole
    assert (export.run(), export.lines) == (0, 2)
    assert os.listdir(tmp_path) == [export.file.name]


@mends("S189")
def test_an_export_that_is_killed_leaves_its_name_free(export: Export) -> None:
    """What there is of it says that it is not all."""
    whole = export.letters

    def killed() -> Iterator[Any]:
        yield letter(0)
        os._exit(9)

    export.letters = killed
    assert Victim(lambda: print(export.run())).end() == 9
    (left,) = os.listdir(export.file.parent)
    assert left.startswith("dead.jsonl.")
    assert left.endswith(".partial")
    export.letters = whole
    assert (export.run(), export.lines) == (0, 2)


@mends("S189")
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_body_that_cannot_be_unpacked_keeps_no_other_letter_from_the_file(
    export: Export, capsys: pytest.CaptureFixture[str], dry_run: bool
) -> None:
    spoilt = [letter(offset, b"junk", SYS_COMPRESSED) for offset in (7, 9)]
    export.letters = lambda: iter([letter(0), *spoilt, letter(10)])
    assert export.run(dry_run=dry_run) == 1
    assert export.file.exists() is not dry_run
    assert dry_run or export.lines == 2
    told = capsys.readouterr().err
    assert "2 not written: its body cannot be unpacked" in told
    assert "(--at 7, 9)" in told


@mends("S189")
def test_nothing_that_is_there_is_replaced(export: Export, tmp_path: Path) -> None:
    """A link that leads nowhere neither, nor what comes as the letters are read."""
    export.file.symlink_to(tmp_path / "nowhere")
    with pytest.raises(Rejected, match="name a new file"):
        export.run()
    export.file.unlink()
    whole = export.letters

    def overtaken() -> Iterator[Any]:
        yield from whole()
        export.file.write_text("another's")

    export.letters = overtaken
    with pytest.raises(Rejected, match="name a new file"):
        export.run()
    assert export.file.read_text() == "another's"
    assert os.listdir(tmp_path) == [export.file.name]
