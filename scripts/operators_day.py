"""`make day`: an operator's day with real commands, each checked; `--write` keeps the transcript.

Needs root, or user name spaces (a small file system is mounted for this script alone). Exit code 0
only if every step came out as it must; the one that did not is named.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.day_stage import Do, Shell, Stage, Step, Wrong  # noqa: E402 - see the line above
from scripts.day_steps import STEPS  # noqa: E402

STARTED = time.monotonic()
_INSIDE = "GANTRYMQ_DAY_INSIDE"
INTRODUCTION = """# An operator's day

Written by `make day WRITE=docs/operators-day.md`, which plays it and checks each step
(scripts/operators_day.py); do not edit. Commands are real. Paths are those of an installation by
docs/operate.md; the script plays them below one temporary directory. What is no command of the
system or of GantryMQ is the script's own: `service` (in place of systemctl; it runs the unit file
of `contrib/systemd`, without its user and sandbox), the applications `orders`, `billing`, `audit`
(scripts/day_apps.py, scripts/day_acts.py), and what stands in parentheses. Process ids, times and
sizes that say nothing are shown as PID, TIME and N; exit codes where they are not 0.

"""


def main() -> int:
    """Play it, print or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the transcript there")
    arguments = parser.parse_args()
    if _INSIDE not in os.environ:
        _require_a_name_space()
    del os.environ[_INSIDE]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("operators_day: ended by SIGTERM"))
    work = Path(tempfile.mkdtemp(prefix="gantrymq-day-"))
    stage = Stage(work)
    try:
        page = INTRODUCTION + contents() + "".join(_play(stage, step) for step in STEPS)
    except Wrong as wrong:
        sys.stderr.write(f"{wrong}\n")
        return 1
    finally:
        stage.close()
        subprocess.run(
            ["umount", str(stage.place("/var/lib/gantrymq"))],
            check=False,
            stderr=subprocess.DEVNULL,
        )
        shutil.rmtree(work, ignore_errors=True)
    if arguments.write:
        arguments.write.write_text(page, encoding="utf-8")
    else:
        print(page, end="")
    _progress(f"the day took {time.monotonic() - STARTED:.0f} s\n")
    return 0


def _require_a_name_space() -> None:
    """This script once more, where mounts are its own; a user's with a uid 0 of its own."""
    options = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
    if subprocess.run(["unshare", *options, "true"], check=False).returncode:
        sys.stderr.write("operators_day: needs root, or user name spaces, to mount a small disk\n")
        sys.exit(2)
    command = ["unshare", *options, sys.executable, *sys.argv]
    os.execvpe(command[0], command, {**os.environ, _INSIDE: "1"})


def contents() -> str:
    """The page's list of steps."""
    return "".join(f"{number}. {step.title}\n" for number, step in enumerate(STEPS, 1))


def _play(stage: Stage, step: Step) -> str:
    """One step as a part of the page. Raises Wrong, with the step's name."""
    _progress(f"[{time.monotonic() - STARTED:5.1f} s] {step.title}\n")
    shown = [f"\n## {step.title}\n{step.why}\n\n```console\n"]
    for act in step.acts:
        try:
            text, code = act.play(stage)
        except (Wrong, subprocess.TimeoutExpired) as wrong:
            print("".join(shown), file=sys.stderr)
            raise Wrong(f"operators_day: {step.title}: {act.line}: {wrong}") from wrong
        shown.append(told(act, text, code))
    shown.append("```\n")
    return "".join(shown)


def told(act: Shell | Do, text: str, code: int) -> str:
    """An act as it stands on the page."""
    ended = f"[exit code {code}]\n" if code else ""
    return f"$ {act.line}\n" + (f"{text}\n" if text else "") + ended


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(text)


if __name__ == "__main__":
    sys.exit(main())
