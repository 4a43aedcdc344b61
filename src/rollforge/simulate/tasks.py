"""Example tasks: rows in NeMo Gym's form that the simulated model can solve from their text.

Rows are a pure function of (seed, number, kind), so a larger file begins with the rows of a smaller one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args
from uuid import UUID

from rollforge.errors import UsageError
from rollforge.json_shapes import RowJson, items_in
from rollforge.records import PARAMS_KEY
from rollforge.registry import did_you_mean
from rollforge.simulate.draws import Chance, digest
from rollforge.simulate.needles import TOOLS, pose_needles, value_of
from rollforge.simulate.problems import pose_choice, pose_math

Kind = Literal["math", "mcqa", "tools", "mixed"]
_MIXTURE = ("math", "math", "math", "mcqa", "mcqa", "tools")
_ATTEMPTS = 50
"""How often a task with a duplicate prompt is redrawn; after that, the duplicate is accepted."""


class ExampleTaskJson(RowJson, total=False):
    """A task row; its fields depend on its kind."""

    uuid: str
    difficulty: float
    options: list[dict[str, str]]
    grading_mode: str
    id: int
    expected_synonyms: list[str]
    expected_synonym_values: list[int]
    minefield_label: str
    minefield_label_value: int


def example_tasks(count: int, seed: int = 0, kind: Kind = "math") -> Iterator[ExampleTaskJson]:
    """Task rows with `responses_create_params`, `expected_answer`, `difficulty` and `uuid`.

    Args:
        count: how many rows.
        seed: another seed gives other tasks.
        kind: `math` (answers in a box), `mcqa` (with `options`), `tools` (with `tools` and the fields of a
            multi-step task) or `mixed`.
    """
    if kind not in get_args(Kind):
        raise UsageError(
            f"there is no kind of example task {kind!r}{did_you_mean(kind, list(get_args(Kind)))}",
            hint=f"there are: {', '.join(get_args(Kind))}",
        )
    seen: set[int] = set()
    for number in range(count):
        for attempt in range(_ATTEMPTS):
            row = _row(number, seed, kind, attempt)
            key = digest(items_in(row[PARAMS_KEY]["input"])[0]["content"])
            if key not in seen:
                break
        seen.add(key)
        yield row


def _row(number: int, seed: int, kind: Kind, attempt: int) -> ExampleTaskJson:
    chance = Chance("task", seed, kind, number, attempt)
    chosen = chance.pick(_MIXTURE) if kind == "mixed" else kind
    row = {"math": _math_row, "mcqa": _choice_row, "tools": _tools_row}[chosen](chance, number)
    high, low = digest("uuid", seed, kind, number), digest("uuid, low half", seed, kind, number)
    return {**row, "uuid": str(UUID(int=high << 64 | low, version=4))}


def _math_row(chance: Chance, number: int) -> ExampleTaskJson:
    problem = pose_math(chance)
    return {**_prompt(problem.text), "expected_answer": problem.answer, "difficulty": problem.difficulty}


def _choice_row(chance: Chance, number: int) -> ExampleTaskJson:
    problem = pose_choice(chance)
    return {
        **_prompt(problem.text),
        "options": [{letter: text} for letter, text in problem.options],
        "expected_answer": problem.answer,
        "grading_mode": "strict_single_letter_boxed",
        "difficulty": problem.difficulty,
    }


def _tools_row(chance: Chance, number: int) -> ExampleTaskJson:
    task = pose_needles(chance)
    values = [value_of(word) for word in task.words]
    row = _prompt(task.prompt())
    params = row[PARAMS_KEY]
    params["tools"], params["parallel_tool_calls"] = TOOLS, True
    return {
        **row,
        "id": number,
        "expected_synonyms": list(task.words),
        "expected_synonym_values": values,
        "minefield_label": task.label,
        "minefield_label_value": value_of(task.label),
        "expected_answer": str(sum(values)),
        "difficulty": task.difficulty,
    }


def _prompt(text: str) -> ExampleTaskJson:
    return {PARAMS_KEY: {"input": [{"role": "user", "content": text, "type": "message"}]}}
