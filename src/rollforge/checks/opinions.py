"""Second opinions on the verifier: recorded verdicts of other verifiers, and probes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import numpy as np

from rollforge.checks.base import Limits, check
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import Finding, share

LEAST = 20
"""Fewest rollouts that both verifiers judged."""


@check("verifiers-disagree", "verification", warn_share=0.05, min_agreement=0.2)
def verifiers_disagree(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Another verifier judged the same rollouts and disagrees."""
    success = run.range.low + run.success_at * (run.range.high - run.range.low)
    for name, rewards in run.other_rewards.items():
        both = run.judged & ~np.isnan(rewards)
        n = int(both.sum())
        if n < LEAST:
            continue
        ours, theirs = run.succeeded[both], rewards[both] >= success
        differ = both.copy()
        differ[both] = ours != theirs
        estimate = share(int(differ.sum()), n, independent=run.independent(both))
        agreement = _kappa(ours, theirs)
        level = estimate.level_above(warning=limits["warn_share"], error=1.0)
        if level is None or (level == "note" and agreement > limits["min_agreement"]):
            continue
        by_chance = "" if agreement > limits["min_agreement"] else ": hardly more agreement than by chance"
        yield Finding(
            level="warning",
            text=f"{name} judged {n:,} of these rollouts too and disagrees on {estimate.count:,} ({estimate.value:.1%}): it rewards "
            f"{int((theirs & ~ours).sum()):,} that get nothing here, and gives nothing to {int((ours & ~theirs).sum()):,} that are "
            f"rewarded here (kappa {agreement:.2f}){by_chance}",
            value=estimate.value,
            threshold=limits["warn_share"],
            n=n,
            interval=estimate.interval,
            where=run.lines(differ),
            next=f"read where they differ: rollforge verify {run.name} "
            f"--diff {shlex.quote(run.counting_verifier)} {shlex.quote(name)}",
        )


def _kappa(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Cohen's kappa: agreement beyond chance; 1 if neither verifier's verdicts vary."""
    agree = float((ours == theirs).mean())
    p, q = float(ours.mean()), float(theirs.mean())
    by_chance = p * q + (1 - p) * (1 - q)
    return (agree - by_chance) / (1 - by_chance) if by_chance < 1 else 1.0


@check("failed-probe", "verification")
def failed_probe(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """A probe found this version of the verifier broken."""
    probe = run.probe
    if probe is None or not probe.is_broken or not run.judged_n:
        return
    yield Finding(
        level="error",
        text=f"a probe found the verifier broken: {probe.reason}",
        value=float(len(probe.reasons)),
        n=run.judged_n,
        next=f"mend it, then judge again: {run.verify('--fresh')}",
    )


@check("never-probed", "verification")
def never_probed(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """The verifier was never tested on answers whose verdict is known."""
    if run.probe is not None or not run.about.is_collected or not run.judged_n or not run.verifier.names:
        return
    yield Finding(
        level="note",
        text="the verifier was never probed: nothing shows yet that it knows right answers from empty or swapped ones",
        value=0.0,
        n=run.judged_n,
        next=f"probe it: {run.verify('--probe')}",
    )
