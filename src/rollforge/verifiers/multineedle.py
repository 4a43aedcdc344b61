"""Rewards finding every hidden value, in order, with two tools.

Needs `expected_synonym_values` and `expected_synonyms`; `minefield_label` and `minefield_label_value` name a trap. The arguments
of the rollout's last `extract_synonym_values` call are compared with the expected list. `TOOLS` are the two tools as Python
functions, for a tool-loop agent.

A call with invalid arguments submits nothing and is wrong, while NeMo Gym's server fails and ends the run; a task without
expected values is a failure to judge.
"""

from __future__ import annotations

from typing import Any, TypedDict

import msgspec

from rollforge.json_shapes import ItemJson
from rollforge.records import Response, Task
from rollforge.store.reading import UNREADABLE
from rollforge.verifiers.building_blocks.verdict_fields import NeedleVerdictJson

needs = ("expected_synonym_values",)
is_cheap = True


class SynonymJson(TypedDict):
    """Answer of `get_synonym_value`."""

    synonym_value: int


class HandedInJson(TypedDict):
    """Answer of `extract_synonym_values`."""

    success: bool


def get_synonym_value(synonym: str) -> SynonymJson:
    """Get the value of a synonym.

    Parameters
    ----------
    synonym
        The synonym to look up.
    """
    return {"synonym_value": sum(map(ord, synonym))}


def extract_synonym_values(synonym_values: list[int]) -> HandedInJson:
    """Hand in the values of all synonyms, in the order in which the synonyms appear.

    Parameters
    ----------
    synonym_values
        The values that were found.
    """
    return {"success": True}


TOOLS = (get_synonym_value, extract_synonym_values)
"""Tools of the environment by name."""


def verify(task: Task, response: Response) -> NeedleVerdictJson:
    """Reward 1.0 if the submitted values equal the expected ones, in order."""
    expected = task.get("expected_synonym_values")
    if not isinstance(expected, list) or not expected:
        raise ValueError("the task has no expected_synonym_values")
    values, is_readable = handed_in(response)
    is_right = values == expected
    overlap = len({*map(_key, values)} & {*map(_key, expected)}) / len(expected)
    return {
        "reward": float(is_right),
        "accuracy": is_right,
        "set_overlap": overlap,
        "parsed_synonym_values": values,
        "arguments_are_readable": is_readable,
        "original_term_minefield_hit": any(
            task.get(name) is not None and task[name] in values
            for name in ("minefield_label", "minefield_label_value")
        ),
        "order_instruction_following_failure": not is_right and overlap == 1.0,
    }


def gold(task: Task) -> ItemJson | None:
    """Right answer for probes: the call that submits every expected value."""
    values = task.get("expected_synonym_values")
    if not isinstance(values, list) or not values:
        return None
    arguments = msgspec.json.encode({"synonym_values": values}).decode()
    return {
        "type": "function_call",
        "call_id": "call_1",
        "name": "extract_synonym_values",
        "arguments": arguments,
    }


def handed_in(response: Response) -> tuple[list[Any], bool]:
    """Values submitted by the last call of `extract_synonym_values`, and whether its arguments were valid."""
    for item in reversed(response.output):
        if item.get("type") == "function_call" and item.get("name") == "extract_synonym_values":
            try:
                arguments = msgspec.json.decode(str(item.get("arguments")))
            except UNREADABLE:
                return [], False
            values = arguments.get("synonym_values") if isinstance(arguments, dict) else None
            return (values, True) if isinstance(values, list) else ([], False)
    return [], True


def _key(value: Any) -> Any:
    """The value, or its JSON if it is not hashable."""
    return value if isinstance(value, str | int | float | bool | None) else msgspec.json.encode(value)
