"""Rewards for answers that cannot deserve one: empty, refused, cut off, an echo of the prompt."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollforge.checks.base import Finding, Level, Limits, Share, check, settle_text, share
from rollforge.checks.evidence import Bools, Evidence
from rollforge.checks.samples import BUDGET, bare


def _rewarded(run: Evidence, among: Bools) -> Share:
    judged = run.judged & among
    return share(int((run.succeeded & judged).sum()), int(judged.sum()), independent=run.independent(judged))


def _finding(
    run: Evidence, kind: str, column: str, level: Level, found: Share, limit: float, more: str = ""
) -> Finding:
    return Finding(
        level=level,
        text=f"{found.count:,} of {found.n:,} {kind} answers ({found.value:.0%}) are rewarded{more}{run.range.note}"
        f"{settle_text(found, level, limit)}",
        value=found.value,
        threshold=limit,
        n=found.n,
        interval=found.interval,
        next=f'see them: rollforge show {run.name} --where "{column} and reward >= {_success(run):g}" --limit 5',
    )


def _success(run: Evidence) -> float:
    return run.range.low + run.success_at * (run.range.high - run.range.low)


@check("rewarded-empty", "verification", max_share=0.05)
def rewarded_empty(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Empty answers are rewarded."""
    found = _rewarded(run, run.is_empty)
    if not found.count:
        return
    level: Level = "error" if found.low > limits["max_share"] and found.count >= 3 else "warning"
    finding = _finding(run, "empty", "is_empty", level, found, limits["max_share"])
    finding.where = run.lines(run.is_empty & run.succeeded)
    yield finding


@check("rewarded-refusal", "verification", max_share=0.2, max_refused=0.3)
def rewarded_refusal(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Refusals are rewarded, in a run that is not about refusing."""
    among = run.is_refusal & ~run.is_empty
    found = _rewarded(run, among)
    level = found.level_above(warning=limits["max_share"] / 2, error=limits["max_share"])
    if level is None or found.count < 3:
        return
    refused = float(among.mean())
    if refused > limits["max_refused"]:  # tasks that ought to be refused: the reward may be right
        level = "note"
    finding = _finding(run, "refusing", "is_refusal", level, found, limits["max_share"])
    finding.where = run.lines(among & run.succeeded)
    yield finding


@check("rewarded-truncated", "verification", max_share=0.5)
def rewarded_truncated(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Truncated answers are rewarded more often than whole ones."""
    among = run.is_truncated & ~run.is_empty
    found, whole = _rewarded(run, among), _rewarded(run, ~run.is_truncated)
    if found.count < 3 or not whole.n:
        return
    limit = max(limits["max_share"], whole.high)
    if found.low <= limit and found.value <= max(limits["max_share"], whole.value):
        return
    level: Level = "error" if found.low > limit else "note"
    more = f", more often than whole ones ({whole.value:.0%})"
    finding = _finding(run, "truncated", "is_truncated", level, found, limit, more)
    finding.where = run.lines(among & run.succeeded)
    yield finding


@check("rewarded-echo", "verification", max_share=0.05)
def rewarded_echo(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Answers that only repeat the prompt are rewarded."""
    rewarded = run.succeeded & (run.answer_chars >= 20)
    drawn = run.draw(rewarded, BUDGET)
    if not len(drawn):
        return
    samples = run.texts.read(run.row[drawn].tolist(), run.task_id[drawn].tolist())
    is_echo = np.asarray(
        [
            bool(item.prompt) and len(item.prompt) >= 20 and bare(item.answer) == bare(item.prompt)
            for item in samples
        ]
    )
    found = share(int(is_echo.sum()), len(drawn))
    if not found.count:
        return
    level: Level = "error" if found.low > limits["max_share"] else "warning"
    yield Finding(
        level=level,
        text=f"{found.count:,} of {found.n:,} rewarded answers looked at only repeat the prompt",
        value=found.value,
        threshold=limits["max_share"],
        n=found.n,
        interval=found.interval,
        where=run.lines(drawn[is_echo]),
        next=f"ask the verifier what it must know: rollforge verify {run.name} --verifier {run.verifier_name} --probe",
    )
