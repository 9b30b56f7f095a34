"""`CREATE TABLE name USING gantrymq OPTIONS (...)`: where a table's options are kept.

Spark hands a table's OPTIONS to the source when the table is made, each of them also as
`option.NAME` and beside all other properties of the table, and hands none when it is read. What it
does keep is the schema. So the comment of the first column says them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from gantrymq.shm.errors import SettingIllegal
from gantrymq.shm.jsontext import parse_object

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_PREFIX: Final = "option."
_SIGN: Final = "gantrymq: "


def options_of_table(options: Mapping[str, str]) -> dict[str, str] | None:
    """Options of a table that is being made; None if these are none of a table."""
    found = {name: value for name, value in options.items() if name.lower().startswith(_PREFIX)}
    return {name[len(_PREFIX) :]: value for name, value in found.items()} or None


def with_options(columns: list[str], options: Mapping[str, str]) -> str:
    """Columns in Spark's DDL, the first of which says the options."""
    text = _SIGN + json.dumps(dict(options))
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return ", ".join([f"{columns[0]} COMMENT '{quoted}'", *columns[1:]])


def options_in(schema: StructType) -> dict[str, str]:
    """What a table's schema says; empty for any other. Raises SettingIllegal."""
    comment = str(schema.fields[0].metadata.get("comment", "")) if schema.fields else ""
    if not comment.startswith(_SIGN):
        return {}
    try:
        found = parse_object(comment.removeprefix(_SIGN))
        if not all(isinstance(value, str) for value in found.values()):
            raise ValueError("an option is no text")
    except ValueError as error:
        text = f"the comment of the table's first column does not say its options: {error}"
        raise SettingIllegal(text) from None
    return found
