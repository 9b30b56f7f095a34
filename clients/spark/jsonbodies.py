"""Bodies of JSON as values of one Arrow struct, each body by itself.

A body that is no such object is null with the reason beside it; the others are not touched by it.
(pyarrow's reader takes lines of a block: one that is malformed ends the block, and an empty body
would move all behind it.) Nothing here imports numba or Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from types import GenericAlias
from typing import Any, Final, NotRequired, TypedDict

import msgspec
import pyarrow as pa

from gantrymq.shm.errors import SettingIllegal

Scalar = Callable[[Any], bool]
#: Python types by what recognizes an Arrow type; Arrow itself checks ranges.
_SCALARS: Final[tuple[tuple[Scalar, type], ...]] = (
    (pa.types.is_boolean, bool),
    (pa.types.is_integer, int),
    (pa.types.is_floating, float),
    (pa.types.is_decimal, Decimal),
    (pa.types.is_string, str),
    (pa.types.is_binary, bytes),  # base64, as Spark's from_json has it
    (pa.types.is_timestamp, datetime),
    (pa.types.is_date, date),
)


@dataclass(frozen=True)
class TypedBodies:
    """Values of n bodies and why some have none: reasons are null where there is nothing wrong."""

    values: Any  # pa.StructArray
    errors: Any  # pa.StringArray


class BodyDecoder:
    """Decodes bodies by an Arrow struct type. Raises SettingIllegal if JSON has no such type.

    Fields that a body lacks are null, others that it has are passed over; a field declared NOT NULL
    must be there. Times are ISO 8601, without a zone UTC.
    """

    def __init__(self, kind: Any) -> None:  # noqa: ANN401 - pa.StructType
        self._kind = kind
        self._decode = msgspec.json.Decoder(_python_type(kind, "body")).decode

    def decode(self, bodies: Any) -> TypedBodies:  # noqa: ANN401 - pa.BinaryArray
        """One value per body; a null body is null without a reason."""
        values: list[Any] = []
        errors: dict[int, str] = {}
        for row, body in enumerate(bodies.to_pylist()):
            try:
                values.append(None if body is None else self._decode(body))
            except msgspec.MsgspecError as error:
                values.append(None)
                errors[row] = str(error)
            except UnicodeDecodeError as error:
                values.append(None)
                errors[row] = f"no UTF-8: {error.reason} at byte {error.start}"
            except RecursionError:
                values.append(None)
                errors[row] = "values are nested too deeply"
        typed = self._typed(values, errors)
        reasons = [errors.get(row) for row in range(len(values))] if errors else None
        column = pa.array(reasons, pa.string()) if reasons else pa.nulls(len(values), pa.string())
        return TypedBodies(typed, column)

    def _typed(self, values: list[Any], errors: dict[int, str]) -> Any:  # noqa: ANN401
        """The values as Arrow has them; what is out of a type's range becomes an error."""
        try:
            return pa.array(values, self._kind)
        except (pa.ArrowException, OverflowError):
            for row, value in enumerate(values):
                try:
                    pa.array([value], self._kind)
                except (pa.ArrowException, OverflowError) as error:
                    values[row] = None
                    errors[row] = str(error)
            return pa.array(values, self._kind)


def _python_type(kind: Any, path: str) -> Any:  # noqa: ANN401 - what msgspec decodes to
    if pa.types.is_struct(kind):
        fields = {field.name: _field_type(field, f"{path}.{field.name}") for field in kind}
        return TypedDict(path, fields)  # type: ignore[operator]
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return GenericAlias(dict, (str, _optional(kind.item_field, path)))
    if pa.types.is_list(kind):
        return GenericAlias(list, (_optional(kind.value_field, path),))
    for recognizes, python in _SCALARS:
        if recognizes(kind):
            return python
    raise SettingIllegal(f"option 'schema': {path} is {kind}, which JSON does not have")


def _field_type(field: Any, path: str) -> Any:  # noqa: ANN401
    kind = _optional(field, path)
    return NotRequired[kind] if field.nullable else kind


def _optional(field: Any, path: str) -> Any:  # noqa: ANN401
    kind = _python_type(field.type, path)
    return kind | None if field.nullable else kind
