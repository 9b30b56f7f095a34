"""Looks at a stopped store on a tmpfs, whose files are mostly holes, take nothing of its room."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from gantrymq import Broker, Message, Producer
from tests.support.brokers import command
from tests.support.trials import mends


def _blocks(root: Path) -> dict[str, int]:
    """What each file takes."""
    files = [path for path in root.rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): path.stat().st_blocks for path in files}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a broker with files of RocketMQ's sizes, but for its segments."""
    target = tmp_path_factory.mktemp("sparse") / "home"
    sizes = {"max_hash_slot_num": 5_000_000, "max_index_num": 20_000_000}
    sizes["mapped_file_size_consume_queue"] = 6_000_000
    with Broker.temporary(**sizes) as broker:
        with Producer(broker.home) as producer:
            for number in range(3):
                producer.send(Message("orders", b"%d" % number, keys=(f"k{number}",)))
        broker.stop()
        subprocess.run(["cp", "-r", "--sparse=always", str(broker.home), str(target)], check=True)
    return target


@mends("S177")
@pytest.mark.parametrize(
    "words",
    [
        "store verify STORE",
        "store verify --salvage NEW STORE",
        "store dump STORE",
        "store backup NEW --home HOME",
        "query orders --home HOME",
        "query orders --key k1 --home HOME",
        "query orders --no-index --key k1 --home HOME",
        "query orders --offset-at 2020-01-31T08:00 --home HOME",
        "delayed list --home HOME",
    ],
)
def test_a_look_takes_no_room(stopped: Path, tmp_path: Path, words: str) -> None:
    """It would be SIGBUS where a tmpfs is full."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="gantrymq-test-sparse-") as folder:
        home = Path(folder) / "home"
        subprocess.run(["cp", "-r", "--sparse=always", str(stopped), str(home)], check=True)
        before = _blocks(home / "store")
        assert sum(before.values()) * 512 < 4 << 20, "holes for the most part"
        names = {"STORE": home / "store", "HOME": home, "NEW": tmp_path / "new"}
        done = command(*(names.get(word, word) for word in words.split()))
        assert done.returncode == os.EX_OK, done.stderr
        assert _blocks(home / "store") == before
