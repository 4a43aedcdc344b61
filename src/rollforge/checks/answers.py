"""Answers without content: empty, an error message, cut off."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollforge.checks.base import Limits, check
from rollforge.checks.building_blocks.coded_columns import Bools
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import RECIPES, Finding, settle_text, share
from rollforge.index import begins_like_error


def _share_of(
    run: Evidence, among: Bools, limits: Limits, text: str, column: str, advice: str
) -> Iterator[Finding]:
    estimate = share(int(among.sum()), run.n, independent=run.all_independent)
    level = estimate.level_above(warning=limits["warn_share"], error=limits["max_share"])
    if level is None:
        return
    yield Finding(
        level=level,
        text=f"{estimate.count:,} of {run.n:,} answers ({estimate.value:.1%}) "
        f"{text}{settle_text(estimate, level, limits['max_share'])}",
        value=estimate.value,
        threshold=limits["max_share"],
        n=run.n,
        interval=estimate.interval,
        where=run.lines(among),
        next=f"{advice}; see them: rollforge show {run.name} --where {column} --limit 5",
    )


@check("empty-answers", "collection", warn_share=0.01, max_share=0.05)
def empty_answers(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Answers without text or tool call."""
    advice = "look at finish reasons, stop words and the chat template"
    is_empty = run.is_empty & ~run.is_unrecorded  # unrecorded-answers reports those
    yield from _share_of(run, is_empty, limits, "are empty", "is_empty", advice)


@check("unrecorded-answers", "collection")
def unrecorded_answers(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """The agent records no output, although rollouts are judged."""
    estimate = share(int(run.is_unrecorded.sum()), run.n)
    if not estimate.count or not run.judged[run.is_unrecorded].any():
        return
    yield Finding(
        level="warning",
        text=f"{estimate.count:,} of {run.n:,} rollouts have a verdict but no recorded output: the agent does not keep its "
        f"trajectory, "
        "so there is nothing to train on",
        value=estimate.value,
        n=run.n,
        interval=estimate.interval,
        where=run.lines(run.is_unrecorded),
        next="let the agent return its output items; rewards and metrics stay usable",
    )


@check("nothing-recorded", "recipe", recipes=RECIPES, max_share=0.5)
def nothing_recorded(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Most judged rollouts have no recorded output to train on."""
    estimate = share(int((run.is_unrecorded & run.judged).sum()), run.judged_n)
    if estimate.value <= limits["max_share"]:
        return
    yield Finding(
        level="error",
        text=f"{estimate.count:,} of {run.judged_n:,} judged rollouts have no recorded output: there is nothing to train on",
        value=estimate.value,
        threshold=limits["max_share"],
        n=run.judged_n,
        interval=estimate.interval,
        where=run.lines(run.is_unrecorded),
        is_final=True,
        next="let the agent return its output items, then collect again",
    )


@check("error-answers", "collection", warn_share=0.0, max_share=0.005, max_rewarded=0.1)
def error_answers(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Answers that are error messages: ERROR, HTML, a stack trace, a provider's error object."""
    advice = "they are failures, not answers: make the agent raise"
    for finding in _share_of(run, run.error_text, limits, "look like error messages", "error_text", advice):
        yield _unless_rewarded(run, run.error_text, finding, limits["max_rewarded"])
    if run.error_text.any():
        return
    is_full = ~run.is_empty[run.spread]
    drawn = run.spread[is_full]
    begins_so = [begins_like_error(item.answer) for item in run.spread_samples]
    is_error = np.asarray(begins_so, dtype=np.bool_)[is_full]
    estimate = share(int(is_error.sum()), len(drawn))
    level = estimate.level_above(warning=limits["warn_share"], error=limits["max_share"])
    if level is None or (estimate.count < 2 and level == "warning"):
        return
    finding = Finding(
        level=level,
        text=f"{estimate.count:,} of {estimate.n:,} answers looked at ({estimate.value:.1%}) begin like error messages",
        value=estimate.value,
        threshold=limits["max_share"],
        n=estimate.n,
        interval=estimate.interval,
        where=run.lines(drawn[is_error]),
        next=f"{advice}; see one: rollforge show {run.name} --line {run.line[drawn[is_error][0]]}",
    )
    yield _unless_rewarded(run, run.flags(drawn[is_error]), finding, limits["max_rewarded"])


def _unless_rewarded(run: Evidence, among: Bools, finding: Finding, limit: float) -> Finding:
    """The finding, reduced to a warning if the verifier rewards such answers: a task may ask for an HTML page, or for one word."""
    judged = among & run.judged
    rewarded = share(
        int((judged & run.succeeded).sum()), int(judged.sum()), independent=run.independent(judged)
    )
    if finding.level == "error" and rewarded.low > limit:
        finding.level = "warning"
        finding.text += f"; {rewarded.value:.0%} of them are rewarded, so that they may be what was asked for"
    return finding


@check("truncated-answers", "collection", spares=("sft", "dpo", "kto", "rm"), warn_share=0.05, max_share=0.3)
def truncated_answers(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Answers cut off at the token limit."""
    advice = "raise --max-output-tokens"
    yield from _share_of(run, run.is_truncated, limits, "are truncated", "is_truncated", advice)
