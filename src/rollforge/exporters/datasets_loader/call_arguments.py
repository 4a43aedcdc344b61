"""Call arguments that the `datasets` JSON loader would change if they were written as objects.

Objects with the same keys become a struct, which is exact as long as every position has one type. Objects with different keys,
and empty ones, become a `Json` column, whose floats pass through a ten-digit text together with the floats of other columns. A
column that looked uniform and then changes fails the load; so does a key that occurs twice in one object. Texts that look like
dates become timestamps, and integers beyond 64 bits become floats. In all these cases the dataset has arguments as strings, which
no loader changes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from rollforge.conversations.messages import NOT_AN_OBJECT
from rollforge.exporters.datasets_loader.times import looks_like_time
from rollforge.store.reading import UNREADABLE

SURE_BYTES = 6 << 20
"""Position well inside the part of the file from which the loader infers types."""

LATE = 1 << 62
"""A position behind everything from which the loader infers types, such as in another file."""

_WHOLE = 2**53
"""Integers below this are exact as floats."""

_KEY = re.compile(r'"\s*:')
"""Matches at least once for every key of a JSON text."""

REPEATED_KEY = "call arguments name a key twice"
SLIPS = frozenset({NOT_AN_OBJECT, REPEATED_KEY})
"""Mistakes of the model in a single call. Objects cannot represent them, but they are no reason to change the form of all other
calls.
"""

ROUNDED = "a number in the arguments, or beside them, would be rounded by the loader"
_TIME = "arguments hold a text that looks like a date, which the loader would make a time"


@dataclass
class SharedRounding:
    """State shared by all columns of a dataset: one `Json` column causes rounding of floats in all."""

    has_json: bool = False
    """Whether some column has objects with different keys."""
    has_risky_number: bool = False
    """Whether some column has a float that rounding would change."""


class ArgumentsGuard:
    """Watches the arguments objects of one column, in file order."""

    def __init__(self, shared: SharedRounding | None = None) -> None:
        self._shared = shared or SharedRounding()
        self.has_risky_number = False
        """Whether this column has a float that rounding would change."""
        self._shapes: set[frozenset[tuple[str, ...]]] = set()
        self._types: dict[tuple[str, ...], str] = {}
        """Position in the arguments → the single type of all values there."""
        self._harmless: set[Hashable] = set()
        """Outlines of flat objects without floats; another object with a known outline needs no check."""
        self._has_mixed_keys = False

    def damage(self, arguments: str, position: int) -> str | None:
        """Why the loader would change objects if this one were written at this byte of the file; None if it would not.

        An object that would cause damage is not recorded, so the caller may skip it and continue.
        """
        try:
            value = msgspec.json.decode(arguments)
        except (*UNREADABLE, UnicodeEncodeError):
            value = None
        if not isinstance(value, dict):
            return NOT_AN_OBJECT
        outline = _flat_outline(value)
        if outline is not None and outline in self._harmless and arguments.count(":") == len(value):
            return None
        if len(_KEY.findall(arguments)) != _count_keys(value) and has_repeated_key(arguments):
            return REPEATED_KEY
        damage = self._first_of_its_kind(value, position)
        if damage is None and outline is not None:
            self._harmless.add(outline)
        return damage

    def _first_of_its_kind(self, value: dict[str, object], position: int) -> str | None:
        leaves = list(_leaves(value))
        for _, kind, item in leaves:
            if kind == "str" and looks_like_time(item):
                return _TIME
            if kind == "int" and not -(2**63) <= item < 2**63:
                return "arguments hold an integer beyond 64 bits, which the loader would make a float"
        types = {path: kind for path, kind, _ in leaves}
        if any(types[path] != kind or self._types.get(path, kind) != kind for path, kind, _ in leaves):
            return "arguments of one name have several types, which the loader would make one"
        shape = frozenset(types)
        is_new = bool(self._shapes) and shape not in self._shapes
        if is_new and not self._has_mixed_keys and position > SURE_BYTES:
            return "arguments with new keys appear late in the file, which the loader would refuse"
        is_ragged = any(item == {} or _is_ragged(item) for _, _, item in leaves)
        has_mixed_keys = self._has_mixed_keys or is_new or is_ragged
        is_risky = any(_is_risky(item) for _, _, item in leaves)
        shared = self._shared
        if (is_risky or shared.has_risky_number) and (has_mixed_keys or shared.has_json):
            return ROUNDED
        self._has_mixed_keys = has_mixed_keys
        self.has_risky_number |= is_risky
        shared.has_json |= has_mixed_keys
        shared.has_risky_number |= is_risky
        self._shapes.add(shape)
        self._types |= types
        return None


def _flat_outline(value: dict[str, object]) -> Hashable | None:
    """Keys and types of a flat object whose values no loader changes; None for other objects."""
    if not value or not all(map(_is_harmless, value.values())):
        return None
    return (*value, *map(type, value.values()))


def _is_harmless(item: object) -> bool:
    if isinstance(item, str):
        return not looks_like_time(item)
    return isinstance(item, int) and -_WHOLE < item < _WHOLE


def has_repeated_key(arguments: str) -> bool:
    """Whether an object in the JSON text has a duplicate key."""
    repeated = False

    def note(pairs: list[tuple[str, Any]]) -> None:
        nonlocal repeated
        repeated = repeated or len({key for key, _ in pairs}) < len(pairs)

    json.loads(arguments, object_pairs_hook=note)
    return repeated


def _count_keys(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(_count_keys, value.values()))
    return sum(map(_count_keys, value)) if isinstance(value, list) else 0


def _leaves(value: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """Every position in the value with its type name and value; list items share one position."""
    yield keys, type(value).__name__, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, (*keys, f".{key}"))
    elif isinstance(value, list):
        if not value:
            yield (*keys, "[]"), "nothing", None
        for item in value:
            yield from _leaves(item, (*keys, "[]"))


def _is_ragged(value: Any) -> bool:
    """Whether a list contains objects with different keys."""
    if not isinstance(value, list):
        return False
    return len({frozenset(path for path, _, _ in _leaves(item)) for item in value}) > 1


def _is_risky(value: Any) -> bool:
    return isinstance(value, float) and not (value.is_integer() and abs(value) < _WHOLE and value != 0.0)
