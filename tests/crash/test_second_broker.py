"""Two brokers on one store: the second is turned away while anything of the first lives (F18)."""

from __future__ import annotations

import os
from pathlib import Path

from gantrymq.brokerd import lock
from gantrymq.clients.home import store_of
from gantrymq.clients.producer import Producer
from gantrymq.shm.codes import ExitCode
from tests.support.adversary import Victim
from tests.support.agents import AGENTS, pid_of
from tests.support.brokers import ServingBroker, is_alive
from tests.support.stores import require_sound
from tests.support.watchdog import poll_until


def test_a_second_broker_changes_nothing(tmp_path: Path) -> None:
    """Exit code 75 before anything was read or written; the first goes on."""
    with ServingBroker(tmp_path / "home") as first, Producer(first.wait_until_ready().home) as p:
        p.send("orders", b"before")
        for _ in range(3):
            with ServingBroker(first.home, lock_timeout=0) as second:
                code, lines = second.end()
            assert code == int(ExitCode.STORE_BUSY)
            assert lines[-1]["error"] == "StoreBusy"
        p.send("orders", b"after")
        p.close()
        assert first.stop()[0] == ExitCode.OK
        bodies = [item.record.body for item in require_sound(store_of(first.home))]
    assert bodies == [b"before", b"after"]


def _wait_for_end(read: int, write: int) -> None:
    """Until the other end of a pipe is closed."""
    os.close(write)
    os.read(read, 1)


def test_a_child_of_a_killed_supervisor_keeps_the_store(tmp_path: Path) -> None:
    """The lock is the open file's: whoever has inherited it holds it, until all are gone."""
    with ServingBroker(tmp_path / "home") as broker:
        broker.wait_until_ready()
        epoch = broker.board.epoch
        pids = [pid_of(broker.home, role) for role in AGENTS]
        broker.kill_all()
        poll_until(lambda: not any(map(is_alive, pids)), "its children follow")
        held = lock.acquire(store_of(broker.home), 10.0)
        read, write = os.pipe()
        orphan = Victim(lambda: _wait_for_end(read, write))
        held.close()  # as a supervisor's death does: the child has it still
        with ServingBroker(broker.home, lock_timeout=0) as second:
            assert second.end()[0] == ExitCode.STORE_BUSY
        waiting = ServingBroker(broker.home, lock_timeout=60)
        with waiting:
            os.close(write)
            os.close(read)
            assert orphan.end() == 0
            waiting.wait_until_ready(not_epoch=epoch)
            assert waiting.stop()[0] == ExitCode.OK
