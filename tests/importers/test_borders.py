"""Importers: numbers and orders that decide hold at their border, and one step beside it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any, cast

import pytest

from rollforge.errors import DataError, UsageError
from rollforge.importers import inspect_log
from rollforge.importers.base import chosen_score, finite
from rollforge.importers.harbor import _seconds, read_harbor
from rollforge.importers.inspect_log import (
    _number,
    _resolved,
    _rollout,
    _whole_usage,
    _why_incomplete,
    read_inspect,
)
from rollforge.importers.verifiers_traces import (
    _error_text,
    _last_path,
    _result,
    _summed,
    _task_name,
    _total,
    _trace_verdict,
    read_verifiers,
)


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


REWARDS: Any = {"a": {"score": 0.5, "weight": 2.0}, "b": {"score": 0.25}, "c": {"score": 1.0, "weight": None}}


@pytest.mark.parametrize(
    ("row", "reward", "value", "numbers"),
    [
        ({"ok": True, "rewards": {"a": REWARDS["a"], "b": REWARDS["b"]}, "metrics": {"m": 3, "text": "x"}}, None, 1.25,
         {"m": 3.0, "reward/a": 1.0, "reward/b": 0.25}),
        ({"ok": True, "rewards": REWARDS}, "b", 0.25, {"reward/a": 1.0, "reward/b": 0.25}),
        ({"ok": True, "rewards": REWARDS}, None, None, {}), ({"ok": True, "rewards": REWARDS}, "c", None, {}),
        ({"ok": True, "rewards": REWARDS}, "d", None, {}), ({"ok": True}, None, None, {}),
        ({"rewards": {"b": REWARDS["b"]}}, None, None, {}), ({"ok": True, "rewards": {"x": 5}}, None, None, {}),
    ],
)  # fmt: skip
def test_the_reward_of_a_trace_is_the_sum_of_its_weighted_rewards_or_the_named_one(
    row: Any, reward: str | None, value: float | None, numbers: dict[str, float]
) -> None:
    verdict = _trace_verdict(row, reward)
    assert (
        (value, numbers) == (None, {})
        if verdict is None
        else (verdict.reward, verdict.numbers) == (value, numbers)
    )


def nodes(*texts: str) -> list[dict[str, Any]]:
    return [
        {"parent": position - 1 if position else None, "sampled": position == 1, "timestamp": 5.0,
         "message": {"role": "assistant" if position == 1 else "user", "content": text}}
        for position, text in enumerate(texts)
    ]  # fmt: skip


def imported(tmp_path: Path, *rows: Any) -> list[Any]:
    path = tmp_path / "traces.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(read_verifiers(path, None))


def test_a_trace_is_imported_with_all_that_it_says(tmp_path: Path) -> None:
    trace = {
        "task": {"hash": "h", "data": {"x": 1}}, "agent": {"name": "solver"}, "nodes": nodes("q", "a", "more"), "ok": True,
        "rewards": {"right": {"score": 1.0}}, "stop_condition": "max_turns",
        "calls": [{"model": None, "usage": {"prompt_tokens": 3, "completion_tokens": 2}}, "no call",
                  {"model": "m", "usage": {"input_tokens": 4, "output_tokens": 1}}],
    }  # fmt: skip
    [made] = imported(tmp_path, {"traces": [trace], "ok": True})
    assert (made.task, made.agent, made.model, made.started) == ("h", "solver", "m", 5.0)
    assert (len(made.prompt), len(made.output), made.task_fields) == (1, 1, {"verifiers_task": {"x": 1}})
    assert (made.usage, made.scores, made.failure) == (
        {"input_tokens": 7, "output_tokens": 3},
        ("right",),
        None,
    )
    assert made.verdict is not None and made.verdict.reward == 1.0
    [bare] = imported(tmp_path, {"traces": [{"nodes": []}], "ok": True})
    assert (bare.task, bare.agent, bare.model, bare.started, bare.verdict) == (
        "null",
        "verifiers",
        None,
        None,
        None,
    )
    assert (bare.prompt, bare.output, bare.usage, bare.scores, bare.task_fields) == ([], [], None, (), {})


@pytest.mark.parametrize(
    ("more", "failure"),
    [
        ({"errors": [{"message": "boom"}]}, "boom"), ({"errors": []}, None), ({"errors": None}, None),
        ({"errors": ["boom"], "ok": True}, None), ({"errors": ["boom"], "timing": {"finalize": {"start": 1.0}}}, None),
        ({"errors": ["boom"], "timing": {"finalize": {"start": None}}}, "boom"), ({"errors": ["boom"], "timing": {}}, "boom"),
        ({"errors": ["boom"], "timing": None}, "boom"),
    ],
)  # fmt: skip
def test_a_trace_failed_unless_its_agent_had_finished(
    tmp_path: Path, more: dict[str, Any], failure: str | None
) -> None:
    [made] = imported(tmp_path, {"traces": [{"task": {"key": "t"}, "nodes": []} | more]})
    assert made.failure == failure


def test_an_episode_without_a_trace_failed_and_one_that_is_not_ok_has_no_verdict(tmp_path: Path) -> None:
    trace = {"task": {"key": "t"}, "nodes": [], "rewards": {"right": {"score": 1.0}}, "ok": True}
    for agents, count in (([True, False], 1), ([False, False], 2), ([True, True], 2)):
        traces = [trace | {"agent": {"name": "a", "trainable": one}} for one in agents]
        assert len(imported(tmp_path, {"traces": traces})) == count
    failed, odd, good = imported(
        tmp_path,
        {"traces": [], "errors": [{"type": "E"}], "task": {"key": "k"}},
        {"traces": []},
        {"traces": [trace]},
    )
    assert (failed.task, failed.failure) == ("k", "E") and odd.failure == "the episode has no trace"
    assert good.verdict is not None
    assert imported(tmp_path, {"traces": [trace], "ok": False})[0].verdict is None


def test_a_task_is_named_by_its_key_else_its_hash_else_its_data() -> None:
    names = [{"key": "k", "hash": "h", "data": 1}, {"hash": "h", "data": 1}, {"data": 1}]
    assert [_task_name(cast("Any", one)) for one in names] == ["k", "h", "1"]
    errors = [
        {"message": "m", "error_chain_str": "c", "type": "t"},
        {"error_chain_str": "c", "type": "t"},
        {"type": "t"},
        {},
        5,
    ]
    assert [_error_text(["first", one]) for one in errors] == ["m", "c", "t", "{}", "5"]


@pytest.mark.parametrize(
    ("row", "reward", "value", "failure"),
    [
        ({"reward": 0.5, "metrics": {"m": 2}}, None, 0.5, None), ({"reward": 0.5, "metrics": {"m": 2}}, "reward", 0.5, None),
        ({"reward": 0.5, "metrics": {"m": 2}}, "m", 2.0, None), ({"reward": 0.5}, "m", None, None), ({}, None, None, None),
        ({"reward": 0.5, "error": "boom"}, None, None, "boom"),
    ],
)  # fmt: skip
def test_a_result_has_its_reward_or_the_named_metric(
    row: Any, reward: str | None, value: float | None, failure: str | None
) -> None:
    made = _result({"prompt": "q", "completion": "a"} | row, reward)
    assert (made.verdict.reward if made.verdict else None, made.failure) == (value, failure)
    assert (made.task, len(made.output), made.incomplete, made.usage) == ('"q"', 1, None, None)
    more: Any = {
        "example_id": 0,
        "is_truncated": True,
        "token_usage": {"input_tokens": 1, "output_tokens": 2},
    }
    made = _result({"prompt": "q", "completion": []} | more, None)
    assert (made.task, made.incomplete, made.usage) == ("0", "max_output_tokens", more["token_usage"])


def trial(folder: Path, **more: Any) -> Any:
    folder.mkdir(exist_ok=True)
    (folder / "result.json").write_text(json.dumps({"trial_name": "t", "task_name": "task"} | more))
    [made] = read_harbor(folder, None)
    return made


def test_a_trial_is_imported_with_all_that_it_says(tmp_path: Path) -> None:
    bare = trial(tmp_path)
    assert (bare.agent, bare.model, bare.verdict, bare.failure, bare.prompt, bare.usage) == (
        "harbor",
        None,
        None,
        None,
        [],
        None,
    )
    steps = [
        {"source": "user", "message": "q"},
        {"source": "agent", "message": "a", "tool_calls": None,
         "observation": {"results": [{"source_call_id": "c", "content": "seen"}, {"source_call_id": "d", "content": None}, "odd"]}},
        {"source": "agent", "message": "b", "observation": None}, "odd",
    ]  # fmt: skip
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "trajectory.json").write_text(json.dumps({"steps": steps}))
    made = trial(
        tmp_path, agent_info={"name": "claude", "model_info": {"name": "m"}}, verifier_result={"rewards": {"a": 0.5}},
        exception_info={"exception_type": "E", "exception_message": "boom"},
    )  # fmt: skip
    assert (made.agent, made.model, made.failure, made.scores) == ("claude", "m", "E: boom", ("a",))
    assert made.verdict is not None and (made.verdict.reward, made.verdict.numbers) == (0.5, {})
    outputs = [item.get("output") for item in made.output if item.get("type") == "function_call_output"]
    assert len(made.prompt) == 1 and outputs == ["seen", ""]
    assert trial(tmp_path, verifier_result={"rewards": {"a": None}}).verdict is None
    assert trial(tmp_path, verifier={"finished_at": "x"}, exception_info={}).failure is None


def test_seconds_need_a_start_and_an_end() -> None:
    start, end = "2025-01-01T00:00:00", "2025-01-01T00:01:00"
    assert [_seconds(start, end), _seconds(start, None), _seconds("x", end), _seconds("", "")] == [
        60.0,
        None,
        None,
        None,
    ]


def sample(**more: Any) -> Any:
    return _rollout(cast("Any", {"id": 1} | more), None, "log")


def test_a_sample_is_imported_with_all_that_it_says() -> None:
    bare = sample()
    assert (bare.task, bare.prompt, bare.output, bare.verdict, bare.failure, bare.model) == (
        "1",
        [],
        [],
        None,
        None,
        None,
    )
    messages = [{"role": "user", "content": "attachment://1"}, {"role": "assistant", "content": "a"}, "odd"]
    made = sample(
        messages=messages, attachments={"1": "q"}, output={"model": "m", "usage": {"input_tokens": 3, "reasoning_tokens": 2}},
        scores={"match": {"value": "C", "answer": "4"}}, started_at="2025-01-01T00:00:00+00:00", total_time=2.0,
    )  # fmt: skip
    assert (len(made.prompt), len(made.output), made.model, made.seconds) == (1, 1, "m", 2.0) and "q" in str(
        made.prompt
    )
    assert (
        made.verdict is not None
        and made.verdict.reward == 1.0
        and made.verdict.details == {"extracted_answer": "4"}
    )
    assert made.usage["output_tokens_details"] == {"reasoning_tokens": 2} and made.started == 1735689600.0
    assert made.usage["input_tokens_details"] == {"cached_tokens": 0}
    usage: Any = {"usage": {"input_tokens_cache_read": 7}}
    assert sample(output=usage).usage["input_tokens_details"] == {"cached_tokens": 7}
    assert len(sample(input="q").prompt) == 1
    assert sample(scores={"match": {"value": 1}}, invalidation={"why": "x"}).verdict is None
    assert sample(scores={"match": 5}).verdict is None
    assert [sample(error=one).failure for one in ({"message": "m"}, {}, None)] == ["m", "failed", None]


def test_other_scores_of_a_sample_are_numbers_beside_its_reward() -> None:
    scores: Any = {"a": {"value": {"x": 1, "y": "I"}}, "b": {"value": "?"}, "c": 5}
    made = _rollout(cast("Any", {"id": 1, "scores": scores}), "a/x", "log")
    assert made.verdict is not None and (made.verdict.reward, made.verdict.numbers) == (1.0, {"a/y": 0.0})
    assert [_number(one) for one in ("C", "I", "yes", "NO", "0.5", "?", 2)] == [
        1.0,
        0.0,
        1.0,
        0.0,
        0.5,
        None,
        2.0,
    ]
    assert _resolved(["attachment://1", {"a": "attachment://2"}, 5], {"1": "x"}) == [
        "x",
        {"a": "attachment://2"},
        5,
    ]


@pytest.mark.parametrize(
    ("row", "output", "usage"),
    [
        ({}, {"usage": 1}, 1), ({"messages": [{"role": "assistant"}] * 1}, {"usage": 1}, 1),
        ({"messages": [{"role": "assistant"}] * 2}, {"usage": 1}, None),
        ({"messages": [{"role": "assistant"}, {"role": "user"}, "odd"]}, {"usage": 1}, 1),
        ({"model_usage": {"m": 2}}, {"usage": 1, "model": "m"}, 2), ({"model_usage": {}}, {"usage": 1}, 1),
        ({"model_usage": {"openai/m": 2, "judge": 3}}, {"model": "m"}, 2), ({"model_usage": {"a": 2, "b": 3}}, {"model": "m"}, None),
    ],
)  # fmt: skip
def test_tokens_of_the_last_answer_are_those_of_a_sample_with_one(
    row: Any, output: Any, usage: int | None
) -> None:
    assert _whole_usage(row, output) == usage


@pytest.mark.parametrize(
    ("row", "choices", "why"),
    [
        ({}, [{"stop_reason": "max_tokens"}], "max_output_tokens"), ({"limit": {"type": "time"}}, None, "time_limit"),
        ({}, [], None), ({}, None, None), ({}, ["odd"], None), ({}, [{"stop_reason": "stop"}], None),
    ],
)  # fmt: skip
def test_a_sample_is_incomplete_by_its_limit_or_its_last_answers(
    row: Any, choices: Any, why: str | None
) -> None:
    assert _why_incomplete(row, cast("Any", {"choices": choices})) == why


@pytest.mark.parametrize(("size", "is_read"), [(9, True), (10, True), (11, False)])
def test_a_member_of_an_archive_is_read_up_to_the_longest_line(
    size: int, is_read: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(inspect_log, "LONGEST_LINE", 10)
    with zipfile.ZipFile(tmp_path / "log.eval", "w") as archive:
        archive.writestr("one", b"x" * size)
    with zipfile.ZipFile(tmp_path / "log.eval") as archive:
        if is_read:
            assert len(inspect_log._member(archive, "one", tmp_path)) == size
        else:
            with pytest.raises(DataError, match="larger than"):
                inspect_log._member(archive, "one", tmp_path)
