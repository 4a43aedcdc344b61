"""Unjudged rollouts that cluster on few tasks or answers: verification then fails because of the answer, not at random."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from rollforge.checks.base import Limits, check
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import Finding
from rollforge.statistics.stats import Ints


@check("unjudged-clusters", "verification", min_unjudged=6, max_share=0.9, z=5.0)
def unjudged_clusters(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Unjudged rollouts cluster on few tasks or answers: a model can learn to avoid verdicts there."""
    missing = ~run.judged
    total = int(missing.sum())
    if total < limits["min_unjudged"] or not run.n or total > limits["max_share"] * run.n:
        return
    for label, keys in (("tasks", run.task_id), ("answers", run.answer_hash)):
        groups, inverse = np.unique(keys, return_inverse=True)
        sizes: Ints = np.bincount(inverse, minlength=len(groups))
        counts: Ints = np.bincount(inverse, weights=missing, minlength=len(groups)).astype(np.int64)
        z = overdispersion(counts, sizes)
        hit = counts > 0
        if z < limits["z"] or int(hit.sum()) * 2 > len(groups):
            continue
        yield Finding(
            level="warning",
            text=f"{total:,} of {run.n:,} rollouts are unjudged, and they belong to {int(hit.sum()):,} of {len(groups):,} "
            f"{label}: the verifier fails on these, not by chance",
            value=float(z),
            threshold=limits["z"],
            n=total,
            where=run.lines(missing),
            next=f'see them: rollforge show {run.name} --where "reward is null" --limit 5',
        )
        return


def overdispersion(counts: Ints, sizes: Ints) -> float:
    """How many standard deviations the chi-square statistic exceeds that of a single binomial share for all groups."""
    several = sizes > 1
    counts, sizes = counts[several], sizes[several]
    if len(sizes) < 5:
        return 0.0
    share = counts.sum() / sizes.sum()
    if not 0 < share < 1:
        return 0.0
    chi2 = float((((counts - sizes * share) ** 2) / (sizes * share * (1 - share))).sum())
    freedom = len(sizes) - 1
    return (chi2 - freedom) / math.sqrt(2 * freedom)
