"""Compiled kernels never outlive what they were compiled from (docs/adr/0010-kernel-library.md)."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gantrymq.brokerd.doctor import examine
from gantrymq.shm import jit
from tests.support.tree import ROOT
from tests.support.trials import mends

#: Uses a number of shm/layout.py in a kernel of shm/kernels/, and says how many were compiled.
PROGRAM = """
import json, sys
from gantrymq.shm.jit import cache_directory, warm
count = warm()
from gantrymq.shm.kernels.probe import offset
compiler = {"numba", "gantrymq.shm.compile"}
assert not compiler & set(sys.modules), "only the process that compiles needs it"
print(json.dumps([offset(), str(cache_directory()), count]))
"""
#: The same, and looks at what is said meanwhile.
FIRST = (
    PROGRAM.replace("warm()", "warm(lambda *each: said.append(each))").replace(
        "count =", "said = []\ncount ="
    )
    + """
assert said == [(0, 1, "offset"), (1, 1, "")], said
"""
)
#: Where each of some changes, one after the other, would be compiled to: each time by a process
#: that has not looked yet.
WHERE = """
import os, sys
for name in [None, *sys.argv[1:]]:
    if name:
        with open("gantrymq/shm/" + name, "a") as file:
            file.write("# changed\\n")
    if not os.fork():
        from gantrymq.shm.jit import cache_directory
        print(cache_directory(), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""
PROBE = """
from gantrymq.shm.jit import i8, kernel
from gantrymq.shm.layout import ENTRY_BODY

@kernel(i8)
def offset():
    return ENTRY_BODY
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[int, str, int]]:
    """gantrymq with `shm` alone, and one kernel in the place of all; what its first run said."""
    folder = tmp_path_factory.mktemp("compiled")
    ignored = shutil.ignore_patterns("__pycache__", "kernels")
    shm = folder / "gantrymq" / "shm"
    shutil.copytree(ROOT / "shm", shm, ignore=ignored)
    shutil.copy(ROOT / "gantrymq" / "__init__.py", folder / "gantrymq")
    (shm / "kernels").mkdir()
    (shm / "kernels" / "__init__.py").write_text("")
    (shm / "kernels" / "probe.py").write_text(PROBE)
    return folder, run(folder, FIRST)


@pytest.fixture
def copy(compiled: tuple[Path, tuple[int, str, int]], tmp_path: Path) -> Path:
    """A copy of it, without what was compiled."""
    return Path(shutil.copytree(compiled[0] / "gantrymq", tmp_path / "gantrymq").parent)


@pytest.fixture
def copied_cache(compiled: tuple[Path, tuple[int, str, int]], copy: Path) -> Path:
    """The directory of what was compiled, copied to where `copy` looks for it."""
    inside = Path(compiled[1][1]).relative_to(compiled[0])
    shutil.copytree(compiled[0] / "cache", copy / "cache")
    return copy / inside


def run(folder: Path, program: str = PROGRAM) -> tuple[int, str, int]:
    """Value, cache directory and number of kernels compiled, in a process of its own."""
    value, directory, count = json.loads(output_of(folder, program))
    return int(value), str(directory), int(count)


def output_of(folder: Path, program: str, *arguments: str) -> str:
    """What a program prints that has the package and the cache of a folder."""
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": str(folder)}
    environment.pop("NUMBA_DISABLE_JIT", None)
    command = [sys.executable, "-W", "error", "-c", program, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def replace_in(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) >= 1
    path.write_text(text.replace(old, new, 1))


def test_a_second_process_loads_what_the_first_compiled(
    compiled: tuple[Path, tuple[int, str, int]],
) -> None:
    first, second = compiled[1], run(compiled[0])
    assert first[:2] == second[:2]
    assert (first[2], second[2]) == (1, 0)
    assert os.stat(first[1]).st_mode & 0o777 == 0o700


def test_what_is_in_use_is_not_pruned_as_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / str(number) for number in range(jit._CACHES_KEPT + 2)]
    for number, folder in enumerate(folders):
        folder.mkdir()
        code = b"machine code"
        (folder / jit._LIBRARY).write_bytes(hashlib.sha256(code).digest() + code)
        os.utime(folder, (number + 1, number + 1))
    monkeypatch.setattr(jit, "cache_directory", lambda: folders[0])
    assert jit._read_code()
    monkeypatch.setattr(jit, "cache_directory", lambda: folders[-1])
    jit._prune()
    assert [folder.exists() for folder in folders[:4]] == [True, False, False, True]


def test_machine_code_of_another_user_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who can put a file there could run anything in every process."""
    code = b"code of whoever made the file"
    path = tmp_path / "kernels"
    path.write_bytes(hashlib.sha256(code).digest() + code)
    monkeypatch.setattr(jit, "cache_directory", lambda: tmp_path)
    assert jit._read_code() == code
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert jit._read_code() is None


def test_a_moved_field_is_seen_by_kernels_that_did_not_change(
    copy: Path, copied_cache: Path
) -> None:
    """The kernel's own file is untouched: numba's cache alone would give the old offset."""
    before = run(copy)
    assert before[1:] == (str(copied_cache), 0)
    layout = copy / "gantrymq" / "shm" / "layout.py"
    body = '        Field("body_bytes", "u4", "the body follows the header"),\n'
    extra = '        Field("extra_bytes", "u4", "properties in SF-27\'s form follow the body"),\n'
    replace_in(layout, body + extra, extra + body)
    after = run(copy)
    assert after[0] == before[0] + 4
    assert after[1] != before[1]
    assert after[2] == 1


def test_a_change_of_any_source_is_another_cache(copy: Path) -> None:
    names = ("jit.py", "compile.py", "clmul.py", "limits.py", "kernels/probe.py")
    seen = output_of(copy, WHERE, *names).split()
    assert len(set(seen)) == len(seen) == len(names) + 1


def test_warming_names_each_kernel(compiled: tuple[Path, tuple[int, str, int]]) -> None:
    """Before each kernel how many are done, of how many, and its name; at the end all are."""
    assert compiled[1][2] == 1  # and FIRST has judged what was said


def test_a_torn_library_is_made_again(
    copy: Path, copied_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut may leave the name without what was in it: that is never run."""
    library = copied_cache / "kernels"
    whole = library.read_bytes()
    monkeypatch.setattr(jit, "cache_directory", lambda: copied_cache)
    assert jit._read_code() == whole[hashlib.sha256().digest_size :]
    for left in (b"", bytes(len(whole)), whole[:-1], whole[: len(whole) // 2]):
        library.write_bytes(left)
        assert jit._read_code() is None
    assert [run(copy)[2] for _ in range(2)] == [1, 0]
    assert len(library.read_bytes()) == len(whole)


@mends("S194")
@pytest.mark.parametrize(
    "setting",
    [
        'os.environ["XDG_CACHE_HOME"] = "/proc/gantrymq"  # nobody can make anything there',
        'os.environ["XDG_CACHE_HOME"], os.path.expanduser = "here", lambda path: path',
    ],
)
def test_a_folder_that_is_not_writable_or_not_known_costs_a_warning(
    copy: Path, setting: str
) -> None:
    """Kernels are compiled at each start then, and it is said; nothing is made where one works."""
    program = f"""
import json, os, warnings
{setting}
from gantrymq.shm.jit import warm
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    count = warm()
assert any("set XDG_CACHE_HOME" in str(each.message) for each in said), said
assert os.listdir() == ["gantrymq"]
from gantrymq.shm.kernels.probe import offset
print(json.dumps([offset(), "", count]))
"""
    assert run(copy, program)[2] == 1


@mends("S194")
def test_a_relative_path_counts_as_unset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It would be another cache in each folder that a program runs in."""
    where = jit.cache_directory.__wrapped__  # without what it keeps of the first answer
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert where().is_relative_to(tmp_path / ".cache" / "gantrymq")
    monkeypatch.setenv("HOME", "home")
    with pytest.raises(FileNotFoundError, match="set XDG_CACHE_HOME, or HOME, to an absolute"):
        where()
    monkeypatch.setattr(jit, "cache_directory", where)
    findings = {found.check: found for found in examine(tmp_path, {"JAVA_HOME": "/none"})}
    assert findings["kernel cache"].verdict == "wrong"
    assert "set XDG_CACHE_HOME" in findings["kernel cache"].mend


def test_every_module_that_kernels_use_is_in_the_fingerprint() -> None:
    """What a kernel imports of shm, directly or not, is hashed; a new module may not be missed."""
    program = (
        "import json, pkgutil, importlib, sys\n"
        "from gantrymq.shm import kernels, jit, compile\n"
        "jit.compile_by(compile.declare, compile.external_function)\n"
        "[importlib.import_module(kernels.__name__ + '.' + m.name)"
        " for m in pkgutil.iter_modules(kernels.__path__)]\n"
        "used = {m.split('.')[2] + '.py' for m in sys.modules"
        " if m.startswith('gantrymq.shm.') and not m.startswith('gantrymq.shm.kernels')}\n"
        "print(json.dumps(sorted(used - set(jit._HASHED))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == []
