"""ATIF: steps in order, tool results as observations of the step that made the call."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollforge.steps.prepare import prepare
from tests.builders import make_rollout, write_rows
from tests.prepare_runs import TOOL, call, read_lines, reasoning, result, text, with_output


def test_a_rollout_with_tools_is_a_trajectory(tmp_path: Path) -> None:
    row = with_output(
        make_rollout(3, 1, 1.0, prompt="Weather?"),
        *(
            reasoning("look it up"),
            call(0, '{"at": 0.3}'),
            call(1, "{}"),
            result(0, "9 C"),
            result(1, "rain"),
            text("9 C, rain"),
        ),
        tools=[TOOL],
        instructions="Be brief.",
    )
    run = write_rows(tmp_path / "run" / "rollouts.jsonl", [row]).parent
    prepare("sft", run, to="atif", out=tmp_path / "data")
    (made,) = read_lines(tmp_path / "data" / "train.jsonl")
    assert made["schema_version"] == "ATIF-v1.5" and made["session_id"] == "task-3-rollout-1"
    assert (
        made["agent"]["name"] == "model_call"
        and made["agent"]["tool_definitions"][0]["function"]["name"] == "get_weather"
    )
    assert [(step["step_id"], step["source"]) for step in made["steps"]] == [
        (1, "system"),
        (2, "user"),
        (3, "agent"),
        (4, "agent"),
    ]
    acting = made["steps"][2]
    assert acting["reasoning_content"] == "look it up"
    assert [one["arguments"] for one in acting["tool_calls"]] == [{"at": 0.3}, {}]
    assert acting["observation"]["results"] == [
        {"content": "9 C", "source_call_id": "call_0"},
        {"content": "rain", "source_call_id": "call_1"},
    ]
    assert made["steps"][3]["message"] == "9 C, rain" and made["extra"] == {
        "reward": 1.0,
        "task": "3",
        "rollout": 1,
    }


def test_arguments_that_are_no_object_are_counted(tmp_path: Path) -> None:
    rows = [
        make_rollout(0, 0, 1.0, text="fine"),
        with_output(make_rollout(1, 0, 1.0), call(0, "[1]"), result(0), text("done")),
    ]
    run = write_rows(tmp_path / "run" / "rollouts.jsonl", rows).parent
    made = prepare("sft", run, to="atif", out=tmp_path / "data")
    assert made.counts.rollouts["cannot be expressed: call arguments are not a JSON object"] == 1


def test_the_real_models_take_our_trajectories(tmp_path: Path) -> None:
    trajectories = pytest.importorskip("harbor.models.trajectories", reason="harbor is not installed")
    row = with_output(make_rollout(0, 0, 1.0), call(0), result(0), text("done"), tools=[TOOL])
    run = write_rows(tmp_path / "run" / "rollouts.jsonl", [row]).parent
    prepare("sft", run, to="atif", out=tmp_path / "data")
    for line in read_lines(tmp_path / "data" / "train.jsonl"):
        trajectories.Trajectory.model_validate(line)
