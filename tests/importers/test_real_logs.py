"""Logs that the tools themselves write, freshly made: Harbor and verifiers against the simulated model (`make environments`)."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rollforge.simulate import SimulatedServer, SimulateOptions
from rollforge.steps.import_run import import_run

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HARBOR = ROOT / ".venv-harbor" / "bin" / "python"
EVAL = ROOT / ".venv-environments-v1" / "bin" / "vf-eval"

pytestmark = pytest.mark.slow

IN_PROCESS = """
import sys
from rollforge.environments.verifiers_harness import HARNESS, provide_harness

provide_harness()
InProcessHarness = sys.modules[HARNESS].InProcessHarness
__all__ = ["InProcessHarness"]
"""
"""A module by which the library's own command finds our harness: its stock ones need uv and the network."""


async def ran(words: list[str], folder: Path, path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(path), "HOME": str(folder), "NO_KEY": "none"}
    done = await asyncio.to_thread(
        subprocess.run,
        words,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def rows(run: Path) -> list[Any]:
    return [json.loads(line) for line in (run / "rollouts.jsonl").read_text().splitlines()]


@pytest.mark.skipif(not HARBOR.exists(), reason="no Harbor (Python 3.12): make environments")
async def test_trials_that_harbor_ran_are_imported(tmp_path: Path) -> None:
    async with SimulatedServer(SimulateOptions()) as server:
        words = [str(HARBOR), str(HERE / "harbor_job.py"), str(tmp_path), server.base_url]
        await ran(words, tmp_path, HERE)
    made = import_run("harbor", tmp_path / "job", tmp_path / "run")
    assert (made.tasks, made.judged, made.unjudged, made.failed) == (4, 4, 2, 2)
    for row in rows(tmp_path / "run"):
        kinds = [item["type"] for item in row["response"]["output"]]
        assert kinds == ["message", "function_call", "function_call_output", "message"]
        assert row["response"]["usage"]["output_tokens"] > 0 and row["response"]["model"] == "simulated"
    parts = [row for row in rows(tmp_path / "run") if row.get("speed") == 2]
    assert [row["reward"] for row in parts] == [0.5, 0.5]
    failed = (tmp_path / "run" / "rollouts_failures.jsonl").read_text()
    assert failed.count("RuntimeError: the agent gave up") == 2


@pytest.mark.skipif(not EVAL.exists(), reason="no verifiers 0.4: make environments")
async def test_traces_that_verifiers_wrote_are_imported(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "environments" / "words_v1.py", tmp_path)
    (tmp_path / "in_process.py").write_text(IN_PROCESS)
    async with SimulatedServer(SimulateOptions()) as server:
        settings = {
            "--env.taskset.count": "3",
            "--env.taskset.task.kind": "breaks",
            "--env.agent.harness.id": "in_process",
            "--env.agent.runtime.type": "subprocess",
            "--client.base-url": server.base_url,
            "--client.api-key-var": "NO_KEY",
            "--model": "simulated",
            "--num-rollouts": "2",
            "--push": "false",
            "--rich": "None",
            "--output-dir": "out",
        }
        words = [str(EVAL), "words_v1", *(word for pair in settings.items() for word in pair)]
        await ran(words, tmp_path, tmp_path)
    (log,) = (tmp_path / "out").rglob("traces.jsonl")
    made = import_run("verifiers", log, tmp_path / "run")
    assert (made.tasks, made.judged, made.unjudged, made.failed) == (3, 4, 2, 0)
    episodes = [json.loads(line) for line in log.read_text().splitlines()]
    given = sorted(
        sum(reward["score"] * reward["weight"] for reward in episode["traces"][0]["rewards"].values())
        for episode in episodes
        if episode["ok"]
    )
    assert sorted(row["reward"] for row in rows(tmp_path / "run") if row["reward"] is not None) == given
