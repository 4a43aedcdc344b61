"""Paired comparison of two runs over the tasks they share.

Pairing removes the variance of task difficulty, the largest part: two separate intervals may overlap while the interval of the
paired difference excludes zero.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec import Struct

from rollforge.adaptive.design import stage_condition
from rollforge.errors import UsageError
from rollforge.index import ByTask, Index, ints
from rollforge.statistics import intervals
from rollforge.statistics.counts import count_of
from rollforge.statistics.stats import Floats, Ints
from rollforge.text_safety.markup import decimal, interval, result, table, tag

REWORDED = "; no prompt is in both runs: this holds only if equal task numbers are the same tasks"


class FieldDifference(Struct, kw_only=True):
    """Paired difference of one field."""

    value: float | None
    """Mean over shared tasks in the first run."""
    against: float | None
    difference: float | None
    """First minus second."""
    ci: list[float] | None
    """95 % interval; null with a single task, or if no two values differ."""
    tasks: int
    differing: int
    """Number of tasks in which the runs differ."""


class RunComparison(Struct, kw_only=True):
    """How a run differs from another."""

    run: str
    against: str
    paired_by: str
    shared_tasks: int
    only_run: int
    only_against: int
    fields: dict[str, FieldDifference]
    verdict: str

    def _repr_html_(self) -> str:
        rows = [
            [
                name,
                decimal(one.value),
                decimal(one.against),
                decimal(one.difference),
                interval(one.ci),
                f"{one.tasks:,}",
            ]
            for name, one in self.fields.items()
        ]
        return result(
            f"{self.run} against {self.against}: {count_of(self.shared_tasks, 'shared task')}",
            table(("field", "here", "there", "difference", "95 % interval", "tasks"), rows),
            tag("p", self.verdict),
        )


def _first_stage(index: Index, where: str | None) -> str | None:
    """Restrict an adaptive run to its first stage, the only comparable part."""
    return stage_condition(where, index.first_stage)


def compare_runs(first: Index, second: Index, *, where: str | None = None) -> RunComparison:
    """The paired differences (first − second) of every field both runs have."""
    one, two = (ByTask(index, _first_stage(index, where)) for index in (first, second))
    for rows in (one, two):
        if where is not None and not len(rows):
            raise UsageError(
                f"{rows.index.runs[0].rollouts}: no rollout matches --where {where!r}",
                hint="ask for others, or leave --where out",
            )
    shared = _share(one, two)
    if not len(shared.here):
        raise UsageError(
            "the two runs share no task (neither by prompt nor by number)",
            hint="compare runs over the same tasks",
        )
    names = [name for name in first.numbers if name in set(second.numbers)]
    fields: dict[str, FieldDifference] = {}
    for (name, here), (_, there) in zip(one.floats(names), two.floats(names), strict=True):
        fields[first.name_by_column[name]] = _difference(
            _task_means(one, here)[shared.here], _task_means(two, there)[shared.there]
        )
    names_of_runs = [str(index.runs[0].rollouts) for index in (first, second)]
    return RunComparison(
        run=names_of_runs[0],
        against=names_of_runs[1],
        paired_by=shared.by,
        shared_tasks=len(shared.here),
        only_run=len(one.tasks) - len(shared.here),
        only_against=len(two.tasks) - len(shared.there),
        fields=fields,
        verdict=_verdict(fields.get("reward")) + (REWORDED if shared.are_reworded else ""),
    )


class TaskDifference(Struct, frozen=True, kw_only=True):
    """One task in both runs."""

    task: int
    against_task: int
    """The task's number in the second run, which differs if tasks are paired by prompt."""
    value: float
    """Mean reward in the first run."""
    against: float


def differing_tasks(first: Index, second: Index, *, count: int = 200) -> list[TaskDifference]:
    """Up to `count` shared tasks with different mean rewards, the largest difference first."""
    one, two = ByTask(first, None), ByTask(second, None)
    shared = _share(one, two)
    if not len(shared.here) or "reward" not in first.numbers or "reward" not in second.numbers:
        return []
    means = []
    for rows, positions in ((one, shared.here), (two, shared.there)):
        ((_, values),) = rows.floats(["reward"])
        means.append(_task_means(rows, values)[positions])
    gap = np.nan_to_num(np.abs(means[0] - means[1]))
    order = np.lexsort((one.tasks[shared.here], -gap))[: min(count, int((gap > 0).sum()))]
    return [
        TaskDifference(
            task=int(one.tasks[shared.here[position]]),
            against_task=int(two.tasks[shared.there[position]]),
            value=float(means[0][position]),
            against=float(means[1][position]),
        )
        for position in order.tolist()
    ]


class _Shared(NamedTuple):
    """Tasks common to both runs: their position in each, and their names."""

    here: Ints
    there: Ints
    by: str
    are_reworded: bool = False
    """Whether tasks are paired by number only, because no prompt is in both runs; the reader must verify the pairing."""


def _share(one: ByTask, two: ByTask) -> _Shared:
    """Match tasks by prompt; by number if prompts are missing, ambiguous, or all changed by another template."""
    here, there = _prompts(one), _prompts(two)
    if here is not None and there is not None:
        shared, *positions = np.intersect1d(here, there, return_indices=True)
        if len(shared):
            return _Shared(positions[0], positions[1], "prompt")
    _, *positions = np.intersect1d(one.tasks, two.tasks, return_indices=True)
    return _Shared(positions[0], positions[1], "task number", here is not None and there is not None)


def _prompts(rows: ByTask) -> Ints | None:
    """The prompt hash of each task; None if some are missing or shared."""
    column = rows.index.table(["prompt_hash"], rows.where).column("prompt_hash")
    if column.null_count:
        return None
    values: Ints = ints(column)[rows.order][rows.starts]
    return values if len(np.unique(values)) == len(values) else None


def _task_means(rows: ByTask, values: Floats) -> Floats:
    sums, counts = rows.sums(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(sums / counts, dtype=np.float64)


def _difference(here: Floats, there: Floats) -> FieldDifference:
    both = ~np.isnan(here) & ~np.isnan(there)
    estimate = intervals.paired_difference(there, here)
    return FieldDifference(
        value=float(here[both].mean()) if both.any() else None,
        against=float(there[both].mean()) if both.any() else None,
        difference=estimate.value,
        ci=estimate.ci,
        tasks=estimate.groups,
        differing=int((here[both] != there[both]).sum()),
    )


def _verdict(reward: FieldDifference | None) -> str:
    if reward is None or reward.difference is None:
        return "no shared task is judged in both runs: nothing can be said about the reward"
    over = f"over {reward.tasks:,} shared tasks"
    if reward.ci is None:
        why = "too few tasks to tell" if reward.tasks < intervals.FEWEST_PAIRS else "the same in every task"
        return f"{why}: reward {reward.difference:+.3f} {over}"
    low, high = reward.ci
    summary = f"reward {reward.difference:+.3f} (95 % interval {low:+.3f} to {high:+.3f}) {over}"
    if reward.tasks < intervals.FEWEST_PAIRS:
        return f"too few tasks to tell: {summary}; nothing is shown by fewer than {intervals.FEWEST_PAIRS}"
    if low > 0:
        return f"better: {summary}"
    if high < 0:
        return f"worse: {summary}"
    if reward.differing == 0:
        return f"the same in every task: {summary}"
    return f"no difference shown: {summary}; differences up to {max(abs(low), abs(high)):.3f} cannot be ruled out"
