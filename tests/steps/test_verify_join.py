"""Rollouts and tasks are joined by number, or by prompt where rows have none; never by position."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollforge.cli import main
from rollforge.errors import UsageError
from rollforge.rollouts import RolloutReader, TaskFields
from rollforge.store import RunFiles


def task(question: str, answer: str, **fields: Any) -> dict[str, Any]:
    asked = {"input": [{"role": "user", "content": question}]}
    return {"responses_create_params": asked, "expected_answer": answer, **fields}


def rollout(question: str, answer: str, **fields: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": f"\\boxed{{{answer}}}", "annotations": []}
    message = {"type": "message", "role": "assistant", "content": [part]}
    asked = {"input": [{"role": "user", "content": question, "type": "message"}]}
    return {"responses_create_params": asked, "response": {"output": [message]}, "reward": 0.0, **fields}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    return write(tmp_path / "tasks.jsonl", [task(f"What is {n} + 1?", str(n + 1)) for n in range(6)])


def verify(run: Path, tasks: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any], str]:
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(run), "--verifier", "exact", "--tasks", str(tasks), "--json"])
    said = capsys.readouterr()
    return int(ended.value.code or 0), json.loads(said.out) if said.out.strip() else {}, said.err


def test_rows_in_completion_order_are_joined_by_prompt_and_it_is_said(
    tmp_path: Path, tasks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order = [3, 0, 5, 1, 4, 2, 3]
    run = write(tmp_path / "rollouts.jsonl", [rollout(f"What is {n} + 1?", str(n + 1)) for n in order])
    code, summary, _ = verify(run, tasks, capsys)
    assert code == 0
    assert any(
        "the rollouts of 6 tasks have no _ng_task_index: joined to" in note for note in summary["notes"]
    )
    rows = [json.loads(line) for line in (tmp_path / "rollouts_verdicts.jsonl").read_text().splitlines()]
    assert [row["reward"] for row in rows] == [1.0] * 7


def test_two_tasks_with_one_prompt_and_different_answers_are_refused(tmp_path: Path) -> None:
    tasks = write(tmp_path / "tasks.jsonl", [task("Pick one.", "A"), task("Pick one.", "B")])
    run = write(tmp_path / "rollouts.jsonl", [rollout("Pick one.", "A")])
    fields = TaskFields(RunFiles(str(run)), tasks)
    (whole,) = RolloutReader(run)
    with pytest.raises(UsageError, match="lines 1 and 2 have the same prompt"):
        fields.of(whole)


def test_equal_rows_are_one_task_and_an_unknown_prompt_keeps_the_rows_own_fields(tmp_path: Path) -> None:
    tasks = write(tmp_path / "tasks.jsonl", [task("Pick one.", "A"), task("Pick one.", "A")])
    rows = [rollout("Pick one.", "A"), rollout("Something else", "C", expected_answer="C")]
    run = write(tmp_path / "rollouts.jsonl", rows)
    fields = TaskFields(RunFiles(str(run)), tasks)
    assert [fields.of(whole)["expected_answer"] for whole in RolloutReader(run)] == ["A", "C"]
    assert (len(fields.joined_by_prompt), len(fields.without_task)) == (1, 1)


def test_a_task_file_in_another_order_is_joined_by_prompt_although_the_rollouts_are_numbered(
    tmp_path: Path, tasks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [rollout(f"What is {n} + 1?", str(n + 1), _ng_task_index=n, _ng_rollout_index=0) for n in range(6)]
    run = write(tmp_path / "rollouts.jsonl", rows)
    lines = tasks.read_text().splitlines(keepends=True)
    tasks.write_text("".join(lines[:2] + lines[3:] + lines[2:3]))
    code, summary, _ = verify(run, tasks, capsys)
    assert code == 0
    assert any(
        "in another order than _ng_task_index says: 4 rollouts were joined" in note
        for note in summary["notes"]
    )
    verdicts = [json.loads(line) for line in (tmp_path / "rollouts_verdicts.jsonl").read_text().splitlines()]
    assert [row["reward"] for row in verdicts] == [1.0] * 6


def test_a_task_row_that_is_numbered_is_joined_by_number_in_any_order(tmp_path: Path) -> None:
    rows = [rollout("Pick one.", "A", _ng_task_index=1, _ng_rollout_index=0)]
    run = write(tmp_path / "rollouts.jsonl", rows)
    numbered = [
        {**task("Pick one.", "A"), "_ng_task_index": 1},
        {**task("Pick one.", "B"), "_ng_task_index": 0},
    ]
    fields = TaskFields(RunFiles(str(run)), write(tmp_path / "tasks.jsonl", numbered))
    assert [fields.of(whole)["expected_answer"] for whole in RolloutReader(run)] == ["A"]
    assert fields.notes() == []


def test_rollouts_without_number_and_prompt_are_refused_by_what_they_lack(
    tmp_path: Path, tasks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = rollout("", "1")
    del row["responses_create_params"]
    run = write(tmp_path / "rollouts.jsonl", [row])
    code, _, said = verify(run, tasks, capsys)
    assert code == 2
    assert "has no _ng_task_index" in said
    assert "has no task with its prompt" in said


def test_task_rows_for_a_prompt_template_are_joined_by_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = write(
        tmp_path / "bare.jsonl", [{"question": f"{n} + 1", "expected_answer": str(n + 1)} for n in range(3)]
    )
    rows = [rollout(f"What is {n} + 1?", str(n + 1), _ng_task_index=n, _ng_rollout_index=0) for n in (2, 0)]
    code, summary, _ = verify(write(tmp_path / "rollouts.jsonl", rows), bare, capsys)
    assert (code, summary["counts"]["judged"]) == (0, 2)


def test_numbered_rows_are_joined_by_number_and_another_prompt_is_noted(tmp_path: Path, tasks: Path) -> None:
    rows = [
        rollout("What is 4 + 1?", "5", _ng_task_index=4, _ng_rollout_index=0),
        rollout("What is it?", "1", _ng_task_index=2, _ng_rollout_index=0),
    ]
    run = write(tmp_path / "rollouts.jsonl", rows)
    fields = TaskFields(RunFiles(str(run)), tasks)
    assert [fields.of(whole)["expected_answer"] for whole in RolloutReader(run)] == ["5", "3"]
    (note,) = fields.notes()
    assert note.startswith("1 of the first 2 rollouts have another prompt")
