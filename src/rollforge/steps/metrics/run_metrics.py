"""The metrics of a run, computed from its index a few columns at a time."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from msgspec import Struct

from rollforge.adaptive.design import stage_condition
from rollforge.errors import UsageError
from rollforge.index import ByTask, Index, SharedGroups, open_index
from rollforge.metrics.names import is_amount
from rollforge.registry import did_you_mean
from rollforge.statistics import at_k, intervals, stats
from rollforge.statistics.stats import Floats
from rollforge.steps.metrics.flags import find_flags
from rollforge.steps.metrics.metric_records import (
    AgentMetrics,
    AtKValue,
    Counts,
    EqualGroups,
    FailuresAsZero,
    Field,
    HistogramCounts,
    RunMetrics,
    Success,
    Throughput,
)
from rollforge.steps.metrics.run_cost import run_cost
from rollforge.steps.metrics.stages import beyond_first_stage, pooled_facts
from rollforge.steps.metrics.votes import majority

FACTS = (
    "answer_chars",
    "turns",
    "tool_calls",
    "seconds",
    "is_truncated",
    "is_empty",
    "is_refusal",
    "error_text",
)
ANSWER_FIELDS = ("extracted_answer", "extracted_model_output", "predicted_answer", "parsed_answer", "answer")
MOST_BAD_LINES = 100
"""Most bad lines listed with their location."""

MASK_FIELD = "mask_sample"
"""NeMo Gym's field that marks a reward as no measurement."""

LONG_ENOUGH = 40
"""Length in characters from which equal answers are no coincidence."""

AT_ONCE = 65_536
"""Rollouts processed at a time when their times in flight are merged."""

NAMELESS = "(none)"
"""Label of rollouts without an agent, if others have one."""


class MetricsOptions(Struct, frozen=True, kw_only=True):
    """How metrics are computed."""

    threshold: float = 0.5
    """A rollout is a success when its reward is at least this."""
    where: str | None = None
    """Only rollouts for which this expression holds."""
    stage: Literal["auto", "all"] = "auto"
    """Of an adaptive run: auto takes the first stage, which is free of selection; all takes every rollout, and is biased."""
    answer_field: str | None = None
    """The field majority@k votes on; by default the first that looks like an extracted answer, else the whole text."""

    def __post_init__(self) -> None:
        if not math.isfinite(
            self.threshold
        ):  # no reward reaches nan or inf, and 0 % would look like a result
            raise UsageError(
                f"the threshold must be a finite number, not {self.threshold}", hint="--threshold 0.5"
            )


def summarize_run(
    runs: str | Path | Sequence[str | Path],
    *,
    verifier: str | None = None,
    options: MetricsOptions | None = None,
    workers: int | None = None,
) -> RunMetrics:
    """The metrics of a run, or of several files as one run."""
    with open_index(runs, verifier=verifier, workers=workers) as index:
        return summarize_index(index, options)


@np.errstate(over="ignore", invalid="ignore")  # rewards near the greatest number have no mean: it is null
def summarize_index(
    index: Index, options: MetricsOptions | None = None, groups: SharedGroups | None = None
) -> RunMetrics:
    """Metrics of an open index; `groups` is its shared cache of grouped columns, if other steps use it too."""
    options = options or MetricsOptions()
    design = index.design if options.stage == "auto" else None
    grouped = groups.get if groups else partial(ByTask, index)
    everything = grouped(options.where)
    rows = everything
    stage = index.first_stage if options.stage == "auto" else None
    if stage is not None:
        rows = grouped(stage_condition(options.where, stage))
    rows.keep(["reward", *index.numbers, *FACTS])
    reward = rows.one("reward")
    fields, agents = _fields(rows)
    failures = index.failed() if options.where is None else {}
    judged = int((~np.isnan(everything.one("reward"))).sum())
    failed = sum(failures.values())
    counts = Counts(
        expected=index.expected if options.where is None else None,
        finished=len(everything), judged=judged, unjudged=len(everything) - judged, failed=failed,
        rejected_lines=index.rejected_lines, noted_lines=index.noted_lines, duplicates=index.duplicate_count,
        tasks=len(everything.tasks), masked=masked_rollouts(everything),
    )  # fmt: skip
    rewards = reward[~np.isnan(reward)]
    as_zero = (
        FailuresAsZero(mean=float(rewards.sum() / (judged + failed)), n=judged + failed)
        if failed and stage is None
        else None
    )
    if options.answer_field is not None and options.answer_field not in index.columns():
        raise UsageError(
            f"--answer-field {options.answer_field!r}: no rollout has it{did_you_mean(options.answer_field, index.columns())}",
            hint=f'see all columns: rollforge query {shlex.quote(index.runs[0].name)} "describe rollouts"',
        )
    answer_field = options.answer_field or _answer_field(index)
    metrics = RunMetrics(
        run=", ".join(str(files.rollouts) for files in index.runs),
        where=options.where,
        counts=counts,
        coverage=_share(judged, counts.expected or (len(everything) + failed)),
        verifier=index.verifier,
        fields=fields,
        facts={name: field for name, field in _facts(rows).items() if field.n},
        agents=agents,
        success=_success(rows, reward, options.threshold),
        failures_as_zero=as_zero,
        failures=failures,
        at_k=_at_k(rows, reward, options.threshold, answer_field),
        answer_field=answer_field,
        equal_groups=_equal_groups(everything) if options.where is None else None,
        histogram=HistogramCounts(*stats.histogram(rewards)),
        throughput=_throughput(everything) if options.where is None else Throughput(),
        mixed_types=index.mixed,
        bad_lines=index.rejects[:MOST_BAD_LINES],
        flags=[],
        cost=run_cost(index, everything, everything.one("reward")) if options.where is None else None,
    )
    if design is not None:
        hits = successes(reward, options.threshold)
        beyond, metrics.adaptive = beyond_first_stage(
            index, options.where, design, rows, hits, options.threshold
        )
        metrics.at_k |= beyond
    elif stage is not None:
        metrics.adaptive = pooled_facts(index, rows)
    metrics.flags = find_flags(
        metrics,
        is_uncorrected=_is_uncorrected(index, options),
        mixed=_mixed_verifiers(rows, reward),
    )
    return metrics


def _mixed_verifiers(rows: ByTask, reward: Floats) -> dict[str, int]:
    """Verifier → number of its verdicts, the largest first, if two of them judged samples of one task; else empty."""
    is_judged = ~np.isnan(reward)
    each, names = rows.codes("verifier")
    is_judged &= each < len(names) - 1  # the last code means that no verifier is recorded
    counts = np.bincount(each[is_judged], minlength=len(names))
    if np.count_nonzero(counts) < 2:
        return {}
    task, judge = rows.task[is_judged], each[is_judged]  # ordered by task
    if not ((task[1:] == task[:-1]) & (judge[1:] != judge[:-1])).any():
        return {}
    return {
        str(names[code]): int(counts[code]) for code in np.argsort(-counts, kind="stable") if counts[code]
    }


def _is_uncorrected(index: Index, options: MetricsOptions) -> bool:
    """Whether adaptively sampled rollouts are averaged without correction."""
    return index.has_uncorrected_stages or (bool(index.designs) and options.stage == "all")


def _equal_groups(rows: ByTask) -> EqualGroups | None:
    """Groups of long answers without tool calls, and how many of these have only one distinct answer."""
    is_empty, tool_calls, chars = (rows.one(name) for name in ("is_empty", "tool_calls", "answer_chars"))
    counts = np.flatnonzero((is_empty == 0) & (np.nan_to_num(tool_calls) == 0))
    if not len(counts):
        return None
    task = rows.task[counts]
    starts = np.flatnonzero(np.append(True, task[1:] != task[:-1]))
    is_group = np.diff(starts, append=len(task)) > 1
    is_group &= np.fmin.reduceat(chars[counts], starts) >= LONG_ENOUGH
    hashes = rows.hashes("answer_hash")[counts]
    is_equal = np.minimum.reduceat(hashes, starts) == np.maximum.reduceat(hashes, starts)
    groups = int(is_group.sum())
    return EqualGroups(groups=int((is_group & is_equal).sum()), of=groups) if groups else None


def masked_rollouts(rows: ByTask) -> int:
    """Number of unjudged rollouts that mark their reward as no measurement (`mask_sample`)."""
    if MASK_FIELD not in rows.index.columns():
        return 0
    return int((rows.one(MASK_FIELD) == 1).sum())


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def describe(rows: ByTask, name: str, values: Floats) -> Field:
    """One field with its interval. Counts and durations are not treated as shares even if all are 0 or 1, and intervals stay
    non-negative.
    """
    summary = stats.summarize(values)
    sums, counts = rows.sums(values)
    least = 0.0 if summary.min is not None and summary.min >= 0 else None
    is_share = least == 0 and not is_amount(name) and _is_yes_or_no(values)
    estimate = intervals.clustered_mean(sums, counts, is_share=is_share, least=least)
    return Field(
        mean=summary.mean, ci=estimate.ci, std=summary.std, min=summary.min, max=summary.max, median=summary.median,
        n=summary.n, missing=summary.missing,
    )  # fmt: skip


def _is_yes_or_no(values: Floats) -> bool:
    present_values = values[~np.isnan(values)]
    return bool(len(present_values)) and bool(((present_values == 0) | (present_values == 1)).all())


def _fields(rows: ByTask) -> tuple[dict[str, Field], dict[str, AgentMetrics]]:
    """All fields, over all rollouts and per agent, with one read per column; includes `reward` even if nothing is judged."""
    names = {"reward": "reward"} | {
        column: rows.index.name_by_column[column] for column in rows.index.numbers
    }
    codes, labels = rows.codes("agent")
    masks = {name: codes == code for code, name in enumerate(labels) if name}
    nameless = np.ones(len(codes), dtype=np.bool_)
    for mask in masks.values():
        nameless &= ~mask
    if masks and nameless.any():
        masks[NAMELESS] = nameless
    agents = {
        name: AgentMetrics(n=int(mask.sum()), judged=0, fields={}) for name, mask in sorted(masks.items())
    }
    fields: dict[str, Field] = {}
    for column, values in rows.floats(list(names)):
        name = names[column]
        fields[name] = describe(rows, name, values)
        for agent, metrics in agents.items():
            is_alone = len(agents) == 1 and bool(masks[agent].all())
            field = (
                msgspec.structs.replace(fields[name])
                if is_alone
                else describe(rows, name, np.where(masks[agent], values, np.nan))
            )
            field.missing = metrics.n - field.n
            metrics.fields[name] = field
            if name == "reward":
                metrics.judged = field.n
    return fields, agents


def _facts(rows: ByTask) -> dict[str, Field]:
    return {name: describe(rows, name, values) for name, values in rows.floats(FACTS)}


def _success(rows: ByTask, reward: Floats, threshold: float) -> Success:
    hits = successes(reward, threshold)
    estimate = intervals.clustered_mean(*rows.sums(hits), is_share=True)
    n = int((~np.isnan(hits)).sum())
    return Success(threshold=threshold, value=estimate.value, ci=estimate.ci, n=n)


def successes(reward: Floats, threshold: float) -> Floats:
    """1 where the reward reaches the threshold, 0 where it does not, NaN where it is missing."""
    return np.where(np.isnan(reward), np.nan, (reward >= threshold).astype(np.float64))


def _answer_field(index: Index) -> str | None:
    columns = set(index.columns())
    return next((name for name in ANSWER_FIELDS if name in columns), "answer_hash")


def _at_k(rows: ByTask, reward: Floats, threshold: float, answer_field: str | None) -> dict[str, AtKValue]:
    hits = successes(reward, threshold)
    judged = rows.sums(hits)[1]
    passed = _each_k(at_k.at_k(hits, rows.starts), "pass@", "pass^", judged)
    valued = (
        [{_as_reward(name): value for name, value in one.items()} for one in passed]
        if np.array_equal(hits, reward, equal_nan=True)
        else _each_k(
            at_k.at_k(reward, rows.starts), "best@", "worst@", judged if _is_yes_or_no(reward) else None
        )
    )
    voted = majority(rows, hits, answer_field, len(passed)) if answer_field else {}
    values: dict[str, AtKValue] = {}
    for k, (one, other) in enumerate(zip(passed, valued, strict=True), 1):
        values |= one | other
        if k in voted:
            values[f"majority@{k}"] = _over_tasks(voted[k], k, judged)
    return values


def _as_reward(name: str) -> str:
    """The best@k or worst@k name of a pass@k or pass^k name, for rewards."""
    return name.replace("pass@", "best@").replace("pass^", "worst@")


def _each_k(values: at_k.AtK, best: str, worst: str, judged: Floats | None) -> list[dict[str, AtKValue]]:
    """Means over tasks for each k from 1; `judged` as in `_over_tasks`."""
    return [
        {
            f"{best}{k}": _over_tasks(values.best[:, k - 1], k, judged),
            f"{worst}{k}": _over_tasks(values.worst[:, k - 1], k, judged),
        }
        for k in range(1, values.best.shape[1] + 1)
    ]


def _over_tasks(values: Floats, k: int, judged: Floats | None) -> AtKValue:
    """Mean over tasks; `judged` is each task's number of rollouts, if k of them form one yes/no outcome."""
    most = None if judged is None else float(judged[judged >= k].sum()) / k
    estimate = intervals.mean_of(values, most=most)
    return AtKValue(value=estimate.value, ci=estimate.ci, tasks=estimate.groups)


def _throughput(rows: ByTask) -> Throughput:
    """Rates over the time with a rollout in flight, which excludes pauses between sessions."""
    has_tokens = "output_tokens" in rows.index.numbers
    names = ["started", "seconds", *(["output_tokens"] if has_tokens else [])]
    count, tokens, busy = 0, 0.0, (np.zeros(0), np.zeros(0))
    rows.keep(names)
    columns = [rows.one(name) for name in names]
    for first in range(0, len(rows), AT_ONCE):
        started, seconds, *made = (column[first : first + AT_ONCE] for column in columns)
        is_timed = ~np.isnan(started) & ~np.isnan(seconds)
        count += int(is_timed.sum())
        tokens += float(np.nansum(made[0][is_timed])) if made else 0.0
        begins, ends = _joined(started[is_timed], (started + seconds)[is_timed])
        busy = _joined(np.append(busy[0], begins), np.append(busy[1], ends))
    active = float((busy[1] - busy[0]).sum())
    if active <= 0:
        return Throughput()
    return Throughput(
        rollouts_per_s=count / active, tokens_per_s=tokens / active if has_tokens else None, active_s=active
    )


def _joined(begins: Floats, ends: Floats) -> tuple[Floats, Floats]:
    """The union of the intervals, as sorted disjoint intervals."""
    if not len(begins):
        return begins, ends
    order = np.argsort(begins)
    begins, reached = begins[order], np.maximum.accumulate(ends[order])
    is_first = np.append(True, begins[1:] > reached[:-1])
    return begins[is_first], reached[np.append(is_first[1:], True)]
