"""Implausible rewards: not finite, outside the declared range, or far from all others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollforge.checks.base import Limits, check
from rollforge.checks.building_blocks.coded_columns import LARGE
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import Finding, share


@check("non-finite-rewards", "verification", max_share=0.0)
def non_finite_rewards(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Some rewards are NaN or infinite."""
    lines = [line for line, reason in run.about.noted if "is no JSON; taken as missing" in reason]
    if not lines:
        return
    is_noted = np.isin(run.line, np.asarray(lines)) & ~run.judged
    estimate = share(int(is_noted.sum()), run.n)
    if not estimate.count or estimate.value <= limits["max_share"]:
        return
    yield Finding(
        level="error",
        text=f"{estimate.count:,} of {run.n:,} rollouts have a reward that is not finite; they count as unjudged, not as 0",
        value=estimate.value,
        threshold=limits["max_share"],
        n=run.n,
        interval=estimate.interval,
        where=run.lines(is_noted),
        next=f"mend the verifier, then judge them again: {run.verify_rest()}",
    )


@check("out-of-range", "verification", max_share=0.0)
def out_of_range(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Some rewards lie outside the declared range, or outside the range of all other rewards."""
    declared = run.about.declared
    low, high = declared or (run.range.low, run.range.high)
    outside = run.judged & ((run.reward < low - 1e-9) | (run.reward > high + 1e-9))
    if declared is None:
        outside &= np.abs(run.reward) <= LARGE  # extreme-rewards reports those beyond
    estimate = share(int(outside.sum()), run.judged_n)
    if estimate.value <= limits["max_share"]:
        return
    kind = (
        f"the declared range [{low:g}, {high:g}]"
        if declared
        else f"[{low:g}, {high:g}], where all others are"
    )
    yield Finding(
        level="error" if declared else "warning",
        text=f"{estimate.count:,} of {run.judged_n:,} rewards lie outside {kind}",
        value=estimate.value,
        threshold=limits["max_share"],
        n=run.judged_n,
        interval=estimate.interval,
        where=run.lines(outside),
        next=f'see them: rollforge show {run.name} --where "reward < {low:g} or reward > {high:g}" --limit 5',
    )


@check("extreme-rewards", "verification", max_size=10.0, max_share=0.05)
def extreme_rewards(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Some rewards are far larger than rewards usually are, and no range was declared."""
    if run.about.declared is not None or not run.judged_n:
        return
    size = limits["max_size"]
    extreme = run.judged & (np.abs(run.reward) > size)
    estimate = share(int(extreme.sum()), run.judged_n)
    if not estimate.count:
        return
    is_scale = estimate.value > limits["max_share"]
    farthest = float(run.values[np.abs(run.values).argmax()])
    yield Finding(
        level="warning" if is_scale else "error",
        text=f"{estimate.count:,} of {run.judged_n:,} rewards are beyond ±{size:g}, the farthest {farthest:g}"
        + ("; it seems to be the scale: declare it" if is_scale else "; the others are not"),
        value=farthest,
        threshold=size,
        n=run.judged_n,
        interval=estimate.interval,
        where=run.lines(extreme),
        next=f"declare the range: rollforge check {run.name} --reward-range {run.values.min():g} {run.values.max():g}"
        if is_scale
        else f'see them: rollforge show {run.name} --where "abs(reward) > {size:g}" --limit 5',
    )
