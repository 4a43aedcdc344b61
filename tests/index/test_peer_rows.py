"""Rows as NeMo Gym writes them: masked samples, steps as lists, typed rollouts and tasks, rows without indices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollforge.index import line_keys, open_index
from rollforge.records import Response
from rollforge.rollouts import RolloutReader
from rollforge.steps.metrics import summarize_run
from rollforge.steps.prepare import prepare
from rollforge.steps.profile import profile_run
from rollforge.store import RunFiles
from tests.builders import Row, make_rollout, write_rows


def message(text: str, role: str = "assistant") -> Row:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def test_a_masked_sample_is_unjudged_everywhere(tmp_path: Path) -> None:
    rows = [make_rollout(n // 4, n % 4, float(n % 4 == 0), mask_sample=n % 4 == 3) for n in range(40)]
    path = write_rows(tmp_path / "rollouts.jsonl", rows)
    with open_index(path) as index:
        rewards = index.table(["reward"]).column(0).to_pylist()
        assert rewards == [None if row["mask_sample"] else row["reward"] for row in rows]
        assert "mask_sample" not in index.numbers and "mask_sample" in index.columns()
    summary = summarize_run(path)
    assert summary.counts.judged == 30 and summary.counts.unjudged == 10
    assert summary.fields["reward"].mean == pytest.approx(10 / 30)
    assert not any("mask_sample" in name for name in summary.fields)
    profile = profile_run(path)
    assert profile.tasks.column("num_judged").to_pylist() == [3] * 10
    assert not any("mask_sample" in name for name in profile.tasks.column_names)


@pytest.mark.parametrize("mark", [1, "true", "True"])
def test_a_mask_that_is_no_boolean_masks_too(tmp_path: Path, mark: object) -> None:
    masks = [True, mark, "false", None, 0]
    rows = [make_rollout(0, n, 0.5, mask_sample=masks[n]) for n in range(5)]
    path = write_rows(tmp_path / "rollouts.jsonl", rows)
    with open_index(path) as index:
        assert index.table(["reward"]).column(0).to_pylist() == [None, None, 0.5, 0.5, 0.5]
    counts = summarize_run(path).counts
    assert (counts.judged, counts.masked) == (3, 2)
    assert [rollout.reward for rollout in RolloutReader(path)] == [None, None, 0.5, 0.5, 0.5]
    prepare("sft", [path], to="chat", out=tmp_path / "data", min_reward=0.5, dedupe="none")
    assert len((tmp_path / "data" / "train.jsonl").read_text().splitlines()) == 3


def test_a_masked_sample_can_be_judged_later(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0, 0.0, mask_sample=True)])
    verdict = {"_ng_task_index": 0, "_ng_rollout_index": 0, "verifier": "exact", "reward": 1.0, "at": 1.0}
    write_rows(tmp_path / "rollouts_verdicts.jsonl", [verdict])
    with open_index(path) as index:
        assert index.table(["reward"]).column(0).to_pylist() == [1.0]


@pytest.mark.parametrize(
    "given", [{"mask_sample": False}, {"mask_sample": None}, {"failure_kind": "judge_retry"}]
)
def test_a_diagnosis_alone_does_not_unjudge(tmp_path: Path, given: Row) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0, 0.5, **given)])
    with open_index(path) as index:
        assert index.table(["reward"]).column(0).to_pylist() == [0.5]


def test_items_in_lists_per_step_are_items(tmp_path: Path) -> None:
    steps = [
        [message("a"), {"type": "function_call", "name": "f"}],
        [{"type": "function_call_output"}],
        [message("b")],
    ]
    rows = [make_rollout(0, 0, 1.0), make_rollout(0, 1, 1.0)]
    rows[0]["response"]["output"] = steps
    rows[1]["response"]["output"] = [item for step in steps for item in step]
    with open_index(write_rows(tmp_path / "rollouts.jsonl", rows)) as index:
        nested, flat = index.table(
            ["answer_hash", "answer_chars", "turns", "tool_calls", "is_empty"]
        ).to_pylist()
        assert index.noted_lines == 0
    assert (
        nested == flat and nested["answer_chars"] == 2 and nested["turns"] == 2 and nested["tool_calls"] == 1
    )
    assert Response(rows[0]["response"]).text == Response(rows[1]["response"]).text == "ab"


def invocation(role: str, asked: list[Row], said: str) -> Row:
    usage = {"input_tokens": 3, "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 1}}
    response = {"output": [message(said)], "status": "completed", "model": "m", "usage": usage}
    return {"role": role, "request": {"input": asked}, "response": response}


def test_a_typed_rollout_has_the_trajectory_of_its_policy(tmp_path: Path) -> None:
    hello, more = message("hello", "user"), message("more", "user")
    typed = {
        "reward": 1.0,
        "response": None,
        "_ng_task_index": 4,
        "_ng_rollout_index": 0,
        "_ng_task_id": {"taskset": "s", "task_id": "t-1"},
        "invocations": [
            invocation("user", [message("play a user", "system")], "hello"),
            invocation("assistant", [hello], "first"),
            invocation("judge", [message("judge it", "user")], "fine"),
            invocation("assistant", [hello, message("first"), more], "second"),
        ],
    }
    with open_index(write_rows(tmp_path / "rollouts.jsonl", [typed])) as index:
        [row] = index.table(
            ["task", "answer_chars", "turns", "output_tokens", "model", "task_id"]
        ).to_pylist()
        [line] = index.read([0])
    assert row == {
        "task": 4, "answer_chars": 11, "turns": 2, "output_tokens": 10.0, "model": "m", "task_id": "t-1",
    }  # fmt: skip
    classic = json.loads(line)
    assert Response(classic["response"]).text == "firstsecond"
    assert classic["responses_create_params"]["input"] == [hello]


def test_who_reads_the_text_sees_what_the_index_sees(tmp_path: Path) -> None:
    rows = [
        make_rollout(0, 0, 0.0, mask_sample=True),
        make_rollout(0, 1, 0.0, verification_skipped=True),
        make_rollout(0, 2, 0.0, _ng_failure_class="judge"),
        make_rollout(0, 3, 0.5, mask_sample=False),
        {"reward": 1.0, "invocations": [invocation("assistant", [message("hello", "user")], "first")]}
        | {"_ng_task_index": 1, "_ng_rollout_index": 0},
    ]
    path = write_rows(tmp_path / "rollouts.jsonl", rows)
    reader = RolloutReader(path)
    found = list(reader)
    with open_index(path) as index:
        assert [rollout.reward for rollout in found] == index.table(["reward"]).column(0).to_pylist()
    assert found[-1].response.text == "first" and not reader.bad


@pytest.mark.parametrize("wrapper", ["resolved_row", "task_input"])
def test_a_typed_task_brings_the_fields_of_its_row(tmp_path: Path, wrapper: str) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0, 1.0)])
    inner = {"difficulty": "hard", "level": 3, "responses_create_params": {"input": "q"}}
    task = {"task_id": {"taskset": "s", "task_id": "t-1"}, "_ng_task_index": 0, wrapper: inner}
    write_rows(tmp_path / "rollouts_tasks.jsonl", [task])
    with open_index(path) as index:
        [row] = index.select("select difficulty, level, task_id, prompt_hash from tasks").to_pylist()
    assert (row["difficulty"], row["level"], row["task_id"]) == ("hard", 3, "t-1") and row["prompt_hash"]


def without_indices(row: Row) -> Row:
    return {key: value for key, value in row.items() if not key.startswith("_ng_")}


def test_rollouts_without_indices_join_their_tasks_by_prompt(tmp_path: Path) -> None:
    tasks = [{"responses_create_params": {"input": f"question {n}"}, "level": n} for n in range(4)]
    rows = []
    for n in (2, 0, 3, 2, 1, 0):  # in the order of arrival
        row = without_indices(make_rollout(0, 0, n / 10))
        rows.append(row | {"responses_create_params": {"input": f"question {n}"}})
    path = write_rows(tmp_path / "rollouts.jsonl", rows)
    write_rows(tmp_path / "rollouts_tasks.jsonl", tasks)
    with open_index(path) as index:
        found = index.select(
            "select r.task, r.rollout, t.level, r.reward from rollouts r join tasks t using (task) order by r.row"
        )
    assert [row["level"] for row in found.to_pylist()] == [2, 0, 3, 2, 1, 0]
    assert [row["task"] for row in found.to_pylist()] == [2, 0, 3, 2, 1, 0]
    keys = line_keys(RunFiles(path))
    assert [keys.get(line) for line in range(1, 7)] == [(2, 0), (0, 0), (3, 0), (2, 1), (1, 0), (0, 1)]


def test_a_prompt_of_two_tasks_joins_neither(tmp_path: Path) -> None:
    tasks = [{"responses_create_params": {"input": "same"}, "level": n} for n in range(2)]
    row = without_indices(make_rollout(0, 0, 1.0)) | {"responses_create_params": {"input": "same"}}
    path = write_rows(tmp_path / "rollouts.jsonl", [row])
    write_rows(tmp_path / "rollouts_tasks.jsonl", tasks)
    with open_index(path) as index:
        assert index.table(["task"]).column(0).to_pylist() == [2]
        assert index.select("select count(*) from rollouts join tasks using (task)").column(
            0
        ).to_pylist() == [0]
