"""This module reads command lines that are plain: known flags, each at most once, and values that can mean one thing only.

Most are, and are read without loading cyclopts. All others (help, mistakes, lists, flags that take several words) are left to it:
whatever is read here, it reads alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from inspect import Parameter as Argument
from inspect import iscoroutinefunction, signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from rollforge.cli.flags import Parameter

_WHOLE = re.compile(r"[0-9]{1,15}", re.ASCII)
_DECIMAL = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?", re.ASCII)
_NOTHING = frozenset({"none", "null"})
"""Words that may stand for None."""


class NotPlain(Exception):
    """The words must be read by cyclopts."""


class Call(NamedTuple):
    """What the function is called with."""

    positional: list[object]
    named: dict[str, object]


class _Place(NamedTuple):
    argument: str
    field: str | None = None
    """Of the dataclass that is the argument."""


class _Flag(NamedTuple):
    kind: Any
    place: _Place


def read_plainly(function: Callable[..., object], words: Sequence[str]) -> Call:
    """What a command is called with; raises `NotPlain`."""
    if iscoroutinefunction(function):
        raise NotPlain
    hints = get_type_hints(function, include_extras=True)
    arguments = list(signature(function).parameters.values())
    alone, given = _split(words, _flags(arguments, hints))
    named: dict[str, object] = {}
    records: dict[str, dict[str, object]] = {}
    for (argument, field), value in given.items():
        if field is None:
            named[argument] = value
        else:
            records.setdefault(argument, {})[field] = value
    named |= {argument: hints[argument](**fields) for argument, fields in records.items()}
    if any(_is_missing(argument, named) for argument in arguments):
        raise NotPlain
    return Call(_place(alone, arguments, hints), named)


def _flags(arguments: Sequence[Argument], hints: dict[str, Any]) -> dict[str, _Flag]:
    """What stands on the command line → what it sets."""
    flags: dict[str, _Flag] = {}
    for argument in arguments:
        hint = hints[argument.name]
        if argument.kind is not Argument.KEYWORD_ONLY:
            continue
        if is_dataclass(hint):
            for field, inner in get_type_hints(hint, include_extras=True).items():
                flags |= dict.fromkeys(_names(field, inner), _Flag(inner, _Place(argument.name, field)))
        else:
            flags |= dict.fromkeys(_names(argument.name, hint), _Flag(hint, _Place(argument.name)))
    return flags


def _names(name: str, hint: Any) -> Sequence[str]:
    told = [extra.name for extra in get_args(hint)[1:] if isinstance(extra, Parameter) and extra.name]
    if not told:
        return ["--" + name.replace("_", "-")]
    return [told[0]] if isinstance(told[0], str) else told[0]


def _split(words: Sequence[str], flags: dict[str, _Flag]) -> tuple[list[str], dict[_Place, object]]:
    """The words that stand alone, which must stand together, and the flags with their values."""
    alone: list[str] = []
    given: dict[_Place, object] = {}
    left = iter(words)
    follows_flag = False
    for word in left:
        if not word.startswith("-"):
            if alone and follows_flag:
                raise NotPlain
            alone.append(word)
            follows_flag = False
            continue
        follows_flag = True
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        flag = flags.get(name)
        if flag is None or flag.place in given:
            raise NotPlain
        if _bare(flag.kind) is bool:
            if equals:
                raise NotPlain
            given[flag.place] = True
        else:
            given[flag.place] = _read(value if equals else next(left, ""), flag.kind)
    return alone, given


def _place(alone: list[str], arguments: Sequence[Argument], hints: dict[str, Any]) -> list[object]:
    """The words that stand alone as the function's first arguments; a list takes all that are left, and must be the last."""
    places = [argument for argument in arguments if argument.kind is not Argument.KEYWORD_ONLY]
    placed: list[object] = []
    for number, argument in enumerate(places):
        hint = _bare(hints[argument.name])
        is_list = get_origin(hint) is list
        if argument.kind is Argument.POSITIONAL_OR_KEYWORD or (is_list and number < len(places) - 1):
            raise NotPlain
        if argument.kind is Argument.VAR_POSITIONAL:
            placed += [_read(word, hint) for word in alone]
            return placed
        if not alone:
            break
        if is_list:
            placed.append([_read(word, get_args(hint)[0]) for word in alone])
            return placed
        placed.append(_read(alone.pop(0), hints[argument.name]))
    is_short = len(placed) < len(places) and places[len(placed)].default is Argument.empty
    if alone or (is_short and places[len(placed)].kind is not Argument.VAR_POSITIONAL):
        raise NotPlain
    return placed


def _is_missing(argument: Argument, named: dict[str, object]) -> bool:
    is_needed = argument.kind is Argument.KEYWORD_ONLY and argument.default is Argument.empty
    return is_needed and argument.name not in named


def _bare(hint: Any) -> Any:
    """The type alone, which may be a union."""
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _read(word: str, hint: Any) -> object:
    """The value that a word stands for."""
    kind = _bare(hint)
    if get_origin(kind) in (Union, UnionType):
        kinds = [one for one in get_args(kind) if one is not NoneType]
        if len(kinds) != 1 or word.lower() in _NOTHING:
            raise NotPlain
        kind = kinds[0]
    if not word or word.startswith("-"):
        raise NotPlain
    if kind is str:
        return word
    if kind is Path:
        return Path(word)
    if (kind is int and _WHOLE.fullmatch(word)) or (kind is float and _DECIMAL.fullmatch(word)):
        return kind(word)
    if get_origin(kind) is Literal and word in get_args(kind):
        return word
    raise NotPlain
