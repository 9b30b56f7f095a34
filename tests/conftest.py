"""Fixtures of every test: names, folders, waiting, and the check that nothing is left behind."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests.support import forked, leaks, reached
from tests.support.processortime import Times, kind_of, processor_seconds
from tests.support.simdisk import Dropping, Inode
from tests.support.tree import ROOT
from tests.support.watchdog import poll_until

#: Each broker and client of a test is an interpreter of its own: none compiles the sources again,
#: as none does where the package is installed.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

#: What was told to end may need that long on a loaded machine.
GRACE_S = float(os.environ.get("GANTRYMQ_TEST_GRACE_S", "5"))
#: Kinds whose tests start process trees: their leak check looks for orphans too.
_WITH_PROCESSES = ("crash", "system", "spark")

_numbers = itertools.count()
_times = Times()
_processor_of_test: dict[str, float] = {}
_traces_at_start = pytest.StashKey[leaks.Traces]()


@pytest.fixture
def unique_name() -> str:
    """Return a name that no other test or run uses, and that the leak check sees."""
    return leaks.region_name(f"test-{os.getpid()}-{next(_numbers)}")


@pytest.fixture
def store_dir(tmp_path: Path) -> Path:
    """Return an empty folder for a store."""
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


@pytest.fixture
def nothing_reaches_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a failed sync of the simulated disk be as bad as it can be: it drops every page."""
    drop = Inode.sync_failed
    monkeypatch.setattr(Inode, "sync_failed", lambda inode, _dice: drop(inode, Dropping()))


@pytest.fixture
def seed() -> int:
    """Return the seed of this run: fixed in the suite, fresh in every round of `make soak`."""
    return int(os.environ.get("GANTRYMQ_TEST_SEED", "20131"))


@pytest.fixture
def fresh_seed() -> int:
    """Return a seed that no run has had, or GANTRYMQ_TEST_FRESH_SEED: who fails prints it."""
    given = os.environ.get("GANTRYMQ_TEST_FRESH_SEED")
    seed = int(given) if given else int.from_bytes(os.urandom(4), "big")
    print(f"GANTRYMQ_TEST_FRESH_SEED={seed}")
    return seed


@pytest.fixture(name="poll_until")
def poll_until_fixture() -> Callable[..., object]:
    """Return tests.support.watchdog.poll_until, for tests that use nothing else of it."""
    return poll_until


@pytest.fixture(scope="module")
def cold_starts() -> bool:
    """Return whether brokers of a module start as a user's do; overridden where that is shown."""
    return False


@pytest.fixture(scope="module", autouse=True)
def warm_starts(cold_starts: bool) -> Iterator[None]:
    """Start brokers as forks of a process that has loaded all that they need.

    An interpreter's start and imports are most of what a short life of a broker costs.
    """
    if cold_starts:
        yield
        return
    import gantrymq.temporary
    from tests.support.brokers import ServingBroker

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServingBroker, "forked", True)
        patch.setattr(gantrymq.temporary, "_spawn", forked.spawn_forked)
        yield


@pytest.fixture(scope="module", autouse=True)
def real_pace_behind() -> Iterator[None]:
    """Leave agents as they are in a real broker, though a simulator has hurried them."""
    yield
    if simpace := sys.modules.get("tests.support.simpace"):
        simpace.be_real()


#: One of each for a run. Not fixtures of the session: those come before `warm_starts`.
_stores: dict[str, Path] = {}


def _made_once(factory: pytest.TempPathFactory, make: Callable[[Path], Path]) -> Path:
    name = make.__name__
    if name not in _stores:
        _stores[name] = make(factory.mktemp(name) / "store")
    return _stores[name]


@pytest.fixture(scope="module")
def plain_store(tmp_path_factory: pytest.TempPathFactory, warm_starts: None) -> Path:
    """Return tests.support.small_stores.plain_store, which all tests share: not to be changed."""
    from tests.support import small_stores

    return _made_once(tmp_path_factory, small_stores.plain_store)


@pytest.fixture(scope="module")
def varied_store(tmp_path_factory: pytest.TempPathFactory, warm_starts: None) -> Path:
    """Return tests.support.small_stores.varied_store, which all tests share: not to be changed."""
    from tests.support import small_stores

    return _made_once(tmp_path_factory, small_stores.varied_store)


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a region or a process; fixtures of wider scope may keep theirs."""
    orphans = kind_of(request.path) in _WITH_PROCESSES
    before = leaks.take(orphans)
    yield
    _require_nothing_since(before, orphans)


def _require_nothing_since(before: leaks.Traces, orphans: bool, spark: bool = True) -> None:
    def is_clean() -> bool:
        return leaks.left_since(before, orphans, spark) == leaks.NOTHING

    if is_clean():
        return
    try:
        poll_until(is_clean, "all has ended", GRACE_S)
    except AssertionError:
        left = leaks.left_since(before, orphans, spark)
        text = left.describe()
        leaks.clear(left)
        pytest.fail(f"left behind (now removed):\n{text}", pytrace=False)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Note what exists before the first test; let ^C work in what tests start.

    Who runs the suite in the background of a shell has SIGINT ignored, and so would all children.
    """
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    leaks.mark_this_run()
    session.config.stash[_traces_at_start] = leaks.take()


def pytest_collection_finish() -> None:
    """Keep what was imported out of the collector's sight: each pass would look at all of it."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the whole run if wider fixtures left something."""
    try:
        _require_nothing_since(session.config.stash[_traces_at_start], orphans=True, spark=False)
    except pytest.fail.Exception as failure:
        print(f"\nThe test run {failure}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Add what a test has used, with fixtures that it was the first or last to need."""
    item.session.stash.setdefault(reached.BEGUN, []).append(item)
    before = processor_seconds()
    done = yield
    used = processor_seconds() - before
    _processor_of_test[item.nodeid] = used
    _times.processor[kind_of(item.path)] += used
    return done


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add a test's set-up, call and tear-down to the time of its kind."""
    _times.clock[kind_of(ROOT / report.location[0])] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the time used per kind beside its budget; with --durations=N who used most.

    Of runs that share the tests, who has started them prints the sum.
    """
    config = terminalreporter.config
    if share := config.getoption("share", None):
        _times.write(share / f"times.{os.getpid()}")
    else:
        terminalreporter.section("processor time per kind of test")
        for line in _times.lines():
            terminalreporter.write_line(line)
    most = sorted(_processor_of_test.items(), key=lambda each: -each[1])
    for name, used in most[: config.getoption("durations") or 0]:
        terminalreporter.write_line(f"{used:7.2f} s {name}")
