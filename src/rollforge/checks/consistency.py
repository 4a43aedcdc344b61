"""Verdicts that do not agree: with themselves, with the verifier's other numbers, with the expected answer, with one version."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np

from rollforge.checks.base import Finding, Level, Limits, check, settle_text, share
from rollforge.checks.evidence import Evidence, about_text
from rollforge.checks.samples import BUDGET, concludes
from rollforge.stats import normal_quantile

GOODNESS = re.compile(
    r"(?:^|\.)(?:accuracy|acc|correct|correctness|is_correct|success|succeeded|passed|exact_match|score|solved)$"
)
"""Names of numbers that mean the same as a reward: more is better."""


@check("inconsistent-verdicts", "verification", max_share=0.05, gap=0.1)
def inconsistent_verdicts(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Equal answers to the same task get different rewards."""
    among = run.judged & (run.answer_chars > 0) & ~(run.tool_calls > 0)
    positions = np.flatnonzero(among)
    if len(positions) < 2:
        return
    codes = run.answer_code[positions]
    counts = np.bincount(codes)
    positions, codes = positions[counts[codes] > 1], codes[counts[codes] > 1]
    order = np.argsort(codes, kind="stable")
    positions, codes = positions[order], codes[order]
    if not len(positions):
        return
    is_new = np.append(True, codes[1:] != codes[:-1])
    starts = np.flatnonzero(is_new)
    rewards = run.scaled[positions]
    gaps = np.maximum.reduceat(rewards, starts) - np.minimum.reduceat(rewards, starts)
    differ = gaps > limits["gap"]
    found = share(int(differ.sum()), len(starts))
    if not found.count:
        return
    level: Level = found.level_above(warning=0.0, error=limits["max_share"]) or "note"
    if found.count < 3 and level == "error":
        level = "warning"
    yield Finding(
        level=level,
        text=f"of {found.n:,} answers given more than once to the same task, {found.count:,} ({found.value:.1%}) were judged "
        f"differently{settle_text(found, level, limits['max_share'])}",
        value=found.value,
        threshold=limits["max_share"],
        n=found.n,
        interval=found.interval,
        where=run.lines(positions[np.isin(np.cumsum(is_new) - 1, np.flatnonzero(differ))]),
        next=f"judge them again and see what flips: rollforge verify {run.name} --verifier {run.verifier_name} --fresh --sample 500",
    )


@check("missed-answers", "verification", warn_share=0.02, max_share=0.06)
def missed_answers(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Answers that end in the expected answer score 0: it may not have been extracted."""
    lost = run.judged & (run.scaled <= 0.0) & ~run.is_empty & ~run.is_truncated & (run.answer_chars > 0)
    drawn = run.draw(lost, BUDGET)
    if len(drawn) < 10:
        return
    samples = run.texts.read(run.row[drawn].tolist(), run.task_id[drawn].tolist())
    kept = [place for place, item in enumerate(samples) if item.expected is not None]
    if len(kept) < 10:
        return
    hits = np.asarray([concludes(samples[place].answer, samples[place].expected or "") for place in kept])
    # Small answer sets agree by chance: how often does the end name the expected answer of another task?
    others = kept[len(kept) // 2 :] + kept[: len(kept) // 2]
    control = np.asarray(
        [
            concludes(samples[place].answer, samples[other].expected or "")
            for place, other in zip(kept, others, strict=True)
        ]
    )
    found, by_chance = share(int(hits.sum()), len(kept)), share(int(control.sum()), len(kept))
    excess = found.value - by_chance.value
    half = math.hypot(found.value - found.low, by_chance.high - by_chance.value)
    if excess <= limits["warn_share"]:
        return
    level: Level = "error" if excess - half > limits["max_share"] else "warning" if excess > half else "note"
    yield Finding(
        level=level,
        text=f"{found.count:,} of {found.n:,} answers with reward {run.range.low:g} that were looked at end in the expected answer "
        f"({by_chance.value:.0%} would by chance): suspected extraction failure",
        value=excess,
        threshold=limits["max_share"],
        n=found.n,
        interval=[max(0.0, excess - half), min(1.0, excess + half)],
        where=run.lines(drawn[np.asarray(kept)[hits]]),
        next=f"compare with a second verifier: rollforge verify {run.name} --verifier math "
        f"&& rollforge verify {run.name} --diff recorded math",
    )


@check("contradicting-metric", "verification", max_share=0.1, min_correlation=-0.2)
def contradicting_metric(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """A number that means the same as the reward says the opposite."""
    if len(run.levels) < 2:
        return
    for name in run.metrics:
        if GOODNESS.search(name) is not None:
            yield from _contradiction(run, name, limits)


def _contradiction(run: Evidence, name: str, limits: Limits) -> Iterator[Finding]:
    metric = run.number(name)
    among = run.judged & ~np.isnan(metric)
    n = int(among.sum())
    if n < 20 or np.ptp(metric[among]) == 0:
        return
    low, high = float(metric[among].min()), float(metric[among].max())
    scaled = (metric - low) / (high - low)
    unearned = among & (run.scaled >= 0.9) & (scaled <= 0)
    denied = among & (run.scaled <= 0) & (scaled >= 1)
    drawn = run.draw(among, 100_000)
    correlation = float(np.corrcoef(run.scaled[drawn], scaled[drawn])[0, 1]) if np.ptp(scaled[drawn]) else 0.0
    independent = run.independent(among)
    half = normal_quantile(0.995) / max(independent, 1.0) ** 0.5
    wrong = share(int(unearned.sum()), n, independent=independent)
    withheld = share(int(denied.sum()), n, independent=independent)
    is_opposite = correlation + half < limits["min_correlation"]
    if is_opposite or wrong.low > limits["max_share"]:
        level: Level = "error"
    elif wrong.value > limits["max_share"] or withheld.low > limits["max_share"]:
        level = "warning"
    else:
        return
    yield Finding(
        level=level,
        text=f"{name} contradicts reward: correlation {correlation:.2f}; {wrong.count:,} of {n:,} rollouts are rewarded with "
        f"{name} = {low:g}, {withheld.count:,} get nothing with {name} = {high:g}",
        value=correlation,
        threshold=limits["min_correlation"],
        n=n,
        interval=[max(-1.0, correlation - half), min(1.0, correlation + half)],
        where=run.lines(unearned | denied),
        next=f'see them: rollforge show {run.name} --limit 5 --where "({name} = {low:g} and reward > {run.range.low:g}) '
        f'or ({name} = {high:g} and reward <= {run.range.low:g})"',
    )


@check("mixed-verifiers", "verification", max_share=0.01)
def mixed_verifiers(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Rewards come from more than one verifier, version of it, or mode."""
    for what, column in (("mode", run.mode), ("version", run.fingerprint), ("verifier", run.verifier)):
        counts = column.counts(run.judged)
        if len(counts) < 2:
            continue
        total = sum(counts.values())
        minor = total - max(counts.values())
        found = share(minor, total)
        yield Finding(
            level="error" if found.low > limits["max_share"] else "warning",
            text=f"rewards come from {len(counts)} verifier {what}s: {about_text(counts)}; they are not comparable",
            value=found.value,
            threshold=limits["max_share"],
            n=total,
            interval=found.interval,
            where=[{what: name, "rollouts": count} for name, count in counts.items()],
            next=f"judge all with one: rollforge verify {run.name} --verifier {run.verifier_name} "
            f"&& rollforge verify {run.name} --use {run.verifier_name}",
        )
        return
