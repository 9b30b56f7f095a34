"""What the Spark side needs beside the package: said by name, with what to do, where it is missing.

Neither pyspark nor pyarrow is loaded by looking.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from gantrymq.shm.errors import Incompatible, SettingIllegal

#: As pyproject.toml has them in the extra `spark`.
PACKAGES: Final = {"pyspark": (4, 3), "pyarrow": (18,)}
JAVA_MIN: Final = 17
_NO_SPARK: Final = "`gantrymq ingest` needs no Spark on one machine: leave --spark and --master out"


@contextmanager
def explained(*packages: str) -> Iterator[None]:
    """An import that fails for want of one of the packages says so. Raises Incompatible."""
    try:
        yield
    except ImportError as error:
        text = what_is_wrong(*packages)
        name = (error.name or "").partition(".")[0]
        if text is None and name not in packages:
            raise
        again = f"{name} cannot be loaded: pip install --force-reinstall 'gantrymq[spark]'"
        raise Incompatible(f"{text or again} ({error})") from error


def what_is_wrong(*packages: str) -> str | None:
    """Which of the packages are missing or too old, and what to do; None if none is."""
    wrong = []
    for name in packages:
        least = ".".join(map(str, PACKAGES[name]))
        found = _installed(name)
        if found is None:
            wrong.append(f"{name} {least} or newer is not installed")
        elif tuple(map(int, re.findall(r"\d+", found)[:2])) < PACKAGES[name]:
            wrong.append(f"{name} is {found}, and {least} or newer is needed")
    return f"{'; '.join(wrong)}: pip install 'gantrymq[spark]'" if wrong else None


def _installed(name: str) -> str | None:
    """A package's version; None without it, also if it is there and cannot be loaded."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def java_of(environment: Mapping[str, str]) -> str:
    """The Java that Spark would start. Raises SettingIllegal if there is none."""
    named = environment.get("JAVA_HOME")
    program = str(Path(named, "bin", "java")) if named else "java"
    found = shutil.which(program, path=environment.get("PATH"))
    if found is not None:
        return found
    what = f"JAVA_HOME is {named}, which has no bin/java" if named else "there is no Java"
    mend = f"install Java {JAVA_MIN} or newer, or set JAVA_HOME to one"
    raise SettingIllegal(f"Spark needs Java {JAVA_MIN} or newer, and {what}: {mend}. {_NO_SPARK}")


def why_java_ended(program: str) -> str:
    """After Spark's Java did not start: what it is."""
    try:
        ran = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
        told = (ran.stderr.splitlines() or [f"exit code {ran.returncode}"])[0]
    except OSError as error:
        told = str(error)
    number = re.search(r'version "(\d+)', told)
    old = number is None or int(number[1]) < JAVA_MIN
    need = f"Spark needs Java {JAVA_MIN} or newer: set JAVA_HOME to one" if old else "see above"
    return f"Spark's Java did not start: {program} says {told}; {need}. {_NO_SPARK}"
