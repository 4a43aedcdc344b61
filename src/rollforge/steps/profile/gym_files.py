"""Files that NeMo Gym's own commands expect beside a run: one input row per rollout, and statistics per repeat.

`gym eval profile` and `gym eval reverify` read `STEM_materialized_inputs.jsonl`; `STEM_repeat_level_metrics.json` compares the repeats
(rollout indices) of an agent over all tasks. Names and statistics are NeMo Gym's.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollforge.index import Index, ints
from rollforge.records import OWN_KEY, ROLLOUT_KEY, TASK_KEY, JsonFields, to_json
from rollforge.rollouts import RolloutReader, TaskFields
from rollforge.runtime.typed_decoding import json_decoder
from rollforge.statistics import stats
from rollforge.statistics.intervals import t_quantile
from rollforge.store import RunFiles, replacing


class _AgentOfRow(msgspec.Struct):
    agent_ref: JsonFields | None = None


def write_gym_files(index: Index, *, out: Path | None = None, where: str | None = None) -> dict[str, str]:
    """Write both files for each run, or into the folder `out`; returns their names."""
    written: dict[str, str] = {}
    for number, own in enumerate(index.runs):
        files = own if out is None else RunFiles(out / f"{own.stem}.jsonl")
        suffix = f" {number + 1}" if number else ""
        written[f"materialized_inputs{suffix}"] = str(
            write_materialized_inputs(own, files.materialized_inputs)
        )
    first = index.runs[0]
    target = (first if out is None else RunFiles(out / f"{first.stem}.jsonl")).repeat_level_metrics
    with replacing(target) as file:
        file.write(msgspec.json.format(to_json(repeat_level_metrics(index, where)), indent=2) + b"\n")
    return written | {"repeat_level_metrics": str(target)}


def write_materialized_inputs(files: RunFiles, target: Path) -> Path:
    """One task row per rollout, in the order of the rollouts file, with the rollout's indices and agent."""
    agent_of = json_decoder(_AgentOfRow).decode
    with TaskFields(files) as tasks, replacing(target) as file:
        for rollout in RolloutReader(files.rollouts):
            row = {key: value for key, value in tasks.of(rollout).items() if key != OWN_KEY}
            agent = agent_of(rollout.line).agent_ref
            row |= {"agent_ref": agent} if agent else {}
            file.write(to_json(row | {TASK_KEY: rollout.task, ROLLOUT_KEY: rollout.rollout}) + b"\n")
    return target


def repeat_level_metrics(index: Index, where: str | None = None) -> list[JsonFields]:
    """Statistics over all tasks for each rollout index of an agent that has at least two."""
    names = ["reward", *(name for name in index.numbers if name != "reward")]
    table = index.table(["task", "rollout", "agent"], where)
    columns = index.floats(names, where)
    task, rollout = ints(table["task"]), ints(table["rollout"])
    agent = np.array([str(name) for name in table["agent"].to_pylist()])
    entries: list[JsonFields] = []
    for name in sorted(set(agent.tolist())):
        is_own = agent == name
        repeats = np.unique(rollout[is_own])
        count = len(np.unique(task[is_own]))
        for repeat in repeats if len(repeats) > 1 else []:
            chosen = is_own & (rollout == repeat)
            present = len(np.unique(task[chosen]))
            entry: JsonFields = {
                "agent_ref": {"name": name},
                ROLLOUT_KEY: int(repeat),
                "sample_count": present,
                "missing_count": count - present,
            }
            for column, values in columns.items():
                entry |= _statistics(column, np.asarray(values)[chosen])
            entries.append(entry)
    return entries


def _statistics(name: str, values: NDArray[np.float64]) -> dict[str, float]:
    present_values = values[~np.isnan(values)]
    if not len(present_values):
        return {}
    summary = stats.summarize(present_values)
    assert summary.mean is not None, "there is a value"
    std = summary.std if summary.std is not None and len(present_values) > 1 else 0.0
    error = std / math.sqrt(len(present_values))
    half = t_quantile(0.975, len(present_values) - 1) * error if len(present_values) > 1 else 0.0
    labels = {
        "mean": summary.mean,
        "median": summary.median,
        "std": std,
        "sem": error,
        "min": summary.min,
        "max": summary.max,
        "p25": float(np.quantile(present_values, 0.25)),
        "p75": float(np.quantile(present_values, 0.75)),
        "ci_low_95": summary.mean - half,
        "ci_high_95": summary.mean + half,
    }
    return {f"{label}/{name}": value for label, value in labels.items() if value is not None}
