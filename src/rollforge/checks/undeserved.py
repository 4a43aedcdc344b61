"""Rewards for answers that cannot deserve one: empty, refused, cut off, or copies of the prompt."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollforge.checks.base import Limits, check
from rollforge.checks.building_blocks.coded_columns import Bools
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import Finding, Level, Share, settle_text, share
from rollforge.checks.building_blocks.text_samples import BUDGET, SHORTEST_PROMPT, repeats
from rollforge.statistics.stats import Ints


def _rewarded(run: Evidence, among: Bools) -> Share:
    judged = run.judged & among
    return share(int((run.succeeded & judged).sum()), int(judged.sum()), independent=run.independent(judged))


def _finding(
    run: Evidence, kind: str, column: str, level: Level, estimate: Share, limit: float, more: str = ""
) -> Finding:
    return Finding(
        level=level,
        text=f"{estimate.count:,} of {estimate.n:,} {kind} answers ({estimate.value:.0%}) are rewarded{more}{run.range.note}"
        f"{settle_text(estimate, level, limit)}",
        value=estimate.value,
        threshold=limit,
        n=estimate.n,
        interval=estimate.interval,
        next=f'see them: rollforge show {run.name} --where "{column} and reward >= {_success(run):g}" --limit 5',
    )


def _success(run: Evidence) -> float:
    return run.range.low + run.success_at * (run.range.high - run.range.low)


@check("rewarded-empty", "verification", max_share=0.05, max_silent=0.3)
def rewarded_empty(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Empty answers are rewarded."""
    is_empty = run.is_empty & ~run.is_unrecorded
    estimate = _rewarded(run, is_empty)
    if estimate.count:
        level: Level = "error" if estimate.low > limits["max_share"] and estimate.count >= 3 else "warning"
        finding = _finding(run, "empty", "is_empty", level, estimate, limits["max_share"])
        finding.where = run.lines(is_empty & run.succeeded)
        yield finding
    calls = run.tool_calls > 0
    silent = calls & (run.answer_chars == 0)
    if float(silent.sum()) > limits["max_silent"] * float(
        calls.sum()
    ):  # agents that only act say nothing at the end
        return
    estimate = _rewarded(run, silent)
    if estimate.low > limits["max_share"] and estimate.count >= 3:
        finding = _finding(
            run, "empty", "answer_chars = 0", "warning", estimate, limits["max_share"], ", though others say something after calls"
        )  # fmt: skip
        finding.where = run.lines(silent & run.succeeded)
        yield finding


@check("rewarded-refusal", "verification", max_share=0.2, max_refused=0.3)
def rewarded_refusal(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Refusals are rewarded, in a run that is not about refusing."""
    among = run.is_refusal & ~run.is_empty
    estimate = _rewarded(run, among)
    level = estimate.level_above(warning=limits["max_share"] / 2, error=limits["max_share"])
    if level is None or estimate.count < 3:
        return
    refused = float(among.mean())
    if refused > limits["max_refused"]:  # tasks that ought to be refused: the reward may be right
        level = "note"
    finding = _finding(run, "refusing", "is_refusal", level, estimate, limits["max_share"])
    finding.where = run.lines(among & run.succeeded)
    yield finding


@check("rewarded-truncated", "verification", max_share=0.5)
def rewarded_truncated(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Truncated answers are rewarded more often than whole ones."""
    among = run.is_truncated & ~run.is_empty
    estimate, whole = _rewarded(run, among), _rewarded(run, ~run.is_truncated)
    if estimate.count < 3 or not whole.n:
        return
    limit = max(limits["max_share"], whole.high)
    if estimate.low <= limit and estimate.value <= max(limits["max_share"], whole.value):
        return
    level: Level = "error" if estimate.low > limit else "note"
    more = f", more often than whole ones ({whole.value:.0%})"
    finding = _finding(run, "truncated", "is_truncated", level, estimate, limit, more)
    finding.where = run.lines(among & run.succeeded)
    yield finding


@check("rewarded-echo", "verification", max_share=0.05)
def rewarded_echo(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Answers that only repeat the prompt are rewarded."""
    paid, paid_weight = _echoes(run, True)
    if not len(paid):
        return
    unpaid, unpaid_weight = _echoes(run, False)
    # Rewarded and unrewarded answers are sampled separately, so each echo has a weight.
    count, others = len(paid) * paid_weight, len(unpaid) * unpaid_weight
    looked_at = run.independent(run.flags(np.concatenate([paid, unpaid])))
    estimate = share(count, count + others, independent=looked_at)
    is_proof = estimate.low > limits["max_share"] and len(paid) >= 3
    yield Finding(
        level="error" if is_proof else "warning",
        text=f"{len(paid):,} of {len(paid) + len(unpaid):,} answers looked at that only repeat the prompt are rewarded"
        f"{run.range.note}",
        value=estimate.value,
        threshold=limits["max_share"],
        n=len(paid) + len(unpaid),
        interval=estimate.interval,
        where=run.lines(paid),
        next=f"ask the verifier what it must know: {run.verify('--probe')}",
    )


def _echoes(run: Evidence, is_rewarded: bool) -> tuple[Ints, float]:
    """Positions of sampled answers that repeat the prompt, and how many rollouts of the run each sampled rollout represents."""
    among = run.judged & (run.succeeded == is_rewarded) & (run.answer_chars >= SHORTEST_PROMPT)
    drawn = run.draw(among, BUDGET)
    samples = run.read(drawn)
    is_echo = np.asarray([repeats(item.answer, item.prompt) for item in samples], dtype=np.bool_)
    return drawn[is_echo], int(among.sum()) / max(len(drawn), 1)
