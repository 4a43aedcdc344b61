"""Confounds: rewards that follow length, turns, format or sample number, and answers that win everywhere.

A correlation alone is a note: right answers are often shorter for honest reasons. It becomes a warning or error only with a
second signal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rollforge.checks.base import Limits, check
from rollforge.checks.building_blocks.chance import (
    Correlation,
    Ranked,
    chance_of_more,
    rank_correlation_within,
)
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import Finding, Level, share
from rollforge.checks.building_blocks.text_samples import BUDGET, concludes
from rollforge.checks.missed import find_missed
from rollforge.statistics.stats import Floats, Ints, distinct

FORMATS = {
    "a code block": re.compile(r"```"),
    "a \\boxed answer": re.compile(r"\\boxed\{"),
    "headings or lists": re.compile(r"^\s*(?:#{1,4} |[-*] |\d+\. )", re.MULTILINE),
    "bold text": re.compile(r"\*\*[^*\n]+\*\*"),
    "tags": re.compile(r"</[a-zA-Z_]+>"),
}
"""Formatting features of an answer, each with the pattern that detects it."""


def _correlation(run: Evidence, values: Floats) -> Correlation | None:
    drawn = run.mixed_positions
    if "ranked rewards" not in run.shared:
        run.shared["ranked rewards"] = Ranked(run.reward[drawn], run.group[drawn])
    ranked: Ranked = run.shared["ranked rewards"]
    return ranked.correlation(values[drawn])


def _is_clear(correlation: Correlation, limit: float) -> bool:
    return correlation.low > limit or correlation.high < -limit


@check("length-bias", "confounds", max_correlation=0.3, max_strong=0.6)
def length_bias(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Within tasks, reward follows the length of the answer."""
    correlation = _correlation(run, run.answer_chars)
    if correlation is None or correlation.tasks < 10 or abs(correlation.value) < limits["max_correlation"]:
        return
    direction = "longer" if correlation.value > 0 else "shorter"
    is_clear = _is_clear(correlation, limits["max_correlation"])
    second = _hollow_winners(run) if is_clear else None
    level: Level = "note"
    if second is not None:
        level = "error" if _is_clear(correlation, limits["max_strong"]) else "warning"
    elif is_clear and (second := _missed_answers(run, direction)) is not None:
        level = "warning"  # a verifier that asks for brevity beside the right answer shows the same
    yield Finding(
        level=level,
        text=f"within tasks {direction} answers are rewarded more (rank correlation {correlation.value:+.2f} over "
        f"{correlation.tasks:,} tasks)"
        f"{second or '; right answers may simply be of that length'}",
        value=correlation.value,
        threshold=limits["max_correlation"],
        n=correlation.n,
        interval=[correlation.low, correlation.high],
        next=f'read rewarded answers of unusual length: rollforge show {run.name} --where "reward > {run.range.low:g}" --limit 5',
    )


def _missed_answers(run: Evidence, direction: str) -> str | None:
    """Second signal: right answers get no reward, so that length may decide instead."""
    missed = find_missed(run)
    if missed is None or missed.level == "note":
        return None
    return (
        f"; and {int(missed.hits.sum()):,} of {len(missed.hits):,} unrewarded answers looked at {missed.verb} the expected answer: "
        f"the reward seems to be for {direction} answers rather than for right ones"
    )


def _hollow_winners(run: Evidence) -> str | None:
    """Second signal: rewarded answers mostly do not end in the expected answer, although wrong ones differ from it too."""
    if "hollow winners" not in run.shared:
        run.shared["hollow winners"] = _read_winners(run)
    winners: str | None = run.shared["hollow winners"]
    return winners


def _read_winners(run: Evidence) -> str | None:
    drawn = run.draw(run.succeeded & ~run.is_empty & ~run.is_refusal, BUDGET)
    samples = run.read(drawn)
    with_expected = [item for item in samples if item.expected is not None]
    if len(with_expected) < 20:
        return None
    right = share(
        sum(concludes(item.answer, item.expected or "") for item in with_expected), len(with_expected)
    )
    if right.high > 0.5:
        return None
    return f"; and only {right.value:.0%} of the rewarded answers looked at end in the expected answer"


@check("turns-bias", "confounds", max_correlation=0.3)
def turns_bias(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Within tasks, reward follows the number of turns."""
    if not run.n or np.nanmax(run.turns, initial=0.0) <= 1:
        return
    correlation = _correlation(run, run.turns)
    if correlation is None or correlation.tasks < 10 or not _is_clear(correlation, limits["max_correlation"]):
        return
    yield Finding(
        level="note",
        text=f"within tasks rollouts of {'more' if correlation.value > 0 else 'fewer'} turns are rewarded more "
        f"(rank correlation {correlation.value:+.2f} over {correlation.tasks:,} tasks)",
        value=correlation.value,
        threshold=limits["max_correlation"],
        n=correlation.n,
        interval=[correlation.low, correlation.high],
        next=f'read some: rollforge show {run.name} --where "turns > 1" --limit 5',
    )


@check("format-bias", "confounds", max_correlation=0.3)
def format_bias(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Within tasks, reward follows how the answer is formatted."""
    drawn = _some_whole_tasks(run)
    if len(drawn) < 40:
        return
    samples = run.read(drawn)
    for what, pattern in FORMATS.items():
        has = np.asarray([pattern.search(item.answer) is not None for item in samples], dtype=np.float64)
        correlation = (
            rank_correlation_within(run.reward[drawn], has, run.group[drawn]) if 0 < has.mean() < 1 else None
        )
        if (
            correlation is None
            or correlation.tasks < 10
            or not _is_clear(correlation, limits["max_correlation"])
        ):
            continue
        second = _hollow_winners(run)
        yield Finding(
            level="note" if second is None else "warning",
            text=f"within tasks answers {'with' if correlation.value > 0 else 'without'} {what} are rewarded more (rank correlation "
            f"{correlation.value:+.2f} over {correlation.tasks:,} tasks looked at){second or ''}",
            value=correlation.value,
            threshold=limits["max_correlation"],
            n=correlation.n,
            interval=[correlation.low, correlation.high],
            next=f"read answers of tasks that get both rewards: rollforge show {run.name} --task {int(run.task_id[drawn[0]])}",
        )


def _some_whole_tasks(run: Evidence) -> Ints:
    """All judged rollouts of a few tasks whose rewards differ, within the budget for text."""
    positions = run.mixed_positions
    groups = distinct(run.group[positions])
    chosen = np.zeros(run.groups, dtype=np.bool_)
    chosen[run.draw(groups, max(1, BUDGET // max(run.samples, 1)))] = True
    return positions[chosen[run.group[positions]]][: 2 * BUDGET]


@check("position-bias", "confounds", max_correlation=0.1)
def position_bias(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Within tasks, reward follows the sample number, which should carry no information."""
    # Never more than a warning: files that were sorted or numbered elsewhere show the same, and nothing is wrong with them.
    correlation = _correlation(run, run.rollout.astype(np.float64))
    if correlation is None or correlation.tasks < 10 or not _is_clear(correlation, limits["max_correlation"]):
        return
    yield Finding(
        level="warning",
        text=f"within tasks {'later' if correlation.value > 0 else 'earlier'} samples are rewarded more (rank correlation "
        f"{correlation.value:+.2f} over {correlation.tasks:,} tasks); samples of a task should be exchangeable",
        value=correlation.value,
        threshold=limits["max_correlation"],
        n=correlation.n,
        interval=[correlation.low, correlation.high],
        next="look for what differs between samples: seeds, caches, prompts that grow, a verifier that changed",
    )


@check("repeated-winners", "confounds", min_tasks=6, min_chars=30, max_share=0.02, advantage=0.2, chance=1e-3)
def repeated_winners(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """A few answers, word for word, win in many different tasks."""
    among = run.judged & (run.answer_chars >= limits["min_chars"]) & ~(run.tool_calls > 0)
    among &= ~run.is_refusal & ~run.error_text  # these have checks of their own
    positions = np.flatnonzero(among)
    usual = float(run.succeeded[positions].mean()) if len(positions) >= 50 else 1.0
    winners = _winners(run, positions, usual, limits)
    if not winners:
        return
    members = np.concatenate([item.members for item in winners])
    estimate = share(int(run.succeeded[members].sum()), int(run.succeeded.sum()))
    is_right = _are_right(run, members[run.succeeded[members]])
    yield Finding(
        level="note" if is_right else "error" if estimate.low > limits["max_share"] else "warning",
        text=f"{len(winners)} answers win again and again: the commonest, word for word, in {winners[0].tasks:,} different tasks with "
        f"success {winners[0].won:.0%} against {usual:.0%} usually; together {estimate.value:.1%} of all rewarded rollouts"
        f"{'; most end in the expected answer' if is_right else ''}",
        value=estimate.value,
        threshold=limits["max_share"],
        n=estimate.n,
        interval=estimate.interval,
        where=run.lines(members),
        next=f'read it: rollforge show {run.name} --where "answer_hash = {int(run.answer_hash[members[0]])}" --limit 1',
    )


class _Winner(NamedTuple):
    """An answer that wins in every task where it occurs."""

    members: Ints
    tasks: int
    won: float


def _winners(run: Evidence, positions: Ints, usual: float, limits: Limits) -> list[_Winner]:
    """Answers that win in more of their tasks than chance and their usual rate explain, most frequent first."""
    candidates = _commonest(run.answer_hash[positions], int(limits["min_tasks"]))
    positions = positions[np.isin(run.answer_hash[positions], candidates)]
    winners = []
    for candidate in candidates.tolist():
        members = positions[run.answer_hash[positions] == candidate]
        tasks, won = len(np.unique(run.group[members])), float(run.succeeded[members].mean())
        is_luck = chance_of_more(won, tasks, usual) * len(candidates) > limits["chance"]
        if tasks >= limits["min_tasks"] and won > min(usual + limits["advantage"], 0.95) and not is_luck:
            winners.append(_Winner(members, tasks, won))
    return winners


def _are_right(run: Evidence, winners: Ints) -> bool:
    """Whether most of these answers end in the expected answer, so that they win legitimately; False where that is unknown."""
    drawn = run.draw(winners, 50)
    samples = run.read(drawn)
    with_expected = [item for item in samples if item.expected is not None]
    return (
        bool(with_expected)
        and sum(concludes(item.answer, item.expected or "") for item in with_expected)
        > len(with_expected) / 2
    )


def _commonest(hashes: Ints, least: int) -> Ints:
    """Hashes that occur at least a given number of times, the 50 most frequent first."""
    ordered = np.sort(hashes)
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    counts = np.diff(np.append(starts, len(ordered)))
    top = np.argsort(-counts, kind="stable")[:50]
    return ordered[starts[top[counts[top] >= least]]]
