"""`python -m bench`: measure, print the table, keep the figures as JSON and as a page."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench import machine, page, report, rows
from bench.harness import Bench, Results, judge, needed, run_rounds
from bench.sizes import FULL, QUICK, SMOKE, Sizes
from gantrymq.shm.ownfiles import user_folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen rows; return 0, or 1 if a measurement failed (not: was skipped)."""
    options = _parser().parse_args(arguments)
    # Sources are compiled once, as where the package is installed, not by each process.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sizes = _sizes(options)
    lines = [line for line in rows.lines(sizes) if not options.only or line.row in options.only]
    if options.list:
        print("\n".join(f"{line.row:10} {line.what}" for line in lines))
        return 0
    directory = options.dir.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    bench = Bench(sizes, directory, may_install=sizes.name != SMOKE.name, broker=options.broker)
    about = {"sizes": sizes.name, "broker": options.broker, **machine.describe(directory)}
    contestants = {name: rows.CONTESTANTS[name] for name in needed(lines)}
    results = run_rounds(bench, contestants, lambda text: print(text, file=sys.stderr))
    verdicts = [judge(line, results) for line in lines]
    _print_heading(sizes, directory, about)
    print(report.table(verdicts))
    _print_notes(results)
    found = report.document(about, verdicts, results)
    if options.json:
        report.write_json(options.json, found)
    if options.html:
        page.write(options.html, found)
    return 1 if results.failed else 0


def _parser() -> argparse.ArgumentParser:
    names = list(dict.fromkeys(line.row for line in rows.lines(FULL)))
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--smoke", action="store_true", help="seconds; the figures mean nothing")
    size.add_argument("--quick", action="store_true", help="minutes; smaller data, fewer rounds")
    parser.add_argument("--only", nargs="+", choices=names, metavar="ROW", help=", ".join(names))
    parser.add_argument("--rounds", type=int, help="instead of the set's own number")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with plots there")
    parser.add_argument("--list", action="store_true", help="name the rows and end")
    parser.add_argument(
        "--dir", type=Path, default=_cache(), help="for stores; on a disk (default: %(default)s)"
    )
    parser.add_argument(
        "--broker",
        choices=("serve", "temporary"),
        default="serve",
        help="a process per agent, or all agents in one (default: %(default)s)",
    )
    return parser


def _cache() -> Path:
    return user_folder(os.environ, "XDG_CACHE_HOME", ".cache") / "gantrymq" / "bench"


def _sizes(options: argparse.Namespace) -> Sizes:
    sizes = SMOKE if options.smoke else QUICK if options.quick else FULL
    return sizes if options.rounds is None else replace(sizes, rounds=options.rounds)


def _print_heading(sizes: Sizes, directory: Path, about: dict[str, object]) -> None:
    described = about["machine"]
    assert isinstance(described, dict)
    print(f"{described['processor']}, {described['cpus']} CPUs, {described['filesystem']}", end="")
    print(f"; {about['commit']}; {about['date']}; {sizes.name}, {sizes.rounds} round(s)")
    if machine.is_in_memory(directory):
        print("NOTE: the store lies in memory, not on a disk: choose another --dir")
    if sizes.name == SMOKE.name:
        print("NOTE: smoke only shows that everything runs; its figures mean nothing")


def _print_notes(results: Results) -> None:
    print("\nProcessor seconds per million messages, by process:")
    print(report.processor_table(results))
    for name, reason in results.skipped.items():
        print(f"skipped {name}: {reason}")
    for name, trace in results.failed.items():
        print(f"\nFAILED {name}:\n{trace}")


if __name__ == "__main__":
    sys.exit(main())
