"""Paired comparison of evaluations over the same task sets.

Pairing removes the variance of task difficulty, the largest part. The verdict claims only what the interval of the difference
supports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from rollforge.errors import UsageError
from rollforge.registry import did_you_mean
from rollforge.statistics import intervals
from rollforge.steps.evaluation.evaluate import Evaluation

OVERALL = "all"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Difference between two models on one task set."""

    taskset: str
    """Task set, or `all` for all tasks with equal weight."""
    metric: str
    model: str
    against: str
    value: float | None
    baseline: float | None
    difference: float | None
    ci: list[float] | None
    tasks: int
    """Tasks judged for both models."""
    verdict: str


def compare(evaluations: Mapping[str, Evaluation], metric: str = "reward") -> list[Difference]:
    """Compare every model with the first one, per task set and overall."""
    check_metric(evaluations.values(), metric)
    (baseline, first), *others = evaluations.items()
    differences = []
    for model, evaluation in others:
        pairs_by_taskset = {
            taskset: _pairs(
                first.task_means[taskset].get(metric, {}), evaluation.task_means[taskset].get(metric, {})
            )
            for taskset in first.task_means
            if taskset in evaluation.task_means
        }
        if len(pairs_by_taskset) > 1:
            pairs_by_taskset[OVERALL] = [pair for pairs in pairs_by_taskset.values() for pair in pairs]
        for taskset, pairs in pairs_by_taskset.items():
            differences.append(_difference(taskset, metric, model, baseline, pairs))
    return differences


def check_metric(evaluations: Iterable[Evaluation], metric: str) -> None:
    """Raise `UsageError` unless one of the evaluations has the metric."""
    metric_names = sorted({name for e in evaluations for means in e.task_means.values() for name in means})
    if metric not in metric_names:
        raise UsageError(
            f"no model has the metric {metric!r}{did_you_mean(metric, metric_names)}",
            hint=f"known: {', '.join(metric_names)}",
        )


def _pairs(one: Mapping[int, float], two: Mapping[int, float]) -> list[tuple[float, float]]:
    return [(one[task], two[task]) for task in sorted(one.keys() & two.keys())]


def _difference(
    taskset: str, metric: str, model: str, baseline: str, pairs: Sequence[tuple[float, float]]
) -> Difference:
    first, second = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    estimate = intervals.paired_difference(first, second)
    return Difference(
        taskset=taskset,
        metric=metric,
        model=model,
        against=baseline,
        value=float(second.mean()) if len(pairs) else None,
        baseline=float(first.mean()) if len(pairs) else None,
        difference=estimate.value,
        ci=estimate.ci,
        tasks=len(pairs),
        verdict=verdict(model, baseline, metric, estimate, are_equal=bool((first == second).all())),
    )


def verdict(
    model: str, baseline: str, metric: str, estimate: intervals.Estimate, *, are_equal: bool = False
) -> str:
    """The verdict in words; `are_equal` means that no task differs."""
    if estimate.value is None:
        return f"nothing can be said: no task is judged for both {model} and {baseline}"
    over = f"over {estimate.groups:,} shared tasks"
    if estimate.low is None or estimate.high is None:
        if are_equal and estimate.groups >= intervals.FEWEST_PAIRS:
            return f"{model} and {baseline} are the same: {metric} {estimate.value:+.3f} {over}"
        return f"too few tasks to tell: {metric} {estimate.value:+.3f} {over}"
    summary = (
        f"{metric} {estimate.value:+.3f} (95 % interval {estimate.low:+.3f} to {estimate.high:+.3f}) {over}"
    )
    if estimate.groups < intervals.FEWEST_PAIRS:
        return f"too few tasks to tell: {summary}; nothing is shown by fewer than {intervals.FEWEST_PAIRS}"
    if estimate.low > 0:
        return f"{model} is better than {baseline}: {summary}"
    if estimate.high < 0:
        return f"{model} is worse than {baseline}: {summary}"
    if are_equal or estimate.low == estimate.high == 0:
        return f"{model} and {baseline} are the same: {summary}"
    most = max(abs(estimate.low), abs(estimate.high))
    return (
        f"no difference shown between {model} and {baseline}: {summary}; up to {most:.3f} cannot be ruled out"
    )
