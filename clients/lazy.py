"""A module that is imported when something of it is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Lazy:
    """Stands for a large module, in annotations too, which people may ask to be resolved."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:  # noqa: ANN401 - what the module has
        return getattr(import_module(self._name), attribute)
