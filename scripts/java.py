"""Find a Java for Spark and print its home; with `--install` get one where that is allowed.

The order: JAVA_HOME, PATH, the system's folder of Javas, apt-get when root. Exit code 1 and a
message that says what to do when there is none.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

JAVA_MIN = 17  # what Spark 4 asks for
SYSTEM_JAVAS = Path("/usr/lib/jvm")
#: In the order of preference; a Debian release carries one or two of them.
PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")


def version_of(home: Path) -> int:
    """Major version of the Java in `home`, 0 if there is none that runs."""
    try:
        command = [str(home / "bin" / "java"), "-version"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError):
        return 0
    found = re.search(r'version "(\d+)', text)
    return int(found.group(1)) if found else 0


def candidates() -> Iterator[Path]:
    """Homes to try, the user's wish first."""
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path).resolve().parent.parent
    yield from sorted(SYSTEM_JAVAS.glob("*"))


def find() -> Path | None:
    """Return the home of the first Java that is new enough."""
    return next((home for home in candidates() if version_of(home) >= JAVA_MIN), None)


def install() -> None:
    """Install a Java by apt-get; does nothing where that is not possible."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    subprocess.run(["apt-get", "update", "-q"], check=False, stdout=sys.stderr)
    for package in PACKAGES:
        print(f"java: installing {package}", file=sys.stderr, flush=True)
        command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", package]
        if subprocess.run(command, check=False, stdout=sys.stderr).returncode == 0:
            return


def main() -> None:
    """Print the home of a Java, or say how to get one."""
    home = find()
    if home is None and "--install" in sys.argv[1:]:
        install()
        home = find()
    if home is None:
        sys.exit(
            f"java: Spark needs Java {JAVA_MIN} or newer. Install it (Debian: sudo apt-get install "
            f"{PACKAGES[0]}) or set JAVA_HOME to one, then run `make setup` again"
        )
    print(home)


if __name__ == "__main__":
    main()
