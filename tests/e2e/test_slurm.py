"""The array of shards in examples/slurm on a real slurmctld: collected, requeued without repeating anything, merged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollforge.simulate import SimulatedProcess, SimulateOptions, example_tasks
from tests.e2e.slurm_cluster import slurm_cluster

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parents[2] / "examples" / "slurm"
SHARDS, TASKS, SAMPLES = 4, 24, 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory(prefix="rfs") as folder, slurm_cluster(Path(folder)) as environment:
        yield environment


def ask(environment: dict[str, str], *words: str) -> str:
    return subprocess.run(
        words, env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout


def await_jobs(environment: dict[str, str], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while ask(environment, "squeue", "-h").strip():
        assert time.monotonic() < deadline, ask(environment, "squeue")
        time.sleep(0.5)


def test_an_array_of_shards_is_collected_requeued_and_merged(cluster: dict[str, str], tmp_path: Path) -> None:
    rows = example_tasks(TASKS, 0, "math")
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with SimulatedProcess(SimulateOptions(seed=3, latency=0.2)) as server:
        environment = cluster | {
            "RUN": str(tmp_path / "run"),
            "MODEL": "simulated",
            "BASE_URL": server.base_url,
            "SAMPLES": str(SAMPLES),
            "CONCURRENCY": "2",
            "ROLLFORGE": f"{sys.executable} -m rollforge",
        }
        submit = [str(EXAMPLES / "submit.sh"), str(tmp_path / "tasks.jsonl")]
        output = ask(environment, *submit, str(SHARDS), f"--chdir={tmp_path}")
        job = output.split()[2].rstrip(",")
        deadline = time.monotonic() + 120
        first = tmp_path / "run" / "shards" / "00000" / "e1" / "rollouts.jsonl"
        while not (first.exists() and first.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.1)
        subprocess.run(["scontrol", "requeue", f"{job}_0"], env=environment, check=False)
        await_jobs(environment)
        logs = "".join(path.read_text() for path in tmp_path.glob("slurm-*.out"))
        merged = tmp_path / "run" / "rollouts.jsonl"
        assert merged.exists(), logs
        keys = [
            (row["_ng_task_index"], row["_ng_rollout_index"])
            for row in map(json.loads, merged.read_text().splitlines())
        ]
        assert keys == [(task, sample) for task in range(TASKS) for sample in range(SAMPLES)], logs
        epochs = sorted(path.name for path in (tmp_path / "run" / "shards" / "00000").glob("e*.end"))
        assert epochs in (["e1.end", "e2.end"], ["e1.end"]), epochs
        status = ask(
            environment, sys.executable, "-m", "rollforge", "status", str(tmp_path / "run"), "--owed"
        )
        assert status == ""
        assert "nothing is owed" in ask(environment, *submit, "owed")
    assert os.environ.get("SLURM_CONF") != cluster["SLURM_CONF"]
