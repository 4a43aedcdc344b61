"""Profiles a run from its index: a table per task, a table per agent, and a summary.

Only numbers are read; the text of each task's sample is read when the profile is written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray

from rollforge.adaptive.design import stage_condition
from rollforge.errors import UsageError
from rollforge.index import (
    ByTask,
    Index,
    SharedGroups,
    arrow_array,
    arrow_floats,
    arrow_texts,
    open_index,
    texts,
)
from rollforge.statistics import intervals, stats
from rollforge.statistics.counts import count_of
from rollforge.statistics.stats import Floats, Ints
from rollforge.steps.profile.fields import GroupStatistics, describe_fields, profile_fields
from rollforge.steps.profile.profile_records import BANDS, ProfileSummary
from rollforge.steps.profile.shelf import Shelf
from rollforge.steps.profile.summary import band_numbers, summarize


class ProfileOptions(Struct, frozen=True, kw_only=True):
    """Success threshold, reward tolerance, stage and number of tasks to list."""

    threshold: float = 0.5
    """A rollout is a success when its reward is at least this."""
    tolerance: float = 1e-9
    """Rewards that differ by no more count as equal: float noise is no learning signal."""
    where: str | None = None
    stage: Literal["auto", "all"] = "auto"
    """Of an adaptive run: auto takes the first stage, which is free of selection; all takes every rollout, and is biased."""
    look: int = 5
    """Tasks listed per reason to review."""

    def __post_init__(self) -> None:
        """Refuse values that would make the statistics meaningless."""
        if not math.isfinite(self.threshold):
            raise UsageError(
                f"the threshold must be a finite number, not {self.threshold}", hint="--threshold 0.5"
            )
        if not 0 <= self.tolerance < math.inf:
            raise UsageError(
                f"the tolerance must be a finite number, 0 or more, not {self.tolerance:g}",
                hint="--tolerance 0",
            )
        if self.look < 0:
            raise UsageError(
                f"the number of tasks to look at must be 0 or more, not {self.look}", hint="--look 5"
            )


class Profile:
    """Per-task and per-agent tables; `tasks.to_pandas()` and `polars.from_arrow(tasks)` work as on any Arrow table."""

    def __init__(self, tasks: pa.Table, agents: pa.Table, summary: ProfileSummary, fields: list[str]) -> None:
        self.tasks = tasks
        """One row per task: `task`, counts, pass rate, difficulty, `mean/reward`, …; null if undefined."""
        self.agents = agents
        """One row per agent."""
        self.summary = summary
        self.fields = fields
        self.rows: ByTask | None = None
        """The rollouts behind the profile, from which the writer adds histograms."""
        self.shelf: Shelf | None = None
        """Storage for the columns of `tasks` if there are very many."""

    def __repr__(self) -> str:
        return f"Profile({count_of(self.tasks.num_rows, 'task')}, {self.agents.num_rows} agents, {len(self.fields)} fields)"

    def _repr_html_(self) -> str:
        from rollforge.charts import Bar, bar_chart, to_image
        from rollforge.text_safety.markup import result, table

        summary = self.summary
        bars = [
            Bar(label=name, count=count, css=f"band-{position}")
            for position, (name, count) in enumerate(summary.bands.items())
        ]
        described = "; ".join(f"{bar.label}: {bar.count:,}" for bar in bars)
        look = [
            [why, ", ".join(str(one.task) for one in tasks)] for why, tasks in summary.look.items() if tasks
        ]
        return result(
            f"{summary.run}: {count_of(summary.tasks, 'task')}, {summary.judged:,} of {count_of(summary.rollouts, 'rollout')} judged",
            to_image(bar_chart(bars, title="Tasks by pass rate", description=described)) if bars else None,
            table(("look at", "tasks"), look, numeric=False) if look else None,
        )


def profile_run(
    runs: str | Path | Sequence[str | Path],
    *,
    verifier: str | None = None,
    options: ProfileOptions | None = None,
    workers: int | None = None,
) -> Profile:
    """The profile of a run, or of several files as one run."""
    with open_index(runs, verifier=verifier, workers=workers) as index:
        return profile_index(index, options)


@np.errstate(over="ignore", invalid="ignore")  # rewards near the largest float have no mean: it is null
def profile_index(
    index: Index, options: ProfileOptions | None = None, groups: SharedGroups | None = None
) -> Profile:
    """Profile of an open index; `groups` is its shared cache of grouped columns, if other steps use it too."""
    options = options or ProfileOptions()
    stage = index.first_stage if options.stage == "auto" else None
    condition = stage_condition(options.where, stage)
    rows = groups.get(condition) if groups else ByTask(index, condition)
    if options.where is not None and not len(rows):
        raise UsageError(
            f"no rollout matches --where {options.where!r}", hint="ask for others, or leave --where out"
        )
    rows.keep(["reward", *index.numbers, "attempt", "answer_chars"])
    fields = profile_fields(rows)
    shelf = Shelf(index.scratch)
    by_task = GroupStatistics(rows.sizes, shelf=shelf)
    by_agent = _Agents(rows)
    describe_fields(rows, fields, by_task, by_agent.statistics)
    agents = by_agent.table()
    shelf.settle()
    tasks = _task_table(rows, by_task, options, shelf)
    shelf.settle()
    summary = summarize(rows, tasks, options.threshold, options.tolerance, options.look)
    summary.adaptive = _adaptive_note(index, is_first=stage is not None)
    shelf.settle()
    profile = Profile(tasks, agents, summary, list(fields.values()))
    profile.rows, profile.shelf = rows, shelf
    return profile


def _adaptive_note(index: Index, *, is_first: bool) -> str | None:
    """Effect of adaptive sampling on the profile; None for a uniform run."""
    if is_first:
        first = min(design.first for design in index.designs)
        who = "tasks were" if index.design is not None else f"{len(index.designs):,} of these runs were"
        return (
            f"{who} sampled adaptively: everything here is over the first stage, {count_of(first, 'sample')} of each begun task; "
            f"yields at k above {first} are extrapolated"
        )
    if index.designs:
        return "tasks were sampled adaptively and all stages are counted here: pass rates, bands and yields are biased"
    return None


def _column(values: Any) -> pa.Array:
    """An Arrow array without copying; NaN becomes null."""
    array = np.asarray(values)
    return arrow_floats(array) if array.dtype.kind == "f" else arrow_array(array)


def _task_table(rows: ByTask, statistics: GroupStatistics, options: ProfileOptions, shelf: Shelf) -> pa.Table:
    columns: dict[str, pa.Array] = {"task": arrow_array(rows.tasks), "agent": _first(rows, "agent")}
    counts = _counts(rows, rows.tasks, rows.sizes)
    columns |= {name: _column(shelf.put(values)) for name, values in counts.items()}
    columns |= _reward_columns(rows, options, shelf)
    for name, values in statistics.finish().items():
        columns[name] = _column(values)
        shelf.rest()
    table = pa.table(columns)
    return _with_absent_tasks(rows, table) if rows.where is None else table


def _first(rows: ByTask, name: str) -> pa.Array:
    """The value of each task's first rollout."""
    codes, labels = rows.codes(name)
    return texts(codes[rows.starts], [label for label in labels if label is not None])


def _counts(rows: ByTask, tasks: Ints, rollouts: Ints) -> dict[str, Ints | Floats]:
    """Number of rollouts of these tasks, and the requested number if known."""
    expected = _expected_per_task(rows, tasks)
    if expected is None:
        return {"num_rollouts": rollouts}
    wanted = np.maximum(expected, rollouts)
    return {
        "num_rollouts": rollouts,
        "expected_num_rollouts": wanted,
        "missing_num_rollouts": wanted - rollouts,
        "reward_profile_completion_pct": 100.0 * rollouts / np.maximum(wanted, 1),
    }


def _expected_per_task(rows: ByTask, wanted: Ints) -> Ints | None:
    """Requested rollouts per task: from the manifest, else from NeMo Gym's materialized inputs."""
    if rows.index.samples is not None:
        return np.full(len(wanted), rows.index.samples, dtype=np.int64)
    named = rows.index.inputs_per_task()
    if named is None:
        return None
    tasks, counts = named
    position = np.searchsorted(tasks, wanted)
    is_known = (
        (position < len(tasks)) & (tasks[np.minimum(position, len(tasks) - 1)] == wanted)
        if len(tasks)
        else np.zeros(0)
    )
    return np.where(is_known, counts[np.minimum(position, len(tasks) - 1)], 0) if len(tasks) else None


def _reward_columns(rows: ByTask, options: ProfileOptions, shelf: Shelf) -> dict[str, pa.Array]:
    """Pass rate with interval, difficulty, and whether rewards differ, per task."""
    reward = rows.one("reward")
    groups = stats.summarize_groups(reward, rows.starts)
    hits = np.where(np.isnan(reward), np.nan, (reward >= options.threshold).astype(np.float64))
    solved, judged = rows.sums(hits)
    with np.errstate(invalid="ignore", divide="ignore"):
        rate = solved / judged
    # The samples of one task are independent of each other, so this is the plain interval.
    low, high = intervals.wilson_each(rate, judged, intervals.normal_quantile((1 + intervals.LEVEL) / 2))
    has_signal = (groups.max - groups.min) > options.tolerance
    return {
        "num_judged": _column(shelf.put(judged.astype(np.int64))),
        "num_solved": _column(shelf.put(solved.astype(np.int64))),
        "pass_rate": _column(shelf.put(rate)),
        "pass_rate_low": _column(shelf.put(low)),
        "pass_rate_high": _column(shelf.put(high)),
        "difficulty": texts(band_numbers(rate), BANDS),
        "has_signal": arrow_array(has_signal, judged < 2),
    }


def _with_absent_tasks(rows: ByTask, table: pa.Table) -> pa.Table:
    """Add requested tasks without rollouts, with a count of 0."""
    locations = rows.index.task_locations
    absent = (
        np.setdiff1d(locations.tasks, rows.tasks) if locations is not None else np.zeros(0, dtype=np.int64)
    )
    if not len(absent):
        return table
    nothing: dict[str, object] = {
        "task": absent,
        **_counts(rows, absent, np.zeros(len(absent), dtype=np.int64)),
    }
    nothing |= {name: np.zeros(len(absent), dtype=np.int64) for name in ("num_judged", "num_solved")}
    return pa.concat_tables([table, pa.table(nothing)], promote_options="default").sort_by("task")


class _Agents:
    """The rollouts grouped by agent."""

    def __init__(self, rows: ByTask) -> None:
        codes, labels = _sorted(*rows.codes("agent"))
        order = None
        if (codes[1:] < codes[:-1]).any():
            # numpy sorts small integer types several times as fast.
            order = np.argsort(codes.astype(np.min_scalar_type(len(labels))), kind="stable")
            codes = codes[order]
        starts = np.flatnonzero(np.append(True, codes[1:] != codes[:-1])[: len(codes)])
        self._names = [labels[code] for code in codes[starts].tolist()]
        self._ends = np.append(starts[1:], len(codes))[: len(starts)]
        self._sizes: Ints = self._ends - starts
        task = rows.task if order is None else rows.task[order]
        # Tasks ascend within an agent.
        self._tasks = [1 + int(np.count_nonzero(part[1:] != part[:-1])) for part in self._parts(task)]
        self.statistics = GroupStatistics(self._sizes, order=order, has_histograms=True)

    def _parts(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        return np.split(values, self._ends[:-1]) if len(self._ends) else []

    def table(self) -> pa.Table:
        """One row per agent."""
        columns: dict[str, pa.Array] = {
            "agent": arrow_texts(self._names),
            "num_rollouts": arrow_array(self._sizes),
            "num_tasks": arrow_array(np.array(self._tasks, dtype=np.int64)),
        }
        columns |= {name: _column(values) for name, values in self.statistics.finish().items()}
        for name, histograms in self.statistics.histograms.items():
            edges = _list_column([one.edges for one in histograms], np.float64)
            counts = _list_column([one.counts for one in histograms], np.int64)
            columns[f"histogram/{name}"] = pa.StructArray.from_arrays([edges, counts], ["edges", "counts"])
        return pa.table(columns)


def _list_column(lists: list[list[Any]], kind: type[np.generic]) -> pa.ListArray:
    offsets = np.cumsum([0, *map(len, lists)], dtype=np.int32)
    values = np.array([value for each in lists for value in each], dtype=kind)
    return pa.ListArray.from_arrays(arrow_array(offsets), arrow_array(values))


def _sorted(codes: Ints, labels: list[str | None]) -> tuple[Ints, list[str | None]]:
    """Codes for sorted labels; missing and empty ones share the last code."""
    names = sorted({label for label in labels if label})
    code_by_name = {name: number for number, name in enumerate(names)}
    renamed = np.array([code_by_name.get(label or "", len(names)) for label in labels], dtype=np.int64)
    return renamed[codes] if len(codes) else codes, [*names, None]
