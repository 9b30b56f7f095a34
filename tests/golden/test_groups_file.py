"""`subscriptionGroup.json` of a real RocketMQ: read, added to, and otherwise left as it was."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from gantrymq.brokerd.log import Log
from gantrymq.brokerd.subscriptions import Subscriptions, default_group, fields_of
from gantrymq.shm.clock import SystemClock
from gantrymq.shm.configfile import read_config
from gantrymq.shm.storage import PosixStorage
from tests.support.golden import CLEAN_SETS, GoldenStore

NAME = "subscriptionGroup.json"


@pytest.mark.parametrize("name", CLEAN_SETS)
def test_a_group_is_added_and_nothing_else_changes(
    own_copy: Callable[[str], GoldenStore], name: str
) -> None:
    """CQ-110, SF-103 to SF-105: unknown fields and other groups are kept, our own looks alike."""
    storage = PosixStorage(str(own_copy(name).store))
    before = read_config(storage, NAME)
    groups = Subscriptions(storage, SystemClock())
    groups.load()
    log = Log("debug", io.StringIO())
    for group in ("mine", *before["subscriptionGroupTable"], "mine"):
        groups.add(group)
        assert groups.commit(log) == 0
    after = read_config(storage, NAME)
    assert after["dataVersion"].pop("counter") == before["dataVersion"].pop("counter") + 1
    assert after["dataVersion"].pop("timestamp") > before["dataVersion"].pop("timestamp") > 0
    assert after["subscriptionGroupTable"].pop("mine") == default_group("mine")
    assert after == before
    plain = [entry for key, entry in before["subscriptionGroupTable"].items() if "CID_RMQ" in key]
    assert plain[0] == default_group(plain[0]["groupName"])


def test_fields_that_nobody_knows_are_kept(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("store")
    (root / "config").mkdir()
    (root / "config" / NAME).write_text(
        '{"new":[1],"dataVersion":{"counter":4,"more":2},"forbiddenTable":{"g":{"t":1}},'
        '"subscriptionGroupTable":{"g":{"groupName":"g","retryMaxTimes":3,"later":{"x":1}}}}'
    )
    groups = Subscriptions(PosixStorage(str(root)), SystemClock())
    groups.load()
    groups.add("h")
    groups.commit(Log("debug", io.StringIO()))
    content = read_config(PosixStorage(str(root)), NAME)
    assert content["new"] == [1]
    assert content["forbiddenTable"] == {"g": {"t": 1}}
    assert (content["dataVersion"]["counter"], content["dataVersion"]["more"]) == (5, 2)
    kept = {"groupName": "g", "retryMaxTimes": 3, "later": {"x": 1}}
    assert content["subscriptionGroupTable"] == {"g": kept, "h": default_group("h")}


def test_max_attempts_and_order_reach_the_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    """RD-17: RocketMQ counts retries, one less than deliveries; what it says besides stays."""
    root = tmp_path_factory.mktemp("store")
    (root / "config").mkdir()
    (root / "config" / NAME).write_text(
        '{"subscriptionGroupTable":{"g":{"groupName":"g","retryMaxTimes":3,"later":1}}}'
    )
    storage = PosixStorage(str(root))
    groups, log = Subscriptions(storage, SystemClock()), Log("debug", io.StringIO())
    groups.load()
    groups.add("g", fields_of({"max_attempts": 6, "orderly": True}))
    assert groups.commit(log) == 0
    groups.add("h", fields_of({"max_attempts": 17}))
    assert groups.commit(log) == 0
    groups.add("g", fields_of({"max_attempts": 0}))
    assert groups.commit(log) == 0
    content = read_config(storage, NAME)
    assert content["dataVersion"]["counter"] == 2
    found = content["subscriptionGroupTable"]
    order = {"consumeMessageOrderly": True}
    assert found["g"] == {"groupName": "g", "retryMaxTimes": 5, "later": 1} | order
    assert found["h"] == default_group("h"), "17 deliveries are RocketMQ's 16 retries"
