"""What a test's agents have left open ends with the test, and nothing of anybody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantrymq.shm.storage import PosixStorage, read_file, replace_file
from tests.support import openfiles


def test_what_is_open_below_a_folder_is_closed(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    here = PosixStorage(str(tmp_path))
    other = PosixStorage(str(tmp_path_factory.mktemp("other")))
    for storage in (here, other):
        replace_file(storage, "x", b"content")
    left, kept = here.open("x"), other.open("x")
    assert openfiles.close_below(tmp_path) == 1
    assert left.descriptor < 0
    assert kept.size() == len(read_file(other, "x"))
    kept.close()
