"""The set-up finds what a machine has, and says what to do about what it lacks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import java
from tests.support.evidence import make_targets
from tests.support.tree import ROOT


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def java_home(folder: Path, version: str) -> Path:
    """Make a folder whose `bin/java` says that it is of that version."""
    return script(
        folder / "bin" / "java", f"echo 'openjdk version \"{version}\"' >&2"
    ).parent.parent


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(java, "SYSTEM_JAVAS", tmp_path / "jvm")
    monkeypatch.setattr(sys, "argv", ["java.py"])
    return tmp_path.resolve()


def test_java_home_comes_first(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java_home(bare, "21.0.2")
    wished = java_home(bare / "wished", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(wished))
    assert java.find() == wished


def test_a_java_that_is_too_old_is_passed_over(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_home(bare / "old", "11.0.9")))
    assert java.find() is None
    assert java.find() != java_home(bare, "17.0.1")
    assert java.find() == bare


def test_the_systems_folder_is_searched(bare: Path) -> None:
    java_home(bare / "jvm" / "java-8", "1.8.0_372")
    newer = java_home(bare / "jvm" / "java-17", "17.0.1")
    assert java.find() == newer


def test_path_comes_before_the_systems_folder(bare: Path) -> None:
    java_home(bare / "jvm" / "java-21", "21.0.2")
    assert java.find() == bare / "jvm" / "java-21"
    (bare / "bin").mkdir()
    (bare / "bin" / "java").symlink_to(java_home(bare / "elsewhere", "17.0.1") / "bin" / "java")
    assert java.find() == bare / "elsewhere"


@pytest.fixture
def package_manager(bare: Path) -> Path:
    """An `apt-get` that has Java 21 alone, as newer Debians do; returns its log."""
    home = java_home(bare / "package", "21.0.2")
    (bare / "jvm").mkdir()
    log = bare / "apt.log"
    link = shutil.which("ln", path=os.defpath)
    script(
        bare / "bin" / "apt-get",
        f"""echo "$*" >> {log}
        case "$*" in
            update*) exit 0 ;;
            *{java.PACKAGES[1]}) {link} -s {home} {bare}/jvm/java-21 ;;
            *) exit 100 ;;
        esac""",
    )
    return log


def test_root_gets_java_by_the_package_manager(
    bare: Path,
    package_manager: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The packages are tried in their order; without `--install` nothing is."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(SystemExit, match="needs Java"):
        java.main()
    assert not package_manager.exists()
    monkeypatch.setattr(sys, "argv", ["java.py", "--install"])
    java.main()
    said = capfd.readouterr()
    assert said.out.strip() == str(bare / "jvm" / "java-21")
    assert [f"java: installing {name}" in said.err for name in java.PACKAGES] == [True, True]
    asked = [line.split()[-1] for line in package_manager.read_text().splitlines()]
    assert asked == ["-q", *java.PACKAGES]


def test_who_is_not_root_is_told_what_to_do(
    package_manager: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["java.py", "--install"])
    with pytest.raises(SystemExit, match=r"apt-get install .* JAVA_HOME"):
        java.main()
    assert not package_manager.exists()


def test_a_package_manager_without_java_ends_in_the_message(
    bare: Path, package_manager: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(bare / "bin" / "apt-get", f'echo "$*" >> {package_manager}; exit 100')
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(sys, "argv", ["java.py", "--install"])
    with pytest.raises(SystemExit, match=r"needs Java 17 .* JAVA_HOME"):
        java.main()
    assert len(package_manager.read_text().splitlines()) == 1 + len(java.PACKAGES)


def test_without_java_it_is_said_what_to_do(bare: Path) -> None:
    with pytest.raises(SystemExit, match=r"needs Java 17 .* apt-get install .* JAVA_HOME"):
        java.main()


def test_without_a_new_python_it_is_said_what_to_do(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    script(folder / "id", "echo 1000")
    script(folder / "python3", "exit 1")  # as an old Python answers the question for its version
    (folder / "dirname").symlink_to(str(shutil.which("dirname")))
    done = subprocess.run(
        ["/bin/sh", ROOT / "scripts" / "setup.sh"],
        env={"PATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "needs Python 3.11 or newer" in done.stderr
    assert "apt-get install" in done.stderr


@pytest.mark.parametrize("target", sorted(make_targets() - {"clean"}))
def test_what_a_target_runs_is_there(target: str) -> None:
    command = ["make", "--always-make", "--dry-run", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    scripts = re.findall(r"\bscripts/\w+\.\w+", done.stdout)
    modules = re.findall(r"-m (scripts\.\w+|bench)\b", done.stdout)
    files = [f"{name.replace('.', '/')}.py" for name in modules if name != "bench"]
    files += ["bench/__main__.py"] if "bench" in modules else []
    assert not [name for name in scripts + files if not (ROOT / name).is_file()]


def test_continuous_integration_runs_the_suite() -> None:
    run = ROOT / ".ci" / "run"
    assert run.stat().st_mode & 0o111
    assert run.read_text().splitlines()[-1] == "exec make test"


def test_constraints_are_versions_without_addresses() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    wanted = re.compile(r"#.*|[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+")
    assert not [line for line in lines if not wanted.fullmatch(line)]
