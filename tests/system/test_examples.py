"""Each program of examples/ runs, and prints what it should."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.forked import run_program
from tests.support.tree import ROOT

FOLDER = ROOT / "examples"
LINES_MAX = 66
#: What each prints, as a pattern of the whole.
PRINTED = {
    "orders": r"ada( \d+){10}\nbob( \d+){10}\neve( \d+){10}\n",
    "transfers": r"1 was refused by the database: nobody hears of it\nheard of 0 2 3\n",
    "ingest_csv": r"12345 rows are on the disk\n",
    "async_web": r"200 requests answered, 200 seen\n",
    "push_retry": r"busy at attempt 2\ncake at attempt 1\ntea at attempt 1\n"
    r"dead: nonsense - ValueError: no order at all\n",
    "prefork_workers": r"300 jobs, 8955050 in all, workers ended with 0 0 0\n",
    "analyse_topic": r"5000 messages, and 5000 of the last hour\nper queue: \{0: \d+.*\}\n"
    r"mean: \[(\d+\.\d+(, )?){5}\]\nbytes of bodies: 140000\n",
}


def run(name: str, folder: Path, *arguments: object) -> str:
    done = run_program(FOLDER / f"{name}.py", *arguments, strict=True, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(folder.glob("*")) == [Path(str(path)) for path in arguments]
    return done.stdout


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    printed = run(name, tmp_path)
    assert re.fullmatch(PRINTED[name], printed), printed


def test_orders_of_a_customer_stay_in_order(tmp_path: Path) -> None:
    for line in run("orders", tmp_path).splitlines():
        numbers = [int(word) for word in line.split()[1:]]
        assert numbers == sorted(numbers)


def test_a_csv_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "two.csv"
    file.write_text("a,b\n1,2\n3,4\n")
    assert run("ingest_csv", tmp_path, file) == "2 rows are on the disk\n"


def test_examples_are_short_and_all_run() -> None:
    paths = {path.stem: path for path in FOLDER.glob("*.py")}
    assert paths.keys() == PRINTED.keys()
    for path in paths.values():
        assert len(path.read_text().splitlines()) <= LINES_MAX, path.name
