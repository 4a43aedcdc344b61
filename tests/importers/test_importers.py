"""Other tools' logs become runs: rewards mapped explicitly, what is missing stays missing, and every reading command works."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

import rollforge as rf
from rollforge.errors import DataError, UsageError
from rollforge.importers import IMPORTERS
from rollforge.steps.import_run import import_run

Row = dict[str, Any]


def rows(run: Path) -> list[Row]:
    return [json.loads(line) for line in (run / "rollouts.jsonl").read_text().splitlines()]


def sample(number: int, epoch: int, value: Any, **more: Any) -> Row:
    messages = [
        {"role": "user", "content": f"What is {number}?"},
        {"role": "assistant", "content": [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "let me see"}],
         "tool_calls": [{"id": "c1", "function": "look", "arguments": {"at": number}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "seen"},
        {"role": "assistant", "content": f"{number}"},
    ]  # fmt: skip
    scores = {"match": {"value": value, "answer": str(number)}} if value is not None else {}
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    return {
        "id": f"q{number}", "epoch": epoch, "input": "x", "target": str(number), "messages": messages, "scores": scores,
        "output": {"model": "m", "usage": usage}, "started_at": "2026-01-01T00:00:00+00:00", "total_time": 2.5, **more,
    }  # fmt: skip


def write_log(path: Path, samples: list[Row]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", "{}")
        for one in samples:
            archive.writestr(f"samples/{one['id']}_epoch_{one['epoch']}.json", json.dumps(one))
    return path


def test_an_inspect_log_becomes_a_run(tmp_path: Path) -> None:
    values = ["C", "I", "P", None]
    log = write_log(tmp_path / "a.eval", [sample(n, epoch, values[n]) for n in range(4) for epoch in (1, 2)])
    made = import_run("inspect", log, tmp_path / "run")
    assert (made.tasks, made.rollouts, made.judged, made.unjudged, made.failed) == (4, 8, 6, 2, 0)
    found = rows(tmp_path / "run")
    assert [row["reward"] for row in found] == [1.0, 1.0, 0.0, 0.0, 0.5, 0.5, None, None]
    kinds = [item["type"] for item in found[0]["response"]["output"]]
    assert kinds == ["reasoning", "message", "function_call", "function_call_output", "message"]
    assert json.loads(found[0]["response"]["output"][2]["arguments"]) == {"at": 0}
    metrics = rf.open_run(tmp_path / "run").metrics()
    assert metrics.fields["reward"].n == 6
    assert metrics.counts.unjudged == 2


def test_several_scores_need_a_name(tmp_path: Path) -> None:
    one = sample(1, 1, "C")
    one["scores"]["tone"] = {"value": 0.25}
    log = write_log(tmp_path / "a.eval", [one])
    with pytest.raises(UsageError, match="no word which is the reward"):
        import_run("inspect", log, tmp_path / "run")
    assert not (tmp_path / "run" / "rollouts.jsonl").exists(), "nothing is left of a refused import"
    import_run("inspect", log, tmp_path / "run", reward="tone")
    (row,) = rows(tmp_path / "run")
    assert (row["reward"], row["match"]) == (0.25, 1.0)


@pytest.mark.parametrize("suffix", ["eval", "json"])
def test_scores_are_mapped_as_inspect_maps_them_and_what_is_no_number_is_missing(
    tmp_path: Path, suffix: str
) -> None:
    """inspect writes the score of an unscored sample as the word NaN, which is no JSON."""
    values = [float("nan"), float("inf"), "yes", "False", "0.75", True, "unsure", [1, 0]]
    samples = [sample(n, 1, value) for n, value in enumerate(values)]
    log = tmp_path / f"a.{suffix}"
    if suffix == "eval":
        write_log(log, samples)
    else:
        log.write_text(json.dumps({"samples": samples}))
    import_run("inspect", log, tmp_path / "run")
    assert [row["reward"] for row in rows(tmp_path / "run")] == [None, None, 1.0, 0.0, 0.75, 1.0, None, None]


def test_a_score_of_several_values_is_several_scores(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.eval", [sample(1, 1, {"a": 1, "b": "I"})])
    with pytest.raises(UsageError, match="2 scores"):
        import_run("inspect", log, tmp_path / "run")
    import_run("inspect", log, tmp_path / "run", reward="match/b")
    (row,) = rows(tmp_path / "run")
    assert (row["reward"], row["match/a"]) == (0.0, 1.0)


def test_a_sample_without_the_score_that_was_named_is_unjudged(tmp_path: Path) -> None:
    both, lacking = sample(1, 1, "C"), sample(2, 1, "C")
    both["scores"]["tone"] = {"value": 0.25}
    log = write_log(tmp_path / "a.eval", [both, lacking])
    import_run("inspect", log, tmp_path / "run", reward="tone")
    assert [row["reward"] for row in rows(tmp_path / "run")] == [0.25, None]
    with pytest.raises(UsageError, match="there is no score 'other'"):
        import_run("inspect", log, tmp_path / "other", reward="other")
    assert not (tmp_path / "other" / "rollouts.jsonl").exists()


def test_a_sample_of_inspect_that_does_not_count_is_unjudged(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.eval", [sample(1, 1, "C", invalidation={"author": "me"})])
    import_run("inspect", log, tmp_path / "run")
    assert [row["reward"] for row in rows(tmp_path / "run")] == [None]


def test_tokens_of_a_sample_are_those_of_all_its_calls(tmp_path: Path) -> None:
    usage = {"input_tokens": 300, "output_tokens": 50, "total_tokens": 350, "input_tokens_cache_read": 100}
    judge = {"input_tokens": 9, "output_tokens": 9, "total_tokens": 18}
    samples = [
        sample(1, 1, "C", model_usage={"openai/m": usage}),
        sample(2, 1, "C", model_usage={"openai/m": usage, "openai/judge": judge}),
        sample(3, 1, "C", model_usage={"openai/one": usage, "openai/two": judge}),
        sample(4, 1, "C"),
    ]
    import_run("inspect", write_log(tmp_path / "a.eval", samples), tmp_path / "run")
    usages = [row["response"]["usage"] for row in rows(tmp_path / "run")]
    assert [one and one["input_tokens"] for one in usages] == [300, 300, None, None]
    assert usages[0]["input_tokens_details"] == {"cached_tokens": 100}


def test_an_answer_that_was_cut_short_is_incomplete(tmp_path: Path) -> None:
    samples = [sample(n, 1, "C") for n in range(3)]
    samples[1]["output"]["choices"] = [{"stop_reason": "max_tokens"}]
    samples[2]["limit"] = {"type": "message", "limit": 4}
    import_run("inspect", write_log(tmp_path / "a.eval", samples), tmp_path / "run")
    found = [row["response"] for row in rows(tmp_path / "run")]
    assert [one["status"] for one in found] == ["completed", "incomplete", "incomplete"]
    reasons = [one["incomplete_details"] for one in found[1:]]
    assert reasons == [{"reason": "max_output_tokens"}, {"reason": "message_limit"}]


def test_pictures_that_a_sample_holds_apart_are_put_back(tmp_path: Path) -> None:
    one = sample(1, 1, "C", attachments={"abc": "data:image/png;base64,AAAA"})
    one["messages"][0]["content"] = [
        {"type": "text", "text": "Look."},
        {"type": "image", "image": "attachment://abc"},
    ]
    import_run("inspect", write_log(tmp_path / "a.eval", [one]), tmp_path / "run")
    (row,) = rows(tmp_path / "run")
    assert row["responses_create_params"]["input"][0]["content"][1] == {
        "type": "input_image",
        "image_url": "data:image/png;base64,AAAA",
    }


def test_results_of_verifiers_may_hold_nan_and_plain_texts(tmp_path: Path) -> None:
    lines: list[Row] = [
        {
            "example_id": 1,
            "prompt": "Say x.",
            "completion": "x",
            "reward": float("nan"),
            "metrics": {"m": 1.0},
        },
        {"example_id": 2, "prompt": "Say y.", "completion": "y", "reward": 1.0, "is_truncated": True},
    ]
    log = tmp_path / "results.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    import_run("verifiers", log, tmp_path / "run")
    first, second = rows(tmp_path / "run")
    assert (first["reward"], second["reward"]) == (None, 1.0)
    assert first["response"]["output"] == [{"type": "message", "role": "assistant", "content": "x"}]
    assert (first["response"]["status"], second["response"]["status"]) == ("completed", "incomplete")


def test_a_sample_with_an_error_is_a_failure_and_never_zero(tmp_path: Path) -> None:
    broken = sample(1, 1, None, error={"message": "the server went away"})
    made = import_run(
        "inspect", write_log(tmp_path / "a.eval", [broken, sample(2, 1, "C")]), tmp_path / "run"
    )
    assert (made.rollouts, made.failed) == (1, 1)
    failure = json.loads((tmp_path / "run" / "rollouts_failures.jsonl").read_text())
    assert failure["message"] == "the server went away"


def trace(key: str, rewards: Row, *, ok: bool = True, errors: Any = ()) -> Row:
    def node(parent: int | None, role: str, text: str, sampled: bool = False) -> Row:
        return {
            "parent": parent,
            "message": {"role": role, "content": text},
            "sampled": sampled,
            "timestamp": 5.0,
        }

    nodes = [
        node(None, "system", "be brief"),
        node(0, "user", key),
        node(1, "assistant", "a branch that was dropped", True),
        node(1, "assistant", "the answer", True),
    ]
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    return {
        "version": 3, "task": {"type": "T", "key": key, "data": {"answer": "4"}}, "agent": {"name": "solver"}, "nodes": nodes,
        "calls": [{"model": "m", "usage": usage}], "rewards": rewards, "metrics": {"turns": 1.0}, "ok": ok, "errors": list(errors),
    }  # fmt: skip


def test_traces_of_verifiers_are_judged_only_where_all_was_scored(tmp_path: Path) -> None:
    lines = [
        trace("a", {"right": {"score": 1.0, "weight": 0.5}, "form": {"score": 1.0, "weight": 0.25}}),
        trace("a", {"right": {"score": 1.0, "weight": 0.5}, "form": None}),
        trace("b", {}),
        trace("c", {}, ok=False, errors=[{"type": "ModelError", "message": "500"}]),
    ]
    log = tmp_path / "traces.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = import_run("verifiers", log, tmp_path / "run")
    assert (made.tasks, made.judged, made.unjudged, made.failed) == (3, 1, 2, 1)
    first, second, _ = rows(tmp_path / "run")
    assert first["reward"] == 0.75
    assert second["reward"] is None
    assert [item["content"] for item in first["response"]["output"]] == ["the answer"]
    assert first["response"]["usage"] == {"input_tokens": 7, "output_tokens": 3}


def test_results_of_version_0_are_read(tmp_path: Path) -> None:
    prompt = [{"role": "user", "content": "hi"}]
    done = {"example_id": 3, "prompt": prompt, "completion": [{"role": "assistant", "content": "yo"}], "reward": 1.0,
            "metrics": {"right": 1.0}, "error": None}  # fmt: skip
    failed = done | {"error": {"error": "ModelError", "message": "gone"}, "reward": 0.0}
    log = tmp_path / "results.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in (done, failed)))
    made = import_run("verifiers", log, tmp_path / "run")
    assert (made.judged, made.failed) == (1, 1), "the 0.0 of a failed rollout is no reward"


def test_trials_of_harbor_are_read(tmp_path: Path) -> None:
    for name, result in (
        ("one", {"verifier_result": {"rewards": {"reward": 1.0, "speed": 0.5}}}),
        (
            "two",
            {
                "verifier_result": None,
                "exception_info": {"exception_type": "AgentTimeoutError", "exception_message": "slow"},
            },
        ),
        ("three", {"verifier_result": {"rewards": None}}),
    ):
        folder = tmp_path / "job" / name
        (folder / "agent").mkdir(parents=True)
        trial = {"task_name": "fix-it", "trial_name": name, "agent_info": {"name": "codex", "model_info": {"name": "m"}},
                 "started_at": "2026-01-01T00:00:00Z", "finished_at": "2026-01-01T00:01:00Z", **result}  # fmt: skip
        (folder / "result.json").write_text(json.dumps(trial))
        call = {"tool_call_id": "c", "function_name": "bash", "arguments": {"cmd": "ls"}}
        steps = [
            {"step_id": 1, "source": "user", "message": "fix it"},
            {"step_id": 2, "source": "agent", "message": "", "reasoning_content": "hm", "tool_calls": [call],
             "observation": {"results": [{"source_call_id": "c", "content": "a.py"}]}},
        ]  # fmt: skip
        (folder / "agent" / "trajectory.json").write_text(
            json.dumps({"schema_version": "ATIF-v1.6", "steps": steps})
        )
    made = import_run("harbor", tmp_path / "job", tmp_path / "run")
    assert (made.tasks, made.judged, made.unjudged, made.failed) == (1, 1, 1, 1)
    judged = next(row for row in rows(tmp_path / "run") if row["reward"] is not None)
    assert (judged["reward"], judged["speed"], judged["_rf"]["seconds"]) == (1.0, 0.5, 60.0)
    assert [item["type"] for item in judged["response"]["output"]] == [
        "reasoning",
        "function_call",
        "function_call_output",
    ]


@pytest.mark.parametrize("kind", IMPORTERS.names())
def test_what_is_no_log_is_said(tmp_path: Path, kind: str) -> None:
    (tmp_path / "log").write_text('{"a": 1}\n')
    (tmp_path / "torn").write_text('{"a": 1')
    for path in (tmp_path / "log", tmp_path / "torn", tmp_path / "nothing"):
        with pytest.raises(DataError) as raised:
            import_run(kind, path, tmp_path / "run")
        assert raised.value.hint


def test_an_import_never_writes_over_a_run(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.eval", [sample(1, 1, "C")])
    import_run("inspect", log, tmp_path / "run")
    with pytest.raises(UsageError, match="exists"):
        import_run("inspect", log, tmp_path / "run")
