"""Arrow types of exported rows, derived from their columns. Imports pyarrow, so only Parquet output loads it."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

import msgspec
import pyarrow as pa

from rollforge.conversations.shape import REASONING_KEY
from rollforge.exporters.columns import Columns, Messages, Tools
from rollforge.exporters.contract import PlainMessage

_CALLS = pa.list_(
    pa.struct(
        [
            ("id", pa.string()),
            ("type", pa.string()),
            ("function", pa.struct([("name", pa.string()), ("arguments", pa.string())])),
        ]
    )
)
_PLAIN = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
_NO_KEYS: frozenset[str] = frozenset()


def arrow_schema(columns: Columns, keys: Mapping[str, frozenset[str]]) -> pa.Schema:
    """The schema of rows with these columns and these optional message keys."""
    return pa.schema([(name, _arrow_type(column.type, name, keys)) for name, column in columns.items()])


def _arrow_type(kind: Any, column: str, keys: Mapping[str, frozenset[str]]) -> pa.DataType:
    if kind == Messages:
        return pa.list_(_message(keys.get(column, _NO_KEYS)))
    if kind is PlainMessage:
        return _message(_NO_KEYS)
    if kind == Tools:
        return pa.string()
    if get_origin(kind) is UnionType:
        (kind,) = (part for part in get_args(kind) if part is not NoneType)
    if get_origin(kind) is list:
        return pa.list_(_arrow_type(get_args(kind)[0], column, keys))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return pa.struct([(f.encode_name, _arrow_type(f.type, f.name, keys)) for f in fields])
    return _PLAIN[kind] if kind in _PLAIN else pa.string()  # a closed set of texts


def _message(keys: frozenset[str]) -> pa.StructType:
    """A message with these optional keys; call arguments are strings."""
    fields = [("role", pa.string()), ("content", pa.string())]
    if REASONING_KEY in keys:
        fields.append((REASONING_KEY, pa.string()))
    if "tool_calls" in keys:
        fields.append(("tool_calls", _CALLS))
    if "tool_call_id" in keys:
        fields += [("tool_call_id", pa.string()), ("name", pa.string())]
    return pa.struct(fields)
