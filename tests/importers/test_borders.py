"""Importers: numbers and orders that decide hold at their border, and one step beside it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from rollforge.errors import UsageError
from rollforge.importers.base import chosen_score, finite
from rollforge.importers.harbor import read_harbor
from rollforge.importers.inspect_log import read_inspect
from rollforge.importers.verifiers_traces import _last_path, _summed, _total, read_verifiers


def test_numbers_that_are_not_finite_are_no_scores() -> None:
    assert finite(0.5) == 0.5 and finite(True) == 1.0
    assert finite(float("inf")) is None and finite(float("nan")) is None and finite("1") is None


def test_several_scores_need_a_name_and_one_does_not() -> None:
    assert chosen_score({"a": 1}, None, "log") == ("a", 1)
    with pytest.raises(UsageError, match="2 scores"):
        chosen_score({"a": 1, "b": 2}, None, "log")


def test_trials_come_in_order_of_name_with_their_other_scores(tmp_path: Path) -> None:
    for name in ("b", "c", "a"):
        (tmp_path / name).mkdir()
        rewards = {"reward": 1.0, "speed": 0.5}
        trial = {"trial_name": name, "task_name": name, "verifier_result": {"rewards": rewards}}
        (tmp_path / name / "result.json").write_text(json.dumps(trial))
    made = list(read_harbor(tmp_path, None))
    assert [one.task for one in made] == ["a", "b", "c"]
    assert all(one.verdict is not None and one.verdict.numbers == {"speed": 0.5} for one in made)


def test_samples_of_an_archive_come_in_order_of_name(tmp_path: Path) -> None:
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("b", "c", "a"):
            sample: dict[str, Any] = {
                "id": name,
                "epoch": 1,
                "messages": [],
                "scores": {"match": {"value": 1}},
            }
            archive.writestr(f"samples/{name}_epoch_1.json", json.dumps(sample))
    assert [one.task for one in read_inspect(path, None)] == ["a", "b", "c"]


def test_tokens_are_counted_only_where_every_turn_has_them() -> None:
    assert _total([1, 2.0]) == 3 and _total([1, None]) is None
    counted = {"prompt_tokens": 3, "completion_tokens": 2}
    assert _summed([counted, counted]) == {"input_tokens": 6, "output_tokens": 4}
    assert _summed([counted, None]) is None and _summed([]) is None


def test_a_prompt_ends_where_the_model_begins(tmp_path: Path) -> None:
    path = tmp_path / "log.eval"
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "samples/a.json", json.dumps({"id": "a", "epoch": 1, "messages": messages, "scores": {}})
        )
    [made] = read_inspect(path, None)
    assert (len(made.prompt), len(made.output)) == (1, 1)


def test_another_role_of_an_episode_is_another_task(tmp_path: Path) -> None:
    def trace(name: str) -> dict[str, Any]:
        return {"task": {"key": "t"}, "agent": {"name": name}, "nodes": [], "rewards": {}}

    path = tmp_path / "traces.jsonl"
    path.write_text(json.dumps({"traces": [trace("a"), trace("b"), trace("a")]}) + "\n")
    made = [(one.task, one.agent) for one in read_verifiers(path, None)]
    assert made == [("t", "a"), ("t b", "b"), ("t", "a")]


def test_messages_that_follow_each_other_in_a_circle_are_each_read_once() -> None:
    circle: list[Any] = [{"parent": 1, "message": {}}, {"parent": 0, "message": {}, "sampled": True}]
    assert _last_path(circle) == circle
    line: list[Any] = [{"message": {}}, {"parent": 0, "message": {}, "sampled": True}, {"parent": 1}]
    assert _last_path(line) == line[:2]
