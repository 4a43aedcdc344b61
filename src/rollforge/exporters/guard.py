"""This module foresees what the `datasets` JSON loader would do to call arguments written as objects.

The loader types a column from its first ten megabytes. Objects with one set of keys become a struct, which is exact as long as every
place holds one type; objects with different keys, and empty ones, become a `Json` column, whose floats pass through a ten-digit text
together with those of the columns beside it. A column that looked uniform and then changes fails the load; so does a key that
stands twice in one object. Texts that look like dates become times, and integers beyond 64 bits floats. Where any of this would
happen, arguments are written as strings instead, which no loader changes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from rollforge.exporters.texts import flat_outline
from rollforge.exporters.times import looks_like_time
from rollforge.store.reading import UNREADABLE

SURE_BYTES = 6 << 20
"""Well inside the part of the file from which the loader infers its types."""


LATE = 1 << 62
"""A place after all that the loader learns from: in another file."""

_WHOLE = 2**53
"""Integers below it survive every detour."""

_KEY = re.compile(r'"\s*:')
"""Stands at least once for every key of a JSON text."""


NOT_AN_OBJECT = "call arguments are not a JSON object"
REPEATED_KEY = "call arguments name a key twice"
SLIPS = frozenset({NOT_AN_OBJECT, REPEATED_KEY})
"""What a model got wrong in one call: no object says it, but that is no reason to write all other calls in another form."""


@dataclass
class Beside:
    """What the columns of one data set mean for each other: one `Json` column rounds the floats of all."""

    has_json: bool = False
    """Some column holds objects with different keys."""
    has_risky_number: bool = False
    """Some column holds a float that would not survive it."""


class ArgumentsGuard:
    """Watches every arguments object of one column, in file order."""

    def __init__(self, beside: Beside | None = None) -> None:
        self._beside = beside or Beside()
        self.has_risky_number = False
        """A float that would not survive stands in this very column."""
        self._shapes: set[frozenset[tuple[str, ...]]] = set()
        self._kinds: dict[tuple[str, ...], str] = {}
        """Place in the arguments → the one type that all values there have."""
        self._harmless: set[Hashable] = set()
        """Outlines of flat objects without fractions: what was found of one holds for all its like."""
        self._has_mixed_keys = False

    def damage(self, arguments: str, position: int) -> str | None:
        """Why objects would not survive, with this one at this byte of the file; None while they would.

        An object that would do damage is not remembered: the caller may leave it out and go on.
        """
        outline = flat_outline(arguments)
        if outline is not None and outline in self._harmless:
            return None
        try:
            value = msgspec.json.decode(arguments)
        except UNREADABLE:
            value = None
        if not isinstance(value, dict):
            return NOT_AN_OBJECT
        if len(_KEY.findall(arguments)) != _count_keys(value) and has_repeated_key(arguments):
            return REPEATED_KEY
        damage = self._first_of_its_kind(value, position)
        if damage is None and outline is not None:
            self._harmless.add(outline)
        return damage

    def _first_of_its_kind(self, value: dict[str, Any], position: int) -> str | None:
        places = list(_places(value))
        for _, kind, item in places:
            if kind == "str" and looks_like_time(item):
                return _TIME
            if kind == "int" and not -(2**63) <= item < 2**63:
                return "arguments hold an integer beyond 64 bits, which the loader would make a float"
        kinds = {place: kind for place, kind, _ in places}
        if any(kinds[place] != kind or self._kinds.get(place, kind) != kind for place, kind, _ in places):
            return "arguments of one name have several types, which the loader would make one"
        shape = frozenset(kinds)
        is_new = bool(self._shapes) and shape not in self._shapes
        if is_new and not self._has_mixed_keys and position > SURE_BYTES:
            return "arguments with new keys appear late in the file, which the loader would refuse"
        is_ragged = any(item == {} or _is_ragged(item) for _, _, item in places)
        has_mixed_keys = self._has_mixed_keys or is_new or is_ragged
        is_risky = any(_is_risky(item) for _, _, item in places)
        beside = self._beside
        if (is_risky or beside.has_risky_number) and (has_mixed_keys or beside.has_json):
            return ROUNDED
        self._has_mixed_keys = has_mixed_keys
        self.has_risky_number |= is_risky
        beside.has_json |= has_mixed_keys
        beside.has_risky_number |= is_risky
        self._shapes.add(shape)
        self._kinds |= kinds
        return None


ROUNDED = "a number in the arguments, or beside them, would be rounded by the loader"
_TIME = "arguments hold a text that looks like a date, which the loader would make a time"


def has_repeated_key(arguments: str) -> bool:
    """Whether some object in the JSON text names a key twice."""
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


def _places(value: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """Every place in the value, the name of its type and what is there; the items of a list share one place."""
    yield place, type(value).__name__, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _places(item, (*place, f".{key}"))
    elif isinstance(value, list):
        if not value:
            yield (*place, "[]"), "nothing", None
        for item in value:
            yield from _places(item, (*place, "[]"))


def _is_ragged(value: Any) -> bool:
    """Whether a list holds objects with different keys."""
    if not isinstance(value, list):
        return False
    return len({frozenset(place for place, _, _ in _places(item)) for item in value}) > 1


def _is_risky(value: Any) -> bool:
    return isinstance(value, float) and not (value.is_integer() and abs(value) < _WHOLE and value != 0.0)
