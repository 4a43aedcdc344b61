"""Reads arguments of an instruction from the row; refuses missing and invalid ones.

NeMo Gym's library fills a missing argument with a random one, which makes the reward random. Here it is an
error of the task: it raises, and the rollout stays unjudged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Arguments = Mapping[str, Any]
Checker = Callable[[str, Arguments], bool]
"""(text, arguments) → whether the text follows the instruction."""

RELATIONS = ("less than", "at least")


def text_of(arguments: Arguments, name: str) -> str:
    """A non-empty text; from a list, its first member."""
    value = _given(arguments, name)
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} = {value!r} is no text")
    return value


def texts_of(arguments: Arguments, name: str) -> list[str]:
    """A non-empty list of texts."""
    value = _given(arguments, name)
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{name} = {value!r} is no list of texts")
    return value


def count_of(arguments: Arguments, name: str) -> int:
    """A non-negative integer."""
    value = _given(arguments, name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
        raise ValueError(f"{name} = {value!r} is no count")
    return int(value)


def holds(number: int, arguments: Arguments, threshold: str, relation: str) -> bool:
    """Whether `number` satisfies "less than" or "at least" the threshold."""
    limit, word = count_of(arguments, threshold), _given(arguments, relation)
    if word not in RELATIONS:
        raise ValueError(f"{relation} = {word!r} is neither {RELATIONS[0]!r} nor {RELATIONS[1]!r}")
    return number < limit if word == RELATIONS[0] else number >= limit


def _given(arguments: Arguments, name: str) -> Any:
    value = arguments.get(name)
    if value is None:
        raise ValueError(f"the instruction has no {name}")
    return value
