"""Token drift of recorded programs: turns whose prompt was tokenised differently from what the model had seen and written."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollforge.checks.base import Limits, check
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import Finding, share

COLUMN = "drift_turns"
"""Usage field of recorded programs: number of drifted turns in the main sequence."""


@check("token-drift", "recipe", recipes=("ppo", "grpo"), max_share=0.05)
def token_drift(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Programs rewrote the model's turns, so that whole rollouts differ from the sampled tokens."""
    if COLUMN not in run.source.numbers:
        return
    turns = run.number(COLUMN)
    has_count = ~np.isnan(turns)
    drifted = has_count & (turns > 0)
    if not drifted.any():
        return
    estimate = share(int(drifted.sum()), int(has_count.sum()))
    yield Finding(
        level="warning" if estimate.value > limits["max_share"] else "note",
        text=f"{estimate.count:,} of {estimate.n:,} rollouts with token ids drift: a later prompt became other tokens than the "
        f"model had "
        "written; stitched together they are not on-policy",
        value=estimate.value,
        threshold=limits["max_share"],
        n=estimate.n,
        interval=estimate.interval,
        where=run.lines(drifted),
        next=f"train on each call of rollouts that drift by itself: rollforge experiences {run.name}",
    )
