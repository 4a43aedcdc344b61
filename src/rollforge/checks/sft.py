"""Fit for supervised fine-tuning: enough good examples from many prompts, without many duplicates."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from rollforge.checks.base import Limits, check
from rollforge.checks.building_blocks.coded_columns import Bools
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import SAMPLE, Finding, share
from rollforge.statistics.counts import count_of


def _threshold(run: Evidence, limits: Limits) -> float:
    """The lowest scaled reward to keep: the top value of a two-valued reward, else the limit."""
    return 1.0 if run.is_binary else limits["min_reward"]


def _kept(run: Evidence, limits: Limits) -> Bools:
    good = np.nan_to_num(run.scaled, nan=-1.0) >= _threshold(run, limits) - 1e-9
    return good & ~run.is_empty & ~run.error_text


@check("sft-few-examples", "recipe", recipes=("sft",), min_reward=0.95, min_examples=100, good_examples=1000)
def few_examples(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Too few rollouts are good enough to imitate."""
    examples = int(_kept(run, limits).sum())
    least, good = limits["min_examples"], limits["good_examples"]
    if examples >= good:
        return
    rate = examples / run.judged_n if run.judged_n else 0.0
    reached = count_of(run.judged_n, "rollout reaches", "rollouts reach")
    text = f"{examples:,} of {reached} the scaled reward {_threshold(run, limits):g}"
    if not run.is_binary:
        lower = int((np.nan_to_num(run.scaled, nan=-1.0) >= 0.90).sum())
        text += f"; at 0.90 you would keep {lower:,} instead"
    if rate > 0:
        wanted = least if examples < least else good
        text += (
            f"; at this rate {wanted:,.0f} take about {math.ceil((wanted - examples) / rate):,} more rollouts"
        )
    is_proven = examples == 0 or run.judged_n >= SAMPLE * least
    yield Finding(
        level="note" if examples >= least else "error" if is_proven else "warning",
        needs_more=examples < least,
        text=text + run.range.note,
        value=float(examples),
        threshold=least,
        n=run.judged_n,
        next="collect more, ease the tasks, or lower it: --set sft-few-examples.min_reward=0.9",
    )


@check("sft-low-mean", "recipe", recipes=("sft",), min_reward=0.95, min_mean=0.9)
def low_mean(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """The kept examples have a low mean reward."""
    is_example = _kept(run, limits)
    if not is_example.any():
        return
    mean = float(run.scaled[is_example].mean())
    if mean >= limits["min_mean"]:
        return
    yield Finding(
        level="error",
        text=f"the mean scaled reward of the {int(is_example.sum()):,} examples kept is {mean:.2f}{run.range.note}",
        value=mean,
        threshold=limits["min_mean"],
        n=int(is_example.sum()),
        next="raise the threshold: --set sft-low-mean.min_reward=0.95",
    )


@check("sft-duplicates", "recipe", recipes=("sft",), min_reward=0.95, max_share=0.3)
def duplicates(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """The same answer to the same task is kept more than once."""
    examples = np.flatnonzero(_kept(run, limits))
    if len(examples) < 20:
        return
    keys = int((np.bincount(run.answer_code[examples]) > 0).sum())
    estimate = share(len(examples) - keys, len(examples))
    if estimate.low <= limits["max_share"]:
        return
    yield Finding(
        level="warning",
        text=f"{estimate.count:,} of {estimate.n:,} examples kept ({estimate.value:.0%}) are word for word another one of the "
        f"same task",
        value=estimate.value,
        threshold=limits["max_share"],
        n=estimate.n,
        interval=estimate.interval,
        next=f"keep one of each: rollforge prepare sft {run.name} -o data/sft --to trl --dedupe exact",
    )


@check("sft-narrow", "recipe", recipes=("sft",), min_reward=0.95, min_tasks=0.2)
def narrow(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """The kept examples come from few of the tasks, mostly easy ones."""
    is_example = _kept(run, limits)
    if int(is_example.sum()) < 20:
        return
    per_task = run.per_group(is_example)
    estimate = share(int((per_task > 0).sum()), run.groups)
    counts = np.sort(per_task)[::-1]
    tenth = float(counts[: max(1, run.groups // 10)].sum() / counts.sum())
    is_judged = run.profile.n > 0
    hard = is_judged & (run.scaled_profile.mean < 0.5)
    from_hard = float(per_task[hard].sum() / per_task.sum())
    level = "warning" if estimate.high < limits["min_tasks"] else "note"
    yield Finding(
        level=level,  # type: ignore[arg-type]
        text=f"examples kept come from {estimate.count:,} of {estimate.n:,} tasks ({estimate.value:.0%}); the tenth with most "
        f"gives {tenth:.0%} of them, tasks that fail more often than not {from_hard:.0%}",
        value=estimate.value,
        threshold=limits["min_tasks"],
        n=estimate.n,
        interval=estimate.interval,
        next=f"keep a few per task: rollforge prepare sft {run.name} -o data/sft --to trl --per-task 4",
    )
