"""Each finding of `doctor` is met on purpose, and says how to mend it."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from gantrymq.brokerd import doctor
from gantrymq.brokerd.doctor import Finding, examine
from gantrymq.clients.home import board_file
from gantrymq.shm import jit
from gantrymq.shm.codes import ExitCode
from gantrymq.temporary import Broker
from tests.support.brokers import command
from tests.support.forked import run_forked
from tests.support.trials import mends


def findings(home: Path, **environment: str) -> dict[str, Finding]:
    # A JVM's start would take longer than all other checks.
    environment = {"JAVA_HOME": str(home / "none"), **environment}
    return {found.check: found for found in examine(home, environment)}


def require_wrong(found: Finding) -> Finding:
    assert found.verdict == "wrong", found
    assert found.mend
    return found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home as a start makes it."""
    made = tmp_path / "home"
    for folder in (made, made / "store", made / "run"):
        folder.mkdir(mode=0o700)
    return made


def test_nothing_is_wrong_with_a_new_home(tmp_path: Path) -> None:
    found = findings(tmp_path / "new")
    assert found["home"].verdict == "ok"
    assert [f for f in found.values() if f.verdict == "wrong" and f.check != "java"] == []
    assert not (tmp_path / "new").exists()


def test_settings(home: Path) -> None:
    (home / "gantrymq.toml").write_text("sesions_max = 3\n")
    assert "sessions_max" in require_wrong(findings(home)["settings"]).found
    (home / "gantrymq.toml").write_text("sessions_max = 3\n")
    assert findings(home)["settings"].verdict == "ok"
    assert "9" in require_wrong(findings(home, GANTRYMQ_TOPICS_MAX="9")["settings"]).found


def test_java(home: Path, tmp_path: Path) -> None:
    assert "Java 17" in require_wrong(findings(home, JAVA_HOME=str(tmp_path))["java"]).mend
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    program.chmod(0o755)
    assert "11.0.2" in require_wrong(findings(home, JAVA_HOME=str(tmp_path))["java"]).found
    program.write_text("#!/bin/sh\necho 'openjdk version \"21.0.2\"' >&2\n")
    assert findings(home, JAVA_HOME=str(tmp_path))["java"].verdict == "ok"


@pytest.mark.parametrize("folder", ["store", "run"])
def test_rights(home: Path, folder: str) -> None:
    (home / folder).chmod(0o755)
    assert "chmod 700" in require_wrong(findings(home)["rights"]).mend


def test_what_a_start_refuses_of_a_home(home: Path, tmp_path: Path) -> None:
    home.chmod(0o777)
    assert "others may write" in require_wrong(findings(home)["home"]).found
    home.chmod(0o700)
    assert "home" not in findings(home)
    (home / "store" / "index").symlink_to(tmp_path)
    assert str(home / "store" / "index") in require_wrong(findings(home)["home"]).found
    (home / "store" / "index").unlink()


def test_owner(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings(home)["owner"].verdict == "ok"
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: 0 if own else 65534)
    assert str(home) in require_wrong(findings(home)["owner"]).found


def test_limits(home: Path) -> None:
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    ran = run_forked(["doctor", "--home", str(home)], prepare=few)
    assert ran.returncode == ExitCode.DOES_NOT_HOLD
    assert "wrong  descriptors: RLIMIT_NOFILE 300" in ran.stdout
    assert "LimitNOFILE=3328" in ran.stdout
    assert "wrong  file size" in ran.stdout


class Room:
    """What statvfs says of a disk that is nearly full."""

    f_frsize = 4096
    f_bavail = 10
    f_files = 1000
    f_favail = 5
    f_flag = 0


def test_disk_and_shared_memory(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _path: Room)
    found = findings(home)
    assert "free space" in require_wrong(found["disk"]).mend
    assert "shm-size" in require_wrong(found["/dev/shm"]).mend
    monkeypatch.setattr(Room, "f_bavail", 1 << 24)
    assert "inodes" in require_wrong(findings(home)["disk"]).found


def test_kernel_cache(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    folder = jit.cache_directory.__wrapped__()  # without what it keeps of the first answer
    assert folder.is_relative_to(cache)
    monkeypatch.setattr(jit, "cache_directory", lambda: folder)

    def found() -> tuple[str, str]:
        finding = findings(home)["kernel cache"]
        return finding.verdict, finding.found

    assert found() == ("note", "not compiled yet for this version and processor")
    assert not cache.exists(), "nothing was made"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert found() == ("wrong", f"others may write to {folder}")
    folder.chmod(0o700)
    assert found() == ("note", "not compiled yet")
    (folder / "kernels").write_bytes(b"")
    assert found() == ("ok", str(folder))
    shown = command("doctor", "--home", home).stdout
    assert f"ok     kernel cache: {folder}\n" in shown


def test_what_a_kill_leaves_is_no_wrong_but_is_told() -> None:
    with Broker.temporary() as broker:
        assert findings(broker.home)["broker"].found == "it runs and is ready"
        broker.process.kill()
        broker.process.wait()
        found = findings(broker.home)["runtime files"]
        assert found.verdict == "note"
        assert "/dev/shm/gantrymq-" in found.found
        broker.start()
        broker.stop()
        assert findings(broker.home)["runtime files"].verdict == "ok"


def test_a_lock_without_a_board() -> None:
    with Broker.temporary() as broker:
        text = board_file(broker.home).read_text()
        board_file(broker.home).write_text('{"board": "/gantrymq-test-none"}')
        require_wrong(findings(broker.home)["broker"])
        board_file(broker.home).write_text(text)


@mends("S175")
def test_a_broker_that_is_stopped_or_mute(monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker.temporary() as broker:
        pid = broker.process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            os.waitpid(pid, os.WUNTRACED)  # until it has stopped
            found = require_wrong(findings(broker.home)["broker"])
            assert f"writer ({pid})" in found.found
            assert found.mend == f"kill -CONT {pid}"
            monkeypatch.setattr(doctor, "_is_stopped", lambda _pid: False)
            monkeypatch.setattr(doctor, "ANSWER_S", 0.01)
            assert "did not answer" in require_wrong(findings(broker.home)["broker"]).found
        finally:
            os.kill(pid, signal.SIGCONT)
        monkeypatch.undo()
        assert findings(broker.home)["broker"].verdict == "ok"


@mends("S176")
@pytest.mark.parametrize("name", ["link", "link/below"])
def test_a_home_behind_a_link_to_nowhere(tmp_path: Path, name: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    told = f"a link to {tmp_path}/nowhere, which is not there"
    assert told in require_wrong(findings(tmp_path / name)["home"]).found
    ran = command("serve", "--home", tmp_path / name)
    assert ran.returncode == ExitCode.IO_ERROR
    assert told in ran.stderr


@mends("S176")
def test_a_store_that_is_a_link_to_nowhere(home: Path, tmp_path: Path) -> None:
    (home / "store").rmdir()
    (home / "store").symlink_to(tmp_path / "nowhere")
    told = f"a link to {tmp_path}/nowhere, which is not there"
    assert told in require_wrong(findings(home)["home"]).found
    ran = command("serve", "--home", home)
    assert (ran.returncode, told in ran.stderr) == (ExitCode.IO_ERROR, True)
