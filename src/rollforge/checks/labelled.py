"""Labels by people: the verifier's error rate, estimated from a random sample of its verdicts."""

from __future__ import annotations

from collections.abc import Iterator

from rollforge.checks.base import Limits, check
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import Finding, Level


@check("labelled-errors", "verification", warn_share=0.05, max_share=0.15)
def labelled_errors(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """People who reviewed randomly drawn verdicts disagree with many of them."""
    rates = run.about.labels
    if rates is None or rates.error.value is None or rates.error.ci is None:
        return
    share, n, (low, high) = rates.error.value, rates.error.n, rates.error.ci
    level: Level | None = None
    if low > limits["max_share"]:
        level = "error"
    elif low > limits["warn_share"] or share > limits["max_share"]:
        level = "warning"
    elif share > limits["warn_share"]:
        level = "note"
    if level is None:
        return
    sides = [
        f"{words} {rate.value:.0%}"
        for words, rate in (("precision", rates.precision), ("recall", rates.recall))
        if rate.value is not None
    ]
    yield Finding(
        level=level,
        text=f"people disagree with {share:.0%} of the verdicts they looked at ({low:.0%} to {high:.0%}, {n:,} drawn "
        f"at random)" + (f"; {', '.join(sides)}" if sides else ""),
        value=share,
        threshold=limits["max_share"],
        n=n,
        interval=[low, high],
        next=f"compare another verifier with the labels: rollforge verify {run.name} --diff labels VERIFIER",
    )
