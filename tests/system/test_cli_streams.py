"""Standard streams that take nothing, and Ctrl-C: each command's end keeps its documented code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gantrymq.cli import tail
from gantrymq.cli.board import running_board
from gantrymq.cli.topic_show import find_topic
from gantrymq.clients.control import look_at
from gantrymq.clients.producer import Producer
from gantrymq.shm import wire
from gantrymq.shm.codes import ExitCode
from gantrymq.temporary import Broker
from tests.support.applications import PATIENCE_S, bodies_of
from tests.support.trials import mends

#: Python keeps what it could not write until its end, unless this says otherwise.
UNBUFFERED = "PYTHONUNBUFFERED"


def in_shell(call: str, *, unbuffered: bool = False) -> subprocess.CompletedProcess[str]:
    """A call in a fresh interpreter, streams as the shell opens them."""
    environment = {name: value for name, value in os.environ.items() if name != UNBUFFERED}
    return subprocess.run(
        ["sh", "-c", f"{sys.executable} -P -m gantrymq {call}"],
        env=environment | ({UNBUFFERED: "1"} if unbuffered else {}),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip


@mends("S173")
@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("streams", [">/dev/full", ">/dev/full 2>&1"])
def test_output_on_a_full_disk_has_one_code(
    tmp_path: Path, streams: str, *, unbuffered: bool
) -> None:
    """With and without the parser of options; the complaint may have no room either."""
    for call in ("--version", f"serve --check --home {tmp_path}"):
        ran = in_shell(f"{call} {streams}", unbuffered=unbuffered)
        assert ran.returncode == ExitCode.IO_ERROR, ran
        told = "" if "2>" in streams else "gantrymq: [Errno 28] No space left on device\n"
        assert ran.stderr == told


@mends("S173")
@pytest.mark.parametrize(
    ("call", "code"),
    [("status --home {0}", ExitCode.NO_BROKER), ("store verify {0}/none", ExitCode.USAGE)],
)
def test_a_complaint_without_room_changes_no_code(
    tmp_path: Path, call: str, code: ExitCode
) -> None:
    assert in_shell(f"{call.format(tmp_path)} >/dev/full 2>&1").returncode == code


@mends("S173")
def test_a_traceback_without_room_changes_no_code() -> None:
    program = (
        "import sys, gantrymq.cli, gantrymq.cli.quick as quick\n"
        "quick.plain = lambda arguments: 1 / 0\n"
        "sys.stderr = open('/dev/full', 'w')\n"
        "gantrymq.cli.main()"
    )
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run([sys.executable, "-P", "-c", program], stderr=full, check=False)
    assert ran.returncode == ExitCode.STORE


@mends("S173")
def test_nothing_is_received_where_standard_output_is_closed(
    broker: Broker, unique_name: str
) -> None:
    """What would be shown nowhere stays for the next one."""
    with Producer(broker.home) as producer:
        producer.send(unique_name, b"kept")
    call = f"receive {unique_name} --group g-{unique_name} --home {broker.home}"
    ran = in_shell(f"{call} --max 1 --wait {PATIENCE_S} >&-")
    assert ran.returncode == ExitCode.IO_ERROR, ran
    assert "standard output is closed" in ran.stderr
    shown = in_shell(f"{call} --max 1 --wait {PATIENCE_S}")
    assert (shown.returncode, shown.stdout) == (0, "kept\n")
    assert bodies_of(broker.home, unique_name, 1) == [b"kept"]


#: Runs the command line; Ctrl-C comes amid the third message.
STOPPED = """
import gantrymq.cli.receive as receive
from gantrymq.cli import main
shown, show = [], receive._show

def stopped(message, as_json):
    if len(shown) == 2:
        raise KeyboardInterrupt
    shown.append(message)
    show(message, as_json)

receive._show = stopped
main()
"""


@mends("S198")
def test_ctrl_c_amid_a_batch_commits_nothing_that_was_not_printed(
    broker: Broker, unique_name: str
) -> None:
    bodies = [b"%d" % number for number in range(9)]
    with Producer(broker.home) as producer:
        for body in bodies:
            producer.send(unique_name, body, queue_id=0)
    words = ["receive", unique_name, "--group", f"g-{unique_name}", "--home", str(broker.home)]
    ran = subprocess.run(
        [sys.executable, "-P", "-c", STOPPED, *words, "--wait", str(PATIENCE_S)],
        capture_output=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"0\n1\n", b"")
    again = in_shell(f"{' '.join(words)} --max {len(bodies)} --wait {PATIENCE_S}")
    assert again.stdout.encode().split() == bodies


@mends("S199")
def test_tail_ends_however_many_messages_come_meanwhile(broker: Broker, unique_name: str) -> None:
    with Producer(broker.home) as producer:
        for _ in range(3):
            producer.send(unique_name, b"before", queue_id=0)
        board = running_board(Path(broker.home))
        shown = []
        for record in tail._records(
            Path(broker.home), board, find_topic(board, unique_name), (2, False)
        ):
            shown.append(record.body)
            producer.send(unique_name, b"meanwhile", queue_id=0)
            assert len(shown) < 9, "it follows"
        assert shown == [b"before"] * 2


@mends("S224")
def test_tail_follows_the_queues_that_a_topic_gains(broker: Broker, unique_name: str) -> None:
    home, name = Path(broker.home), unique_name
    with Producer(home) as producer, look_at(home) as control:
        control.request(wire.CreateTopic(name, 1, "written"), wire.TopicOpened)
        producer.send(name, b"before")
        board = running_board(home)
        records = tail._records(home, board, find_topic(board, name), (1, True))
        assert next(records).body == b"before"
        control.request(wire.DeleteTopic(name), wire.Done)
        control.request(wire.CreateTopic(name, 2, "written"), wire.TopicOpened)
        bodies = [b"gained", b"old"]
        for queue_id, body in zip((1, 0), bodies, strict=True):
            producer.send(name, body, queue_id=queue_id)
        assert next(records).body == bodies[0]


@mends("S172")
def test_a_path_that_is_no_text_is_printed(tmp_path: Path) -> None:
    program = (
        "import gantrymq.cli, sys; sys.stdout.reconfigure(errors='strict')\ngantrymq.cli.main()"
    )
    store = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xffz"))
    (store / "commitlog").mkdir(parents=True)
    ran = subprocess.run(
        [sys.executable, "-P", "-c", program, "store", "verify", store],
        capture_output=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert rb"a\udcffz (stopped" in ran.stdout


#: Runs the command line; the import of the first argument is where Ctrl-C comes.
INTERRUPTED = """
import sys
awaited = sys.argv.pop(1)

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == awaited:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Finder)
from gantrymq.cli import main
main()
"""


@mends("S174")
@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("gantrymq.cli.leave", ["status"]),
        ("gantrymq.cli.quick", ["status"]),
        ("gantrymq.cli.board", ["status"]),
        ("gantrymq.cli.store_verify", ["store", "verify", "/"]),
        ("gantrymq.cli.app", ["serve"]),
        ("typer", ["serve"]),
        ("gantrymq.brokerd.config", ["serve"]),
        ("gantrymq.brokerd.serve", ["serve"]),
        ("gantrymq.clients.producer", ["send", "t", "--body", "x"]),
    ],
)
def test_ctrl_c_amid_an_import_ends_a_command_in_silence(
    tmp_path: Path, module: str, words: list[str]
) -> None:
    """As later: by whichever import, with 130, and without a trace."""
    ran = subprocess.run(
        [sys.executable, "-P", "-c", INTERRUPTED, module, *words],
        env={**os.environ, "GANTRYMQ_HOME": str(tmp_path / "home")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")
    assert not (tmp_path / "home").exists()
