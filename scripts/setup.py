"""Make `.venv` with everything that tests, benches and the demo need; leaves `.venv/ready`.

Runs under the system's Python and uses the standard library alone.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
READY = VENV / "ready"
EXTRAS = "spark,bench,demo,dev"


def say(text: str) -> None:
    """Tell the user what happens; on stderr, so that it is seen also when output is piped."""
    print(f"setup: {text}", file=sys.stderr, flush=True)


def run(*command: str) -> None:
    """Run a command, its output shown; end the set-up with a message when it fails."""
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        sys.exit(f"setup: failed: {' '.join(command)}")


def require_venv_module() -> None:
    """Debian splits `venv` off: install it when root, else say how."""
    if importlib.util.find_spec("ensurepip") is not None:
        return
    package = f"python3.{sys.version_info.minor}-venv"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        sys.exit(
            f"setup: this Python cannot make a venv. Install it: sudo apt-get install {package}"
        )
    say(f"installing {package}")
    run("apt-get", "update", "-q")
    run("apt-get", "install", "-y", "-q", package)


def require_strace() -> None:
    """Tests of power cuts record what a broker does to its files: install it when root, else say.

    Nothing else needs it, so its lack is no failure here.
    """
    if shutil.which("strace") is not None:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        say("no strace: tests/crash/test_power_cut.py will fail (Debian: apt-get install strace)")
        return
    say("installing strace")
    run("apt-get", "update", "-q")
    run("apt-get", "install", "-y", "-q", "--no-install-recommends", "strace")


def venv_works() -> bool:
    """True if `.venv` has a Python >= 3.11 with pip; a moved or half-made one does not."""
    check = "import sys, pip; sys.exit(sys.version_info < (3, 11))"
    python = VENV / "bin" / "python"
    if not python.exists():
        return False
    return subprocess.run([python, "-c", check], check=False, capture_output=True).returncode == 0


def main() -> None:
    """Venv, packages, Java, strace; each step is skipped when it is already there."""
    if not venv_works():
        require_venv_module()
        say(f"making .venv with Python {sys.version.split()[0]}")
        run(sys.executable, "-m", "venv", "--clear", str(VENV))
    python = str(VENV / "bin" / "python")
    say("installing packages into .venv (constraints.txt has the versions)")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install"]
    run(*pip, "-e", f".[{EXTRAS}]", "-c", "constraints.txt")
    run(python, "scripts/java.py", "--install")
    require_strace()
    READY.write_text("made by scripts/setup.py; older than pyproject.toml = set up again\n")
    say("done")


if __name__ == "__main__":
    main()
