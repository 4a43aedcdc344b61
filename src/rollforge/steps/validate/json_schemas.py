"""Checks the JSON schema of a tool's parameters: known types and existing names, at any depth.

It is no meta-schema validation; it finds faults that make a tool impossible to call as intended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rollforge.records import JsonObject
from rollforge.registry import did_you_mean
from rollforge.steps.validate.validation_records import RowFault, kind_of, shown

_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("$defs", "definitions", "patternProperties")
_SINGLE = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
_PARTS = ("anyOf", "oneOf", "allOf", "not", "if", "then", "else")
"""Keywords whose subschemas apply to the same value."""


_SCHEMA = 'like {"type": "object", "properties": {"city": {"type": "string"}}}'
_REQUIRED = 'like ["city"]'


def check_schema(
    schema: object, path: str, *, is_top: bool = False, is_part: bool = False
) -> Iterator[RowFault]:
    """Check a schema and its subschemas; a subschema may refer to properties of the outer one."""
    if not isinstance(schema, dict):
        yield RowFault(path, f"expected a JSON schema, got {kind_of(schema)}", _SCHEMA)
        return
    yield from _check_type(schema, path, is_top=is_top)
    enum = schema.get("enum")
    if enum is not None and not isinstance(enum, list):
        yield RowFault(f"{path}.enum", f"expected a list of values, got {shown(enum)}", 'like ["a", "b"]')
    properties = _given(schema, "properties", {})
    if not isinstance(properties, dict):
        yield RowFault(f"{path}.properties", f"expected an object, got {kind_of(properties)}", _SCHEMA)
    else:
        yield from _check_required(schema, None if is_part else properties, path)
        for name, inner in properties.items():
            yield from _check_nested(inner, f"{path}.properties.{name}")
    yield from _check_inner(schema, path)


def _given(schema: Mapping[str, object], key: str, default: object) -> object:
    """The value of a key; null counts as absent, because Parquet adds nulls for keys of other rows' schemas."""
    value = schema.get(key)
    return default if value is None else value


def _check_type(schema: Mapping[str, object], path: str, *, is_top: bool) -> Iterator[RowFault]:
    kind = schema.get("type")
    if is_top and kind != "object":
        yield RowFault(f"{path}.type", f"expected 'object', got {shown(kind)}", _SCHEMA)
    for one in kind if isinstance(kind, list) else [kind]:
        if one is not None and one not in _TYPES:
            near = did_you_mean(str(one), list(_TYPES))
            yield RowFault(
                f"{path}.type", f"no such JSON type: {shown(one)}{near}", f"one of {', '.join(_TYPES)}"
            )


def _check_required(
    schema: Mapping[str, object], properties: JsonObject | None, path: str
) -> Iterator[RowFault]:
    required = _given(schema, "required", [])
    if not isinstance(required, list):
        yield RowFault(f"{path}.required", f"expected a list of names, got {kind_of(required)}", _REQUIRED)
        return
    for name in required:
        if not isinstance(name, str):
            yield RowFault(
                f"{path}.required", f"expected names of properties, got {kind_of(name)}", _REQUIRED
            )
        elif properties is not None and name not in properties:
            near = did_you_mean(name, list(properties))
            yield RowFault(
                f"{path}.required",
                f"{name!r} is required, but is no property{near}",
                "describe it under properties",
            )


def _check_inner(schema: Mapping[str, object], path: str) -> Iterator[RowFault]:
    """Check the schemas inside this one; `true` and `false` are schemas too."""
    for key in _LISTS:
        choices = schema.get(key)
        if choices is not None and not isinstance(choices, list):
            yield RowFault(
                f"{path}.{key}",
                f"expected a list of schemas, got {kind_of(choices)}",
                'like [{"type": "string"}]',
            )
            continue
        for number, inner in enumerate(choices or []):
            yield from _check_nested(inner, f"{path}.{key}[{number}]", is_part=key in _PARTS)
    for key in _NAMED:
        named = schema.get(key)
        for name, inner in named.items() if isinstance(named, dict) else ():
            yield from _check_nested(inner, f"{path}.{key}.{name}")
    for key in _SINGLE:
        inner = schema.get(key)
        if isinstance(inner, list) and key == "items":  # one schema per place, as older drafts have it
            for number, one in enumerate(inner):
                yield from _check_nested(one, f"{path}.items[{number}]")
        elif inner is not None:
            yield from _check_nested(inner, f"{path}.{key}", is_part=key in _PARTS)


def _check_nested(schema: object, path: str, *, is_part: bool = False) -> Iterator[RowFault]:
    if not isinstance(schema, bool):
        yield from check_schema(schema, path, is_part=is_part)
