"""What is done in the operator's day by hand, by applications, and by the service manager."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sysconfig
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from gantrymq.brokerd.access import started_of
from gantrymq.shm import jit
from gantrymq.shm.codes import Role
from scripts.day_stage import ROOT, Application, Stage, Wrong

AGENTS = tuple(role.name.lower() for role in Role)
_NEEDED = ("gantrymq", "brokerd", "workers", "clients", "shm", "pyproject.toml", "README.md")
#: Between two calls of `gantrymq status`.
STATUS_S = 0.3
Act = Callable[[Stage], str]

# ------------------------------------------------------------------------------- installations


def copy_checkout(stage: Stage) -> str:
    """What the wheel is made of: building in the checkout itself would leave things there."""
    to = stage.place("/usr/src/gantrymq")
    for name in _NEEDED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, to / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, to / name)
    return ""


def dependencies(environment: str) -> Act:
    """A path entry to the packages of this Python's environment."""

    def act(stage: Stage) -> str:
        site = next(Path(stage.real(environment)).glob("lib/python3*/site-packages"))
        (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        return "by a path entry to the checkout's environment"

    return act


def kernels(stage: Stage) -> str:
    """What a first start would take a minute for: compiled by the set-up, from the same sources."""
    jit.warm()
    made = jit.cache_directory()
    shutil.copytree(made, stage.place("/var/cache/gantrymq") / "gantrymq" / "kernels" / made.name)
    return "copied from the checkout's cache; else the first start compiles for a minute"


# ------------------------------------------------------------------------------------- service


def start(
    name: str = "gantrymq", home: str = "/var/lib/gantrymq", watchdog_s: int | None = None
) -> Act:
    """It becomes active."""

    def act(stage: Stage) -> str:
        service = stage.service(name, home, watchdog_s)
        if service.start() != "active":
            raise Wrong("\n".join(service.told()) + "\n" + service.journal.read_text())
        stage.status(home)
        kept = [word for word in service.told() if word.startswith(("READY", "STATUS=ready;"))]
        return "\n".join([*kept, "active"])

    return act


def start_refused(name: str, code: int) -> Act:
    """It ends at once, and is not started again."""

    def act(stage: Stage) -> str:
        service = stage.service(name)
        state, told = service.start(), service.told()
        if state != "failed" or service.exit_code != code or "not started" not in told[-1]:
            raise Wrong(f"{state}\n" + "\n".join(told))
        kept = [word for word in told if not word.startswith("STATUS=starting")]
        return "\n".join([*kept, state])

    return act


def stop(name: str = "gantrymq") -> Act:
    """It ends with exit code 0."""

    def act(stage: Stage) -> str:
        service = stage.service(name)
        service.told()
        code, told = service.stop(), service.told()
        if code or service.state != "inactive" or "STOPPING=1" not in told:
            raise Wrong(f"exit code {code}\n" + "\n".join(told))
        kept = [word for word in told if not word.startswith("STATUS=")]
        return "\n".join([*kept, service.state])

    return act


def journal(must: str) -> Act:
    """Events since the last look; `must` is one of them."""

    def act(stage: Stage) -> str:
        shown: list[str] = []

        def there() -> bool:
            shown.extend(stage.events().splitlines())
            return any(must in line for line in shown)

        if must:
            stage.until(there, f"the event {must}")
        else:
            there()
        return "\n".join(shown)

    return act


# -------------------------------------------------------------------------------- applications


def start_billing(stage: Stage) -> str:
    """Two members."""
    for number in (1, 2):
        member = Application(stage, "billing", stage.folder / f"billing-{number}.notes")
        stage.billing.append(member)
        member.answer()
    return ""


def order(count: int) -> Act:
    """So many orders, to the last receipt."""

    def act(stage: Stage) -> str:
        _orders(stage).ask(count)
        return ordered(stage)

    return act


def order_half(count: int, is_for_backup: bool = False) -> Act:
    """So many orders; returns when half of them are acknowledged."""

    def act(stage: Stage) -> str:
        application = _orders(stage)
        wanted = len(application.noted()) + count // 2
        application.ask(count)
        stage.until(lambda: len(application.noted()) >= wanted, "half of the orders")
        if is_for_backup:
            stage.orders_before_backup = len(application.noted())
        return ""

    return act


def order_amid_refusals(count: int) -> Act:
    """So many orders, of which none is acknowledged as yet."""

    def act(stage: Stage) -> str:
        _orders(stage).ask(count)
        return ""

    return act


def ordered(stage: Stage) -> str:
    """The last receipt of those asked for."""
    told = json.loads(_orders(stage).answer())
    refused = " (some were refused, and sent again)" if told["refused"] else ""
    return f"acknowledged {told['acknowledged']}{refused}"


def _orders(stage: Stage) -> Application:
    if stage.orders is None:
        stage.orders = Application(stage, "orders", stage.folder / "orders.notes")
    return stage.orders


def kill(agent: str) -> Act:
    """SIGKILL, and wait for a successor that is ready."""

    def act(stage: Stage) -> str:
        before = stage.status()[agent]
        os.kill(before["pid"], signal.SIGKILL)

        def replaced() -> bool:
            now = stage.status().get(agent)
            return bool(now and now["pid"] and now["pid"] != before["pid"])

        stage.until(replaced, f"a new {agent}", STATUS_S)
        if stage.service("gantrymq").state != "active":
            raise Wrong("the service is not active")
        told = [word for word in stage.service("gantrymq").told() if "STATUS=" not in word]
        return "\n".join([*told, f"{agent}: another process"])

    return act


def hang(name: str, home: str) -> Act:
    """SIGSTOP to the reader; the manager hears no pat, ends the broker and starts it again."""

    def act(stage: Stage) -> str:
        service, before = stage.service(name), stage.status(home)["reader"]["pid"]
        service.told()
        os.kill(before, signal.SIGSTOP)

        def again() -> bool:
            now = stage.status(home).get("reader")
            return bool(now and now["pid"] and now["pid"] != before)

        stage.until(again, "another life of the broker", STATUS_S)
        told = service.told()
        if "no WATCHDOG=1 in time: SIGABRT" not in told or service.state != "active":
            raise Wrong("\n".join(told))
        return "\n".join(word for word in told if "STATUS=" not in word)

    return act


def end_applications(stage: Stage) -> str:
    """Each ends by itself, with exit code 0."""
    codes = [application.end() for application in (_orders(stage), *stage.billing)]
    if any(codes):
        raise Wrong(f"exit codes {codes}")
    return "3 applications ended with exit code 0; they have run since the load began"


# --------------------------------------------------------------------------------------- audit


def audit(stage: Stage) -> str:
    """Acknowledged, stored and consumed are the same orders; raises Wrong if any is not."""
    acknowledged = set(_orders(stage).noted())
    stage.until(lambda: acknowledged <= _consumed(stage).keys(), "the last order at billing")
    stage.until(lambda: not _uncommitted(stage), "the last commit")
    stored = _stored(stage, "/var/lib/gantrymq")
    twice = len(stored) - len(set(stored))
    lost, strange = len(acknowledged - set(stored)), len(set(stored) - acknowledged)
    again = _after_commit(stage)
    handed = _consumed(stage)
    early = sum(handed.values()) - len(handed) - again
    shown = (
        f"acknowledged {len(acknowledged)}; in the log {len(set(stored))}: missing {lost},"
        f" twice {twice}\nconsumed {len(handed)}: missing 0, again after an answered commit {again}"
        f" (before it was answered: {early})"
    )
    if lost or twice or strange or again or len(handed) != len(acknowledged):
        raise Wrong(shown + f"\nnot acknowledged but stored: {strange}")
    return shown


def audit_restored(stage: Stage) -> str:
    """All that was acknowledged when the back-up began, and nothing twice."""
    acknowledged = _orders(stage).noted()
    wanted = set(acknowledged[: stage.orders_before_backup])
    stage.until(lambda: wanted <= set(_stored(stage, "/srv/restored")), "the restored orders")
    stored = _stored(stage, "/srv/restored")
    twice = len(stored) - len(set(stored))
    strange = len(set(stored) - set(acknowledged))
    if twice or strange:
        raise Wrong(f"twice {twice}, unknown {strange}")
    return "of those acknowledged before the back-up began missing 0; of all twice 0"


def _stored(stage: Stage, home: str) -> list[bytes]:
    code, out = stage.shell(f"gantrymq tail orders -n 1000000 --home {home}")
    if code:
        raise Wrong(out)
    return out.encode().splitlines()


def _billed(stage: Stage) -> list[tuple[int, bytes, bytes, int]]:
    """All notes of all members, oldest first: time, what, order, member."""
    rows = []
    for member, application in enumerate(stage.billing):
        for line in application.noted():
            time_ns, what, body = (*line.split(b"\t"), b"")[:3]
            rows.append((int(time_ns), what, body, member))
    return sorted(rows)


def _consumed(stage: Stage) -> dict[bytes, int]:
    """How often each order was handed out."""
    counts: dict[bytes, int] = defaultdict(int)
    for _time, what, body, _member in _billed(stage):
        if what == b"got":
            counts[body] += 1
    return counts


def _uncommitted(stage: Stage) -> bool:
    """True while a member's last note is no end of its work."""
    last = {member: what for _time, what, _body, member in _billed(stage)}
    return b"got" in last.values()


def _after_commit(stage: Stage) -> int:
    """Deliveries of orders whose commit had been answered."""
    committed: set[bytes] = set()
    open_of: dict[int, list[bytes]] = defaultdict(list)
    again = 0
    for _time, what, body, member in _billed(stage):
        if what == b"got":
            again += body in committed
            open_of[member].append(body)
            continue
        if what == b"committed":
            committed.update(open_of[member])
        open_of[member] = []
    return again


def leftovers(stage: Stage) -> str:
    """No process of any life of the broker, and no board."""
    running = [pid for pid, start in stage.known_processes if _is_running(pid, start)]
    boards = [name for name in stage.boards if Path("/dev/shm", name.lstrip("/")).exists()]
    if running or boards:
        raise Wrong(f"left: processes {running}, boards {boards}")
    count = len(stage.boards)
    return f"of {count} lives of brokers: no process and nothing in /dev/shm"


def _is_running(pid: int, start: int) -> bool:
    """Whether it is still that process, and no zombie, which has no command line."""
    try:
        return started_of(pid) == start and Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False
