"""Run-level conclusions from per-task numbers: difficulty bands, learning signal, variance, tasks to review first."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa

from rollforge.adaptive.group_yield import Chain, Pattern, Rewards, group_yields, samples_of
from rollforge.index import ByTask, floats
from rollforge.statistics import at_k, stats
from rollforge.statistics.stats import Floats, Ints
from rollforge.steps.profile.profile_records import (
    BANDS,
    Look,
    NoSignal,
    ProfileSummary,
    VarianceParts,
    Yield,
)

HARD, EASY = 0.25, 0.75
YIELD_K = (2, 4, 8, 16, 32, 64)
FEW = 4
"""Fewest samples of a task for a meaningful correlation of reward and length."""


def band_numbers(rate: Floats) -> Ints:
    """Index into `BANDS` of each pass rate; `len(BANDS)` if it is unknown."""
    edges = [rate == 0, rate <= HARD, rate < EASY, rate < 1, rate == 1]
    return np.select(edges, range(len(BANDS)), default=len(BANDS))


def summarize(rows: ByTask, tasks: pa.Table, threshold: float, tolerance: float, look: int) -> ProfileSummary:
    """The summary of a profile."""
    index = rows.index
    reward = rows.one("reward")
    groups = stats.summarize_groups(reward, rows.starts)
    bands = np.bincount(band_numbers(floats(tasks.column("pass_rate"))), minlength=len(BANDS) + 1).tolist()
    signal = tasks.column("has_signal")
    of = len(signal) - signal.null_count
    has_signal = (groups.max - groups.min > tolerance) & (groups.n > 1)
    without = of - int(has_signal.sum())
    length = rows.one("answer_chars")
    within = _within_correlation(rows, reward, length)
    parts = stats.variance_parts(groups.mean, groups.std, groups.n)
    return ProfileSummary(
        run=", ".join(str(files.rollouts) for files in index.runs),
        tasks=tasks.num_rows,
        rollouts=len(rows),
        judged=int(groups.n.sum()),
        expected=index.expected if rows.where is None else None,
        rejected_lines=index.rejected_lines,
        noted_lines=index.noted_lines,
        duplicates=index.duplicate_count,
        threshold=threshold,
        bands=dict(zip(BANDS, bands[:-1], strict=True)),
        unjudged_tasks=bands[-1],
        no_signal=NoSignal(tasks=without, share=without / of if of else None, of=of, tolerance=tolerance),
        group_yield=_yields(rows, reward, tolerance),
        variance=VarianceParts(
            between_tasks=parts.between, within_tasks=parts.within, intraclass=parts.intraclass
        ),
        tokens_per_success=_tokens_per_success(rows, reward, threshold),
        reward_against_length=within[0],
        look=_looks(
            rows, groups, reward, length, within[1], threshold=threshold, tolerance=tolerance, most=look
        ),
    )


def _tokens_per_success(rows: ByTask, reward: Floats, threshold: float) -> float | None:
    """Output tokens per success, over judged rollouts with a token count."""
    if "output_tokens" not in rows.index.numbers:
        return None
    tokens = rows.one("output_tokens")
    counts = ~np.isnan(reward) & ~np.isnan(tokens)
    solved = int((reward[counts] >= threshold).sum())
    return float(tokens[counts].sum()) / solved if solved else None


def _yields(rows: ByTask, reward: Floats, tolerance: float) -> list[Yield]:
    """Expected group yield for the usual k, from the counts of each task's distinct rewards."""
    are_two = _are_two(reward, tolerance)
    patterns = _high_counts(rows, reward) if are_two else _patterns(rows, reward, tolerance)
    usable = {pattern: tasks for pattern, tasks in patterns.items() if samples_of(pattern) > 1}
    if not usable:
        return []
    sizes = [samples_of(pattern) for pattern in usable]
    every_k = sorted({*YIELD_K, max(sizes)})
    values = group_yields(usable, every_k, are_two=are_two)
    return [
        Yield(k=k, value=value, is_exact=k <= min(sizes), tasks=sum(usable.values()))
        for k, value in zip(every_k, values, strict=True)
    ]


def _are_two(reward: Floats, tolerance: float) -> bool:
    """Whether rewards take only two values."""
    rewards = reward[~np.isnan(reward)]
    if not len(rewards) or rewards.max() - rewards.min() <= 3 * tolerance:  # a high one might match a low one
        return False
    return bool(((rewards - rewards.min() <= tolerance) | (rewards.max() - rewards <= tolerance)).all())


def _high_counts(rows: ByTask, reward: Floats) -> Counter[Rewards]:
    """For two-valued rewards: (number of high, number of low) → number of tasks."""
    middle = np.nanmin(reward) / 2 + np.nanmax(reward) / 2
    highs, judged_counts = rows.sums(np.where(np.isnan(reward), np.nan, (reward > middle).astype(np.float64)))
    return Counter(zip(highs.astype(int).tolist(), (judged_counts - highs).astype(int).tolist(), strict=True))


def _patterns(rows: ByTask, reward: Floats, tolerance: float) -> Counter[Rewards]:
    """Counts of a task's distinct rewards → number of tasks with these counts."""
    patterns: Counter[Rewards] = Counter()
    for _, _, ascending in at_k.groups_by_size(reward, rows.starts):
        is_chain = _are_chains(ascending, tolerance)
        for counts, times in _class_counts(ascending[~is_chain], tolerance):
            patterns[counts] += times
        patterns.update(_chain(one, tolerance) for one in ascending[is_chain])
    return patterns


def _are_chains(ascending: Floats, tolerance: float) -> np.ndarray:
    """Whether adjacent rewards of a task are within the tolerance although its extremes are not."""
    column = np.arange(ascending.shape[1])
    is_first = np.diff(ascending, axis=1, prepend=-np.inf) > tolerance
    first = np.maximum.accumulate(np.where(is_first, column, 0), axis=1)
    apart = ascending - np.take_along_axis(ascending, first, axis=1)
    return np.asarray((apart > tolerance).any(axis=1))


def _chain(ascending: Floats, tolerance: float) -> Chain:
    matches = ascending[None, :] - ascending[:, None] <= tolerance
    return Chain(tuple(np.triu(matches, 1).sum(axis=1).tolist()))


def _class_counts(ascending: Floats, tolerance: float) -> list[tuple[Pattern, int]]:
    """Counts of a task's distinct rewards (most frequent first) with the number of tasks that have them."""
    size = ascending.shape[1]
    if size == 1 or not len(ascending):
        return [((1,) * size, len(ascending))]
    steps = np.diff(ascending, axis=1) > tolerance
    packed = np.packbits(steps, axis=1)
    times = Counter(packed.view(f"V{packed.shape[1]}").ravel().tolist())
    patterns = []
    for bits, count in sorted(times.items()):
        cuts = np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8), count=size - 1)) + 1
        patterns.append((tuple(sorted(np.diff(np.r_[0, cuts, size]).tolist(), reverse=True)), count))
    return patterns


def _within_correlation(rows: ByTask, reward: Floats, length: Floats) -> tuple[float | None, Floats]:
    """Correlation of reward and length within tasks: pooled, and per task (NaN if undefined)."""
    each = np.full(len(rows.tasks), np.nan)
    products = squares_one = squares_two = 0.0
    ends = np.append(rows.starts, len(rows))
    for first in range(0, len(each), at_k.AT_ONCE):
        last = min(first + at_k.AT_ONCE, len(each))
        some = slice(ends[first], ends[last])
        product, square_one, square_two, counts = _centred_sums(
            reward[some], length[some], rows.starts[first:last] - ends[first], np.diff(ends[first : last + 1])
        )
        products += float(product.sum())
        squares_one += float(square_one.sum())
        squares_two += float(square_two.sum())
        with np.errstate(invalid="ignore", divide="ignore"):
            each[first:last] = np.where(counts >= FEW, product / np.sqrt(square_one * square_two), np.nan)
    each[~np.isfinite(each)] = np.nan
    spread = float(np.sqrt(squares_one * squares_two))
    return (products / spread if spread > 0 else None), each


def _centred_sums(
    reward: Floats, length: Floats, starts: Ints, sizes: Ints
) -> tuple[Floats, Floats, Floats, Floats]:
    """Per group, sums of products and of squares of deviations from the group means, and the number of pairs without missing
    values.
    """
    has_both = ~np.isnan(reward) & ~np.isnan(length)
    counts = np.add.reduceat(has_both.astype(np.float64), starts)

    def centred(values: Floats) -> Floats:
        values = np.where(has_both, values, 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = np.add.reduceat(values, starts) / counts
        return np.where(has_both, values - np.repeat(means, sizes), 0.0)

    one, two = centred(reward), centred(length)
    product, square_one, square_two = (
        np.add.reduceat(each, starts) for each in (one * two, one * one, two * two)
    )
    return product, square_one, square_two, counts


def _looks(
    rows: ByTask,
    groups: Any,
    reward: Floats,
    length: Floats,
    correlation: Floats,
    *,
    threshold: float,
    tolerance: float,
    most: int,
) -> dict[str, list[Look]]:
    """Tasks to review, by reason, the most striking first."""
    hits = np.where(np.isnan(reward), np.nan, (reward >= threshold).astype(np.float64))
    solved, judged = rows.sums(hits)
    chars, counted = rows.sums(length)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_chars, rate = chars / counted, solved / judged
    usual = stats.median(mean_chars[counted > 0]) if (counted > 0).any() else 0.0
    picks: dict[str, tuple[str, Floats, Any]] = {
        "highest_variance": ("rewards differ most", groups.std, groups.max - groups.min > tolerance),
        "never_solved_long": (
            "never solved, answers are long", mean_chars, (judged > 0) & (solved == 0) & (mean_chars > usual),
        ),
        "solved_once": ("solved by one sample only", judged, (solved == 1) & (judged > 2)),
        "reward_against_length": ("reward goes with length", np.abs(correlation), np.abs(correlation) > 0.8),
    }  # fmt: skip
    looks: dict[str, list[Look]] = {}
    for reason, (why, ranked_by, chosen) in picks.items():
        positions = np.flatnonzero(chosen & ~np.isnan(ranked_by))
        best: Ints = positions[np.lexsort((rows.tasks[positions], -ranked_by[positions]))][:most]
        shown = correlation if reason == "reward_against_length" else ranked_by
        looks[reason] = [
            Look(
                task=int(rows.tasks[position]), why=why, pass_rate=float(rate[position]), mean_reward=float(groups.mean[position]),
                std_reward=None if np.isnan(groups.std[position]) else float(groups.std[position]),
                judged=int(judged[position]), value=float(shown[position]),
            )
            for position in best.tolist()
        ]  # fmt: skip
    return looks
