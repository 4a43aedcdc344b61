"""Folds numbers upward: experience → run → task → step.

A mean of means: every child has the same weight at its level, as in Trinity-RFT, and every mean comes with its counts. A metric
with the suffix `:sum`, `:max`, `:min` or `:last` is reduced that way at every level. A `Policy` decides about missing, non-finite
and failed values; they are counted and never silently zero.

`StepFold` accepts rollouts one by one and can be merged; `vectorised_fold.fold_steps` works on whole columns. Both give identical
doubles.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Literal, TypedDict

import msgspec

from rollforge.errors import UsageError
from rollforge.metrics.moments import Moments, exact_sum, plain_number
from rollforge.metrics.names import build_name, shown_metric, split_suffix
from rollforge.metrics.vectorised_fold import StepTable, fold_steps

__all__ = ["Policy", "StepFold", "StepTable", "fold_experiences", "fold_steps"]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How runs without a number are treated. Counts always report how many there were."""

    missing: Literal["skip", "zero", "error"] = "skip"
    """For a finished run without the metric."""
    nan: Literal["skip", "propagate", "error"] = "skip"
    """For a value that is NaN or infinite."""
    failed: Literal["exclude", "zero", "both"] = "exclude"
    """For a failed run: omitted from the means, counted as 0, or both side by side (`mean` and `mean_failed_as_zero`)."""


def fold_experiences(
    experiences: Iterable[Mapping[str, object] | None], policy: Policy | None = None
) -> dict[str, float]:
    """Metrics of one run from its experiences (turns): per key, the mean over the experiences that have it.

    Values that are not numbers are ignored. Suffixes are kept, because they also decide the reduction at higher levels.
    """
    policy = policy or Policy()
    state_by_metric: dict[str, Moments] = {}
    for order, metrics in enumerate(experiences):
        for metric, value in (metrics or {}).items():
            number = plain_number(value)
            if number is not None:
                state_by_metric.setdefault(metric, Moments()).add(number, order=order)
    folded = {metric: _reduce(metric, state, policy, zeros=0) for metric, state in state_by_metric.items()}
    return {metric: value for metric, value in folded.items() if value is not None}


class _Task:
    """The state of one task in a step."""

    __slots__ = ("failed", "finished", "state_by_metric")

    def __init__(self) -> None:
        self.finished = 0
        self.failed = 0
        self.state_by_metric: dict[str, Moments] = {}


class FoldJson(TypedDict):
    """Serialised fold: per task its key, its finished and failed runs, and the state of each metric."""

    tasks: list[list[Any]]


class StepFold:
    """Accumulates the metrics of one step. Partial states merge to exactly the same result, in any order and partition."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self._tasks: dict[Hashable, _Task] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, task: Hashable, metrics: Mapping[str, object], *, order: float | None = None) -> None:
        """Add a finished rollout of `task`. `order` (such as the rollout index) decides which one is last for `:last`; by default the
        last one added, which is undefined after merging folds.
        """
        state = self._tasks.setdefault(task, _Task())
        order = state.finished if order is None else order
        state.finished += 1
        for metric, value in metrics.items():
            number = plain_number(value)
            if number is not None:
                state.state_by_metric.setdefault(metric, Moments()).add(number, order=order)

    def add_failed(self, task: Hashable) -> None:
        """Add a run of `task` that failed for good."""
        self._tasks.setdefault(task, _Task()).failed += 1

    def merge(self, other: StepFold) -> None:
        """Add everything that `other` contains."""
        for key, theirs in other._tasks.items():
            ours = self._tasks.setdefault(key, _Task())
            ours.finished += theirs.finished
            ours.failed += theirs.failed
            for metric, state in theirs.state_by_metric.items():
                ours.state_by_metric.setdefault(metric, Moments()).merge(state)

    def task_metrics(self, task: Hashable) -> dict[str, float]:
        """Metrics of one task: per metric the value over its runs."""
        state = self._tasks[task]
        values = {metric: self._task_value(state, metric) for metric in state.state_by_metric}
        return {metric: value for metric, value in values.items() if value is not None}

    def metrics(self, category: str = "rollout", *, counts: bool = True) -> dict[str, float]:
        """Step-level metrics: `{category}/{metric}/mean|max|min` over tasks, with `count`, `runs`, `missing`, `nan` beside."""
        names = sorted({metric for task in self._tasks.values() for metric in task.state_by_metric})
        numbers: dict[str, float] = {}
        for metric in names:
            shown = shown_metric(metric, names)
            for statistic, value in self._statistics(metric, counts=counts).items():
                numbers[build_name(category, shown, statistic)] = value
        return numbers | (self._totals(category) if counts else {})

    def _statistics(self, metric: str, *, counts: bool) -> dict[str, float]:
        stem, suffix = split_suffix(metric)
        values = self._task_values(metric)
        if suffix is not None and suffix != "mean":
            return {suffix: reduce_numbers(values, suffix)} if values else {}
        numbers: dict[str, float] = {}
        if values:
            numbers = {
                "mean": exact_sum(values) / len(values),
                "max": max_number(values),
                "min": min_number(values),
            }
        if self.policy.failed == "both" and not stem.startswith("time/"):
            zeroed = self._task_values(metric, failed_as_zero=True)
            if zeroed:
                numbers["mean_failed_as_zero"] = exact_sum(zeroed) / len(zeroed)
        return numbers | (self._counts(metric, len(values)) if counts else {})

    def _task_values(self, metric: str, *, failed_as_zero: bool | None = None) -> list[float]:
        tasks = list(self._tasks.values())
        if split_suffix(metric)[1] == "last":  # the last task by its key: arrival must not decide
            tasks = [self._tasks[key] for key in sorted(self._tasks, key=_key_order)]
        values = (self._task_value(task, metric, failed_as_zero=failed_as_zero) for task in tasks)
        return [value for value in values if value is not None]

    def _task_value(self, task: _Task, metric: str, *, failed_as_zero: bool | None = None) -> float | None:
        state = task.state_by_metric.get(metric, _NOTHING)
        missing = task.finished - state.count - state.non_finite
        zeros = 0
        if missing and self.policy.missing == "error":
            raise UsageError(
                f"{missing} of {task.finished} runs of a task have no {metric!r}",
                hint="policy missing='skip'",
            )
        if missing and self.policy.missing == "zero":
            zeros += missing
        as_zero = self.policy.failed == "zero" if failed_as_zero is None else failed_as_zero
        if as_zero and not metric.startswith("time/"):
            zeros += task.failed
        return _reduce(metric, state, self.policy, zeros=zeros)

    def _counts(self, metric: str, tasks: int) -> dict[str, float]:
        states = [task.state_by_metric.get(metric, _NOTHING) for task in self._tasks.values()]
        runs, nan = sum(state.count for state in states), sum(state.non_finite for state in states)
        finished = sum(task.finished for task in self._tasks.values())
        return {"count": tasks, "runs": runs, "missing": finished - runs - nan, "nan": nan}

    def _totals(self, category: str) -> dict[str, float]:
        tasks = self._tasks.values()
        return {
            f"{category}/finished_task_count": sum(task.finished > 0 for task in tasks),
            f"{category}/failed_task_count": sum(task.finished == 0 for task in tasks),
            f"{category}/finished_run_count": sum(task.finished for task in tasks),
            f"{category}/failed_run_count": sum(task.failed for task in tasks),
        }

    def to_json(self) -> FoldJson:
        """The complete, exact state as JSON; task keys must be JSON values."""
        return {
            "tasks": [
                [
                    key,
                    task.finished,
                    task.failed,
                    {name: state.to_json() for name, state in task.state_by_metric.items()},
                ]
                for key, task in self._tasks.items()
            ]
        }

    @classmethod
    def from_json(cls, state: FoldJson, policy: Policy | None = None) -> StepFold:
        """Restore a state written by `to_json`."""
        fold = cls(policy)
        for key, finished, failed, states in state["tasks"]:
            task = fold._tasks.setdefault(key, _Task())
            task.finished, task.failed = finished, failed
            task.state_by_metric = {name: Moments.from_json(moments) for name, moments in states.items()}
        return fold


_NOTHING = Moments()


def _key_order(key: Hashable) -> tuple[str, Any]:
    return (type(key).__name__, key)


def _reduce(metric: str, state: Moments, policy: Policy, *, zeros: int) -> float | None:
    """Reduce one state by the metric's suffix; `zeros` additional runs count as 0."""
    if state.non_finite and policy.nan != "skip":
        if policy.nan == "error":
            raise UsageError(
                f"{state.non_finite} values of {metric!r} are not finite", hint="policy nan='skip'"
            )
        if state.nan or (state.infinite and state.negative_infinite):
            return math.nan
        return math.inf if state.infinite else -math.inf
    if not state.count + zeros:
        return None
    match split_suffix(metric)[1] or "mean":
        case "mean":
            return state.sum / (state.count + zeros)
        case "sum":
            return state.sum
        case "max":
            return max([0.0] * bool(zeros) + [state.max] * (state.max is not None))  # type: ignore[type-var]
        case "min":
            return min([0.0] * bool(zeros) + [state.min] * (state.min is not None))  # type: ignore[type-var]
        case _:
            return state.last


def reduce_numbers(values: list[float], how: str) -> float:
    """Reduce one or more task values; NaN and infinities propagate as in arithmetic."""
    match how:
        case "mean":
            return exact_sum(values) / len(values)
        case "sum":
            return exact_sum(values)
        case "max":
            return max_number(values)
        case "min":
            return min_number(values)
        case _:
            return values[-1]


def max_number(values: list[float]) -> float:
    """The maximum, or NaN if any value is NaN; plain `max` would depend on the order."""
    return math.nan if any(math.isnan(value) for value in values) else max(values)


def min_number(values: list[float]) -> float:
    """The minimum, or NaN if any value is NaN."""
    return math.nan if any(math.isnan(value) for value in values) else min(values)
