"""A broker whose store was moved away says so, whoever has noticed it first."""

from __future__ import annotations

from pathlib import Path

from gantrymq.clients.home import store_of
from gantrymq.shm.codes import ExitCode
from tests.support.door import opened
from tests.support.trials import mends


@mends("S115")
def test_an_agents_error_that_comes_of_the_move_is_told_as_that(tmp_path: Path) -> None:
    """The code tells a service manager not to start it while another store is put there."""
    with opened(tmp_path) as door:
        store_of(tmp_path).rename(tmp_path / "elsewhere")
        door.supervisor.fail(ExitCode.IO_ERROR, "ledger of groups: no such file")
        assert door.supervisor.exit_code == ExitCode.STORE_BUSY
        told = door.log.getvalue()
        assert "was moved" in told
        assert "ledger of groups" in told
        (tmp_path / "elsewhere").rename(store_of(tmp_path))


def test_another_error_is_told_as_what_it_is(tmp_path: Path) -> None:
    with opened(tmp_path) as door:
        door.supervisor.fail(ExitCode.IO_ERROR, "ledger of groups: no such file")
        assert door.supervisor.exit_code == ExitCode.IO_ERROR
