from __future__ import annotations

import json
from typing import Any

import pytest

from rollforge.records import Response, Task
from rollforge.verifiers.multineedle import TOOLS, verify

TASK = Task(
    {
        "id": 1,
        "expected_synonym_values": [407, 711],
        "expected_synonyms": ["Warm", "Blazing"],
        "minefield_label": "Hot",
        "minefield_label_value": 299,
    }
)


def handing_in(*arguments: str) -> Response:
    return Response(
        {
            "output": [
                {"type": "function_call", "name": "extract_synonym_values", "call_id": "1", "arguments": text}
                for text in arguments
            ]
            + [{"type": "message", "content": "done"}]
        }
    )


def values(*numbers: Any) -> str:
    return json.dumps({"synonym_values": list(numbers)})


@pytest.mark.parametrize(
    ("arguments", "reward", "overlap", "order_failure", "hit"),
    [
        ([values(407, 711)], 1.0, 1.0, False, False),
        ([values(711, 407)], 0.0, 1.0, True, False),
        ([values(407)], 0.0, 0.5, False, False),
        ([values(407, 299)], 0.0, 0.5, False, True),
        ([values("Hot")], 0.0, 0.0, False, True),
        ([values(1), values(407, 711)], 1.0, 1.0, False, False),
        ([values(407, 711), values(1)], 0.0, 0.0, False, False),
        ([], 0.0, 0.0, False, False),
    ],
)
def test_the_last_call_is_compared_in_order(
    arguments: list[str], reward: float, overlap: float, order_failure: bool, hit: bool
) -> None:
    verdict = verify(TASK, handing_in(*arguments))
    assert verdict["reward"] == float(verdict["accuracy"]) == reward
    assert verdict["set_overlap"] == overlap
    assert verdict["order_instruction_following_failure"] is order_failure
    assert verdict["original_term_minefield_hit"] is hit


@pytest.mark.parametrize(
    "arguments", ["{broken", "[]", "{}", '{"synonym_values": 3}', '{"synonym_values": [[1], {}]}']
)
def test_broken_arguments_are_wrong_and_end_nothing(arguments: str) -> None:
    assert verify(TASK, handing_in(arguments))["reward"] == 0.0


def test_a_task_without_expected_values_is_a_failure_to_judge() -> None:
    with pytest.raises(ValueError, match="expected_synonym_values"):
        verify(Task({"expected_synonym_values": []}), handing_in())


def test_the_tools_answer_as_the_environment_does() -> None:
    tools = {tool.__name__: tool for tool in TOOLS}
    assert tools["get_synonym_value"](synonym="Warm") == {"synonym_value": 407}  # type: ignore[call-arg]
    assert tools["extract_synonym_values"](synonym_values=[1]) == {"success": True}  # type: ignore[call-arg]
