"""Folds a collected run into the metrics of an evaluation, with an interval for every mean.

Means are over tasks, each task the mean of its runs; intervals are over tasks, since the runs of one task are not independent.
Means exclude failed and unjudged runs; `coverage` is the share of judged runs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollforge.errors import UsageError
from rollforge.experience.from_rollout import USAGE
from rollforge.index import Index, open_index
from rollforge.metrics.evaluation import EvalOptions, fold_eval, task_level
from rollforge.metrics.fold import reduce_numbers
from rollforge.metrics.ladder import Estimator
from rollforge.metrics.names import SUFFIXES, is_amount, is_metric, parse_name
from rollforge.statistics import intervals
from rollforge.steps.evaluation.tasksets import TASKSET_KEY

MEAN_ONLY = ("output_tokens", "is_truncated")
"""Metrics for which only the mean is computed; a best of k would be meaningless."""
ANSWER_COLUMN = "extracted_answer"
_NONE: NDArray[np.float64] = np.zeros(0)


class EvaluateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for folding a run."""

    k: int
    tasks: dict[str, int]
    """Task set → number of requested tasks."""
    estimator: Estimator = "exact"
    keyed_by: str = "requested"
    detailed_stats: bool = False
    threshold: float = 0.5
    """Value from which a run counts as solved, for `pass@k`."""
    category: str = "eval"
    verifier: str | None = None


class MetricResult(msgspec.Struct, frozen=True, kw_only=True):
    """One statistic of one metric, over tasks."""

    value: float | None
    ci: list[float] | None
    tasks: int


class TasksetResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one task set."""

    tasks: int
    """Number of requested tasks."""
    runs: int
    """Finished runs, out of tasks × k."""
    judged: int
    coverage: float
    """Share of requested runs that were judged."""
    metrics: dict[str, dict[str, MetricResult]]
    """Metric → statistic (`mean@4`, `best@4`, …) → value."""


class Evaluation(msgspec.Struct, kw_only=True):
    """The result of an evaluation."""

    run: str
    k: int
    tasksets: dict[str, TasksetResult]
    metrics: dict[str, float]
    """All numbers under their full metric names, as sinks receive them."""
    task_means: dict[str, dict[str, dict[int, float]]] = {}
    """Task set → metric → task → mean of its runs, the values paired in comparisons."""


def evaluate_run(run: str, options: EvaluateOptions) -> Evaluation:
    """Fold a run made by `rollforge eval`."""
    with open_index(run, verifier=options.verifier) as index:
        columns = _columns(index)
        taskset_of = {
            task: row.get(TASKSET_KEY, "") for task, row in index.task_rows(_unique(columns["task"]))
        }
    evaluation = Evaluation(run=run, k=options.k, tasksets={}, metrics={})
    owners = np.array([taskset_of.get(task, "") for task in columns["task"].tolist()], dtype=object)
    for name, tasks in options.tasks.items():
        own = {key: column[owners == name] for key, column in columns.items()}
        _fold(evaluation, name, tasks, own, options)
    return evaluation


def _unique(tasks: NDArray[Any]) -> list[int]:
    return [int(task) for task in np.unique(tasks)]


def _columns(index: Index) -> dict[str, NDArray[Any]]:
    """The columns that an evaluation reads, NaN for null."""
    index_columns = set(index.columns())
    verdict = [name for name in index.numbers if "." not in name and name not in USAGE and is_metric(name)]
    wanted = [
        *dict.fromkeys(
            ["task", "rollout", *verdict, "reward", *MEAN_ONLY, "seconds", "verify_seconds", ANSWER_COLUMN]
        )
    ]
    table = index.table([name for name in wanted if name in index_columns], order_by="task, rollout")
    if not table.num_rows:
        raise UsageError("no rollouts: there is nothing to evaluate", hint="see why: rollforge status RUN")
    columns: dict[str, NDArray[Any]] = {}
    for name in table.column_names:
        values = table.column(name).to_pylist()
        if name == "task":
            columns[name] = np.array(values, dtype=np.int64)
        elif name == ANSWER_COLUMN:
            columns[name] = np.array(values, dtype=object)
        elif name != "rollout":
            columns[name] = np.array([np.nan if value is None else float(value) for value in values])
    return columns


def _fold(
    evaluation: Evaluation,
    taskset: str,
    tasks: int,
    columns: Mapping[str, NDArray[Any]],
    options: EvaluateOptions,
) -> None:
    metrics = {name: values for name, values in columns.items() if name not in ("task", ANSWER_COLUMN)}
    metrics = {
        _metric_name(name): values
        for name, values in metrics.items()
        if name == "reward" or not np.isnan(values).all()  # a reward without any value means a coverage of 0
    }
    answers: list[Hashable] | None = columns[ANSWER_COLUMN].tolist() if ANSWER_COLUMN in columns else None
    present = {name: ~np.isnan(values) for name, values in metrics.items()}
    folding = EvalOptions(
        k=options.k,
        estimator=options.estimator,
        detailed_stats=options.detailed_stats,
        keyed_by=options.keyed_by,
        success=dict.fromkeys(("reward", "accuracy", "acc"), options.threshold),
    )
    flat = fold_eval(
        taskset,
        columns["task"],
        metrics,
        folding,
        present=present,
        answers=answers,
        category=options.category,
        tasks_expected=tasks,
    )
    flat[f"{options.category}/{taskset}/finished_task_count"] = len(np.unique(columns["task"]))
    evaluation.metrics |= {name: value for name, value in flat.items() if _is_kept(name)}
    table = task_level(columns["task"], metrics, folding, present=present, answers=answers)
    reward = columns.get("reward", np.zeros(0))
    judged = int((~np.isnan(reward)).sum())
    evaluation.tasksets[taskset] = TasksetResult(
        tasks=tasks,
        runs=len(columns["task"]),
        judged=judged,
        coverage=judged / (tasks * options.k),
        metrics={
            metric: _results(metric, metrics.get(metric, metrics.get(f"{metric}:mean", _NONE)), statistics)
            for metric, statistics in table.items()
        },
    )
    evaluation.task_means[taskset] = {
        metric: _task_means(columns["task"], values)
        for metric, values in metrics.items()
        if not metric.startswith("time/")
    }


def _metric_name(column: str) -> str:
    return {"seconds": "time/run_execution", "verify_seconds": "time/verify"}.get(column, column)


def _is_kept(name: str) -> bool:
    parts = parse_name(name)
    return parts.metric not in MEAN_ONLY or (parts.statistic or "").startswith(("mean@", "coverage@"))


def _results(
    metric: str, values: NDArray[np.float64], statistics: Mapping[str, NDArray[np.float64]]
) -> dict[str, MetricResult]:
    results: dict[str, MetricResult] = {}
    present_values = values[~np.isnan(values)]
    are_shares = not is_amount(metric) and bool(((present_values == 0) | (present_values == 1)).all())
    for statistic, values_ in statistics.items():
        if statistic == "_runs" or (metric in MEAN_ONLY and not statistic.startswith("mean@")):
            continue
        if statistic in SUFFIXES:
            reduced = reduce_numbers(values_.tolist(), statistic)
            results[statistic] = MetricResult(value=reduced, ci=None, tasks=len(values_))
            continue
        is_share = statistic.startswith("pass@") or (are_shares and not statistic.startswith("std@"))
        estimate = intervals.mean_of(
            values_,
            most=len(present_values) / _runs_each(statistic) if is_share else None,
            is_unit=False if is_amount(metric) else None,
        )
        results[statistic or "mean"] = MetricResult(
            value=estimate.value, ci=estimate.ci, tasks=estimate.groups
        )
    return results


def _runs_each(statistic: str) -> int:
    """Number of runs behind each independent yes/no outcome: k for `best@k` and similar, 1 for a mean."""
    name, _, k = statistic.partition("@")
    return int(k) if k.isdecimal() and name != "mean" else 1


def _task_means(tasks: NDArray[np.int64], values: NDArray[np.float64]) -> dict[int, float]:
    has_value = ~np.isnan(values)
    unique, task_numbers = np.unique(tasks[has_value], return_inverse=True)
    sums = np.bincount(task_numbers, weights=values[has_value])
    counts = np.bincount(task_numbers)
    return {int(task): float(total / count) for task, total, count in zip(unique, sums, counts, strict=True)}
