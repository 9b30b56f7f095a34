"""Files of an earlier life of the same store, put back over those of a later one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gantrymq.clients.home import store_of
from gantrymq.clients.producer import Producer
from gantrymq.shm.codes import ExitCode
from gantrymq.temporary import Broker
from tests.crash.conftest import SMALL
from tests.support.brokers import ServingBroker
from tests.support.trials import mends

SEGMENT_BYTES = int(str(SMALL["mapped_file_size_commit_log"]))


def send(broker: Broker, count: int) -> None:
    with Producer(home=broker.home) as producer:
        for _ in range(count):
            producer.send("orders", bytes(1000))


def files_of(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (store / "commitlog").iterdir()}


@mends("S280")
@pytest.mark.parametrize("again", [1, 30, 300])
def test_the_log_of_a_later_life_is_not_cut(
    start_broker: Callable[..., Broker], tmp_path: Path, again: int
) -> None:
    """What lies behind the end of a clean stop is refused by name, and stays."""
    broker = start_broker()
    send(broker, 100)
    broker.stop()
    store = store_of(broker.home)
    shutil.copytree(store, tmp_path / "copy")
    broker.start()
    send(broker, again)
    broker.stop()
    end = max(path.name for path in (store / "commitlog").iterdir())
    shutil.copytree(tmp_path / "copy", store, dirs_exist_ok=True)
    last_copied = max(path.name for path in (tmp_path / "copy/commitlog").iterdir())
    before = files_of(store)
    with ServingBroker(broker.home, **SMALL) as serving:
        if end == last_copied:  # nothing of the later life is left
            serving.wait_until_ready()
            assert serving.stop()[0] == ExitCode.OK
            return
        code, told = serving.end()
    assert code == ExitCode.STORE
    assert "a record follows at" in str(told)
    assert files_of(store) == before
