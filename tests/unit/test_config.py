"""Settings: precedence, conversion, and errors that name the setting and the mend."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gantrymq.brokerd import config
from gantrymq.shm import limits
from gantrymq.shm.errors import SettingIllegal
from gantrymq.shm.properties import parse_delay_levels
from tests.support.trials import mends


def test_later_sources_win_and_are_named(tmp_path: Path) -> None:
    (tmp_path / "gantrymq.toml").write_text(
        "default_topic_queue_nums = 2\nflush_interval_commit_log = 20\nconsume_timeout = 3\n"
    )
    environment = {
        "GANTRYMQ_FLUSH_INTERVAL_COMMIT_LOG": "30",
        "GANTRYMQ_CONSUME_TIMEOUT": "4",
        "PATH": "/bin",
    }
    found = config.load(tmp_path, {"consume_timeout": 5}, environment)
    settings = found.settings
    assert settings.default_topic_queue_nums == 2
    assert settings.flush_interval_commit_log == 30
    assert settings.consume_timeout == 5
    assert settings.max_message_size == 4 * 1024 * 1024
    assert found.origins["default_topic_queue_nums"] == str(tmp_path / "gantrymq.toml")
    assert found.origins["flush_interval_commit_log"] == "environment"
    assert found.origins["consume_timeout"] == "given"
    assert found.origins["max_message_size"] == "default"


def test_defaults_are_rocketmqs() -> None:
    settings = config.load(environment={}).settings
    assert settings.mapped_file_size_commit_log == 1024**3
    assert settings.mapped_file_size_consume_queue == 300_000 * 20
    assert settings.default_topic_queue_nums == 8
    assert settings.file_reserved_time == 72
    assert settings.auto_create_topic_enable is True


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"flush_intervall_commit_log": "1"}, "did you mean 'flush_interval_commit_log'"),
        ({"sessions_max": "many"}, "sessions_max = 'many' (str) (given): give a whole number"),
        ({"sessions_max": "0"}, "choose from 1 to"),
        ({"auto_create_topic_enable": "perhaps"}, "give true or false"),
        ({"default_durability": "eternal"}, "choose one of written, durable"),
        ({"profile": "huge"}, "choose one of standard, small, temporary"),
        ({"max_message_size": 100_000, "mapped_file_size_commit_log": 65_536}, "has room for"),
        ({"sessions_max": True}, "give a whole number"),
    ],
)
def test_errors_name_the_setting_and_the_mend(given: dict[str, object], says: str) -> None:
    with pytest.raises(SettingIllegal) as caught:
        config.load(None, given, {})
    assert says in str(caught.value)
    assert caught.value.setting in given


def test_broken_toml_is_named(tmp_path: Path) -> None:
    (tmp_path / "gantrymq.toml").write_text("sessions_max = \n")
    with pytest.raises(SettingIllegal, match="is not TOML"):
        config.load(tmp_path, None, {})


def test_texts_become_what_the_setting_is() -> None:
    given = config.parse_assignments(
        ["auto_create_topic_enable=off", "broker_cpu=-1", "session_memory_max=2_000_000"]
    )
    settings = config.load(None, given, {}).settings
    assert settings.auto_create_topic_enable is False
    assert settings.broker_cpu == -1
    assert settings.session_memory_max == 2_000_000
    with pytest.raises(SettingIllegal, match="write --set name=value"):
        config.parse_assignments(["sessions_max"])


def test_a_consume_queue_file_holds_whole_units() -> None:
    """SF-60: files are a multiple of 20 bytes; RocketMQ rounds up."""
    given = {"mapped_file_size_consume_queue": 101}
    assert config.load(None, given, {}).settings.mapped_file_size_consume_queue == 120


def test_a_profile_changes_defaults_only() -> None:
    found = config.load(None, {"profile": "temporary", "topics_max": 99}, {})
    assert found.settings.mapped_file_size_commit_log == 16 * 1024 * 1024
    assert found.origins["mapped_file_size_commit_log"] == "default of profile temporary"
    assert found.settings.topics_max == 99
    assert not found.given("mapped_file_size_commit_log")
    assert found.given("topics_max")


def test_a_small_segment_lowers_the_default_message_size() -> None:
    settings = config.load(None, {"mapped_file_size_commit_log": 65_536}, {}).settings
    assert settings.max_message_size == 65_536 - 91 - 8


def test_strange_variables_are_reported_not_obeyed() -> None:
    environment = {"GANTRYMQ_SESIONS_MAX": "3", "GANTRYMQ_HOME": "/x", "GANTRYMQ_MARK": "a"}
    assert config.load(None, None, environment).unknown == ("GANTRYMQ_SESIONS_MAX",)


def test_every_setting_says_what_it_means() -> None:
    rows = config.describe(config.load(None, None, {}))
    assert len(rows) == len(config.RULES)
    assert all(row["meaning"] and row["value"] == row["default"] for row in rows)


@pytest.mark.parametrize("table", ["", "1", "s", "1x", "-1s", "1s 2", "one", "1s,5s"])
def test_settings_of_delays_are_what_rocketmq_takes(table: str) -> None:
    """A table of levels that cannot be read, a precision that RocketMQ would round."""
    with pytest.raises(SettingIllegal, match="message_delay_level"):
        config.load(given={"message_delay_level": table}, environment={})
    for precision in (0, 1, 99, 150, 1001):
        with pytest.raises(SettingIllegal, match="timer_precision_ms"):
            config.load(given={"timer_precision_ms": precision}, environment={})
    for precision in (100, 200, 500, 1000):
        settings = config.load(given={"timer_precision_ms": precision}, environment={}).settings
        assert settings.timer_precision_ms == precision


@mends("A12.12")
def test_a_name_of_rocketmq_has_rocketmqs_unit(tmp_path: Path) -> None:
    (tmp_path / "gantrymq.toml").write_text("transactionTimeOut = 9000\nlistenPort = 10921\n")
    given = {"transactionCheckInterval": "60000", "fileReservedTime": 48}
    settings = config.load(tmp_path, given, {}).settings
    assert (settings.transaction_timeout_s, settings.transaction_check_interval_s) == (9, 60)
    assert (settings.broker_port, settings.file_reserved_time) == (10_921, 48)


@mends("A12.12")
def test_a_time_that_rocketmq_counts_otherwise_says_its_unit() -> None:
    """As seconds under its old name, in which the unit could not be seen."""
    settings = config.load(None, {"transaction_timeout": 7}, {}).settings
    assert settings.transaction_timeout_s == 7
    assert set(config.RULES) >= {ours for ours, _units in config.OTHER_NAMES.values()}
    for ours, units in config.OTHER_NAMES.values():
        assert units == 1 or ours.endswith("_s"), ours


#: Numbers that count nothing.
_NAMES_OF_THINGS = {"broker_port", "broker_cpu"}
#: By the words of a setting's name: the units it may have; of a text, what its meaning may say.
_UNITS_BY_WORD = {
    "s": {"seconds"},
    "ms": {"ms"},
    "timeout": {"seconds", "minutes"},
    "interval": {"seconds", "ms"},
    "time": {"hours"},
    "when": {"hours"},
    "delay": {"s, m, h or d"},
    "size": {"bytes"},
    "memory": {"bytes"},
    "cache": {"bytes"},
    "ratio": {"percent"},
    "rate": {"percent"},
}


def _says_its_unit(name: str, rule: config.Rule, default: object) -> bool:
    """Whether what is printed beside a setting says what it counts, if it counts anything."""
    if isinstance(default, bool) or name in _NAMES_OF_THINGS:
        return True
    if isinstance(default, int) and not rule.unit:
        return False
    words = set(name.split("_")) & set(_UNITS_BY_WORD)
    said = rule.unit or rule.meaning
    return all(any(unit in said for unit in _UNITS_BY_WORD[word]) for word in words)


@mends("A12.12")
def test_each_setting_that_is_a_time_or_a_size_says_its_unit() -> None:
    for name, rule in config.RULES.items():
        assert _says_its_unit(name, rule, config.DEFAULTS[name]), name
        if rule.unit:  # one that lost it would be found
            assert not _says_its_unit(name, replace(rule, unit=""), config.DEFAULTS[name]), name
    printed = {row["name"]: row["unit"] for row in config.describe(config.load(None, None, {}))}
    assert printed == {name: rule.unit for name, rule in config.RULES.items()}
    assert printed["metrics_interval"] == printed["hung_agent_timeout"] == "seconds"


def test_each_setting_of_a_number_has_bounds() -> None:
    """What is just outside is refused, with the unit that it counts in."""
    for name, rule in config.RULES.items():
        if isinstance(config.DEFAULTS[name], bool) or not isinstance(config.DEFAULTS[name], int):
            continue
        assert rule.low is not None
        assert rule.high is not None
        for value in (rule.low - 1, rule.high + 1, -(1 << 64), 1 << 64):
            unit = f" {rule.unit}" if rule.unit else ""
            bounds = f"{name} = .* choose from {rule.low} to {rule.high}{unit}$"
            with pytest.raises(SettingIllegal, match=bounds) as refused:
                config.load(None, {name: value}, {})
            assert refused.value.setting == name


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"transactionTimeOut": 6500}, "transactionTimeOut = 6500 .*: give a multiple of 1000"),
        ({"transactionTimeOut": 6000, "transaction_timeout_s": 6}, "are one setting"),
        ({"listenPort": "many"}, "listenPort = 'many' .*: give a whole number"),
    ],
)
def test_other_names_that_cannot_be_taken(given: dict[str, object], says: str) -> None:
    with pytest.raises(SettingIllegal, match=says):
        config.load(None, given, {})


@mends("S49")
def test_the_longest_files_are_those_of_a_java_int() -> None:
    """Whatever is taken once, rounded, is taken of the store's own note again."""
    longest = (1 << 31) - 1
    for name in ("mapped_file_size_commit_log", "mapped_file_size_consume_queue_ext"):
        assert getattr(config.load(None, {name: longest}, {}).settings, name) == longest
        with pytest.raises(SettingIllegal):
            config.load(None, {name: longest + 1}, {})
    name = "mapped_file_size_consume_queue"
    settings = config.load(None, {name: longest // 20 * 20 - 1}, {}).settings
    value = settings.mapped_file_size_consume_queue
    assert config.load(None, None, {}).replaced(name, value, "the store").settings == settings
    with pytest.raises(SettingIllegal):
        config.load(None, {name: longest}, {})


@mends("S129")
@pytest.mark.parametrize(
    "level", ["365001d", "3000000d", "106751991167d", "9999999999999d", "31536000001s"]
)
def test_a_delay_level_has_a_longest_delay(level: str) -> None:
    """1,000 years, as for retries: with now that is still before the year 9999."""
    with pytest.raises(SettingIllegal, match=r"message_delay_level .*level 2 .* 365000d"):
        config.load(given={"message_delay_level": f"1s {level}"}, environment={})
    settings = config.load(given={"message_delay_level": "1s 365000d"}, environment={}).settings
    (_, longest) = parse_delay_levels(settings.message_delay_level)
    assert longest + time.time() * 1000 < limits.DELIVER_MS_MAX


@mends("S129")
def test_a_processor_that_is_not_there_is_refused_by_name() -> None:
    """As the kernel says it: nobody else knows which ones a process may have."""
    wanted = config.load(given={"broker_cpu": 4095}, environment={})
    before = os.sched_getaffinity(0)
    assert 4095 not in before
    with pytest.raises(SettingIllegal, match=r"broker_cpu = 4095 .*choose one of"):
        config.stay_on_cpu(wanted)
    config.stay_on_cpu(config.load(environment={}))
    assert os.sched_getaffinity(0) == before
