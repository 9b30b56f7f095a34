"""The steps of the operator's day, in order: commands as typed, and what each must come to."""

from __future__ import annotations

import re
from typing import Final

from scripts import day_acts as acts
from scripts.day_stage import Do, Shell, Step, Tidy

_EACH_LINE_ONCE = "gantrymq tail orders -n 1000000 | sort | uniq -d | wc -l"
_LOG_SIZE: Tidy = ((r"; log (.|\n)*?dispatched", "; log ..."),)
_NUMBERS: Tidy = (
    (r"(?<=kernels/)[0-9a-f]+", "..."),
    (r"\b\d[\d.]*\b", "N"),
)
_AGENT = rf"^ *(?:{'|'.join(acts.AGENTS)}) +"


def _hushed(found: re.Match[str]) -> str:
    """Digits that say nothing, in their columns."""
    return re.sub(r"\d", "N", found[0])


#: Of an agent's row only the restarts, its second number, say something.
_STATUS: Tidy = (
    (_AGENT + r"\d+", _hushed),
    (rf"({_AGENT}N+ +\d+)(.*)", lambda found: found[1] + re.sub(r"\d", "N", found[2])),
    (r"^log: .*", "log: ..."),
)
_RESTARTS = r"^{} +\d+ +{} "
_PYTHON = '/opt/gantrymq/bin/python3 -c "from gantrymq import Producer; import os; '
#: Who dies, what comes of it, and what is typed before and after of that agent's own work.
_KILLED: Final[tuple[tuple[str, str, tuple[Shell, ...], tuple[Shell, ...]], ...]] = (
    ("writer", "the supervisor replaces it; sends without an answer are settled again.", (), ()),
    ("flusher", "it is replaced; orders wait for the disk meanwhile.", (), ()),
    ("reader", "it is replaced; consumers get nothing new meanwhile.", (), ()),
    ("groups", "it is replaced; commits wait meanwhile.", (), ()),
    ("housekeeper", "it is replaced; nobody notices.", (), ()),
    (
        "scheduler",
        "it is replaced; what is due comes a little later.",
        (
            Shell(
                line=_PYTHON
                + "Producer().send('clicks', b'in five seconds', tag='late', delay=5)\""
            ),
        ),
        (
            Shell(
                line="gantrymq receive clicks --group late --tags late --wait 10 --max 1",
                says=("in five seconds",),
                patience_s=20,
            ),
        ),
    ),
    (
        "txn_checker",
        "it is replaced; commits of transactions wait, who asks about open ones comes a little"
        " later. One is open here, and its application gone.",
        (
            Shell(
                line=_PYTHON
                + "producer = Producer(producer_group='shop'); tx = producer.begin_transaction();"
                " producer.send('clicks', b'paid', tag='tx', transaction=tx); os._exit(0)\""
            ),
        ),
        (
            Shell(
                line="gantrymq tx list --topic clicks --ids | wc -l", says=("^1$",), patience_s=10
            ),
            Shell(
                line="gantrymq tx list --topic clicks --ids | xargs -r gantrymq tx commit"
                " --as operator | grep -o committed",
                says=("^committed$",),
            ),
            Shell(
                line="gantrymq receive clicks --group sold --tags tx --wait 10 --max 1",
                says=("paid",),
            ),
            Shell(line="gantrymq tx list --topic clicks --ids | wc -l", says=("^0$",)),
        ),
    ),
    ("supervisor", "all of the broker ends with it, the manager starts it again.", (), ()),
)

STEPS: Final = (
    Step(
        "Install",
        "An environment of its own, from a wheel of this checkout; its dependencies come from the"
        " checkout's environment, so that the day plays without a network.",
        (
            Do("cp -r CHECKOUT /usr/src/gantrymq", acts.copy_checkout),
            Shell(
                line="python3 -m pip wheel --quiet --no-deps --no-build-isolation"
                " --wheel-dir /srv/wheels/1 /usr/src/gantrymq"
            ),
            Shell(line="python3 -m venv --without-pip /opt/gantrymq-1"),
            Shell(
                line="python3 -m pip --python /opt/gantrymq-1/bin/python install --quiet --no-deps"
                " --no-index /srv/wheels/1/*.whl"
            ),
            Do("(dependencies into /opt/gantrymq-1)", acts.dependencies("/opt/gantrymq-1")),
            Shell(line="ln -s /opt/gantrymq-1 /opt/gantrymq"),
            Do("(compiled kernels into /var/cache/gantrymq)", acts.kernels),
            Shell(line="gantrymq --version", says=(r"^\d+\.\d+",)),
        ),
    ),
    Step(
        "A disk of its own",
        "A small file system for the broker's home: a tmpfs, mounted in a name space of this"
        " script alone, so that it can be filled later.",
        (
            Shell(line="mount -t tmpfs -o size=192m,mode=700 gantrymq /var/lib/gantrymq"),
            Shell(
                line="stat -f -c %T /var/lib/gantrymq",
                says=("^tmpfs$",),
            ),
        ),
    ),
    Step(
        "Settings",
        "Small segments for a small disk; and no segment is to go only because the disk is full.",
        (
            Shell(
                line="gantrymq serve --print-config | grep -A1 'disk above which segments'",
                says=("disk_max_used_space_ratio",),
            ),
            Shell(
                line="printf '%s\\n' 'mapped_file_size_commit_log = 4194304'"
                " 'disk_space_clean_forcibly_ratio = 100' > /var/lib/gantrymq/gantrymq.toml"
            ),
            Shell(line="gantrymq serve --check", says=("are in order",)),
            Shell(
                line="gantrymq serve --check --set file_reserved_time=never",
                code=2,
                says=("file_reserved_time",),
            ),
        ),
    ),
    Step(
        "Is the machine fit?",
        "`doctor` looks at all that a start needs, and says what to do about what is wrong.",
        (Shell(line="gantrymq doctor", says=("^ok +settings", "no broker runs$"), tidy=_NUMBERS),),
    ),
    Step(
        "Start",
        "`service` stands for systemctl: it runs the lines of contrib/systemd/gantrymq.service, is"
        " told READY and WATCHDOG, and restarts as the unit says.",
        (
            Do("service start gantrymq", acts.start()),
            Shell(
                line="gantrymq status",
                says=(": ready,", *(_RESTARTS.format(name, 0) for name in acts.AGENTS)),
                tidy=_STATUS,
            ),
        ),
    ),
    Step(
        "A second broker on the same home",
        "It is refused with exit code 75, and its manager does not try again.",
        (
            Shell(
                line="gantrymq serve --set lock_timeout=0",
                code=75,
                says=("not_started",),
                tidy=((r'"(pid|time)": "?[^,"}]*"?', r'"\1": ...'),),
            ),
            Do("service start gantrymq-too", acts.start_refused("gantrymq-too", 75)),
        ),
    ),
    Step(
        "Topics",
        "Receipts for orders wait until the disk has them; for clicks the log is enough.",
        (
            Shell(line="gantrymq topic create orders --queues 4 --durability durable"),
            Shell(line="gantrymq topic create clicks --queues 2 --durability written"),
            Shell(line="gantrymq topic list", says=("^orders +4 +durable", "^clicks +2 +written")),
        ),
    ),
    Step(
        "Load",
        "The applications `billing` and `orders` run from here to the evening; `audit` compares"
        " what is acknowledged, what `gantrymq tail` finds in the log, and what is consumed.",
        (
            Do("billing & billing &", acts.start_billing),
            Do("orders 2000", acts.order(2000)),
            Shell(line="seq -f 'click %g' 500 | gantrymq send clicks --tag web", says=("^500 ",)),
            Shell(line="gantrymq receive clicks --group look --max 500 | wc -l", says=("^500$",)),
            Do("audit", acts.audit),
        ),
    ),
    Step(
        "Look",
        "Everything that an operator may ask a running broker.",
        (
            Shell(
                line="gantrymq group list",
                says=(r"^billing +orders +4 +2 +0", r"^look +clicks"),
            ),
            Shell(
                line="gantrymq group describe billing",
                says=(r"^orders +3 +500 +500 +500 +0 ", "members 2, queues 4, lag 0"),
                tidy=(
                    (r"^(orders .*) \d+ +- +\d+$", r"\1 S        -          PID"),
                    (r"^session .*", "session  pid  queues  joined  subscription"),
                    (r"^\d+ +\d+ +(\d+) +\S+ +(orders.*)$", r"S        PID  \1       TIME    \2"),
                ),
            ),
            Shell(line="gantrymq topic describe clicks", says=(r"^clicks .* 500 ",)),
            Do("orders 1000 &", acts.order_half(1000)),
            Shell(
                line="gantrymq top --once --interval 1",
                says=("topics by rate", "groups by lag", "agents"),
                lines=40,
                tidy=((rf"{_AGENT}.*|^ *(orders|billing) .*", _hushed), *_LOG_SIZE),
            ),
            Do("wait; # for the 1000 orders", acts.ordered),
            Shell(
                line="gantrymq metrics | grep -E '^gantrymq_(state|disk_full|group_lag)'",
                says=(r'gantrymq_state\{state="ready"\} 1',),
            ),
            Shell(line="gantrymq tail clicks -n 1", says=(r"^click \d+",)),
            Shell(
                line="gantrymq send clicks --body 'look here' --key 77 --json",
                says=('"offset_msg_id"',),
                tidy=((r"[0-9A-F]{32}", "ID"),),
            ),
            Shell(
                line="gantrymq get $(gantrymq tail clicks -n 1 --json | grep 'look here'"
                " | grep -o '\"offset_msg_id\": \"[0-9A-F]*' | cut -d'\"' -f4)",
                says=("look here",),
                lines=30,
                tidy=((r"[0-9A-F]{32}", "ID"), (r"\b1\d{12}\b", "MS")),
            ),
        ),
    ),
    Step(
        "Disk full, and freed",
        "Somebody's file takes all that is left; sends are refused by name, the application waits;"
        " when the file is gone all goes on without a restart, and nothing is missing.",
        (
            Shell(
                line="head -c 1G /dev/zero > /var/lib/gantrymq/somebody.bin",
                code=1,
                says=("No space left on device",),
            ),
            Shell(
                line="gantrymq status --json | grep -o '\"disk_full\": [01]'",
                says=("1",),
                patience_s=10,
            ),
            Do("orders 500 &", acts.order_amid_refusals(500)),
            Shell(line="gantrymq send clicks --body 'no room'", code=74, says=("full",)),
            Shell(line="gantrymq tail orders -n 1 | wc -l", says=("^4$",)),
            Do("service journal gantrymq", acts.journal(must="disk_above_warning_level")),
            Shell(line="rm /var/lib/gantrymq/somebody.bin"),
            Do("wait; # for the 500 orders", acts.ordered),
            Shell(line="gantrymq send clicks --body 'room again'", says=("^1 sent",)),
            Do("service journal gantrymq", acts.journal(must="disk_below_warning_level")),
            Do("audit", acts.audit),
        ),
    ),
    *(
        Step(
            f"Kill the {name}",
            f"SIGKILL amid 1,000 orders: {what}",
            (
                *before,
                Do("orders 1000 &", acts.order_half(1000)),
                Do(f"kill -9 PID_OF_{name.upper()}", acts.kill(name)),
                Do("wait; # for the 1000 orders", acts.ordered),
                Do("service journal gantrymq", acts.journal(must="")),
                *after,
                Do("audit", acts.audit),
            ),
        )
        for name, what, before, after in _KILLED
    ),
    Step(
        "Back-up of the live store",
        "Copied while orders come in, to another disk.",
        (
            Do("orders 1000 &", acts.order_half(1000, is_for_backup=True)),
            Shell(
                line="gantrymq store backup /srv/backup/monday",
                says=("bytes copied",),
                tidy=(
                    (
                        r"from \d+ to \d+, \d+ segments, \d+ bytes",
                        "from N to N, N segments, N bytes",
                    ),
                ),
            ),
            Do("wait; # for the 1000 orders", acts.ordered),
            Shell(line="gantrymq serve --check --home /srv/backup/monday", says=("are in order",)),
            Do("audit", acts.audit),
        ),
    ),
    Step(
        "Upgrade",
        "The new version beside the old one, checked against the store; stop, switch, start."
        " `orders` and `billing` run on with the old version all the while.",
        (
            Shell(
                line='sed -i \'0,/^version = "\\(.*\\)"/s//version = "\\1.post1"/\''
                " /usr/src/gantrymq/pyproject.toml"
            ),
            Shell(
                line="python3 -m pip wheel --quiet --no-deps --no-build-isolation"
                " --wheel-dir /srv/wheels/2 /usr/src/gantrymq"
            ),
            Shell(line="python3 -m venv --without-pip /opt/gantrymq-2"),
            Shell(
                line="python3 -m pip --python /opt/gantrymq-2/bin/python install --quiet --no-deps"
                " --no-index /srv/wheels/2/*.whl"
            ),
            Do("(dependencies into /opt/gantrymq-2)", acts.dependencies("/opt/gantrymq-2")),
            Shell(line="/opt/gantrymq-2/bin/gantrymq serve --check", says=("are in order",)),
            Do("orders 1000 &", acts.order_half(1000)),
            Do("service stop gantrymq", acts.stop()),
            Shell(line="gantrymq status", code=69, says=("no broker runs",)),
            Shell(line="ln -sfn /opt/gantrymq-2 /opt/gantrymq"),
            Do("service start gantrymq", acts.start()),
            Shell(line="gantrymq --version", says=(r"^\d+\.\d+.*\.post1$",)),
            Do("wait; # for the 1000 orders", acts.ordered),
            Do("audit", acts.audit),
        ),
    ),
    Step(
        "Restore elsewhere",
        "The back-up becomes a home of its own, with a broker of its own; every order that was"
        " acknowledged before the back-up began is in it, once.",
        (
            Shell(line="cp -a /srv/backup/monday /srv/restored"),
            Shell(
                line="gantrymq doctor --home /srv/restored",
                says=("^ok +owner", "no broker runs$"),
                tidy=_NUMBERS,
            ),
            Do(
                "service start gantrymq-restored # WatchdogSec=10",
                acts.start("gantrymq-restored", "/srv/restored", 10),
            ),
            Do("audit --home /srv/restored", acts.audit_restored),
            Shell(
                line="gantrymq send clicks --body 'from the copy' --home /srv/restored",
                says=("^1 sent",),
            ),
        ),
    ),
    Step(
        "An agent hangs",
        "On the restored copy: a reader that is stopped stands for one that hangs. No pat comes, so"
        " the manager ends the broker and starts it again; then that copy is put away.",
        (
            Do("kill -STOP PID_OF_READER", acts.hang("gantrymq-restored", "/srv/restored")),
            Shell(
                line="gantrymq status --home /srv/restored",
                says=(": ready,",),
                tidy=_STATUS,
            ),
            Do("service stop gantrymq-restored", acts.stop("gantrymq-restored")),
            Shell(line="gantrymq store verify /srv/restored/store", says=(": 0 findings$",)),
        ),
    ),
    Step(
        "Evening",
        "Applications end, the broker stops cleanly, the store is checked whole, and nothing is"
        " left of it but its files.",
        (
            Shell(line=_EACH_LINE_ONCE, says=("^0$",)),
            Do("kill %orders %billing", acts.end_applications),
            Shell(
                line="gantrymq group list",
                says=(r"^billing +orders +4 +0 +0",),
                patience_s=10,
            ),
            Do("service stop gantrymq", acts.stop()),
            Shell(line="gantrymq store verify /var/lib/gantrymq/store", says=(": 0 findings$",)),
            Do("(what is left in /dev/shm and of processes)", acts.leftovers),
            Shell(line="umount /var/lib/gantrymq"),
        ),
    ),
)
