"""Samples of kio's messages: filled, with nulls, or as small as possible."""

import dataclasses
import datetime
import types
import typing
from enum import Enum
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

SOMETHING: dict[str, Any] = {
    "bool": True,
    "int8": 1,
    "int16": 3,
    "uint16": 40_000,
    "int32": 70_000,
    "int64": 2**40,
    "float64": 1.5,
    "uuid": UUID("01234567-89ab-cdef-0123-456789abcdef"),
    "string": "héllo",
    "bytes": b"\x00\xff",
    "error_code": ErrorCode(27),
    "timedelta_i32": datetime.timedelta(milliseconds=70_000),
    "timedelta_i64": datetime.timedelta(milliseconds=80_000),
    "datetime_i64": datetime.datetime.fromtimestamp(1_700_000_000, datetime.UTC),
}


class Fill(Enum):
    """The content of fields: a value; null if the field is nullable; or the smallest value."""

    FULL = "full"
    NULL = "null"
    EMPTY = "empty"


def sample(kind: Any, fill: Fill) -> Any:
    """Return a filled instance of one of kio's dataclasses."""
    hints = typing.get_type_hints(kind)
    values = {f.name: _value(hints[f.name], f.metadata, fill) for f in dataclasses.fields(kind)}
    return kind(**values)


def _value(hint: Any, metadata: Any, fill: Fill) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        # Records have their own format, which this file does not decode.
        if fill is Fill.NULL or metadata.get("kafka_type") == "records":
            return None
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        if fill is Fill.EMPTY:
            return ()
        return (_value(item, metadata, fill), _value(item, metadata, Fill.FULL))
    if dataclasses.is_dataclass(hint):
        return sample(hint, fill)
    return SOMETHING[metadata["kafka_type"]]
