"""The example tasks: rows that task readers and verifiers accept, the same for the same seed."""

from __future__ import annotations

import pytest

from rollforge.errors import UsageError
from rollforge.records import PARAMS_KEY, Task
from rollforge.simulate import example_tasks
from rollforge.simulate.needles import read_needles, value_of
from rollforge.simulate.problems import read_problem

KINDS = ["math", "mcqa", "tools", "mixed"]


@pytest.mark.parametrize("kind", KINDS)
def test_more_tasks_begin_with_the_same_ones_and_another_seed_gives_others(kind):
    few, many = list(example_tasks(20, 5, kind)), list(example_tasks(50, 5, kind))
    assert many[:20] == few
    assert list(example_tasks(20, 6, kind)) != few


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_and_uuids_are_unique(kind):
    rows = list(example_tasks(300, 0, kind))
    assert len({row["uuid"] for row in rows}) == 300
    assert len({Task(row).prompt for row in rows}) == 300


@pytest.mark.parametrize("kind", KINDS)
def test_difficulties_cover_the_range(kind):
    difficulties = [row["difficulty"] for row in example_tasks(300, 0, kind)]
    assert min(difficulties) < 0.2 and max(difficulties) > 0.8
    assert all(0 <= difficulty <= 1 for difficulty in difficulties)


def test_the_answer_follows_from_the_text_alone():
    for row in example_tasks(200, 1, "math"):
        problem = read_problem(Task(row).prompt)
        assert problem is not None and problem.answer == row["expected_answer"]
        assert "boxed" in Task(row).prompt


def test_multiple_choice_rows_have_the_fields_of_mcqa():
    for row in example_tasks(200, 1, "mcqa"):
        letters = [letter for option in row["options"] for letter in option]
        texts = [text for option in row["options"] for text in option.values()]
        assert letters == ["A", "B", "C", "D"] and len(set(texts)) == 4
        assert row["expected_answer"] in letters
        assert row["grading_mode"] == "strict_single_letter_boxed"


def test_tool_rows_have_the_fields_of_a_multi_step_task():
    for row in example_tasks(100, 1, "tools"):
        task = read_needles(Task(row).prompt)
        assert task is not None and list(task.words) == row["expected_synonyms"]
        assert row["expected_synonym_values"] == [value_of(word) for word in task.words]
        assert row["minefield_label"] not in task.words
        assert {tool["name"] for tool in row[PARAMS_KEY]["tools"]} == {
            "get_synonym_value",
            "extract_synonym_values",
        }


def test_an_unknown_kind_is_named():
    with pytest.raises(UsageError, match="did you mean 'math'"):
        list(example_tasks(1, 0, "maths"))  # type: ignore[arg-type]
