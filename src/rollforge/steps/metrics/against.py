"""This module compares two runs over the tasks they share, each task with itself.

Pairing takes out how hard the tasks are, which is most of the spread; two intervals that overlap say little, the interval of
the difference says it all.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from rollforge import stats
from rollforge.errors import UsageError
from rollforge.index import Index
from rollforge.index.arrays import ints
from rollforge.index.grouped import ByTask, Floats, Ints


class FieldDifference(Struct, kw_only=True):
    """One field, task by task."""

    value: float | None
    """Mean over shared tasks in the first run."""
    against: float | None
    difference: float | None
    """First minus second."""
    ci: list[float] | None
    """95 % interval; null with one task, or when no two values differ."""
    tasks: int
    differing: int
    """Tasks in which the two runs differ."""


class Comparison(Struct, kw_only=True):
    """How a run differs from another."""

    run: str
    against: str
    paired_by: str
    shared_tasks: int
    only_run: int
    only_against: int
    fields: dict[str, FieldDifference]
    verdict: str


def compare_runs(first: Index, second: Index, *, where: str | None = None) -> Comparison:
    """The paired differences (first − second) of every field both runs have."""
    one, two = ByTask(first, where), ByTask(second, where)
    key_one, key_two, paired_by = _pair_keys(one, two)
    shared, place_one, place_two = np.intersect1d(key_one, key_two, return_indices=True)
    if not len(shared):
        raise UsageError(
            "the two runs share no task (neither by prompt nor by number)",
            hint="compare runs over the same tasks",
        )
    names = [name for name in first.numbers if name in set(second.numbers)]
    fields: dict[str, FieldDifference] = {}
    for (name, here), (_, there) in zip(one.floats(names), two.floats(names), strict=True):
        fields[first.name_by_column[name]] = _difference(
            _task_means(one, here)[place_one], _task_means(two, there)[place_two]
        )
    names_of_runs = [str(index.runs[0].rollouts) for index in (first, second)]
    return Comparison(
        run=names_of_runs[0],
        against=names_of_runs[1],
        paired_by=paired_by,
        shared_tasks=len(shared),
        only_run=len(key_one) - len(shared),
        only_against=len(key_two) - len(shared),
        fields=fields,
        verdict=_verdict(fields.get("reward")),
    )


def _pair_keys(one: ByTask, two: ByTask) -> tuple[Ints, Ints, str]:
    """What a task is known by in both runs: its prompt, unless prompts are missing, repeat inside a run or are all others there."""
    prompts = []
    for rows in (one, two):
        table = rows.index.table(["prompt_hash"], rows.where)
        if table.column("prompt_hash").null_count:
            return one.tasks, two.tasks, "task number"
        prompts.append(
            ints(table.column("prompt_hash"))[rows.order][rows.starts] if len(rows) else rows.tasks
        )
    if any(len(np.unique(found)) < len(found) for found in prompts):
        return one.tasks, two.tasks, "task number"
    if not len(
        np.intersect1d(prompts[0], prompts[1])
    ):  # another template, or another system prompt: mostly that is what is compared
        return one.tasks, two.tasks, "task number: no prompt is the same"
    return prompts[0], prompts[1], "prompt"


def _task_means(rows: ByTask, values: Floats) -> Floats:
    sums, counts = rows.sums(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(sums / counts, dtype=np.float64)


def _difference(here: Floats, there: Floats) -> FieldDifference:
    both = ~np.isnan(here) & ~np.isnan(there)
    estimate = stats.paired_difference(there, here)
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
        why = "too few tasks to tell" if reward.tasks < stats.FEWEST_PAIRS else "the same in every task"
        return f"{why}: reward {reward.difference:+.3f} {over}"
    low, high = reward.ci
    told = f"reward {reward.difference:+.3f} (95 % interval {low:+.3f} to {high:+.3f}) {over}"
    if reward.tasks < stats.FEWEST_PAIRS:
        return f"too few tasks to tell: {told}; nothing is shown by fewer than {stats.FEWEST_PAIRS}"
    if low > 0:
        return f"better: {told}"
    if high < 0:
        return f"worse: {told}"
    if reward.differing == 0:
        return f"the same in every task: {told}"
    return (
        f"no difference shown: {told}; differences up to {max(abs(low), abs(high)):.3f} cannot be ruled out"
    )
