"""The fixture `gantrymq_broker` for applications' own tests; pytest finds it by itself.

::

    def test_an_order_is_booked(gantrymq_broker):
        with Producer() as producer:  # or Producer(gantrymq_broker.home)
            ...

Loading this module loads nothing of GantryMQ: the first test that asks for the fixture does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gantrymq.temporary import Broker

_SCOPE = "gantrymq_broker_scope"
_SETTINGS = "gantrymq_broker_settings"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Two settings of pytest's configuration file."""
    text = "how long one gantrymq_broker lives: function (default), class, module, package, session"
    parser.addini(_SCOPE, text, default="function")
    text = "settings of gantrymq_broker, name=value a line; `gantrymq serve --print-config` has all"
    parser.addini(_SETTINGS, text, type="linelist")


def _scope(fixture_name: str, config: pytest.Config) -> str:
    return str(config.getini(_SCOPE))


@pytest.fixture(scope=_scope)  # type: ignore[arg-type] # pytest checks the word
def gantrymq_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Run a broker with an empty store; GANTRYMQ_HOME names it to clients, also to child processes.

    A `gantrymq.Broker`: `.home` is its directory, `.stop()` and `.start()` are for tests of what
    an application does meanwhile. Its process, files and shared memory are gone afterwards.
    """
    from gantrymq.temporary import Broker

    lines: list[str] = request.config.getini(_SETTINGS)
    settings = dict(line.replace(" ", "").split("=", 1) for line in lines)
    with Broker.temporary(**settings) as broker, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GANTRYMQ_HOME", str(broker.home))
        yield broker
