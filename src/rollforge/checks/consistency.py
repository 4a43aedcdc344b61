"""Inconsistent verdicts: with each other, with the verifier's other numbers, with the expected answer, or between versions."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from rollforge.checks.base import Limits, check
from rollforge.checks.building_blocks.coded_columns import TextCodes, about_text, has_one_each
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import Finding, Level, settle_text, share
from rollforge.statistics.intervals import normal_quantile
from rollforge.statistics.stats import Floats, Ints

GOODNESS = re.compile(
    r"(?:^|\.)(?:accuracy|acc|correct|correctness|is_correct|success|succeeded|passed|exact_match|score|solved|library_reward)$"
)
"""Names of numbers that mean the same as a reward: higher is better."""

LIKELY_GOODNESS = re.compile(r"(?:^|\.|_)(?:accuracy|acc|correct|pass|passed|pass_rate|success|score|f1|em)$")
OTHER_SCORES = re.compile(
    r"format|length|len_|style|penalt|toxic|halluc|novel|divers|brevity|risk|uncertain|confid|perplex|difficult|repet|bias|cost|"
    r"time|latency|error|refus|loss|entropy|safety"
)
"""Names that usually mean the same, unless they score something else; an error then needs a negative correlation."""

VERSIONS = frozenset(
    {"fields.fingerprint", "fields.mode", "fields.verifier", "grader_version", "judge_model", "judge_version",
     "verifier_fingerprint", "verifier_mode", "verifier_name", "verifier_version"}
)  # fmt: skip
"""Text fields that name the verifier of a row, used where `_rf` does not."""

MODES = frozenset({"fast", "precise", "quick", "strict", "lenient", "rule", "rules", "judge", "llm"})
"""Values of a field `mode` that belong to the verifier."""


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
    estimate = share(int(differ.sum()), len(starts))
    if not estimate.count:
        return
    level: Level = estimate.level_above(warning=0.0, error=limits["max_share"]) or "note"
    if estimate.count < 3 and level == "error":
        level = "warning"
    yield Finding(
        level=level,
        text=f"of {estimate.n:,} answers given more than once to the same task, {estimate.count:,} ({estimate.value:.1%}) were judged "
        f"differently{settle_text(estimate, level, limits['max_share'])}",
        value=estimate.value,
        threshold=limits["max_share"],
        n=estimate.n,
        interval=estimate.interval,
        where=run.lines(positions[np.isin(np.cumsum(is_new) - 1, np.flatnonzero(differ))]),
        next=f"judge them again and see what flips: {run.verify('--fresh --sample 500')}",
    )


@check("contradicting-metric", "verification", max_share=0.1, min_correlation=-0.2)
def contradicting_metric(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """A number that means the same as the reward says the opposite, or differs where all rewards are equal."""
    names = [name for name in run.metrics if is_goodness(name) or _is_likely_goodness(name)]
    for name, metric in run.each_number(names):
        yield from _contradiction(run, name, metric, limits)


def is_goodness(name: str) -> bool:
    """Whether a number of this name means the same as a reward."""
    return GOODNESS.search(name) is not None


def _is_likely_goodness(name: str) -> bool:
    return LIKELY_GOODNESS.search(name) is not None and OTHER_SCORES.search(name) is None


def _contradiction(run: Evidence, name: str, metric: Floats, limits: Limits) -> Iterator[Finding]:
    among = run.judged & ~np.isnan(metric)
    n = int(among.sum())
    if n < 20 or np.ptp(metric[among]) == 0:
        return
    low, high = float(metric[among].min()), float(metric[among].max())
    scaled = (metric - low) / (high - low)
    unearned = among & (run.scaled >= 0.9) & (scaled <= 0)
    denied = among & (run.scaled <= 0) & (scaled >= 1)
    correlation = _correlation(run, scaled, run.draw(among, 100_000))
    independent = run.independent(among)
    half = normal_quantile(0.995) / max(independent, 1.0) ** 0.5
    wrong = share(int(unearned.sum()), n, independent=independent)
    withheld = share(int(denied.sum()), n, independent=independent)
    # A reward may be withheld for reasons of its own, as for a bad format, but not always.
    is_opposite = correlation + half < limits["min_correlation"]
    is_ignored = len(run.levels) == 1 and withheld.low > limits["max_share"]
    if is_opposite or (is_goodness(name) and (is_ignored or wrong.low > limits["max_share"])):
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


def _correlation(run: Evidence, values: Floats, positions: Ints) -> float:
    """Correlation of scaled rewards with these values; 0 if one of them is constant."""
    rewards, others = run.scaled[positions], values[positions]
    return float(np.corrcoef(rewards, others)[0, 1]) if np.ptp(rewards) and np.ptp(others) else 0.0


@check("mixed-verifiers", "verification", max_share=0.01)
def mixed_verifiers(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Rewards come from more than one verifier, version of it, or mode."""
    for what, column in (
        ("verifier mode", run.mode), ("verifier version", run.fingerprint), ("verifier", run.verifier), *_said(run),
    ):  # fmt: skip
        counts = column.counts(run.judged)
        is_by_agent = what != "verifier mode" and has_one_each(run.agent, column, run.judged)
        if len(counts) < 2 or is_by_agent:
            continue
        is_by_task = what != "verifier mode" and _has_one_per_task(run, column)
        if what == "verifier version" and _is_one_by_chance(run, column):
            is_by_task = False
        if is_by_task and what != "verifier version":
            continue  # task families with verifiers of their own: no task was judged by two
        if (
            is_by_task
            and has_one_each(column, run.verifier, run.judged)
            and len(run.verifier.counts(run.judged)) > 1
        ):
            continue
        total = sum(counts.values())
        minor = total - max(counts.values())
        estimate = share(minor, total)
        yield Finding(
            level="error" if estimate.low > limits["max_share"] and not is_by_task else "warning",
            text=f"rewards come from {len(counts)} {what}s: {about_text(counts)}; they are not comparable",
            value=estimate.value,
            threshold=limits["max_share"],
            n=total,
            interval=estimate.interval,
            where=[{what: name, "rollouts": count} for name, count in counts.items()],
            next=f"judge all with one, and let its verdicts count: {run.verify('--fresh')}",
        )
        return


def _has_one_per_task(run: Evidence, column: TextCodes) -> bool:
    """Whether no task has two values of the column among its judged rollouts."""
    pairs = np.unique(np.stack([run.task_id[run.judged], column.codes[run.judged]]), axis=1)
    return bool(len(np.unique(pairs[0])) == pairs.shape[1])


def _is_one_by_chance(run: Evidence, column: TextCodes) -> bool:
    """Whether no task could show two values, having one judged rollout each, and neither runs, verifiers nor families explain them."""
    if run.judged_n > len(np.unique(run.task_id[run.judged])):
        return False
    is_pooled = run.about.runs > 1 or len(run.verifier.counts(run.judged)) > 1
    families = (run.family(name) for name in run.family_fields)
    return not is_pooled and not any(has_one_each(names, column, run.judged) for names in families)


def _said(run: Evidence) -> Iterator[tuple[str, TextCodes]]:
    """Columns of the rows that name a verifier."""
    for name in run.source.texts:
        if name in VERSIONS:
            column = TextCodes(run.source.table([name])[name])
            if name != "fields.mode" or set(column.names) <= MODES:
                yield name.removeprefix("fields.").replace("_", " "), column
