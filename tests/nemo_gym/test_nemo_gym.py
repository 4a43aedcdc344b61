"""NeMo Gym 0.7's own files, verdicts and servers, where the package is installed (`make gym`, needs Python 3.13)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rollforge.steps.check import check_run
from tests.agents.running import collect as collect_rows
from tests.agents.scripted_model import ScriptedModel, call, message
from tests.agents.web import serving as in_process

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("ROLLFORGE_GYM_PYTHON", str(ROOT / ".venv-gym" / "bin" / "python"))
SERVE = Path(__file__).with_name("serve.py")
SHIPPED = (
    "mcqa", "example_multi_step", "example_session_state_mgmt", "example_mcp_weather", "instruction_following",
    "structured_outputs", "math_with_judge", "reasoning_gym", "equivalence_rule", "calendar", "aviary", "code_gen",
)  # fmt: skip

UNHEALTHY = {
    "resources_servers/gymnasium": "no output was recorded",
    "resources_servers/sec_local_index": "no output was recorded",
    "resources_servers/terminal_bench_2_1": "no output was recorded",
    "resources_servers/toolsandbox": "no output was recorded",
    "resources_servers/math_with_autograder": "every answer is empty",
    "responses_api_agents/anyswe_agent": "every answer is empty",
    "resources_servers/ruler": "every answer was cut off while the model reasoned",
    "resources_servers/imo_proofbench_judge": "two of five answers were cut off while the model reasoned",
    "resources_servers/nvarc": "put together from the answers of three models",
    "resources_servers/ragtruth": "some answers are a model's, others were written by hand",
    "resources_servers/rolemrc": "some answers are a model's, others were written by hand",
}
"""Shipped rollouts that a person labelled as unfit, with the reason; all others were labelled healthy."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path(PYTHON).exists(), reason="NeMo Gym is not installed here: make gym (Python 3.13)"
    ),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def folders() -> dict[str, Path]:
    done = subprocess.run(
        [PYTHON, str(SERVE), "files", *SHIPPED], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return {name: Path(folder) / "data" for name, folder in json.loads(done.stdout).items()}


@contextmanager
def serving(name: str) -> Iterator[str]:
    """One of NeMo Gym's own resources servers, as a process."""
    process = subprocess.Popen(
        [PYTHON, str(SERVE), "serve", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdin and process.stdout
    try:
        port = process.stdout.readline().strip()
        if not port:
            pytest.skip(f"NeMo Gym's server {name} does not start here: it needs packages of its own")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stdin.close()
        process.wait(timeout=60)


def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rollforge", *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_files_are_read_whole(folders: dict[str, Path], tmp_path: Path, name: str) -> None:
    """Row counts and mean rewards are those of the plain rows; no command ends in a traceback."""
    for path in sorted(folders[name].glob("example*.jsonl")):
        copy = tmp_path / path.name
        copy.write_bytes(path.read_bytes())
        rows = rows_of(copy)
        checked = run("validate", copy, "--json", cwd=tmp_path)
        assert "Traceback" not in checked.stderr and json.loads(checked.stdout)["files"][0]["rows"] == len(
            rows
        )
        if not any("reward" in row for row in rows):
            continue
        output = run("metrics", copy, "--json", cwd=tmp_path)
        assert output.returncode in (0, 3), output.stderr
        rewards = [
            row["reward"] for row in rows if row.get("reward") is not None and not row.get("mask_sample")
        ]
        found = json.loads(output.stdout)
        assert found["counts"]["finished"] == len(rows)
        assert found["fields"]["reward"]["mean"] == pytest.approx(sum(rewards) / len(rewards))
        for command in (("profile", copy), ("check", copy), ("show", copy)):
            assert "Traceback" not in run(*command, cwd=tmp_path).stderr


def collect(folder: Path, tasks: Path, url: str, *more: str) -> list[dict[str, Any]]:
    words = [
        "-i",
        tasks,
        "-o",
        "run",
        "-m",
        "simulated",
        "--gym-resources",
        url,
        "-k",
        "4",
        "--stop-on",
        "never",
        *more,
    ]
    done = run("collect", *words, "--progress", "none", cwd=folder)
    assert done.returncode == 0, done.stderr
    return rows_of(folder / "run" / "rollouts.jsonl")


def test_the_verdicts_of_its_mcqa_server_are_those_of_our_verifier(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    with serving("mcqa") as url:
        rows = collect(tmp_path, folders["mcqa"] / "example.jsonl", url)
    assert len(rows) == 4 * len(rows_of(folders["mcqa"] / "example.jsonl"))
    assert run("verify", "run", "--verifier", "mcqa", cwd=tmp_path).returncode == 0
    ours = {
        (row["_ng_task_index"], row["_ng_rollout_index"]): row["reward"]
        for row in rows_of(tmp_path / "run" / "rollouts_verdicts.jsonl")
    }
    assert {(row["_ng_task_index"], row["_ng_rollout_index"]): row["reward"] for row in rows} == ours


def test_sessions_of_its_stateful_server_stay_apart(folders: dict[str, Path], tmp_path: Path) -> None:
    with serving("example_session_state_mgmt") as url:
        rows = collect(tmp_path, folders["example_session_state_mgmt"] / "example.jsonl", url)
    assert rows and all(row["reward"] is not None for row in rows)


async def test_tools_that_its_server_announces_over_mcp_are_offered_called_and_rewarded(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    pytest.importorskip("mcp", reason="the extra 'mcp' is not installed")
    tasks = rows_of(folders["example_mcp_weather"] / "example.jsonl")[:1]
    city = tasks[0]["verifier_metadata"]["expected_city"]

    def repeat(body: dict[str, Any]) -> list[dict[str, Any]]:
        (output,) = [item["output"] for item in body["input"] if item.get("type") == "function_call_output"]
        return [message(output)]

    with serving("example_mcp_weather") as url:
        async with in_process(ScriptedModel([call("get_weather", {"city": city})], repeat).app) as model:
            await collect_rows(tmp_path, tasks, model, gym_resources=url)
    (row,) = rows_of(tmp_path / "run" / "rollouts.jsonl")
    assert row["reward"] == 1.0, row["response"]["output"]


async def test_the_tools_of_its_multi_step_server_are_called_and_its_verdict_is_kept(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    tasks = rows_of(folders["example_multi_step"] / "example.jsonl")[:1]
    values = (
        tasks[0].get("expected_synonym_values") or tasks[0]["verifier_metadata"]["expected_synonym_values"]
    )
    with serving("example_multi_step") as url:
        turns = [call("extract_synonym_values", {"synonym_values": values})], [message("done")]
        async with in_process(ScriptedModel(*turns).app) as model:
            await collect_rows(tmp_path, tasks, model, gym_resources=url)
    (row,) = rows_of(tmp_path / "run" / "rollouts.jsonl")
    assert row["reward"] == 1.0, row["response"]["output"]


def has_reward(path: Path) -> bool:
    with path.open() as file:
        try:
            return "reward" in json.loads(file.readline())
        except ValueError:
            return False


def test_no_shipped_rollouts_that_a_person_calls_healthy_get_an_error(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    """All shipped rollouts, about 190 files of 5 to 200 rows: the healthy kinds of docs/checks.md that nobody here made."""
    site = folders["mcqa"].parents[2]
    accused: dict[str, list[str]] = {}
    count = 0
    for number, path in enumerate(sorted(site.glob("*/*/data/*rollouts*.jsonl"))):
        if "materialized" in path.name or "failures" in path.name or not has_reward(path):
            continue
        copy = tmp_path / str(number) / "rollouts.jsonl"
        copy.parent.mkdir()
        copy.write_bytes(path.read_bytes())
        count += 1
        errors = [finding.id for finding in check_run(str(copy)).findings if finding.level == "error"]
        if errors:
            accused["/".join(path.relative_to(site).parts[:2])] = errors
    print(f"{count} files, {len(accused)} with an error")
    assert count > 150 and {name: ids for name, ids in accused.items() if name not in UNHEALTHY} == {}
