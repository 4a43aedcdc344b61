"""The packages themselves, at their pins, in an environment of their own (`make environments`)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.agents.scripted_model import ScriptedModel, call
from tests.agents.web import serving
from tests.environments.real_server import openenv_server

BIN = Path(__file__).resolve().parents[2] / ".venv-environments" / "bin"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (BIN / "rollforge").exists(), reason="no environment packages: make environments"),
]

WORDS = """
import verifiers.legacy as vf
from datasets import Dataset


def load_environment(count: int = 5, breaks: bool = False, group: bool = False):
    rows = [
        {"prompt": [{"role": "user", "content": f"What is {n} + {n}? Put the final answer in \\\\boxed{{}}."}], "answer": str(2 * n)}
        for n in range(count)
    ]

    def right(completion, answer, **kwargs):
        if breaks and answer == "4":
            raise RuntimeError("no such answer")
        return float("boxed{" + answer + "}" in str(completion))

    def longest(completions, **kwargs) -> list[float]:
        sizes = [len(str(one)) for one in completions]
        return [size / max(sizes) for size in sizes]

    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[longest if group else right]))
"""


def run(folder: Path, env: str, *words: str) -> tuple[int, list[dict[str, object]], str]:
    (folder / "word_env.py").write_text(WORDS)
    done = subprocess.run(
        [BIN / "rollforge", "collect", "--env", env, "-o", "run", "-m", "simulated", *words, "--progress", "none"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False, timeout=250,
    )  # fmt: skip
    path = folder / "run" / "rollouts.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return done.returncode, rows, done.stderr


def test_an_environment_of_version_0_runs_with_our_model(tmp_path: Path) -> None:
    code, rows, said = run(tmp_path, "verifiers:word_env?count=4", "-k", "2")
    assert code == 0, said
    assert len(rows) == 8
    assert all(row["reward"] in (0.0, 1.0) for row in rows)
    assert {row["_rf"]["verifier"] for row in rows} == {"verifiers:word_env"}  # type: ignore[index]


def test_a_reward_function_that_raises_leaves_the_rollout_unjudged(tmp_path: Path) -> None:
    code, rows, said = run(tmp_path, "verifiers:word_env?count=4&breaks=true", "-k", "2")
    assert code == 3, said
    unjudged = [row for row in rows if row["reward"] is None]
    assert [row["_ng_task_index"] for row in unjudged] == [2, 2]
    failures = (tmp_path / "run" / "rollouts_failures.jsonl").read_text()
    assert "right raised RuntimeError: no such answer" in failures


def test_group_rewards_are_given_when_the_samples_are_there(tmp_path: Path) -> None:
    code, rows, said = run(tmp_path, "verifiers:word_env?count=3&group=true", "-k", "3")
    assert code == 0, said
    verdicts = [
        json.loads(line) for line in (tmp_path / "run" / "rollouts_verdicts.jsonl").read_text().splitlines()
    ]
    assert len(rows) == len(verdicts) == 9
    assert sum(verdict["reward"] == 1.0 for verdict in verdicts) >= 3


def test_a_game_is_played(tmp_path: Path) -> None:
    code, rows, said = run(tmp_path, "textarena:GuessTheNumber-v0?episodes=3", "--max-turns", "20")
    assert code in (0, 3), said
    assert len(rows) == 3
    assert all("Guess The Number" in json.dumps(row["_rf"]["played"]) for row in rows)  # type: ignore[index]
    assert all(row["reward"] is None or isinstance(row["reward"], float) for row in rows)


async def test_a_real_openenv_server_is_spoken_to(tmp_path: Path) -> None:
    from tests.environments.test_environments import collect, rollouts

    model = ScriptedModel(
        [call("step", {"number": "no number"})], [call("step", {"number": 0})], [call("step", {"number": 1})]
    )
    with openenv_server(BIN / "python", tmp_path, sessions=1) as address:
        async with serving(model.app) as url:
            done = await collect(tmp_path, f"openenv:{address}?episodes=2", url, samples=2)
    assert done.exit_code == 0
    assert [row["reward"] for row in rollouts(tmp_path)] == [1.0] * 4
