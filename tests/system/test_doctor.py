"""Each finding of `doctor` is met on purpose, and says how to mend it."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from brokerd.doctor import Finding, examine
from clients.home import board_file
from gantrymq.temporary import Broker
from shm.codes import ExitCode


def findings(home: Path, **environment: str) -> dict[str, Finding]:
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


def test_owner(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings(home)["owner"].verdict == "ok"
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: 0 if own else 65534)
    assert str(home) in require_wrong(findings(home)["owner"]).found


def test_limits(home: Path) -> None:
    line = [sys.executable, "-P", "-m", "gantrymq", "doctor", "--home", str(home)]

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    ran = subprocess.run(line, preexec_fn=few, capture_output=True, text=True, check=False)
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


def test_disk_and_shared_memory(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _path: Room)
    found = findings(home)
    assert "free space" in require_wrong(found["disk"]).mend
    assert "shm-size" in require_wrong(found["/dev/shm"]).mend
    monkeypatch.setattr(Room, "f_bavail", 1 << 24)
    assert "inodes" in require_wrong(findings(home)["disk"]).found


def test_kernel_cache(home: Path, tmp_path: Path) -> None:
    line = [sys.executable, "-P", "-m", "gantrymq", "doctor", "--home", str(home)]
    cache = tmp_path / "cache"
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)}

    def said() -> str:
        ran = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
        return next(line for line in ran.stdout.splitlines() if "kernel cache" in line)

    assert said().startswith("note   kernel cache: not compiled yet")
    assert not cache.exists(), "nothing was made"
    probe = "from shm.jit import cache_directory; print(cache_directory())"
    shown = subprocess.run(
        [sys.executable, "-c", probe], env=environment, capture_output=True, text=True, check=True
    )
    folder = Path(shown.stdout.strip())
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert said().startswith("wrong  kernel cache: others may write")
    folder.chmod(0o700)
    assert said().startswith("note   kernel cache: not compiled yet")
    (folder / "kernels").write_bytes(b"")
    assert said() == f"ok     kernel cache: {folder}"


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
