"""The wheel holds what it should and works away from the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import build
import pytest

from tests.support.tree import FOLDERS, PACKAGES, ROOT, project_files, python_files
from tests.support.trials import mends


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command without this process's Python settings; its output is in the failure."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command, cwd=cwd, env=clean | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the project's files without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    kept = (*PACKAGES, "pyproject.toml", "README.md")
    for path in project_files():
        inside = path.relative_to(ROOT)
        if inside.parts[0] in kept or inside.parts[0] in ("tests", "bench", "scripts"):
            (source / inside).parent.mkdir(parents=True, exist_ok=True)
            (source / inside).write_bytes(path.read_bytes())
    for name in FOLDERS:
        (source / "gantrymq" / name).symlink_to(f"../{name}")

    def call(
        cmd: Sequence[str],
        cwd: str | None = None,
        extra_environ: Mapping[str, str] | None = None,
    ) -> None:
        run(*cmd, cwd=Path(cwd or source), **(extra_environ or {}))

    # As `python -m build --wheel --no-isolation`, without an interpreter for that.
    build.ProjectBuilder(source, runner=call).build("wheel", folder)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a fresh venv with the wheel in it; dependencies come by a path entry."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    # What is imported is compiled then: the rest need not be.
    quick = ("--quiet", "--no-deps", "--no-index", "--no-compile")
    run(*pip, "install", *quick, wheel, cwd=home)
    site = Path(
        run(python, "-c", "import site; print(site.getsitepackages()[0])", cwd=home).strip()
    )
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


def test_the_wheel_holds_every_module_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    modules = {str(_installed_as(path)) for path in python_files(*PACKAGES)}
    assert names == modules | {"gantrymq/py.typed"}


def _installed_as(path: Path) -> Path:
    inside = path.relative_to(ROOT)
    return "gantrymq" / inside if inside.parts[0] in FOLDERS else inside


def test_the_wheel_is_imported_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    names = ["gantrymq", *(f"gantrymq.{name}" for name in FOLDERS)]
    program = f"import {', '.join(names)}; print({', '.join(f'{p}.__file__' for p in names)})"
    files = run(installed / "python", "-c", program, cwd=tmp_path).split()
    assert all(Path(file).is_relative_to(installed.parent) for file in files)


def test_the_console_script_runs(installed: Path, tmp_path: Path) -> None:
    assert "serve" in run(installed / "gantrymq", "--help", cwd=tmp_path)


def test_the_command_runs_as_a_module(installed: Path, tmp_path: Path) -> None:
    assert "serve" in run(installed / "python", "-P", "-m", "gantrymq", "--help", cwd=tmp_path)


FIRST_MESSAGE = """
from gantrymq import Broker, ConsumeFrom, Producer, PullConsumer
import brokerd, clients, shm, workers

with Broker.temporary() as broker, Producer(broker.home) as producer:
    producer.send("orders", b"42")
    first = ConsumeFrom.FIRST_OFFSET
    with PullConsumer("billing", ["orders"], home=broker.home, consume_from=first) as consumer:
        print(bytes(consumer.poll(timeout=30).bodies[0]), clients.OURS, shm.OURS)
"""


@mends("A4")
def test_packages_of_an_application_are_its_own(installed: Path, tmp_path: Path) -> None:
    """Folders named as ours beside a script, in the folder that it is started from."""
    for package in FOLDERS:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("OURS = False\n")
    (tmp_path / "script.py").write_text(FIRST_MESSAGE)
    said = run(installed / "python", "script.py", cwd=tmp_path, HOME=os.environ["HOME"])
    assert said.split() == ["b'42'", "False", "False"]
    assert "serve" in run(installed / "python", "-m", "gantrymq", "--help", cwd=tmp_path)
    assert "serve" in run(installed / "gantrymq", "--help", cwd=tmp_path)


APPLICATION_TEST = """
import os, sys

def test_first_nothing_of_it_is_loaded():
    loaded = {name for name in sys.modules if name.partition(".")[0] == "gantrymq"}
    assert loaded <= {"gantrymq", "gantrymq.pytest_plugin"}
    assert not {"numpy", "numba", "msgspec"} & sys.modules.keys()

HOMES = []

def test_an_order_is_booked(gantrymq_broker):
    from gantrymq import ConsumeFrom, Producer, PullConsumer
    with Producer() as producer:  # finds the fixture's broker by itself
        producer.send("orders", b"42", tag="paid")
    first = ConsumeFrom.FIRST_OFFSET
    with PullConsumer("billing", {"orders": "paid"}, consume_from=first) as consumer:
        assert [bytes(body) for body in consumer.poll(timeout=30).bodies] == [b"42"]
    HOMES.append(gantrymq_broker.home)
    assert os.environ["GANTRYMQ_HOME"] == str(HOMES[0])

def test_the_next_one_has_its_own_or_the_same(gantrymq_broker, request):
    shared = request.config.getini("gantrymq_broker_scope") == "session"
    assert (gantrymq_broker.home == HOMES[0]) is shared
    assert HOMES[0].exists() is shared
    segment = gantrymq_broker.home / "store" / "commitlog" / ("0" * 20)
    assert segment.stat().st_size == (1 << 20 if shared else 2 << 20)

def test_afterwards_there_is_none():
    shared_to_the_end = "GANTRYMQ_HOME" in os.environ
    assert shared_to_the_end is HOMES[0].exists()
"""


@pytest.mark.parametrize(
    ("scope", "segment_bytes"), [("function", 2 << 20), ("session", 1 << 20)], ids=str
)
def test_an_applications_own_test_uses_the_fixture(
    installed: Path, tmp_path: Path, scope: str, segment_bytes: int
) -> None:
    """pytest finds it by the installed package's entry point; unused it costs no import."""
    (tmp_path / "test_application.py").write_text(APPLICATION_TEST)
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\ngantrymq_broker_scope = {scope}\nfilterwarnings = error\n"
        f"gantrymq_broker_settings =\n    mapped_file_size_commit_log = {segment_bytes}\n"
    )
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    said = run(installed / "python", *command, cwd=tmp_path)
    assert "4 passed" in said
