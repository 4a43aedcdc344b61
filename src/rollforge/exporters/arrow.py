"""This module holds the Arrow types of exported rows; it imports pyarrow, so exporters import it only to write Parquet."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from rollforge.exporters.shape import REASONING_KEY

_CALLS = pa.list_(
    pa.struct(
        [
            ("id", pa.string()),
            ("type", pa.string()),
            ("function", pa.struct([("name", pa.string()), ("arguments", pa.string())])),
        ]
    )
)


def messages_type(keys: frozenset[str]) -> pa.DataType:
    """A list of messages with the optional keys that the data set uses; arguments are strings."""
    fields = [("role", pa.string()), ("content", pa.string())]
    if REASONING_KEY in keys:
        fields.append((REASONING_KEY, pa.string()))
    if "tool_calls" in keys:
        fields.append(("tool_calls", _CALLS))
    if "tool_call_id" in keys:
        fields += [("tool_call_id", pa.string()), ("name", pa.string())]
    return pa.list_(pa.struct(fields))


def columns_of(keys: dict[str, frozenset[str]], *names: str) -> dict[str, pa.DataType]:
    """Columns of messages, each with the keys its own messages use."""
    return {name: messages_type(keys.get(name, frozenset())) for name in names}


def prompt_fields() -> dict[str, str]:
    """The columns of `prompts.PROMPT_COLUMNS`, by Arrow type name."""
    from rollforge.exporters.prompts import PROMPT_COLUMNS

    return {name: {str: "string", int: "int64"}.get(kind, "double") for name, kind in PROMPT_COLUMNS.items()}


def schema(**fields: Any) -> pa.Schema:
    """A schema from names of types or types."""
    return pa.schema(
        [(name, pa.type_for_alias(kind) if isinstance(kind, str) else kind) for name, kind in fields.items()]
    )
