"""A collection with metrics and a buffer behind it, killed at random moments: every step reported, nothing lost or doubled."""

import json
import random
import signal
import subprocess
import sys
import time

import pytest

from rollforge.buffer import open_buffer
from rollforge.metrics import StepFold
from rollforge.sinks.jsonl import read_metrics
from rollforge.steps.monitor import rollout_metrics

TASKS, SAMPLES, STEP = 40, 3, 8


@pytest.mark.slow
def test_a_killed_collection_reports_every_step_and_fills_its_buffer_once(tmp_path):
    tasks = tmp_path / "tasks.jsonl"
    rows = [
        {"prompt": f"What is {i} + {i * 3}? Use \\boxed{{}}.", "expected_answer": str(i * 4)}
        for i in range(TASKS)
    ]
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pipeline = tmp_path / "p.toml"
    pipeline.write_text('[[operator]]\nuse = "group_advantages"\n')
    run, place = tmp_path / "run", tmp_path / "buffer.db"
    command = [
        sys.executable,
        "-m",
        "rollforge",
        "collect",
        "-i",
        tasks,
        "-o",
        run,
        "-m",
        "simulated",
        "--verifier",
        "exact",
    ]
    command += [
        "-k",
        str(SAMPLES),
        "-c",
        "3",
        "--verify-workers",
        "0",
        "--progress",
        "none",
        "--step-size",
        str(STEP),
    ]
    command += ["--pipeline", pipeline, "--buffer", place]
    rng = random.Random(11)
    for _ in range(4):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wanted = rng.randint(1, TASKS * SAMPLES)
        while process.poll() is None and _lines(run) < wanted:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    last = {line["step"]: line["metrics"] for line in read_metrics(run / "rollouts_metrics.jsonl")}
    folds = {}
    for line in (run / "rollouts.jsonl").read_bytes().splitlines():
        row = json.loads(line)
        fold = folds.setdefault(row["_ng_task_index"] // STEP + 1, StepFold())
        fold.add(row["_ng_task_index"], rollout_metrics(row), order=row["_ng_rollout_index"])
    assert sorted(last) == sorted(folds) == [1, 2, 3, 4, 5]
    for step, fold in folds.items():
        numbers = fold.metrics("rollout")
        assert {name: last[step][name] for name in numbers} == numbers
    with open_buffer(place) as buffer:
        batch = buffer.claim(TASKS * SAMPLES, timeout=0)
        assert batch is not None
        assert len({experience.id for experience in batch.experiences}) == TASKS * SAMPLES
        assert buffer.counters()["waiting"] == 0


def _lines(run):
    path = run / "rollouts.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0
