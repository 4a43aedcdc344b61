"""Values of keyword arguments as the steps' option records store them; a value of another type is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from numbers import Integral, Real
from os import PathLike, fspath
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from rollforge.config import numbers_between, parse_duration
from rollforge.errors import UsageError
from rollforge.registry import did_you_mean

OF_PAIRS = ("map", "agent_map", "fan_out")
"""Repeatable options of the form NAME=VALUE, for which Python may give a dict."""


def fitted(value: Any, kind: Any, *, name: str, field: str, command: str) -> Any:
    """The value as the record stores it: `concurrency=8` becomes "8", `deadline="8h"` seconds, a list a tuple.

    Raises:
        UsageError: the value is of another type; the message names the keyword and what it takes.
    """
    converted = _converted(value, kind, name=name, field=field)
    if _is_of(converted, kind):
        return converted
    near = did_you_mean(value, _words(kind)) if isinstance(value, str) else ""
    raise UsageError(
        f"{command}: {name}={value!r} is not understood{near}", hint=f"{name} is {_described(kind, field)}"
    )


def accepts_none(kind: Any) -> bool:
    """Whether None is a value of the type; elsewhere it means that the keyword is not used."""
    return kind is Any or NoneType in _alternatives(kind)


def path_of(value: Any, *, name: str, command: str) -> str:
    """A path or address as text; anything else is refused."""
    if isinstance(value, str | Path):
        return str(value)
    raise UsageError(f"{command}: {name}={value!r} is not understood", hint=f"{name} is a path")


def texts_of(value: Any, *, name: str, command: str) -> tuple[str, ...]:
    """One text, several, or none, as a tuple."""
    words = () if value is None else (value,) if isinstance(value, str) else _listed(value)
    if not isinstance(words, tuple) or not all(isinstance(word, str) for word in words):
        raise UsageError(
            f"{command}: {name}={value!r} is not understood", hint=f"{name} is a text or a list of texts"
        )
    return words


def _converted(value: Any, kind: Any, *, name: str, field: str) -> Any:
    kinds = _alternatives(kind)
    if field == "api_key_env" and isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, Real) and not isinstance(value, bool):
        return _as_number(value, kinds)
    shape = next((one for one in kinds if get_origin(one) is tuple), None)
    if isinstance(value, str | PathLike) and str in kinds:
        return fspath(value)
    if isinstance(value, str) and float in kinds:
        return parse_duration(value, flag=name) if _is_time(field) else _as_float(value)
    if shape is None:
        return _listed(value) if any(_is_sequence(one) for one in kinds) else value
    if isinstance(value, str) and float in get_args(shape):
        return numbers_between(name, value, "/" if field == "split" else "-")
    if isinstance(value, Mapping) and field in OF_PAIRS:
        return tuple(f"{key}={_joined(word, field)}" for key, word in value.items())
    if isinstance(value, str | PathLike):
        return (fspath(value),)
    value = _listed(value)
    if isinstance(value, tuple):
        return tuple(fspath(one) if isinstance(one, PathLike) else one for one in value)
    return value


def _listed(value: Any) -> Any:
    """A list, set, array or iterator as a tuple; a text, a dict and a value that is none of these as it is."""
    if isinstance(value, Set):
        return tuple(sorted(value, key=str))
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping | PathLike):
        return tuple(getattr(value, "tolist", lambda: value)())  # numbers of an array as Python's
    return value


def _is_sequence(kind: Any) -> bool:
    origin = get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, Sequence) and origin is not tuple


def _alternatives(kind: Any) -> tuple[Any, ...]:
    """The members of a union; a type that is none is its only member."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _as_number(value: Real, kinds: tuple[Any, ...]) -> int | float | str | Real:
    if int in kinds or float in kinds:
        return int(value) if isinstance(value, Integral) else float(value)
    return str(value) if str in kinds else value


def _as_float(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _joined(words: Any, field: str) -> str:
    """One value of NAME=VALUE; in `map` quotes keep a comma inside it."""
    if not isinstance(words, str):
        return ",".join(words)
    return f'"{words}"' if field == "map" and "," in words and '"' not in words else words


def _is_time(field: str) -> bool:
    return field.endswith("_s") or field == "timeout"


def _is_of(value: Any, kind: Any) -> bool:
    """Whether the value is of the type of a field."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return value in arguments
    if origin is tuple:
        is_long_enough = arguments[-1] is Ellipsis or (
            isinstance(value, tuple) and len(value) == len(arguments)
        )
        return isinstance(value, tuple) and is_long_enough and all(_is_of(one, arguments[0]) for one in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping)
    if _is_sequence(kind):
        return isinstance(value, int | Sequence) and not isinstance(value, str)
    if origin in (Union, UnionType):
        return any(_is_of(value, one) for one in arguments)
    if kind in (int, float):
        return isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    return kind is Any or not isinstance(kind, type) or isinstance(value, kind)


def _words(kind: Any) -> list[str]:
    """The words that a type allows."""
    literals = [one for one in _alternatives(kind) if get_origin(one) is Literal]
    return [str(word) for one in literals for word in get_args(one)]


def _described(kind: Any, field: str) -> str:
    """A type in words."""
    kinds = _alternatives(kind)
    named = {bool: "True or False", float: "a number", int: "a whole number", str: "a text"}
    words = [repr(word) for word in _words(kind)]
    if _is_time(field):
        words.append("a number of seconds, or a text such as '90s' or '8h'")
    else:
        words += [text for one, text in named.items() if one in kinds][:1]
    if not words:
        numbers = any(get_origin(one) is tuple and float in get_args(one) for one in kinds)
        is_mapping = any(
            isinstance(origin := get_origin(one), type) and issubclass(origin, Mapping) for one in kinds
        )
        words = ["two numbers" if numbers else "a dict" if is_mapping else "a list"]
    return " or ".join(words)
