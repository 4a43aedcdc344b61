"""What `collect` promises, kept with servers that we did not write."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.servers import RealServer, reason_to_skip, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
Row = dict[str, Any]


@pytest.fixture(scope="module", params=["llama.cpp", "transformers-serve"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    reason = reason_to_skip(request.param)
    if reason is not None:
        pytest.skip(reason)
    with running(request.param, tmp_path_factory.mktemp("server") / "log.txt") as started:
        yield started


def write_tasks(folder: Path, prompts: list[str]) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text(
        "".join(json.dumps({"prompt": prompt, "expected_answer": "4"}) + "\n" for prompt in prompts)
    )
    return path


def command(folder: Path, server: RealServer, *more: str) -> list[str]:
    words = [
        *(
            sys.executable,
            "-m",
            "rollforge",
            "collect",
            "-i",
            str(folder / "tasks.jsonl"),
            "-o",
            str(folder / "run"),
        ),
        *("-m", server.model, "--base-url", server.base_url, "--verifier", "exact", "--concurrency", "2"),
        *("--progress", "none", "--stop-on", "never", *more),
    ]
    return [word for word in words if word]


def collect(folder: Path, server: RealServer, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, server, *more), capture_output=True, text=True, timeout=400, check=False
    )


def rows_of(folder: Path, name: str = "rollouts.jsonl") -> list[Row]:
    path = folder / "run" / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


PROMPTS = ["What is 2 + 2?", "Name a colour.", "Say hello."]


def test_the_api_is_found_and_every_rollout_arrives(tmp_path: Path, server: RealServer) -> None:
    write_tasks(tmp_path, PROMPTS)
    done = collect(tmp_path, server, "-k", "2", "--max-output-tokens", "24")
    rows = rows_of(tmp_path)
    assert done.returncode in (0, 5), done.stderr
    keys = sorted((row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows)
    assert keys == [(task, sample) for task in range(3) for sample in range(2)]
    assert all(row["response"]["usage"]["output_tokens"] > 0 for row in rows)
    assert all(row["response"]["output"] for row in rows)


def test_an_answer_cut_at_the_limit_is_marked_as_cut(tmp_path: Path, server: RealServer) -> None:
    write_tasks(tmp_path, ["Write a long story about a river."])
    done = collect(tmp_path, server, "-k", "2", "--max-output-tokens", "6")
    assert done.returncode in (0, 5), done.stderr
    for row in rows_of(tmp_path):
        response = row["response"]
        assert response["status"] == "incomplete" or response["incomplete_details"], response


def test_logprobs_are_kept_or_noted_as_absent(tmp_path: Path, server: RealServer) -> None:
    write_tasks(tmp_path, ["Say hello."])
    done = collect(tmp_path, server, "--logprobs", "--max-output-tokens", "8")
    (row,) = rows_of(tmp_path)
    assert done.returncode in (0, 5), done.stderr
    if server.name == "llama.cpp":
        text = json.dumps(row["response"])
        assert "logprob" in text and len(text) < 12_000, "as many alternatives as were asked for, not twenty"


def test_a_prompt_beyond_the_context_is_a_failure_with_its_class(tmp_path: Path, server: RealServer) -> None:
    if server.name != "llama.cpp":
        pytest.skip("transformers serve has no limit of its own below the model's 8,192 tokens")
    write_tasks(tmp_path, ["word " * 4000])
    collect(tmp_path, server, "--attempts", "1", "--max-output-tokens", "8")
    (failure,) = rows_of(tmp_path, "rollouts_failures.jsonl")
    assert failure["class"] == "context-overflow" or "context" in failure["message"], failure


def test_a_request_that_takes_too_long_is_a_time_out(tmp_path: Path, server: RealServer) -> None:
    write_tasks(tmp_path, ["Write a long story about a river."])
    collect(
        tmp_path,
        server,
        "--request-timeout",
        "0.3",
        "--attempts",
        "1",
        "--retries",
        "0",
        "--max-output-tokens",
        "400",
    )
    failures = rows_of(tmp_path, "rollouts_failures.jsonl")
    assert failures and failures[0]["class"] == "timeout", failures


def test_a_run_killed_and_resumed_owes_exactly_what_is_missing(tmp_path: Path, server: RealServer) -> None:
    write_tasks(tmp_path, [f"What is {number} + 2?" for number in range(6)])
    words = command(tmp_path, server, "-k", "2", "--max-output-tokens", "48")
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 200
    while len(rows_of(tmp_path)) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)  # another process writes the file
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows_of(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode in (0, 5), done.stderr
    keys = [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows_of(tmp_path)]
    assert sorted(keys) == [(task, sample) for task in range(6) for sample in range(2)]
    assert keys[: len(before)] == before


def test_an_interrupted_run_ends_resumable(tmp_path: Path, server: RealServer) -> None:
    write_tasks(tmp_path, [f"Tell me about the number {number}." for number in range(8)])
    words = command(tmp_path, server, "--max-output-tokens", "200")
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 200
    while not rows_of(tmp_path) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)  # another process writes the file
    while process.poll() is None and time.monotonic() < deadline:
        process.send_signal(signal.SIGINT)  # the first drains, the second aborts
        time.sleep(1.0)  # two signals sent at once may arrive as one
    _, said = process.communicate(timeout=60)
    assert process.returncode in (0, 3, 130), said
    manifest = json.loads((tmp_path / "run" / "rollouts_run.json").read_text())
    assert manifest["state"] in ("interrupted", "done")
