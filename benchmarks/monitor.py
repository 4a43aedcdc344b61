"""The monitor against the pandas way of Trinity-RFT, and against its own promises.

Three parts: folding runs into step metrics, logging a step to the default sink, appending to and serving from a buffer. The fold is
measured in CPU seconds beside the peer's way in the same process; the peer's needs pandas (`pip install pandas`).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from rollforge.buffer import Experience, open_buffer
from rollforge.metrics import StepFold, fold_steps
from rollforge.sinks.base import SinkOptions, open_sinks

METRICS = 10
RUNS_PER_TASK = 8
TASKS_PER_STEP = 64
BATCH = 256


def cpu(work: Callable[[], Any]) -> float:
    """CPU seconds of one call."""
    started = time.process_time()
    work()
    return time.process_time() - started


def make_columns(runs: int) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(-(-runs // RUNS_PER_TASK)), RUNS_PER_TASK)[:runs]
    return task // TASKS_PER_STEP, task, {f"m{i}": rng.random(runs) for i in range(METRICS)}


def pandas_fold(step: np.ndarray, task: np.ndarray, runs: list[dict[str, float]]) -> int:
    """The way of seed 004's source: dicts per run, a mean per key and task, a DataFrame per step."""
    import pandas as pd

    done = 0
    tasks_by_step: dict[int, list[dict[str, float]]] = {}
    start = 0
    for place in range(1, len(runs) + 1):
        if place == len(runs) or task[place] != task[start]:
            group: dict[str, list[float]] = {}
            for metrics in runs[start:place]:
                for key, value in metrics.items():
                    if isinstance(value, int | float):
                        group.setdefault(key, []).append(value)
            means = {key: sum(values) / len(values) for key, values in group.items()}
            tasks_by_step.setdefault(int(step[start]), []).append(means)
            start = place
    for tasks in tasks_by_step.values():
        frame = pd.DataFrame(tasks).select_dtypes(include="number")
        table = frame.agg(["mean", "max", "min"])
        done += len(
            {f"rollout/{name}/{how}": table.loc[how, name].item() for name in table for how in table.index}
        )
    return done


def measure_fold(runs: int, share: int) -> dict[str, float | None]:
    """Ours on all runs, the peer's on a `share`-th of them (its cost grows with the runs)."""
    step, task, columns = make_columns(runs)
    ours = cpu(lambda: dict(fold_steps(step, task, columns).rows()))
    some = runs // share
    names = list(columns)
    rows = [
        dict(zip(names, values, strict=True))
        for values in zip(*(columns[name][:some].tolist() for name in names), strict=True)
    ]
    has_pandas = find_spec("pandas") is not None
    peer = cpu(lambda: pandas_fold(step[:some], task[:some], rows)) * share if has_pandas else None
    stream = StepFold()
    few = rows[:20_000]
    streamed = cpu(
        lambda: [stream.add(int(key), row) for key, row in zip(task[: len(few)], few, strict=True)]
    )
    return {
        "runs": runs,
        "ours_cpu_s": round(ours, 3),
        "pandas_cpu_s": None if peer is None else round(peer, 1),
        "ratio": None if peer is None else round(peer / ours, 1),
        "stream_cpu_us_per_run": round(streamed / len(few) * 1e6, 1),
    }


def measure_sink(steps: int) -> dict[str, float]:
    """CPU per step of logging as many metrics as a step of `collect` has, to the default sink."""
    chance = random.Random(0)
    metrics = {
        f"rollout/m{i}/{how}": chance.random()
        for i in range(14)
        for how in ("mean", "max", "min", "count", "runs", "missing", "nan")
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        open_sinks(["jsonl"], SinkOptions(directory=Path(folder))) as sinks,
    ):
        spent = cpu(lambda: [sinks.log(metrics, step=step) for step in range(steps)])
    return {"metrics": len(metrics), "cpu_ms_per_step": round(spent / steps * 1000, 4)}


def measure_buffer(count: int) -> dict[str, float]:
    """Experiences per second, in batches of 256, every batch committed to disk.

    Wall time on a busy machine measures the neighbours; the promise is about the CPU, and both are printed.
    """
    made = [
        Experience(
            id=f"e{i}",
            task=f"t{i // 8}",
            run=f"r{i}",
            reward=0.5,
            model_version=3,
            messages=[{"role": "user", "content": "What is 6 * 7?"}],
            response="The answer is 42. " * 10,
            metrics={"accuracy": 1.0},
        )
        for i in range(count)
    ]
    with tempfile.TemporaryDirectory() as folder, open_buffer(Path(folder) / "b.db") as buffer:
        started, begun = time.perf_counter(), time.process_time()
        for place in range(0, count, BATCH):
            buffer.append(made[place : place + BATCH])
        appended = time.process_time()
        while batch := buffer.claim(BATCH, timeout=0, partial=True):
            buffer.acknowledge(batch)
        served, ended = time.process_time(), time.perf_counter()
    return {
        "appended_per_cpu_s": round(count / (appended - begun)),
        "served_per_cpu_s": round(count / (served - appended)),
        "through_per_cpu_s": round(count / (served - begun)),
        "through_per_wall_s": round(count / (ended - started)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--share", type=int, default=20, help="the peer folds this part of the runs")
    arguments = parser.parse_args()
    results = {
        "fold": measure_fold(arguments.runs, arguments.share),
        "sink": measure_sink(2000),
        "buffer": measure_buffer(25_600),
    }
    ratio = results["fold"]["ratio"]
    promises = {
        "folding costs at most 1/50 of the pandas way": None if ratio is None else ratio >= 50,
        "logging a step costs under 1 ms of CPU": results["sink"]["cpu_ms_per_step"] < 1,
        "the buffer appends and serves 20,000 a second": results["buffer"]["through_per_cpu_s"] >= 20_000,
    }
    print(json.dumps(results | {"kept": promises}, indent=2))
    if ratio is None:
        print(
            "pandas is not installed: the peer's way was not measured (pip install pandas)", file=sys.stderr
        )


if __name__ == "__main__":
    main()
