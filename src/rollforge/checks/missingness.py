"""Rollouts that are missing for a reason: failures that go with difficulty, length or sample number bias the mean."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from rollforge.checks.base import Limits, check
from rollforge.checks.building_blocks.chance import superiority, superiority_error
from rollforge.checks.building_blocks.coded_columns import Bools
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import Finding, Level
from rollforge.statistics.stats import Ints

USUAL = 0.5
"""If more than this share of tasks has the largest number of rollouts, that number was requested."""


@check("missing-not-at-random", "collection", min_missing=0.02, z=4.0, max_bias=0.02)
def missing_not_at_random(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Failures and unjudged rollouts go with difficulty, length or sample number, so the mean is biased."""
    missing = _missing_per_task(run)
    total = int(missing.sum())
    wanted = total + run.judged_n
    if total < 20 or run.judged_n < 50 or total / wanted < limits["min_missing"]:
        return
    parts = [
        part
        for part in (_by_difficulty(run, missing, limits), _by_length(run, limits), _by_sample(run, limits))
        if part
    ]
    if not parts:
        return
    bias = next((part[1] for part in parts if part[1] is not None), None)
    level: Level = (
        "error" if len(parts) > 1 or (bias is not None and abs(bias) > limits["max_bias"]) else "warning"
    )
    effect = (
        f"; with them the mean scaled reward would be about {abs(bias):.3f} {'lower' if bias < 0 else 'higher'}"
        if bias
        else ""
    )
    yield Finding(
        level=level,
        text=f"{total:,} of {wanted:,} rollouts have no reward, and not by chance: {'; '.join(part[0] for part in parts)}: "
        f"the mean is biased{effect}{run.range.note}",
        value=bias,
        threshold=limits["max_bias"],
        n=wanted,
        where=run.tasks(np.argsort(-missing, kind="stable")[: int((missing > 0).sum())]),
        next=f"find the cause before trusting the mean: {run.status}",
    )


def _missing_per_task(run: Evidence) -> Ints:
    """Rollouts without a reward per task: unjudged, failed, or fewer than requested."""
    is_known = run.about.samples is not None or bool(
        len(run.sizes) and run.sizes.max() == run.samples and (run.sizes == run.samples).mean() > USUAL
    )
    missing: Ints = np.maximum(run.sizes + _failed(run), run.samples if is_known else 0) - run.profile.n
    return missing


def _failed(run: Evidence) -> Ints:
    """Finally failed rollouts per task, without tasks that have no rollout at all."""
    tasks, times = np.unique(np.asarray(run.about.failed_tasks, dtype=np.int64), return_counts=True)
    failures: Ints = np.zeros(run.groups, dtype=np.int64)
    has_rollouts = np.isin(tasks, run.task_ids)
    failures[np.searchsorted(run.task_ids, tasks[has_rollouts])] = times[has_rollouts]
    return failures


def _by_difficulty(run: Evidence, missing: Ints, limits: Limits) -> tuple[str, float | None] | None:
    """Whether tasks with missing rollouts have different rewards from complete ones."""
    is_judged = run.profile.n > 0
    means, weight = run.scaled_profile.mean[is_judged], missing[is_judged].astype(np.float64)
    if int((weight > 0).sum()) < 10 or len(means) < 30 or means.std() == 0 or weight.std() == 0:
        return None
    sizes = run.profile.n[is_judged] + weight
    correlation = float(np.corrcoef(means, weight / sizes)[0, 1])
    z = abs(correlation) * math.sqrt((len(means) - 2) / max(1 - correlation**2, 1e-9))
    if z < limits["z"]:
        return None
    with_some, without = (
        means[weight > 0].mean(),
        means[weight == 0].mean() if (weight == 0).any() else means.mean(),
    )
    whole = float(
        (run.scaled_profile.mean[is_judged] * run.profile.n[is_judged]).sum() / run.profile.n[is_judged].sum()
    )
    bias = float((means * sizes).sum() / sizes.sum()) - whole
    return f"tasks with missing rollouts score {with_some:.2f}, the others {without:.2f}", bias


def _by_length(run: Evidence, limits: Limits) -> tuple[str, None] | None:
    """Whether unjudged answers are longer or shorter than judged ones."""
    unjudged = run.draw(~run.judged & ~np.isnan(run.answer_chars), 5000)
    judged = run.draw(run.judged & ~np.isnan(run.answer_chars), 5000)
    if len(unjudged) < 20:
        return None
    above = superiority(run.answer_chars[judged], run.answer_chars[unjudged])
    tasks = len(np.unique(run.group[unjudged])), len(np.unique(run.group[judged]))
    if abs(above - 0.5) < limits["z"] * superiority_error(*tasks) or abs(above - 0.5) < 0.1:
        return None
    kind = "longer" if above > 0.5 else "shorter"
    return f"unjudged answers are {kind} (in {max(above, 1 - above):.0%} of comparisons)", None


def _by_sample(run: Evidence, limits: Limits) -> tuple[str, None] | None:
    """Whether some sample numbers are missing more often than others."""
    samples = run.samples
    if samples < 2 or samples > 256 or run.groups < 20:
        return None
    inside: Bools = (run.rollout >= 0) & (run.rollout < samples) & run.judged
    present = np.bincount(run.rollout[inside], minlength=samples)[:samples].astype(np.float64)
    mean = present.mean()
    lost = max(run.groups - mean, 1.0)
    spread = math.sqrt(mean * lost / run.groups)
    worst = int(present.argmin())
    z = (mean - present[worst]) / max(spread, 1.0)
    if z < limits["z"] + 2 or (mean - present[worst]) / run.groups < 0.05:
        return None
    return f"sample {worst} is there for {present[worst]:,.0f} tasks, others for {mean:,.0f} on average", None
