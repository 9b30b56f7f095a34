"""The settings: one table, one validation, and where each value came from.

Precedence: keyword or `--set`, environment `GANTRYMQ_<NAME>`, `gantrymq.toml` in the home, default.
What RocketMQ has keeps RocketMQ's name in snake_case, with the unit behind it where RocketMQ's is
another; RocketMQ's own names are taken too, in RocketMQ's units. The only module of the broker that
looks at the environment; it must not load numpy, whose thread count it sets.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from gantrymq.brokerd.relations import PRECISIONS_BETWEEN, check_relations
from gantrymq.shm import limits, ownfiles
from gantrymq.shm.errors import SettingIllegal, shown
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.indexnote import DEFAULT_SHAPE, Shape
from gantrymq.shm.jsontext import BYTE_ORDER_MARK
from gantrymq.shm.layout import CQ_UNIT_BYTES

T = TypeVar("T", int, str, bool)
Value = int | str | bool
KIB: Final = 1024
MIB: Final = 1024 * KIB
#: RocketMQ keeps the lengths of its files in one.
_JAVA_INT_MAX: Final = (1 << 31) - 1
FILE_NAME: Final = "gantrymq.toml"
#: The origin of what a command line or a call says.
GIVEN: Final = "given"
ENVIRONMENT_PREFIX: Final = "GANTRYMQ_"
#: Variables with our prefix that are no settings.
_NOT_SETTINGS = ("HOME", "MARK", "TEST", "BENCH", "KERNEL", "CACHE")
_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Rule:
    """What `--print-config` says of a setting, and what its values must keep to."""

    unit: str
    meaning: str
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        """The values that it may have, in words; empty: any."""
        if self.choices:
            return ", ".join(self.choices)
        return "" if self.low is None else f"{self.low} to {self.high}"

    def has_in_range(self, value: int) -> bool:
        """Whether a number lies in its range; true of a setting that has none."""
        return self.low is None or self.high is None or self.low <= value <= self.high


def _setting(  # one row of the table
    default: T,
    unit: str,
    meaning: str,
    between: tuple[int, int] | None = None,
    choices: tuple[str, ...] = (),
) -> T:
    low, high = between or (None, None)
    rule = Rule(unit, meaning, low, high, choices)
    row: T = field(default=default, metadata={"rule": rule})
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a broker, checked."""

    profile: str = _setting(
        "standard", "", "standard: a process per agent; small: all agents in one child;"
        " temporary: everything in one process", choices=("standard", "small", "temporary"),
    )  # fmt: skip
    broker_name: str = _setting("DEFAULT_BROKER", "", "RocketMQ's brokerName; for hand-over")
    broker_cluster_name: str = _setting("DefaultCluster", "", "RocketMQ's brokerClusterName")
    broker_port: int = _setting(
        10_911, "", "port in records' storeHost (RocketMQ's listenPort); nobody listens there",
        (1, 65_535),
    )  # fmt: skip
    mapped_file_size_commit_log: int = _setting(
        1 << 30, "bytes", "length of a segment of the CommitLog", (4 * KIB, _JAVA_INT_MAX)
    )
    mapped_file_size_consume_queue: int = _setting(
        300_000 * CQ_UNIT_BYTES, "bytes", "length of a ConsumeQueue file, rounded up to units",
        (CQ_UNIT_BYTES, _JAVA_INT_MAX // CQ_UNIT_BYTES * CQ_UNIT_BYTES),
    )  # fmt: skip
    enable_consume_queue_ext: bool = _setting(
        False, "", "write RocketMQ's ConsumeQueueExt: room beside each unit for bits of filters"
    )
    enable_calc_filter_bit_map: bool = _setting(
        False, "", "with it: the bits of groups' SQL92 filters, so that consumers pass over records"
        " unread (ADR 0020)",
    )  # fmt: skip
    mapped_file_size_consume_queue_ext: int = _setting(
        48 * MIB, "bytes", "length of a ConsumeQueueExt file", (KIB, _JAVA_INT_MAX)
    )
    max_error_rate_of_bloom_filter: int = _setting(
        20, "percent", "records read in vain, when as many groups as expected have filters", (1, 99)
    )
    expect_consumer_num_use_filter: int = _setting(
        32, "groups", "with filters of one topic that are expected", (1, 1024)
    )
    max_message_size: int = _setting(
        limits.BODY_BYTES_MAX, "bytes", "longest body that producers may send",
        (1, limits.BODY_BYTES_MAX),
    )  # fmt: skip
    auto_create_topic_enable: bool = _setting(
        True, "", "the first send to an unknown topic creates it"
    )
    default_topic_queue_nums: int = _setting(
        8, "queues", "queues of a topic that a send creates: this, but 4 at most",
        (1, limits.QUEUES_PER_TOPIC_MAX),
    )  # fmt: skip
    retry_queue_nums: int = _setting(
        8, "queues", "queues of a group's retry topic (RocketMQ: 1): retries spread over members",
        (1, limits.QUEUES_PER_TOPIC_MAX),
    )  # fmt: skip
    message_delay_level: str = _setting(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h", "",
        "RocketMQ's delay levels, the first is level 1: numbers with s, m, h or d, 365000d at most;"
        " a store keeps them until a start is told others",
    )  # fmt: skip
    timer_precision_ms: int = _setting(
        1000, "ms", "RocketMQ's slots of time: 100, 200, 500 or 1000. What it rounds messages to"
        " after a hand-over; here they are delivered to the millisecond", PRECISIONS_BETWEEN,
    )  # fmt: skip
    default_durability: str = _setting(
        "written", "", "of new topics: what consumers may see, and receipts wait for",
        choices=("written", "durable"),
    )  # fmt: skip
    flush_interval_commit_log: int = _setting(
        limits.FLUSH_INTERVAL_NS // 1_000_000, "ms", "longest wait of new records for fdatasync",
        (1, 60_000),
    )  # fmt: skip
    log_page_cache: int = _setting(
        2 << 30, "bytes", "of the log's end that stay in memory when they are on the disk as well:"
        " who is further behind reads from the disk; 0: all, as long as the kernel likes",
        (0, 1 << 50),
    )  # fmt: skip
    spin_rounds: int = _setting(
        4000, "rounds", "how long the writer looks out for the next send of a lone waiting client"
        " before it sleeps; a round is a pause of some 25 ns", (0, 1 << 20),
    )  # fmt: skip
    transaction_timeout_s: int = _setting(
        6, "seconds", "age at which the producer of a half message is asked for its decision"
        " (RocketMQ's transactionTimeOut); the message may say more", (1, 86_400),
    )  # fmt: skip
    transaction_check_interval_s: int = _setting(30, "seconds", "and how often again", (1, 86_400))
    transaction_check_max: int = _setting(
        15, "checks", "after so many without a decision it is given up: parked for the operator",
        (1, 10_000),
    )  # fmt: skip
    message_index_enable: bool = _setting(
        True, "", "keep RocketMQ's IndexFiles, by which messages are found by key"
    )
    max_hash_slot_num: int = _setting(
        DEFAULT_SHAPE.slots, "slots", "hash slots of an IndexFile, 4 bytes each", (1, 1 << 27)
    )
    max_index_num: int = _setting(
        DEFAULT_SHAPE.entries, "entries", "an IndexFile is full with one less, 20 bytes each",
        (2, 1 << 26),
    )  # fmt: skip
    target_version: str = _setting(
        "5.4.0", "", "the RocketMQ whose files are made where versions differ: 5.4.0 finds messages"
        " by tag as well", choices=("5.3.3", "5.4.0"),
    )  # fmt: skip
    file_reserved_time: int = _setting(
        72, "hours", "age of its newest message at which a segment may go", (1, 24 * 3650)
    )
    delete_when: str = _setting(
        "04", "", "hours of the local day, separated by ; in which segments of that age go"
    )
    disk_max_used_space_ratio: int = _setting(
        75, "percent", "usage of the disk above which segments of that age go at any hour", (10, 95)
    )
    disk_space_clean_forcibly_ratio: int = _setting(
        85, "percent", "above: the oldest segments go whatever their age, and whoever needs them;"
        " 100: above the warning level only", (30, 100),
    )  # fmt: skip
    disk_space_warning_level_ratio: int = _setting(
        90,
        "percent",
        "above: that as well, and sends are refused with DiskFull; 100: never",
        (35, 100),
    )
    consume_timeout: int = _setting(
        15, "minutes", "a started message older than this ends its consumer's lease", (1, 7 * 1440)
    )
    session_memory_max: int = _setting(
        512 * MIB, "bytes", "shared memory of all sessions of a uid together", (MIB, 1 << 40)
    )
    sessions_max: int = _setting(1024, "sessions", "attached at one time by a uid", (1, 65_536))
    topics_max: int = _setting(
        limits.TOPICS_MAX, "topics", "slots of the board's topic table", (16, 65_536)
    )
    board_queues_max: int = _setting(
        limits.BOARD_QUEUES_MAX, "queues", "slots of the board's queue table", (64, 1 << 20)
    )
    groups_max: int = _setting(
        limits.GROUPS_MAX, "groups", "consumer groups that are known; beyond them those go first"
        " that never consumed anything and have nothing waiting", (8, 1 << 20),
    )  # fmt: skip
    stop_timeout: int = _setting(
        30, "seconds", "a clean stop that takes longer is cut short", (1, 3600)
    )
    hung_agent_timeout: int = _setting(
        30, "seconds", "an agent that does nothing for so long, though it could, is killed and"
        " replaced; 0: never", (0, 3600),
    )  # fmt: skip
    lock_timeout: int = _setting(
        5, "seconds", "how long a starting broker waits for the store's lock", (0, 3600)
    )
    broker_cpu: int = _setting(-1, "", "keep all processes on this CPU; -1: no", (-1, 4095))
    log_level: str = _setting(
        "info", "", "least level of log lines", choices=("debug", "info", "warning", "error")
    )
    metrics_textfile: str = _setting(
        "", "", "file that Prometheus's node_exporter collects, replaced atomically; empty: none;"
        " a relative path starts at the home",
    )  # fmt: skip
    metrics_interval: int = _setting(
        15, "seconds", "how often metrics_textfile is written", (1, 3600)
    )

    @property
    def largest_file_bytes(self) -> int:
        """Length of the largest file of a store that does not grow."""
        index = Shape(self.max_hash_slot_num, self.max_index_num).file_bytes
        return max(self.mapped_file_size_commit_log, index if self.message_index_enable else 0)


#: What `profile` changes in the defaults of others; given values still win.
PROFILES: Final[Mapping[str, Mapping[str, int | str | bool]]] = {
    "standard": {},
    "small": {"session_memory_max": 128 * MIB, "topics_max": 512, "board_queues_max": 8192},
    "temporary": {
        "mapped_file_size_commit_log": 16 * MIB,
        "mapped_file_size_consume_queue": 30_000 * CQ_UNIT_BYTES,
        "max_hash_slot_num": 50_000,
        "max_index_num": 200_000,
        "session_memory_max": 256 * MIB,
        "topics_max": 256,
        "board_queues_max": 4096,
        "log_level": "warning",
    },
}

#: Another name of a setting -> ours, and how many of its units are one of ours: RocketMQ's names,
#: and two of ours that hid their unit.
OTHER_NAMES: Final[Mapping[str, tuple[str, int]]] = {
    "transaction_timeout": ("transaction_timeout_s", 1),
    "transaction_check_interval": ("transaction_check_interval_s", 1),
    "transactionTimeOut": ("transaction_timeout_s", 1000),
    "transactionCheckInterval": ("transaction_check_interval_s", 1000),
    "listenPort": ("broker_port", 1),
} | {
    name: (re.sub(r"[A-Z]", lambda letter: "_" + letter[0].lower(), name), 1)
    for name in (
        "brokerName", "brokerClusterName", "mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue",
        "enableConsumeQueueExt", "enableCalcFilterBitMap", "mappedFileSizeConsumeQueueExt",
        "maxErrorRateOfBloomFilter", "expectConsumerNumUseFilter", "maxMessageSize",
        "autoCreateTopicEnable", "defaultTopicQueueNums", "messageDelayLevel", "timerPrecisionMs",
        "flushIntervalCommitLog", "transactionCheckMax", "messageIndexEnable", "maxHashSlotNum",
        "maxIndexNum", "fileReservedTime", "deleteWhen", "diskMaxUsedSpaceRatio",
        "diskSpaceCleanForciblyRatio", "diskSpaceWarningLevelRatio",
    )
}  # fmt: skip
RULES: Final[Mapping[str, Rule]] = {item.name: item.metadata["rule"] for item in fields(Settings)}
DEFAULTS: Final[Mapping[str, Any]] = {item.name: item.default for item in fields(Settings)}


@dataclass(frozen=True, slots=True)
class Configuration:
    """Settings and the origin of each; `unknown` are variables that look like settings."""

    settings: Settings
    origins: Mapping[str, str]
    unknown: tuple[str, ...] = ()

    def given(self, name: str) -> bool:
        """True if somebody chose the value."""
        return not self.origins[name].startswith("default")

    def replaced(self, name: str, value: int | str, origin: str) -> Configuration:
        """The same with one value that the store knows better. Raises SettingIllegal."""
        known = {key: getattr(self.settings, key) for key in RULES}
        values = known | {name: _converted(name, type(DEFAULTS[name]), value, origin)}
        settings = _checked(values, {**self.origins, name: origin})
        return Configuration(settings, {**self.origins, name: origin}, self.unknown)


def load(
    home: Path | None = None,
    given: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Configuration:
    """Collect and check all settings. Raises SettingIllegal, naming the setting and the mend."""
    environment = os.environ if environment is None else environment
    sources: list[tuple[str, Mapping[str, object]]] = []
    if home is not None:
        sources.append((str(home / FILE_NAME), _from_file(home / FILE_NAME)))
    from_environment, unknown = _from_environment(environment)
    sources.append(("environment", from_environment))
    sources.append((GIVEN, given or {}))
    values: dict[str, Any] = dict(DEFAULTS)
    origins = dict.fromkeys(DEFAULTS, "default")
    _apply(sources, values, origins)
    for name, value in PROFILES.get(values["profile"], {}).items():
        if origins[name] == "default":
            values[name], origins[name] = value, f"default of profile {values['profile']}"
    return Configuration(_checked(values, origins), origins, unknown)


def require_told(home: Path) -> None:
    """Raise SettingIllegal for a home whose path no client could be told: it goes by UTF-8."""
    if not _can_be_given(str(home)):
        raise SettingIllegal(
            f"home {str(home)!r}: its path is not UTF-8, and clients would not be told it: rename"
            " the folder whose name is not, or choose another home (--home, GANTRYMQ_HOME)",
            setting="home",
        )


def parse_assignments(texts: list[str]) -> dict[str, str]:
    """`name=value` texts of `--set`. Raises SettingIllegal."""
    pairs = [text.partition("=") for text in texts]
    for name, equals, _value in pairs:
        if not equals:
            raise SettingIllegal(f"--set {name}: write --set name=value", setting=name)
    return {name.strip(): value.strip() for name, _equals, value in pairs}


def describe(configuration: Configuration) -> list[dict[str, object]]:
    """A row per setting: name, value, unit, default, origin, meaning, and what it may be."""
    return [
        {
            "name": name,
            "value": getattr(configuration.settings, name),
            "unit": rule.unit,
            "default": DEFAULTS[name],
            "origin": configuration.origins[name],
            "meaning": rule.meaning,
            "allowed": rule.allowed,
        }
        for name, rule in RULES.items()
    ]


def use_one_thread() -> None:
    """Keep numpy and numba from starting threads: the broker forks. Call before they are loaded."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = "1"


def stay_on_cpu(configuration: Configuration) -> None:
    """Keep this process, and those that it starts, on `broker_cpu`. Raises SettingIllegal."""
    name = "broker_cpu"
    cpu = configuration.settings.broker_cpu
    if cpu < 0:
        return
    try:
        os.sched_setaffinity(0, {cpu})
    except OSError as error:  # only the kernel knows which ones there are for it
        require_ours(error)
        raise SettingIllegal(
            f"{name} = {cpu} ({configuration.origins[name]}): there is no such CPU for this"
            f" process: choose one of {sorted(os.sched_getaffinity(0))}, or -1",
            setting=name,
        ) from None


def service_manager() -> tuple[str, int]:
    """Socket of sd_notify (empty: none) and the watchdog's period in microseconds (0: none)."""
    period = os.environ.get("WATCHDOG_USEC", "0")
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        period = "0"  # meant for another process
    return os.environ.get("NOTIFY_SOCKET", ""), int(period) if period.isdigit() else 0


def run_of_tests() -> str:
    """What boards' names end with: a hyphen and GANTRYMQ_TEST_RUN (letters and digits), or nothing.

    Brokers of one machine share /dev/shm; a run of tests judges and removes its own boards only.
    """
    run = os.environ.get("GANTRYMQ_TEST_RUN", "")
    return f"-{run}" if run and run.isalnum() else ""


def _from_file(path: Path) -> Mapping[str, object]:
    try:
        text = ownfiles.read_given(path).decode()
        return tomllib.loads(text.removeprefix(BYTE_ORDER_MARK))
    except OSError as error:
        require_ours(error)
        if isinstance(error, FileNotFoundError) and not path.is_symlink():
            return {}
        if isinstance(error, PermissionError):
            raise
        raise SettingIllegal(f"{path} cannot be read: {error.strerror}", path=str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        require_ours(error)
        raise SettingIllegal(f"{path} is not TOML: {error}", path=str(path)) from error


def _from_environment(environment: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    named = {
        name.removeprefix(ENVIRONMENT_PREFIX): value
        for name, value in environment.items()
        if name.startswith(ENVIRONMENT_PREFIX)
    }
    ours = {*RULES, *OTHER_NAMES}
    known = {name.lower(): value for name, value in named.items() if name.lower() in ours}
    strange = [
        ENVIRONMENT_PREFIX + name
        for name in named
        if name.lower() not in ours and not name.startswith(_NOT_SETTINGS)
    ]
    return known, tuple(sorted(strange))


def _apply(
    sources: list[tuple[str, Mapping[str, object]]], values: dict[str, Any], origins: dict[str, str]
) -> None:
    for origin, source in sources:
        for told, value in source.items():
            name, units = OTHER_NAMES.get(told, (told, 1))
            if name != told and name in source:
                text = f"{origin}: {told} and {name} are one setting: give one of them"
                raise SettingIllegal(text, setting=name)
            if name not in RULES:
                raise SettingIllegal(
                    f"{origin}: there is no setting {name!r}{_suggestion(name)}; "
                    "`gantrymq serve --print-config` lists all",
                    setting=name,
                )
            found = _converted(told, type(DEFAULTS[name]), value, origin)
            values[name], origins[name] = _in_our_unit(told, found, units, origin), origin


def _in_our_unit(told: str, value: Value, units: int, origin: str) -> Value:
    """A value that was given in RocketMQ's unit. Raises SettingIllegal if ours cannot say it."""
    if units == 1 or not isinstance(value, int):
        return value
    if value % units:
        text = f"{told} = {value} ({origin}): give a multiple of {units}"
        raise SettingIllegal(text, setting=told)
    return value // units


def _suggestion(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name.lower().replace("-", "_"), RULES, n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def _converted(name: str, wanted: type[Value], value: Any, origin: str) -> Value:  # noqa: ANN401
    if type(value) is wanted and (not isinstance(value, str) or _can_be_given(value)):
        same: Value = value
        return same
    if isinstance(value, str):
        text = value.strip().lower()
        if wanted is bool and text in _YES | _NO:
            return text in _YES
        if wanted is int and text.removeprefix("-").replace("_", "").isdecimal():
            return int(text)
    kind = {int: "a whole number", bool: "true or false", str: "a text"}[wanted]
    raise SettingIllegal(f"{name} = {shown(value)} ({origin}): give {kind}", setting=name)


def _can_be_given(text: str) -> bool:
    """Whether a text can be an argument of a process: Unicode, without NUL."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError as error:
        require_ours(error)
        return False


def _checked(values: dict[str, Any], origins: Mapping[str, str]) -> Settings:
    for name, rule in RULES.items():
        value = values[name]
        where = f"{name} = {shown(value)} ({origins[name]})"
        if rule.choices and value not in rule.choices:
            raise SettingIllegal(f"{where}: choose one of {', '.join(rule.choices)}", setting=name)
        if not rule.has_in_range(value):
            unit = f" {rule.unit}" if rule.unit else ""
            raise SettingIllegal(f"{where}: choose from {rule.allowed}{unit}", setting=name)
    units = -(-values["mapped_file_size_consume_queue"] // CQ_UNIT_BYTES)
    values["mapped_file_size_consume_queue"] = units * CQ_UNIT_BYTES
    check_relations(values, origins)
    return Settings(**values)
