"""The metrics of a run, computed from its index a few columns at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from rollforge import at_k, intervals, stats
from rollforge.errors import UsageError
from rollforge.index import ByTask, Index, open_index
from rollforge.metrics.names import is_amount
from rollforge.stats import Floats
from rollforge.steps.metrics.flags import find_flags
from rollforge.steps.metrics.records import (
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
"""Bad lines named with their place."""

MASK_FIELD = "mask_sample"
"""NeMo Gym's field for a sample whose reward is no measurement."""

LONG_ENOUGH = 40
"""Characters from which equal answers are no coincidence."""

NAMELESS = "(none)"
"""What rollouts without an agent are listed under, beside those that have one."""


class MetricsOptions(Struct, frozen=True, kw_only=True):
    """How metrics are computed."""

    threshold: float = 0.5
    """A rollout is a success when its reward is at least this."""
    where: str | None = None
    """Only rollouts for which this expression holds."""
    answer_field: str | None = None
    """The field majority@k votes on; by default the first that looks like an extracted answer, else the whole text."""

    def __post_init__(self) -> None:
        if math.isnan(self.threshold):  # no reward reaches it, and 0 % would look like a result
            raise UsageError("the threshold must be a number, not nan")


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
def summarize_index(index: Index, options: MetricsOptions | None = None) -> RunMetrics:
    """The metrics of an open index."""
    options = options or MetricsOptions()
    rows = ByTask(index, options.where)
    reward = rows.one("reward")
    fields, agents = _fields(rows)
    failures = index.failed() if options.where is None else {}
    judged = int((~np.isnan(reward)).sum())
    failed = sum(failures.values())
    counts = Counts(
        expected=index.expected if options.where is None else None,
        finished=len(rows), judged=judged, unjudged=len(rows) - judged, failed=failed,
        rejected_lines=index.rejected_lines, noted_lines=index.noted_lines, duplicates=index.duplicate_count,
        tasks=len(rows.tasks), masked=masked_rollouts(rows),
    )  # fmt: skip
    known = reward[~np.isnan(reward)]
    as_zero = (
        FailuresAsZero(mean=float(known.sum() / (judged + failed)), n=judged + failed) if failed else None
    )
    answer_field = options.answer_field or _answer_field(index)
    metrics = RunMetrics(
        run=", ".join(str(files.rollouts) for files in index.runs),
        where=options.where,
        counts=counts,
        coverage=_share(judged, counts.expected or (len(rows) + failed)),
        verifier=index.verifier,
        fields=fields,
        facts={name: field for name, field in _facts(rows).items() if field.n},
        agents=agents,
        success=_success(rows, reward, options.threshold),
        failures_as_zero=as_zero,
        failures=failures,
        at_k=_at_k(rows, reward, options.threshold, answer_field),
        answer_field=answer_field,
        equal_groups=_equal_groups(index) if options.where is None else None,
        histogram=HistogramCounts(*stats.histogram(known)),
        throughput=_throughput(rows) if options.where is None else Throughput(),
        mixed_types=index.mixed,
        bad_lines=index.rejects[:MOST_BAD_LINES],
        flags=[],
    )
    metrics.flags = find_flags(metrics)
    return metrics


def _equal_groups(index: Index) -> EqualGroups | None:
    found = index.select(
        "select count(*) as groups, count(*) filter (where kinds = 1) as equal from (select count(distinct answer_hash) as kinds "
        "from rollouts where not is_empty and coalesce(tool_calls, 0) = 0 group by task "
        f"having count(*) > 1 and min(answer_chars) >= {LONG_ENOUGH})"
    ).to_pylist()[0]
    return EqualGroups(groups=found["equal"], of=found["groups"]) if found["groups"] else None


def masked_rollouts(rows: ByTask) -> int:
    """Rollouts whose reward is declared to be no measurement (`mask_sample`); they are unjudged."""
    if MASK_FIELD not in rows.index.columns():
        return 0
    return int((rows.one(MASK_FIELD) == 1).sum())


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def describe(rows: ByTask, name: str, values: Floats) -> Field:
    """One field with its interval; counts and durations that happen to be 0 or 1 are no share, and never negative."""
    summary = stats.summarize(values)
    sums, counts = rows.sums(values)
    is_share = not is_amount(name) and _is_yes_or_no(values)
    least = 0.0 if summary.min is not None and summary.min >= 0 else None
    estimate = intervals.clustered_mean(sums, counts, is_share=is_share, least=least)
    return Field(
        mean=summary.mean, ci=estimate.ci, std=summary.std, min=summary.min, max=summary.max, median=summary.median,
        n=summary.n, missing=summary.missing,
    )  # fmt: skip


def _is_yes_or_no(values: Floats) -> bool:
    known = values[~np.isnan(values)]
    return bool(len(known)) and bool(((known == 0) | (known == 1)).all())


def _fields(rows: ByTask) -> tuple[dict[str, Field], dict[str, AgentMetrics]]:
    """Every field over all rollouts and per agent, in one reading of each column; `reward` even when nothing is judged."""
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
            mine = (
                values if len(agents) == 1 and masks[agent].all() else np.where(masks[agent], values, np.nan)
            )
            field = describe(rows, name, mine)
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
    """1 where the reward reaches the threshold, 0 where it does not, NaN where there is none."""
    return np.where(np.isnan(reward), np.nan, (reward >= threshold).astype(np.float64))


def _answer_field(index: Index) -> str | None:
    columns = set(index.columns())
    return next((name for name in ANSWER_FIELDS if name in columns), "answer_hash")


def _at_k(rows: ByTask, reward: Floats, threshold: float, answer_field: str | None) -> dict[str, AtKValue]:
    hits = successes(reward, threshold)
    judged = rows.sums(hits)[1]
    passed = _each_k(at_k.at_k(hits, rows.starts), "pass@", "pass^", judged)
    valued = _each_k(
        at_k.at_k(reward, rows.starts), "best@", "worst@", judged if _is_yes_or_no(reward) else None
    )
    voted = majority(rows, hits, answer_field, len(passed)) if answer_field else {}
    found: dict[str, AtKValue] = {}
    for k, (one, other) in enumerate(zip(passed, valued, strict=True), 1):
        found |= one | other
        if k in voted:
            found[f"majority@{k}"] = _over_tasks(voted[k], k, judged)
    return found


def _each_k(values: at_k.AtK, best: str, worst: str, judged: Floats | None) -> list[dict[str, AtKValue]]:
    """The means over tasks, for each k from 1; `judged` as in `_over_tasks`."""
    return [
        {
            f"{best}{k}": _over_tasks(values.best[:, k - 1], k, judged),
            f"{worst}{k}": _over_tasks(values.worst[:, k - 1], k, judged),
        }
        for k in range(1, values.best.shape[1] + 1)
    ]


def _over_tasks(values: Floats, k: int, judged: Floats | None) -> AtKValue:
    """The mean over tasks; `judged` says how many rollouts each task has, where k of them are one answer yes or no."""
    most = None if judged is None else float(judged[judged >= k].sum()) / k
    estimate = intervals.mean_of(values, most=most)
    return AtKValue(value=estimate.value, ci=estimate.ci, tasks=estimate.groups)


def _throughput(rows: ByTask) -> Throughput:
    """Over the time in which any rollout was being made: a pause between two sessions of a run does not count."""
    has_tokens = "output_tokens" in rows.index.numbers
    names = ["started", "seconds", *(["output_tokens"] if has_tokens else [])]
    count, tokens, busy = 0, 0.0, (np.zeros(0), np.zeros(0))
    for batch in rows.index.table(names, rows.where).to_batches():
        started, seconds, *made = (
            np.asarray(column.to_numpy(zero_copy_only=False)) for column in batch.columns
        )
        known = ~np.isnan(started) & ~np.isnan(seconds)
        count += int(known.sum())
        tokens += float(np.nansum(made[0][known])) if made else 0.0
        begins, ends = _joined(started[known], (started + seconds)[known])
        busy = _joined(np.append(busy[0], begins), np.append(busy[1], ends))
    active = float((busy[1] - busy[0]).sum())
    if active <= 0:
        return Throughput()
    return Throughput(
        rollouts_per_s=count / active, tokens_per_s=tokens / active if has_tokens else None, active_s=active
    )


def _joined(begins: Floats, ends: Floats) -> tuple[Floats, Floats]:
    """The union of the intervals, as disjoint intervals in order."""
    if not len(begins):
        return begins, ends
    order = np.argsort(begins)
    begins, reached = begins[order], np.maximum.accumulate(ends[order])
    is_first = np.append(True, begins[1:] > reached[:-1])
    return begins[is_first], reached[np.append(is_first[1:], True)]
