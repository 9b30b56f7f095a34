"""Bodies of JSON as values of one Arrow struct, each body by itself.

A body that is no such object is null with the reason beside it; the others are not touched by it.
(pyarrow's reader takes lines of a block: one that is malformed ends the block, and an empty body
would move all behind it.) Nothing here imports numba or Spark.
"""

from __future__ import annotations

import re
from abc import ABC
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from types import GenericAlias
from typing import Annotated, Any, ClassVar, Final, NotRequired, TypedDict

import msgspec
import pyarrow as pa

from gantrymq.shm.errors import SettingIllegal

Scalar = Callable[[Any], bool]


def _whole(bits: int) -> Any:  # noqa: ANN401 - what msgspec decodes to
    top = 1 << (bits - 1)
    return Annotated[int, msgspec.Meta(ge=-top, le=top - 1)]


#: The first number that a float of 4 bytes has as infinity: what is below is rounded to its last.
_FLOAT_END: Final = float(2**128 - 2**103)
#: What msgspec decodes to, by what recognizes an Arrow type. Arrow refuses decimals that do not
#: fit; all other ranges are in here, as it would make an infinity of a FLOAT without a word.
_SCALARS: Final[tuple[tuple[Scalar, Any], ...]] = (
    (pa.types.is_boolean, bool),
    (pa.types.is_int8, _whole(8)),
    (pa.types.is_int16, _whole(16)),
    (pa.types.is_int32, _whole(32)),
    (pa.types.is_int64, _whole(64)),
    (pa.types.is_float32, Annotated[float, msgspec.Meta(gt=-_FLOAT_END, lt=_FLOAT_END)]),
    (pa.types.is_float64, float),
    (pa.types.is_string, str),
    (pa.types.is_binary, bytes),  # base64, as Spark's from_json has it
    (pa.types.is_timestamp, datetime),
    (pa.types.is_date, date),
)

#: JSON's numbers.
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")

#: msgspec says this of a body that ends too early, and of one with half of an escape near its end.
_TRUNCATED: Final = "Input data was truncated"
#: No escape is longer: with so many blanks behind it a body's end is not what is wrong.
_BLANKS: Final = b" " * 16
#: msgspec's words for half of a pair, and plain ones.
_HALVES: Final = (
    "invalid utf-16 surrogate pair",
    "unexpected end of escaped utf-16 surrogate pair",
    "unexpected end of hex escape",
)
_HALF: Final = r"an escape from \ud800 to \udfff without the other half of its pair"


class _Number(ABC):
    """Stands for decimals where msgspec is to ask for them; one class for each of Arrow's types."""

    limits: ClassVar[str]


@dataclass(frozen=True)
class TypedBodies:
    """Values of n bodies and why some have none: reasons are null where there is nothing wrong."""

    values: Any  # pa.StructArray
    errors: Any  # pa.StringArray


class BodyDecoder:
    """Decodes bodies by an Arrow struct type. Raises SettingIllegal if JSON has no such type.

    Fields that a body lacks are null, others that it has are passed over; a field declared NOT NULL
    must be there. Times are RFC 3339's, without a zone UTC.
    """

    def __init__(self, kind: Any) -> None:  # noqa: ANN401 - pa.StructType
        self._kind = kind
        python = _python_type(kind, "body")
        # Numbers of fields that are decimals come as they are; those of floats have their type.
        decoder = msgspec.json.Decoder(python, dec_hook=_as_decimal, float_hook=_decimal)
        self._decode = decoder.decode

    def decode(self, bodies: Any) -> TypedBodies:  # noqa: ANN401 - pa.BinaryArray
        """One value per body; a null body is null without a reason."""
        values: list[Any] = []
        errors: dict[int, str] = {}
        for row, body in enumerate(bodies.to_pylist()):
            try:
                values.append(None if body is None else self._decode(body))
            except msgspec.MsgspecError as error:
                values.append(None)
                errors[row] = self._reason(body, error)
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

    def _reason(self, body: bytes, error: msgspec.MsgspecError) -> str:
        text = str(error)
        if text == _TRUNCATED and body.rstrip().endswith(b"}"):
            try:
                self._decode(body + _BLANKS)
            except msgspec.MsgspecError as found:
                text = str(found)
        for half in _HALVES:
            text = text.replace(half, _HALF)
        return text

    def _typed(self, values: list[Any], errors: dict[int, str]) -> Any:  # noqa: ANN401
        """The values as Arrow has them; a decimal that its type cannot hold becomes an error."""
        try:
            return pa.array(values, self._kind)
        except (pa.ArrowException, OverflowError):
            for row, value in enumerate(values):
                try:
                    pa.array([value], self._kind)
                except (pa.ArrowException, OverflowError) as error:
                    values[row] = None
                    errors[row] = _misfit(value, self._kind) or str(error)
            return pa.array(values, self._kind)


def _misfit(value: Any, kind: Any) -> str | None:  # noqa: ANN401
    """What is wrong with the first part that its type cannot hold, and where; msgspec's form."""
    for part, part_kind, path in _scalars_in(value, kind, "$"):
        try:
            pa.array([part], part_kind)
        except (pa.ArrowException, OverflowError) as error:
            return f"{_limits(part_kind) or error} - at `{path}`"
    return None


def _limits(kind: Any) -> str | None:  # noqa: ANN401
    if not pa.types.is_decimal(kind):
        return None
    return (
        f"Expected `decimal({kind.precision}, {kind.scale})`: a number with at most"
        f" {kind.precision - kind.scale} digits before the point and {kind.scale} behind it"
    )


def _scalars_in(value: Any, kind: Any, path: str) -> Iterator[tuple[Any, Any, str]]:  # noqa: ANN401
    """Each part of a value that is neither null nor made of others, with its type and path."""
    if value is None:
        return
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _scalars_in(value.get(field.name), field.type, f"{path}.{field.name}")
    elif pa.types.is_map(kind):
        for item in value.values():
            yield from _scalars_in(item, kind.item_type, f"{path}[...]")
    elif pa.types.is_list(kind):
        for place, item in enumerate(value):
            yield from _scalars_in(item, kind.value_type, f"{path}[{place}]")
    else:
        yield value, kind, path


def _number_of(kind: Any) -> type[_Number]:  # noqa: ANN401 - pa.Decimal128Type
    class Number(_Number):
        limits = str(_limits(kind))

    Number.register(Decimal)
    return Number


def _as_decimal(kind: type[_Number], value: object) -> Decimal:
    """The value of a field that is a decimal. Raises ValueError, to which msgspec adds its path.

    A string counts if JSON writes a number so: `Decimal` takes digits of all scripts, lines between
    them and blanks around them.
    """
    if type(value) is Decimal:
        return value
    if type(value) is int:  # not a bool
        return Decimal(value)
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return _decimal(value)
    raise ValueError(kind.limits)


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent that no type has room for
        return Decimal("Infinity")


def _python_type(kind: Any, path: str) -> Any:  # noqa: ANN401 - what msgspec decodes to
    if pa.types.is_struct(kind):
        fields = {field.name: _field_type(field, f"{path}.{field.name}") for field in kind}
        return TypedDict(path, fields)  # type: ignore[operator]
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return GenericAlias(dict, (str, _optional(kind.item_field, path)))
    if pa.types.is_list(kind):
        return GenericAlias(list, (_optional(kind.value_field, path),))
    if pa.types.is_decimal(kind):
        return _number_of(kind)
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
