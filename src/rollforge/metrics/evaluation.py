"""Folds the runs of an evaluation into `eval/` and `bench/` metrics.

Per task `mean@k std@k best@n worst@n` (n over the ladder 2, 4, 8, … k), `pass@n` and `maj@n`; then the mean over tasks, or with
`detailed_stats` their mean, std, max and min. Keys contain the requested k: a task with a lost run stays under the same key, and
`coverage@k` says how many runs there were. `eval/` and `bench/` names differ only in their first word.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollforge.metrics.fold import reduce_numbers
from rollforge.metrics.ladder import (
    Estimator,
    best_of,
    ladder,
    majority_at,
    pass_at,
    row_means,
    row_stds,
    worst_of,
)
from rollforge.metrics.moments import FloatArray, exact_row_sums
from rollforge.metrics.names import SUFFIXES, build_name, shown_metric, split_suffix
from rollforge.metrics.vectorised_fold import RowGroups


class EvalOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for folding an evaluation into metrics."""

    k: int
    """Runs requested per task; part of the metric keys."""
    estimator: Estimator = "exact"
    detailed_stats: bool = False
    ddof: int = 0
    success: Mapping[str, float] = msgspec.field(
        default_factory=lambda: {"reward": 0.5, "accuracy": 0.5, "acc": 0.5}
    )
    """Metrics that get `pass@n` → the value from which a run counts as solved."""
    keyed_by: str = "requested"
    """The k in the keys. `requested`: the requested k. `observed`: each task's actual number of runs, as in Trinity-RFT and verl."""
    counts: bool = True


def fold_eval(
    taskset: str,
    task: ArrayLike,
    values: Mapping[str, ArrayLike],
    options: EvalOptions,
    *,
    present: Mapping[str, ArrayLike] | None = None,
    answers: Sequence[Hashable] | None = None,
    category: str = "eval",
    tasks_expected: int | None = None,
) -> dict[str, float]:
    """The metrics of one taskset. Missing and non-finite values are omitted and counted.

    Args:
        task: the task of each run.
        values: per metric one number per run.
        answers: the answer of each run (any hashable; None for no answer), for `maj@n` of the metrics in `options.success`.
            tasks_expected: number of requested tasks, if some lost all their runs.
    """
    table = task_level(task, values, options, present=present, answers=answers)
    numbers: dict[str, float] = {}
    for metric, by_statistic in table.items():
        for statistic, column in by_statistic.items():
            for detail, value in _over_tasks(column, statistic, options):
                name = build_name(category, metric, statistic or None, taskset=taskset, detail=detail)
                numbers[name] = value
        if options.counts and "_runs" in by_statistic:
            expected = tasks_expected or len(np.unique(np.asarray(task)))
            for statistic, value in _coverage(by_statistic["_runs"], expected, options.k).items():
                numbers[build_name(category, metric, statistic, taskset=taskset)] = value
    return {name: value for name, value in numbers.items() if "/_runs" not in name}


def task_level(
    task: ArrayLike,
    values: Mapping[str, ArrayLike],
    options: EvalOptions,
    *,
    present: Mapping[str, ArrayLike] | None = None,
    answers: Sequence[Hashable] | None = None,
) -> dict[str, dict[str, FloatArray]]:
    """Per metric and statistic, one number per task that has it; `_runs` is each task's number of runs."""
    task_column = np.asarray(task)
    table: dict[str, dict[str, FloatArray]] = {}
    for metric in sorted(values):
        column = np.asarray(values[metric], dtype=np.float64)
        usable = np.isfinite(column)
        if present and metric in present:
            usable &= np.asarray(present[metric], dtype=np.bool_)
        usable_answers = (
            [answers[i] for i in np.flatnonzero(usable).tolist()]
            if answers is not None and metric in options.success
            else None
        )
        table.setdefault(shown_metric(metric, values), {}).update(
            _metric_table(metric, task_column[usable], column[usable], usable_answers, options)
        )
    return table


def _metric_table(
    metric: str, task: NDArray[Any], column: FloatArray, answers: list[Hashable] | None, options: EvalOptions
) -> dict[str, FloatArray]:
    groups = RowGroups(task)
    parts: dict[str, list[FloatArray]] = {}
    positions_by_name: dict[str, list[NDArray[np.int64]]] = {}
    if not len(groups):
        return {"_runs": np.zeros(0)} if _is_laddered(metric) else {}
    arranged = groups.arrange(column)
    order = groups.order if groups.order is not None else np.arange(len(column))
    for size in np.unique(groups.sizes).tolist():
        group_numbers = np.flatnonzero(groups.sizes == size)
        positions = groups.starts[group_numbers][:, None] + np.arange(size)
        rows = arranged[positions]
        row_answers = (
            [[answers[i] for i in order[row].tolist()] for row in positions] if answers is not None else None
        )
        for statistic, part in _rows_table(metric, rows, row_answers, options).items():
            parts.setdefault(statistic, []).append(part)
            positions_by_name.setdefault(statistic, []).append(group_numbers)
    return {
        statistic: np.concatenate(arrays)[np.argsort(np.concatenate(positions_by_name[statistic]))]
        for statistic, arrays in parts.items()
    }


def _rows_table(
    metric: str, rows: FloatArray, answers: list[list[Hashable]] | None, options: EvalOptions
) -> dict[str, FloatArray]:
    runs = rows.shape[1]
    suffix = split_suffix(metric)[1]
    if suffix not in (None, "mean"):
        return {str(suffix): _plain_reduce(str(suffix), rows)}
    if not _is_laddered(metric):
        return {"": row_means(rows)}
    k = options.k if options.keyed_by == "requested" else runs
    steady = rows if options.estimator == "bootstrap42" else np.sort(rows, axis=1)
    table = {
        f"mean@{k}": row_means(steady),
        f"std@{k}": row_stds(steady, options.ddof),
        "_runs": np.full(len(rows), runs),
    }
    threshold = options.success.get(split_suffix(metric)[0])
    for n in ladder(k):
        table[f"best@{n}"] = best_of(steady, n, options.estimator)
        table[f"worst@{n}"] = worst_of(steady, n, options.estimator)
    if threshold is not None:
        for n in [1, *ladder(k)]:
            table[f"pass@{n}"] = pass_at(rows, n, threshold)
    if answers is not None:
        for n in ladder(k):
            votes = [
                _majority(row, row_answers, n, options.estimator)
                for row, row_answers in zip(rows.tolist(), answers, strict=True)
            ]
            table[f"maj@{n}"] = np.array(votes)
    return table


def _majority(values: list[float], answers: list[Hashable], n: int, estimator: Estimator) -> float:
    """Majority vote per task; runs without an answer do not vote; NaN if no run has one."""
    voting = [(value, answer) for value, answer in zip(values, answers, strict=True) if answer is not None]
    if not voting:
        return math.nan
    return majority_at([value for value, _ in voting], [answer for _, answer in voting], n, estimator)


def _is_laddered(metric: str) -> bool:
    """Whether a metric gets `@k` statistics; durations only get a mean under their plain name."""
    return not metric.startswith("time/") and split_suffix(metric)[1] in (None, "mean")


def _plain_reduce(suffix: str, rows: FloatArray) -> FloatArray:
    match suffix:
        case "sum":
            return exact_row_sums(list(rows.T))
        case "max":
            return np.asarray(rows.max(axis=1))
        case "min":
            return np.asarray(rows.min(axis=1))
        case _:
            return np.ascontiguousarray(rows[:, -1])


def _over_tasks(
    column: FloatArray, statistic: str, options: EvalOptions
) -> Iterator[tuple[str | None, float]]:
    """Reduce task values to the step: by the statistic's suffix if it has one, else by the mean over tasks (in detail also std,
    max, min).
    """
    task_values: FloatArray = column[~np.isnan(column)]
    if not len(task_values):
        return
    if statistic in SUFFIXES:
        yield None, reduce_numbers(task_values.tolist(), statistic)
        return
    mean = math.fsum(task_values.tolist()) / len(task_values)
    if not options.detailed_stats or statistic in ("", "_runs"):
        yield None, mean
        return
    yield "mean", mean
    if len(task_values) > options.ddof:
        spread = math.fsum(((task_values - mean) ** 2).tolist()) / (len(task_values) - options.ddof)
        yield "std", math.sqrt(spread)
    yield "max", float(task_values.max())
    yield "min", float(task_values.min())


def _coverage(runs: FloatArray, tasks_expected: int, k: int) -> dict[str, float]:
    observed = int(runs.sum())
    owed = tasks_expected * k
    return {
        "count": len(runs),
        "runs": observed,
        "missing": max(owed - observed, 0),
        f"coverage@{k}": observed / owed if owed else math.nan,
    }
