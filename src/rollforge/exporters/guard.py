"""This module foresees what the `datasets` JSON loader would do to call arguments written as objects.

The loader types a column from its first ten megabytes. Objects with one set of keys become a struct, which is exact; objects with
different keys become a `Json` column, whose floats pass through a ten-digit text. A column that looked uniform and then changes
fails the load; an integer that meets a float under the same key becomes a float. Where any of this would happen, arguments are
written as strings instead, which no loader changes.
"""

from __future__ import annotations

from typing import Any

import msgspec

SURE_BYTES = 6 << 20
"""Well inside the part of the file from which the loader infers its types."""


_WHOLE = 2**53
"""Integers below it survive every detour."""


class ArgumentsGuard:
    """Watches every arguments object of a data set, in file order."""

    def __init__(self) -> None:
        self._shapes: set[Any] = set()
        self._harmless: dict[Any, list[str]] = {}
        """Outline of flat objects → which of their values are whole numbers, to be looked at all the same."""
        self._has_mixed_keys = False
        self._has_risky_number = False

    def damage(self, arguments: str, position: int) -> str | None:
        """Why objects would not survive, now that this one has been seen at this byte of the file; None while they would."""
        try:
            value = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, RecursionError):
            value = None
        if not isinstance(value, dict):
            return "a call has arguments that are not a JSON object"
        outline = (*value, *map(type, value.values()))
        whole = self._harmless.get(outline)
        if whole is not None and all(-_WHOLE < value[key] < _WHOLE for key in whole):
            return None
        self._has_risky_number = self._has_risky_number or _has_risky_number(value)
        seen = _shape(value)
        if seen not in self._shapes:
            if self._shapes and not self._has_mixed_keys:
                first = next(iter(self._shapes))
                if _keys(seen) == _keys(first):
                    return "arguments of one name have several types, which the loader would make one"
                if position > SURE_BYTES:
                    return "arguments with new keys appear late in the file, which the loader would refuse"
                self._has_mixed_keys = True
            self._shapes.add(seen)
            if all(type(item) in (str, bool, int) for item in value.values()):
                # Flat and without fractions: what was found once holds for all its like.
                self._harmless[outline] = [key for key, item in value.items() if type(item) is int]
        if self._has_risky_number and self._has_mixed_keys:
            return "a number in the arguments would be rounded by the loader"
        return None


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return ("object", tuple(sorted((key, _shape(item)) for key, item in value.items())))
    if isinstance(value, list):
        return ("list", tuple(sorted({_shape(item) for item in value}, key=repr)))
    return type(value).__name__


def _keys(shape: Any) -> Any:
    """Key sets at every depth, blind to the types of the leaves."""
    if isinstance(shape, tuple) and shape[0] == "object":
        return ("object", tuple((key, _keys(item)) for key, item in shape[1]))
    return "leaf"


def _has_risky_number(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_risky_number(item) for item in value.values())
    if isinstance(value, list):
        return any(_has_risky_number(item) for item in value)
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return not -(2**63) <= value < 2**63
    return isinstance(value, float) and not (value.is_integer() and abs(value) < 2**53 and value != 0.0)
