"""Environments of verifiers, version 1, with the real package at its pin (`make environments`)."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from rollforge.simulate import SimulatedServer, SimulateOptions

BIN = Path(__file__).resolve().parents[2] / ".venv-environments-v1" / "bin"
SOURCE = Path(__file__).with_name("words_v1.py")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (BIN / "rollforge").exists(), reason="no verifiers 0.4: make environments"),
]


def command(env: str, *words: str) -> list[str]:
    return [
        str(BIN / "rollforge"),
        *("collect", "--env", env, "-o", "run", "-m", "simulated", *words, "--progress", "none"),
    ]


def setting(folder: Path) -> dict[str, Any]:
    shutil.copy(SOURCE, folder / "words_v1.py")
    return {"cwd": folder, "env": {**os.environ, "PYTHONPATH": str(folder)}}


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(folder: Path, env: str, *words: str) -> tuple[int, list[Any], str]:
    done = subprocess.run(
        command(env, *words), **setting(folder), capture_output=True, text=True, check=False, timeout=280
    )
    return done.returncode, lines(folder / "run" / "rollouts.jsonl"), done.stderr


def test_an_episode_is_played_through_the_proxy_and_judged_by_the_environment(tmp_path: Path) -> None:
    code, rows, said = run(tmp_path, "verifiers:words_v1?count=4", "-k", "2", "--logprobs")
    assert code == 0, said
    assert len(rows) == 8
    assert {row["reward"] for row in rows} <= {0.25, 0.75}
    assert all(row["reward"] == row["reward/right"] + row["reward/spoke"] for row in rows)
    assert all(row["turns"] == 1.0 for row in rows)
    own = rows[0]["_rf"]
    assert own["verifier"] == "verifiers:words_v1"
    assert own["played"]["input"][0]["content"] == "Be brief."
    assert [(one["role"], one["agent"], one["fidelity"]) for one in own["sequences"]] == [
        ("main", "agent", "exact")
    ]
    (generated,) = [item for item in rows[0]["response"]["output"] if item.get("generation_token_ids")]
    assert generated["prompt_token_ids"] and generated["generation_log_probs"]
    calls = lines(tmp_path / "run" / "rollouts_calls.jsonl")
    assert len(calls) == 8, "every call is durable before it is answered"
    assert own["environment"]["sessions"].keys() <= {call["session"] for call in calls}


def test_a_reward_that_raises_leaves_the_rollout_unjudged_and_never_at_zero(tmp_path: Path) -> None:
    code, rows, said = run(tmp_path, "verifiers:words_v1?count=4&task.kind=breaks", "-k", "2")
    assert code == 3, said
    unjudged = [row for row in rows if row["reward"] is None]
    assert [row["_ng_task_index"] for row in unjudged] == [2, 2]
    assert all("reward/right" not in row for row in unjudged)
    failures = lines(tmp_path / "run" / "rollouts_failures.jsonl")
    assert {row["boundary"] for row in failures} == {"verifier"}
    assert all("RuntimeError: no such answer" in row["message"] for row in failures)
    assert "_ng_task_index" in rows[0] and len(rows) == 8


def test_two_roles_are_sequences_of_one_rollout(tmp_path: Path) -> None:
    """The library's own user simulator over our taskset: the assistant's episode is the rollout, the user's a sequence."""
    env = "verifiers:words_v1?count=2&env=user-sim&user.max_turns=2"
    code, rows, said = run(tmp_path, env, "--max-failures", "100%")
    assert code == 0, said
    for row in rows:
        own = row["_rf"]
        assert own["environment"]["player"] == "assistant"
        agents = {(one["agent"], one["role"]) for one in own["sequences"]}
        assert {("assistant", "main"), ("user", "sub")} <= agents
        assert row["response"]["usage"]["sequences"] == len(own["sequences"]) >= 2


def test_a_turn_limit_ends_the_episode_and_it_is_judged(tmp_path: Path) -> None:
    env = "verifiers:words_v1?count=1&env=user-sim&assistant.max_turns=1&user.max_turns=4"
    code, rows, said = run(tmp_path, env, "--attempts", "1")
    assert code == 0, said
    (row,) = rows
    assert row["response"]["status"] == "incomplete"
    assert row["response"]["incomplete_details"] == {"reason": "max_turns"}
    assert row["reward"] in (0.25, 0.75)


def test_tools_of_the_task_are_called(tmp_path: Path) -> None:
    code, rows, said = run(tmp_path, "verifiers:words_v1?count=1&task.kind=tool", "--attempts", "1")
    assert code == 0, said
    (row,) = rows
    kinds = [item["type"] for item in row["response"]["output"] if item["type"] != "reasoning"]
    assert kinds == ["function_call", "function_call_output", "message"]
    assert row["reward"] == 0.75
    assert [tool["name"] for tool in row["_rf"]["played"]["tools"]] == ["book_look"]


async def test_a_failing_model_is_the_models_failure(tmp_path: Path) -> None:
    async with SimulatedServer(SimulateOptions(faults=("overflow=1",))) as server:
        words = ("verifiers:words_v1?count=2", "--base-url", server.base_url, "--max-failures", "100%")
        code, rows, said = await asyncio.to_thread(run, tmp_path, *words)
    assert code == 3, said
    assert rows == []
    failures = lines(tmp_path / "run" / "rollouts_failures.jsonl")
    assert {(row["class"], row["boundary"]) for row in failures} == {("context-overflow", "model")}


def test_a_killed_run_resumes_and_repeats_no_finished_rollout(tmp_path: Path) -> None:
    words = ("verifiers:words_v1?count=30", "-k", "2", "-c", "4")
    process = subprocess.Popen(
        command(*words), **setting(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    rollouts = tmp_path / "run" / "rollouts.jsonl"
    end = time.monotonic() + 200
    while time.monotonic() < end and (not rollouts.exists() or rollouts.read_bytes().count(b"\n") < 5):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = {(row["_ng_task_index"], row["_ng_rollout_index"]) for row in lines_whole(rollouts)}
    assert finished
    code, rows, said = run(tmp_path, *words)
    assert code == 0, said
    keys = [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows]
    assert sorted(keys) == [(task, sample) for task in range(30) for sample in range(2)]
    sessions = {next(iter(row["_rf"]["environment"]["sessions"])) for row in rows}
    assert sessions <= {call["session"] for call in lines(tmp_path / "run" / "rollouts_calls.jsonl")}


def lines_whole(path: Path) -> list[Any]:
    """The whole lines of a file that a killed process left."""
    return [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("verifiers:no_such_words", "No module named"),
        ("verifiers:words_v1?colour=red", "Extra inputs are not permitted"),
        ("verifiers:words_v1?player=judge", "no such role"),
        ("verifiers:words_v1?harness=no-such", "no_such"),
    ],
)
def test_mistakes_are_said_before_anything_is_sent(tmp_path: Path, env: str, words: str) -> None:
    code, rows, said = run(tmp_path, env)
    assert code == 2 and rows == []
    assert words in said and "Traceback" not in said


def test_an_edited_environment_is_not_resumed(tmp_path: Path) -> None:
    assert run(tmp_path, "verifiers:words_v1?count=1")[0] == 0
    (tmp_path / "words_v1.py").write_text(SOURCE.read_text() + "\n# another reward\n")
    done = subprocess.run(
        command("verifiers:words_v1?count=1", "-k", "2"), cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 7, done.stderr
    assert "source" in done.stderr
